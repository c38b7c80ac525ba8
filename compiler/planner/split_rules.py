"""Rules for splits: the smallest split with which a run fits, or with which its weights stay in L1.

Passes are used if they reduce the number of blocks, because weights are then read less often.

Strips of columns are used if weights fit L1 together with a row of a strip, but not with a full row.  Weights are then loaded once for any
number of blocks, at the cost of column halos and short DDR bursts.
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
from compiler.segment.core_channels import can_split
from compiler.space.decode import decode
from compiler.space.gene import Gene, block_counts
from compiler.space.knobs import part_counts
from compiler.space.persistent import FREE, Space
from compiler.space.strips import largest_strip_count
from compiler.space.structural_hash import Structures
from compiler.target.capabilities import room_blocks
from compiler.target.storage import TensorSlice
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp
from simulator.npu.parts import Memory

_Value = TypeVar("_Value")
_GRID_BLOCKS, _GRID_PASSES = 2, 3  # numbers of blocks, and of input passes, of a run on each grid


def first_fitting(values: Sequence[_Value], fits: Callable[[_Value], bool]) -> _Value | None:
    """Smallest of ascending values that fits, assuming that all larger ones fit too; None if none does."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(values[middle]) else (middle + 1, high)
    return values[low] if low < len(values) else None


def reloads_weights(target_graph: TargetGraph, plan: SegmentPlan, start: int) -> bool:
    """Whether some weights are loaded for every block; weights expanded from packed data in UB (`target.weight_expansion`) do not count."""
    pairs = zip(target_graph.operators[start:], plan.tilings, strict=False)
    return any(isinstance(tiling, ConvTiling) and tiling.weights == "streamed" and not _kept(spec) for spec, tiling in pairs)


def resident_weight_blocks(target_graph: TargetGraph, start: int, stop: int) -> int:
    """Blocks of L1 for the weights of a run of operators if all stay resident."""
    return sum([spec.weight_blocks for spec in target_graph.operators[start:stop] if not _kept(spec)])


def _kept(spec: TargetOp) -> bool:
    return isinstance(spec, ConvSpec) and spec.expansion is not None and spec.expansion.resident


_MOST = 4  # most blocks with passes over hidden channels: more gain little
_PART = 8  # input passes must save 1/8 of the bytes that a run in the fewest fitting blocks moves
_MOST_ROWS = 16  # most blocks with passes over results
_MOST_LOOKS = 12  # most tries of these
_BESIDE = 2  # passes over results at a time
_MOST_OPERATORS = 1024  # most operators over all passes: more make runs too small to gain
_MOST_BESIDE = 96  # the same beside persistent tensors, where many candidates are tried
_MOST_STRIPS = 4  # most strips with input passes
_MOST_INPUTS = 32  # most input passes: more make runs small compared with their sums


class _Division(NamedTuple):
    """Split of a run.  cached: operators, as bits, that cache their halos.  prefetch, window: 0: the gene's own."""

    blocks: int
    passes: int
    input_passes: int
    prefetch: int
    cached: int = -1
    columns: int = 1
    window: int = 0


def genes_in_passes(target_graph: TargetGraph, structures: Structures, template: Gene) -> list[Gene]:
    """Genes in passes for every run that may have passes.

    Passes over hidden channels: for every number of blocks that does not fit in one pass, the fewest passes that fit, with input passes if
    that reduces them.  Input passes, if weights are loaded for every block: the fewest blocks, with the fewest input passes for them, if
    enough is saved.  Passes over result channels, if inputs and weights are not loaded once: the blocks and passes with the least traffic.

    template: the other fields of the genes; a gene has no more cores than blocks.
    """
    genes, cache = list[Gene](), dict[tuple[str, object], list[_Division]]()
    runs = [(run, _over_hidden) for run in runs_with_passes(target_graph)] + [
        (run, _over_inputs) for run in runs_with_input_passes(target_graph)
    ]
    for (start, stop), divisions in [*runs, *((run, _over_results) for run in runs_with_result_passes(target_graph))]:
        key = structures.structure(start, stop), divisions
        gene = template._replace(start=start, stop=stop)
        if key not in cache:
            cache[key] = divisions(target_graph, gene)
        genes += [_divided(target_graph, gene, *division) for division in cache[key]]
    return genes


