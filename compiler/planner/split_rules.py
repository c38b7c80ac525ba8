"""Runs in passes by rule: where fewer blocks fit so than without, which reads weights less often.

Runs in strips of columns by rule: where weights stay beside a row of a strip, and do not beside a whole row.

Then they come once, for any number of blocks.  What it takes are halos of columns, and short bursts at DDR.

What rules ask of plans: the least division that fits, and whether weights stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple, TypeVar

from compiler.ops.conv import ConvSpec
from compiler.plan.plan import ConvTiling, SegmentPlan
from compiler.segment.channel_splits import (
    behind_vector,
    halos_of_passes,
    input_counts,
    pass_counts,
    runs_of_products,
    runs_with_input_passes,
    runs_with_passes,
    runs_with_result_passes,
    sums_hidden,
)
from compiler.space.decode import decode
from compiler.space.gene import Gene, block_counts
from compiler.space.persistent import FREE, Space
from compiler.space.strips import most_strips
from compiler.space.structural_hash import Structures
from compiler.target.capabilities import room_blocks
from compiler.target.storage import TensorSlice
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp
from simulator.npu.parts import Memory

_Value = TypeVar("_Value")


def first_fitting(values: Sequence[_Value], fits: Callable[[_Value], bool]) -> _Value | None:
    """The least of ascending values that fits, if those above it do; None where none does."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(values[middle]) else (middle + 1, high)
    return values[low] if low < len(values) else None


def reloads_weights(target_graph: TargetGraph, plan: SegmentPlan, start: int) -> bool:
    """Whether some weights come for every block; not those that are streamed from what UB keeps of them (`target.weight_expansion`)."""
    pairs = zip(target_graph.operators[start:], plan.tilings, strict=False)
    return any(isinstance(tiling, ConvTiling) and tiling.weights == "streamed" and not _kept(spec) for spec, tiling in pairs)


def staying_blocks(target_graph: TargetGraph, start: int, stop: int) -> int:
    """Blocks of L1 that the weights of a run of operators take where none of them come for every block of several."""
    return sum([spec.weight_blocks for spec in target_graph.operators[start:stop] if not _kept(spec)])


def _kept(spec: TargetOp) -> bool:
    return isinstance(spec, ConvSpec) and spec.expansion is not None and spec.expansion.kept


_MOST = 4  # blocks in passes over hidden channels: with more of them little is left to gain
_PART = 8  # of what a run in as few blocks as fit without input passes moves, that these have to save
_MOST_ROWS = 16  # blocks beside passes over results
_MOST_LOOKS = 12  # of these
_BESIDE = 2  # passes over results at a time
_MOST_OPERATORS = 1024  # of all passes: more are runs too small to be worth a look
_MOST_BESIDE = 96  # the same beside tensors that are held, which are many
_MOST_STRIPS = 4  # beside input passes
_MOST_INPUTS = 32  # input passes: runs of so many are small beside what they are summed up in


class _Division(NamedTuple):
    """cached: operators, as bits, that cache their halos.  prefetch, window: 0: as the gene has it."""

    blocks: int
    passes: int
    input_passes: int
    prefetch: int
    cached: int = -1
    columns: int = 1
    window: int = 0


def genes_in_passes(target_graph: TargetGraph, structures: Structures, like: Gene) -> list[Gene]:
    """Of every run that may be in passes over hidden channels, in every number of blocks in which it does not fit as a whole, the fewest
    passes that do, in input passes too where these let fewer do; the fewest blocks of runs whose weights come for every block, with the
    fewest input passes for these, where that saves enough; and of runs that may be in passes over the channels of their results, where
    input and weights do not come once, as many blocks and passes as move least.

    like: the gene's other fields, its cores as far as there are blocks for them.
    """
    found, known = list[Gene](), dict[tuple[str, object], list[_Division]]()
    runs = [(run, _over_hidden) for run in runs_with_passes(target_graph)] + [
        (run, _over_inputs) for run in runs_with_input_passes(target_graph)
    ]
    for (start, stop), divisions in [*runs, *((run, _over_results) for run in runs_with_result_passes(target_graph))]:
        key = structures.structure(start, stop), divisions
        gene = like._replace(start=start, stop=stop)
        if key not in known:
            known[key] = divisions(target_graph, gene)
        found += [_divided(target_graph, gene, *division) for division in known[key]]
    return found


def _divided(
    target_graph: TargetGraph, gene: Gene, blocks: int, passes: int = 1, input_passes: int = 1, prefetch: int = 0, cached: int = -1,
    columns: int = 1,
    window: int = 0,
) -> Gene:  # fmt: skip
    """Halos are cached, but of runs that input passes load: all of these would stay from block to block."""
    gene = gene._replace(blocks=blocks, columns=columns, passes=passes, input_passes=input_passes)
    gene = gene._replace(prefetch=prefetch or gene.prefetch, window=window or gene.window)
    cached = cached if blocks > 1 else 0
    if cached and input_passes > 1 and target_graph.operators[gene.start].operator.has_halo:
        cached &= (1 << (gene.stop - gene.start)) - 2
    return gene._replace(cores=gene.cores[: blocks * target_graph.images], cached=cached)


def _over_hidden(target_graph: TargetGraph, gene: Gene) -> list[_Division]:
    found, counts = [], pass_counts(target_graph, gene.start, gene.stop)
    for blocks in _few(block_counts(target_graph, gene.start, gene.stop)):
        if decode(target_graph, _divided(target_graph, gene, blocks)) is not None:
            break
        fits = (count for count in counts if decode(target_graph, _divided(target_graph, gene, blocks, count)) is not None)
        if (passes := next(fits, 0)) > 0:
            found.append(_Division(blocks, passes, 1, gene.prefetch))
        elif input_counts(target_graph, gene.start, gene.stop) and _is_worth(target_graph, gene):
            found += _with_inputs(target_graph, gene, blocks, counts)
    else:
        if halos_of_passes(target_graph, gene.start, gene.stop, counts[-1]):
            found += _made_again(target_graph, gene)
    return found


def _made_again(target_graph: TargetGraph, gene: Gene, space: Space = FREE, most: int = _MOST_OPERATORS) -> list[_Division]:
    """In ascending numbers of blocks the fewest passes over hidden channels that fit, and the fewest with which weights stay, each as long
    as these are fewer than in fewer blocks; where weights stay, more blocks have to let them stay as well.

    Halos of hidden channels are made again: cached, they would stay from block to block in every pass.  most: operators of all passes.
    More passes are taken to fit where fewer do, and to let weights stay where fewer do.
    """
    counts, found = pass_counts(target_graph, gene.start, gene.stop), list[_Division]()
    cached = ~halos_of_passes(target_graph, gene.start, gene.stop, counts[-1])
    fitting = counts = tuple(count for count in counts if count * (gene.stop - gene.start) <= most)
    able = not gene.pinned  # whose tilings say of themselves whether weights stay
    much = staying_blocks(target_graph, gene.start, gene.stop) > room_blocks(target_graph.machine, Memory.L1) - space[1]
    for blocks in block_counts(target_graph, gene.start, gene.stop):
        counts = counts if able and not (much and blocks * target_graph.images > 1) else ()
        if not fitting and not counts:
            break

        def plan(count: int, blocks: int = blocks) -> SegmentPlan | None:
            return decode(target_graph, _divided(target_graph, gene, *_Division(blocks, count, 1, 1, cached)), *space)

        def stays(count: int, blocks: int = blocks) -> bool:
            made = plan(count, blocks)
            return made is not None and not reloads_weights(target_graph, made, gene.start)

        fits, stay = first_fitting(fitting, lambda count: plan(count) is not None), first_fitting(counts, stays)
        found += [_Division(blocks, count, 1, 1, cached) for count in dict.fromkeys((fits, stay)) if count is not None]
        if fits is not None:
            fitting = fitting[: fitting.index(fits)]
        if stay is not None:
            fitting, counts = (), counts[: counts.index(stay)]
    return found


def smaller_in_passes(target_graph: TargetGraph, gene: Gene, space: Space) -> list[Gene]:
    """The gene's operators in passes over hidden channels, as far as these fit beside tensors that are held; none where there are none."""
    if not sums_hidden(target_graph, gene.start, gene.stop):
        return []
    return [_divided(target_graph, gene, *division) for division in _made_again(target_graph, gene, space, _MOST_BESIDE)]


def _is_worth(target_graph: TargetGraph, gene: Gene) -> bool:
    """Whether weights are more than little, and will not stay."""
    return _PART * _weights(target_graph, gene) >= room_blocks(target_graph.machine, Memory.L1)


def _weights(target_graph: TargetGraph, gene: Gene) -> int:
    """Blocks of the weights of a run, and of right operands that it does not make."""
    run = target_graph.operators[gene.start : gene.stop]
    rights = [spec.right for spec in run if spec.right is not None and not any(other.y.overlaps(spec.right) for other in run)]
    return sum(spec.weight_blocks for spec in run) + sum(_size(target_graph, right) for right in rights)


class _Tiles(NamedTuple):
    """Passes over results, before it is known whether they fit.  whole: whether the input is there as a whole, and comes once."""

    blocks: int
    passes: int
    whole: bool
    window: int