def _divided(
    target_graph: TargetGraph, gene: Gene, blocks: int, passes: int = 1, input_passes: int = 1, prefetch: int = 0, cached: int = -1,
    columns: int = 1,
    window: int = 0,
) -> Gene:  # fmt: skip
    """Gene in a split.

    Halos are cached, except in a run that loads by input passes: all of them would stay from block to block.
    """
    gene = gene._replace(blocks=blocks, columns=columns, passes=passes, input_passes=input_passes)
    gene = gene._replace(prefetch=prefetch or gene.prefetch, window=window or gene.window)
    cached = cached if blocks > 1 else 0
    if cached and input_passes > 1 and target_graph.operators[gene.start].operator.has_halo:
        cached &= (1 << (gene.stop - gene.start)) - 2
    return gene._replace(cores=gene.cores[: blocks * target_graph.images], cached=cached)


def _over_hidden(target_graph: TargetGraph, gene: Gene) -> list[_Division]:
    divisions, counts = [], pass_counts(target_graph, gene.start, gene.stop)
    for blocks in _few(block_counts(target_graph, gene.start, gene.stop)):
        if decode(target_graph, _divided(target_graph, gene, blocks)) is not None:
            break
        fits = (count for count in counts if decode(target_graph, _divided(target_graph, gene, blocks, count)) is not None)
        if (passes := next(fits, 0)) > 0:
            divisions.append(_Division(blocks, passes, 1, gene.prefetch))
        elif input_counts(target_graph, gene.start, gene.stop) and _is_worth(target_graph, gene):
            divisions += _with_inputs(target_graph, gene, blocks, counts)
    else:
        if halos_of_passes(target_graph, gene.start, gene.stop, counts[-1]):
            divisions += _made_again(target_graph, gene)
    return divisions


def _made_again(target_graph: TargetGraph, gene: Gene, space: Space = FREE, operator_limit: int = _MOST_OPERATORS) -> list[_Division]:
    """Splits in passes over hidden channels that recompute halos: cached halos would stay in L1 from block to block in every pass.

    For ascending numbers of blocks: the fewest passes that fit, and the fewest passes with resident weights, as long as they are fewer than
    for fewer blocks.  Once weights are resident, they must be resident for more blocks too.  operator_limit: most operators of all passes
    together.
    Assumption: if a number of passes fits (or keeps weights resident), a larger number does too.
    """
    counts, divisions = pass_counts(target_graph, gene.start, gene.stop), list[_Division]()
    cached = ~halos_of_passes(target_graph, gene.start, gene.stop, counts[-1])
    fitting = counts = tuple(count for count in counts if count * (gene.stop - gene.start) <= operator_limit)
    may_stay = not gene.pinned  # pinned tilings fix already whether weights stay
    too_large = resident_weight_blocks(target_graph, gene.start, gene.stop) > room_blocks(target_graph.machine, Memory.L1) - space[1]
    for blocks in block_counts(target_graph, gene.start, gene.stop):
        counts = counts if may_stay and not (too_large and blocks * target_graph.images > 1) else ()
        if not fitting and not counts:
            break

        def plan(count: int, blocks: int = blocks) -> SegmentPlan | None:
            return decode(target_graph, _divided(target_graph, gene, *_Division(blocks, count, 1, 1, cached)), *space)

        def stays(count: int, blocks: int = blocks) -> bool:
            candidate = plan(count, blocks)
            return candidate is not None and not reloads_weights(target_graph, candidate, gene.start)

        fits, stay = first_fitting(fitting, lambda count: plan(count) is not None), first_fitting(counts, stays)
        divisions += [_Division(blocks, count, 1, 1, cached) for count in dict.fromkeys((fits, stay)) if count is not None]
        if fits is not None:
            fitting = fitting[: fitting.index(fits)]
        if stay is not None:
            fitting, counts = (), counts[: counts.index(stay)]
    return divisions


def shrink_by_passes(target_graph: TargetGraph, gene: Gene, space: Space) -> list[Gene]:
    """Operators of the gene in passes over hidden channels, if such passes fit beside persistent tensors."""
    if not sums_hidden(target_graph, gene.start, gene.stop):
        return []
    return [_divided(target_graph, gene, *division) for division in _made_again(target_graph, gene, space, _MOST_BESIDE)]