def _over_results(target_graph: TargetGraph, gene: Gene) -> list[_Division]:
    """Of the numbers of blocks those first that move least, two passes at a time before one, in as few as there may be room for, or the
    next."""
    if not _is_worth(target_graph, gene) or _keeps_weights(target_graph, gene):
        return []
    first, room, counts = (
        target_graph.operators[gene.start],
        room_blocks(target_graph.machine, Memory.L1),
        pass_counts(target_graph, gene.start, gene.stop),
    )
    loaded, weights = _size(target_graph, first.reads[0]) * target_graph.images, _weights(target_graph, gene)
    sums, split = bool(input_counts(target_graph, gene.start, gene.stop)), behind_vector(target_graph.operators[gene.start : gene.stop])
    alone = _live(target_graph, gene)
    needs = {1: alone, _BESIDE: [(a + alone[split - 1][0], b + alone[split - 1][1]) for a, b in alone]}

    def moved(tiles: _Tiles) -> tuple[int, int, int]:
        return tiles.blocks * weights + (tiles.passes if sums and not tiles.whole else 1) * loaded, -tiles.window, tiles.passes

    def has_room(tiles: _Tiles) -> bool:
        have = (room - tiles.whole * loaded // tiles.blocks) * tiles.passes
        return all(rows // tiles.blocks + all_rows <= have for rows, all_rows in needs[tiles.window])

    able = list[_Tiles]()
    for blocks, window, whole in product(range(1, _MOST_ROWS + 1), (_BESIDE, 1) if split else (1,), (True, False) if sums else (False,)):
        once = (1,) if sums and not whole and window == 1 else ()
        able += [tiles for count in (*once, *counts) if has_room(tiles := _Tiles(blocks, count, whole, window))][:2]
    for tiles in sorted(able, key=moved)[:_MOST_LOOKS]:
        if tiles.whole and decode(target_graph, _divided(target_graph, gene, tiles.blocks, tiles.passes, window=tiles.window)) is not None:
            return [_Division(tiles.blocks, tiles.passes, 1, gene.prefetch, window=tiles.window)]
        if not tiles.whole and (found := _with_inputs(target_graph, gene, tiles.blocks, (tiles.passes,), tiles.window)):
            return found if tiles.passes > 1 else []
    return []


def _keeps_weights(target_graph: TargetGraph, gene: Gene) -> bool:
    """Whether as few blocks as fit without passes have all weights once: one block, or with weights that stay."""
    able = block_counts(target_graph, gene.start, gene.stop)
    fewest = first_fitting(able, lambda blocks: decode(target_graph, _divided(target_graph, gene, blocks)) is not None)
    plan = None if fewest is None else decode(target_graph, _divided(target_graph, gene, fewest))
    return plan is not None and (fewest == 1 or not reloads_weights(target_graph, plan, gene.start))


def _size(target_graph: TargetGraph, piece: TensorSlice) -> int:
    return piece.planes * target_graph.storages[piece.storage].plane_blocks


def _live(target_graph: TargetGraph, gene: Gene) -> list[tuple[int, int]]:
    """For each operator of a run what is in L1 at it at least, in one pass and one block: blocks of tensors of which a block has some rows,
    and of right operands, of which it has all."""
    run, found = target_graph.operators[gene.start : gene.stop], []
    rights = [spec.right for spec in run if spec.right is not None]
    last = {spec.index: max((c for c in target_graph.consumers[spec.index] if c < gene.stop), default=-1) for spec in run}
    for at in run:
        rows = all_rows = 0
        for spec in run[: at.index + 1 - gene.start]:
            in_place = last[spec.index] == at.index and at.runs_on == "VECTOR"
            if last[spec.index] >= at.index and not in_place:
                size = _size(target_graph, spec.y)
                rows, all_rows = (rows, all_rows + size) if any(each.overlaps(spec.y) for each in rights) else (rows + size, all_rows)
            elif spec is at and spec.runs_on == "CUBE" and last[spec.index] < 0 and len(run) == 1:
                rows += _size(target_graph, spec.y)  # sums
        found.append((rows, all_rows))
    return found


def _with_inputs(target_graph: TargetGraph, gene: Gene, blocks: int, counts: Sequence[int], window: int = 0) -> list[_Division]:
    """The fewest of ascending numbers of passes that fit in input passes, with the fewest of these; none where none do."""
    every = input_counts(target_graph, gene.start, gene.stop) or (1,)
    most = [[count for count in every if count <= _most_inputs(gene, passes)] for passes in counts]
    for prefetch in (gene.prefetch, 1):

        def fits(passes: int, inputs: int, prefetch: int = prefetch) -> bool:
            return decode(target_graph, _divided(target_graph, gene, blocks, passes, inputs, prefetch, window=window)) is not None

        able = [(passes, mine) for passes, mine in zip(counts, most, strict=True) if mine]
        found = first_fitting(able, lambda each: fits(each[0], each[1][-1]))
        if found is not None:
            passes, mine = found
            return [_Division(blocks, passes, next(count for count in mine if fits(passes, count)), prefetch, window=window)]
    return []


def _most_inputs(gene: Gene, passes: int) -> int:
    return min(_MOST_INPUTS, _MOST_OPERATORS // (passes * (gene.stop - gene.start)))


def _few(counts: Sequence[int]) -> list[int]:
    return [count for count in counts if count <= _MOST]


def _over_inputs(target_graph: TargetGraph, gene: Gene) -> list[_Division]:
    counts, able = input_counts(target_graph, gene.start, gene.stop), block_counts(target_graph, gene.start, gene.stop)
    counts = tuple(count for count in counts if count <= _MOST_INPUTS)
    operators, found = target_graph.operators[gene.start : gene.stop], list[_Division]()
    weights = sum(spec.weight_blocks for spec in operators)
    if not _is_worth(target_graph, gene):
        return []
    ends = (
        sum(piece.planes * target_graph.storages[piece.storage].plane_blocks for piece in (operators[0].reads[0], operators[-1].y))
        * target_graph.images
    )
    for prefetch in (gene.prefetch, 1):

        def plan(blocks: int, count: int = 1, columns: int = 1, prefetch: int = prefetch) -> SegmentPlan | None:
            return decode(target_graph, _divided(target_graph, gene, blocks, 1, count, prefetch, columns=columns))

        fewest = first_fitting(able, lambda blocks: plan(blocks) is not None)
        whole = None if fewest is None else plan(fewest)
        if fewest is None or whole is None:
            continue
        if not reloads_weights(target_graph, whole, gene.start):
            break
        enough = fewest + -(ends + weights * fewest) // (_PART * weights)
        for columns in range(1, min(_MOST_STRIPS, most_strips(target_graph, gene.start, gene.stop)) + 1):

            def fits(blocks: int, columns: int = columns) -> bool:
                return plan(blocks, counts[-1], columns) is not None

            blocks = first_fitting(range(1, enough // columns + 1), fits)
            if blocks is None:
                continue
            count = next(count for count in counts if plan(blocks, count, columns) is not None)
            found.append(_Division(blocks, 1, count, prefetch, columns=columns))
            enough = blocks * columns - 1
    return found


_STRIP_PART = 8  # of L1 that weights are at least: fewer are little beside what strips take


def genes_in_strips(target_graph: TargetGraph, structures: Structures, like: Gene) -> list[Gene]:
    """Of every short run of products the fewest strips in which its weights stay, and of these the fewest blocks.

    like: the gene's other fields, its cores as far as there are blocks for them.
    """
    found, known = list[Gene](), dict[str, tuple[int, int, int] | None]()
    for start, stop in runs_of_products(target_graph):
        key = structures.structure(start, stop)
        gene = like._replace(start=start, stop=stop)
        if key not in known:
            known[key] = _division(target_graph, gene)
        if (division := known[key]) is not None:
            found.append(_divided_strips(target_graph, gene, *division))
    return found


def _divided_strips(target_graph: TargetGraph, gene: Gene, columns: int, blocks: int, prefetch: int) -> Gene:
    cores = gene.cores[: blocks * target_graph.images]
    return gene._replace(columns=columns, blocks=blocks, cores=cores, prefetch=prefetch, cached=-1 if blocks > 1 else 0)


def _division(target_graph: TargetGraph, gene: Gene) -> tuple[int, int, int] | None:
    """Strips, blocks and slots of loads; None where strips are of no use."""
    room = room_blocks(target_graph.machine, Memory.L1)
    weights = sum(spec.weight_blocks for spec in target_graph.operators[gene.start : gene.stop])
    if not room <= _STRIP_PART * weights < _STRIP_PART * room:
        return None
    counts, strips = block_counts(target_graph, gene.start, gene.stop), range(2, most_strips(target_graph, gene.start, gene.stop) + 1)

    def stay(blocks: int, prefetch: int, columns: int) -> bool:
        plan = decode(target_graph, _divided_strips(target_graph, gene, columns, blocks, prefetch))
        return plan is not None and not reloads_weights(target_graph, plan, gene.start)

    slots = gene.prefetch, 1
    if any(stay(counts[-1], prefetch, 1) for prefetch in slots):
        return None
    for prefetch in slots:
        if (columns := first_fitting(strips, partial(stay, counts[-1], prefetch))) is not None:
            blocks = next(count for count in counts if stay(count, prefetch, columns))
            return columns, blocks, prefetch
    return None