def _is_worth(target_graph: TargetGraph, gene: Gene) -> bool:
    """Whether weights are large enough to matter, and are not resident."""
    return _PART * _weights(target_graph, gene) >= room_blocks(target_graph.machine, Memory.L1)


def _weights(target_graph: TargetGraph, gene: Gene) -> int:
    """Blocks of the weights of a run, and of right operands that it does not produce."""
    run = target_graph.operators[gene.start : gene.stop]
    rights = [spec.right for spec in run if spec.right is not None and not any(producer.y.overlaps(spec.right) for producer in run)]
    return sum(spec.weight_blocks for spec in run) + sum(_size(target_graph, right) for right in rights)


class _Tiles(NamedTuple):
    """Passes over results that may fit.  whole_input: whether the whole input is in L1, loaded once."""

    blocks: int
    passes: int
    whole_input: bool
    window: int


def _over_results(target_graph: TargetGraph, gene: Gene) -> list[_Division]:
    """Splits over results: numbers of blocks by ascending bytes, two passes at a time before one, in few passes."""
    if not _is_worth(target_graph, gene) or _keeps_weights(target_graph, gene):
        return []
    first, room, counts = (
        target_graph.operators[gene.start],
        room_blocks(target_graph.machine, Memory.L1),
        pass_counts(target_graph, gene.start, gene.stop),
    )
    loaded, weights = _size(target_graph, first.reads[0]) * target_graph.images, _weights(target_graph, gene)
    sums, split = bool(input_counts(target_graph, gene.start, gene.stop)), behind_vector(target_graph.operators[gene.start : gene.stop])
    live_sizes = _live(target_graph, gene)
    needs = {1: live_sizes, _BESIDE: [(a + live_sizes[split - 1][0], b + live_sizes[split - 1][1]) for a, b in live_sizes]}

    def moved(tiles: _Tiles) -> tuple[int, int, int]:
        return tiles.blocks * weights + (tiles.passes if sums and not tiles.whole_input else 1) * loaded, -tiles.window, tiles.passes

    def has_room(tiles: _Tiles) -> bool:
        free_rows = (room - tiles.whole_input * loaded // tiles.blocks) * tiles.passes
        return all(rows // tiles.blocks + all_rows <= free_rows for rows, all_rows in needs[tiles.window])

    # a rough check of room first: only the best few are decoded
    candidates = list[_Tiles]()
    for blocks, window, whole_input in product(
        range(1, _MOST_ROWS + 1), (_BESIDE, 1) if split else (1,), (True, False) if sums else (False,)
    ):
        once = (1,) if sums and not whole_input and window == 1 else ()
        candidates += [tiles for count in (*once, *counts) if has_room(tiles := _Tiles(blocks, count, whole_input, window))][:2]
    for tiles in sorted(candidates, key=moved)[:_MOST_LOOKS]:
        if (
            tiles.whole_input
            and decode(target_graph, _divided(target_graph, gene, tiles.blocks, tiles.passes, window=tiles.window)) is not None
        ):
            return [_Division(tiles.blocks, tiles.passes, 1, gene.prefetch, window=tiles.window)]
        if not tiles.whole_input and (divisions := _with_inputs(target_graph, gene, tiles.blocks, (tiles.passes,), tiles.window)):
            return divisions if tiles.passes > 1 else []
    return []


def _keeps_weights(target_graph: TargetGraph, gene: Gene) -> bool:
    """Whether the fewest blocks that fit without passes load all weights once: a single block, or resident weights."""
    able = block_counts(target_graph, gene.start, gene.stop)
    fewest = first_fitting(able, lambda blocks: decode(target_graph, _divided(target_graph, gene, blocks)) is not None)
    plan = None if fewest is None else decode(target_graph, _divided(target_graph, gene, fewest))
    return plan is not None and (fewest == 1 or not reloads_weights(target_graph, plan, gene.start))


def _size(target_graph: TargetGraph, piece: TensorSlice) -> int:
    return piece.planes * target_graph.storages[piece.storage].plane_blocks


def _live(target_graph: TargetGraph, gene: Gene) -> list[tuple[int, int]]:
    """Least L1 use at each operator of a run, in one pass and one block: (blocks of split tensors, blocks of right operands).

    A block has some rows of the first, and all rows of the second.
    """
    run, sizes = target_graph.operators[gene.start : gene.stop], []
    rights = [spec.right for spec in run if spec.right is not None]
    last = {spec.index: max((c for c in target_graph.consumers[spec.index] if c < gene.stop), default=-1) for spec in run}
    for operator in run:
        rows = all_rows = 0
        for spec in run[: operator.index + 1 - gene.start]:
            in_place = last[spec.index] == operator.index and operator.runs_on == "VECTOR"
            if last[spec.index] >= operator.index and not in_place:
                size = _size(target_graph, spec.y)
                rows, all_rows = (rows, all_rows + size) if any(right.overlaps(spec.y) for right in rights) else (rows + size, all_rows)
            elif spec is operator and spec.runs_on == "CUBE" and last[spec.index] < 0 and len(run) == 1:
                rows += _size(target_graph, spec.y)  # sums
        sizes.append((rows, all_rows))
    return sizes


def _with_inputs(target_graph: TargetGraph, gene: Gene, blocks: int, counts: Sequence[int], window: int = 0) -> list[_Division]:
    """Fewest passes, among ascending numbers, that fit with input passes, and the fewest input passes for them; empty if none fit."""
    every = input_counts(target_graph, gene.start, gene.stop) or (1,)
    input_options = [[count for count in every if count <= _most_inputs(gene, passes)] for passes in counts]
    for prefetch in (gene.prefetch, 1):

        def fits(passes: int, inputs: int, prefetch: int = prefetch) -> bool:
            return decode(target_graph, _divided(target_graph, gene, blocks, passes, inputs, prefetch, window=window)) is not None

        options = [(passes, count_options) for passes, count_options in zip(counts, input_options, strict=True) if count_options]
        fewest = first_fitting(options, lambda option: fits(option[0], option[1][-1]))
        if fewest is not None:
            passes, count_options = fewest
            return [_Division(blocks, passes, next(count for count in count_options if fits(passes, count)), prefetch, window=window)]
    return []


def _most_inputs(gene: Gene, passes: int) -> int:
    return min(_MOST_INPUTS, _MOST_OPERATORS // (passes * (gene.stop - gene.start)))


def _few(counts: Sequence[int]) -> list[int]:
    return [count for count in counts if count <= _MOST]


def _over_inputs(target_graph: TargetGraph, gene: Gene) -> list[_Division]:
    counts, block_options = input_counts(target_graph, gene.start, gene.stop), block_counts(target_graph, gene.start, gene.stop)
    counts = tuple(count for count in counts if count <= _MOST_INPUTS)
    operators, divisions = target_graph.operators[gene.start : gene.stop], list[_Division]()
    weights = sum(spec.weight_blocks for spec in operators)
    if not counts or not _is_worth(target_graph, gene):
        return []
    ends = (
        sum(piece.planes * target_graph.storages[piece.storage].plane_blocks for piece in (operators[0].reads[0], operators[-1].y))
        * target_graph.images
    )
    for prefetch in (gene.prefetch, 1):

        def plan(blocks: int, count: int = 1, columns: int = 1, prefetch: int = prefetch) -> SegmentPlan | None:
            return decode(target_graph, _divided(target_graph, gene, blocks, 1, count, prefetch, columns=columns))

        # without input passes: the fewest blocks; its weight reloads are the cost to beat
        fewest = first_fitting(block_options, lambda blocks: plan(blocks) is not None)
        base_plan = None if fewest is None else plan(fewest)
        if fewest is None or base_plan is None:
            continue
        if not reloads_weights(target_graph, base_plan, gene.start):
            break
        enough = fewest + -(ends + weights * fewest) // (_PART * weights)
        for columns in range(1, min(_MOST_STRIPS, largest_strip_count(target_graph, gene.start, gene.stop)) + 1):

            def fits(blocks: int, columns: int = columns) -> bool:
                return plan(blocks, counts[-1], columns) is not None

            blocks = first_fitting(range(1, enough // columns + 1), fits)
            if blocks is None:
                continue
            count = next(count for count in counts if plan(blocks, count, columns) is not None)
            divisions.append(_Division(blocks, 1, count, prefetch, columns=columns))
            enough = blocks * columns - 1
    return divisions


_STRIP_PART = 8  # least size of weights, as a part of L1 (1/8), for strips: smaller weights gain less than strips cost


def genes_in_strips(target_graph: TargetGraph, structures: Structures, template: Gene) -> list[Gene]:
    """Genes of every short run of products in the fewest strips with resident weights, and then the fewest blocks.

    template: the other fields of the genes; a gene has no more cores than blocks.
    """
    genes, cache = list[Gene](), dict[str, tuple[int, int, int] | None]()
    for start, stop in runs_of_products(target_graph):
        key = structures.structure(start, stop)
        gene = template._replace(start=start, stop=stop)
        if key not in cache:
            cache[key] = _division(target_graph, gene)
        if (division := cache[key]) is not None:
            genes.append(_divided_strips(target_graph, gene, *division))
    return genes


def _divided_strips(target_graph: TargetGraph, gene: Gene, columns: int, blocks: int, prefetch: int) -> Gene:
    cores = gene.cores[: blocks * target_graph.images]
    return gene._replace(columns=columns, blocks=blocks, cores=cores, prefetch=prefetch, cached=-1 if blocks > 1 else 0)


def genes_on_grids(target_graph: TargetGraph, structures: Structures, template: Gene) -> list[Gene]:
    """Genes of every product on every grid of the template's cores, with the template's slots of loads and with one.

    template: the other fields of the genes.
    """
    genes, cache, width = list[Gene](), dict[tuple[str, int, int], list[tuple[int, int]]](), len(template.cores)
    grids = [*part_counts(width), 0] if part_counts(width) else []
    products = [(start, stop) for start, stop in runs_of_products(target_graph) if stop - start == 1] if grids else []
    for (start, stop), parts in product(products, grids):
        for prefetch in sorted({1, template.prefetch}):
            gene = template._replace(start=start, stop=stop, split="channels", parts=parts, prefetch=prefetch)
            key = structures.structure(start, stop), parts, prefetch
            if key not in cache:
                cache[key] = _grid_divisions(target_graph, gene) if can_split(target_graph, start, stop, gene.channels) else []
            for blocks, passes in cache[key]:
                genes.append(gene._replace(blocks=blocks, cached=-1 if blocks > 1 else 0, input_passes=passes))
    return genes


def _grid_divisions(target_graph: TargetGraph, gene: Gene) -> list[tuple[int, int]]:
    """Numbers of blocks and of input passes of a gene on a grid; blocks are equally many of an image's for each core.

    The fewest blocks that fit in one pass, and the next number; fewer blocks in the fewest passes that fit, and in more.
    """
    share = len(gene.cores) // gene.channels
    counts = [count for count in block_counts(target_graph, gene.start, gene.stop) if count % share == 0]

    def fits(blocks: int, passes: int) -> bool:
        return decode(target_graph, gene._replace(blocks=blocks, input_passes=passes)) is not None

    fewest = first_fitting(counts, lambda blocks: fits(blocks, 1))
    divisions = [(blocks, 1) for blocks in counts if fewest is not None and blocks >= fewest][:_GRID_BLOCKS]
    passes = [count for count in input_counts(target_graph, gene.start, gene.stop) if count <= _MOST_INPUTS]
    higher = [blocks for blocks in counts if fewest is None or blocks < fewest]
    least = first_fitting(higher, lambda blocks: fits(blocks, passes[-1])) if passes else None
    for blocks in [blocks for blocks in higher if least is not None and blocks >= least][:_GRID_BLOCKS]:
        first = first_fitting(passes, partial(fits, blocks))
        divisions += [(blocks, count) for count in passes if first is not None and count >= first][:_GRID_PASSES]
    return divisions


def _division(target_graph: TargetGraph, gene: Gene) -> tuple[int, int, int] | None:
    """Strips, blocks and slots of loads; None if strips gain nothing."""
    room = room_blocks(target_graph.machine, Memory.L1)
    weights = sum(spec.weight_blocks for spec in target_graph.operators[gene.start : gene.stop])
    if not room <= _STRIP_PART * weights < _STRIP_PART * room:
        return None
    counts = block_counts(target_graph, gene.start, gene.stop)
    strips = range(2, largest_strip_count(target_graph, gene.start, gene.stop) + 1)

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
