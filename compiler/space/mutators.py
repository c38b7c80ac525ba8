"""Mutators of the search: small named changes of a genome, and crossover.  A table lists them: each can be tested and switched separately.

A mutator returns a new genome, or None if it does not apply.  Mutators ignore costs.  Pins stay if neither the split of a segment
(`gene.recut`) nor a tiling changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from compiler.cost.ranking import CHUNK_BUDGETS
from compiler.plan.plan import MAX_PREFETCH, Split
from compiler.segment.batch_tiles import counts_together
from compiler.segment.channel_splits import input_counts, pass_counts
from compiler.segment.engine_split import divisible
from compiler.space.gene import (
    WINDOWS,
    Gene,
    Genome,
    bare,
    block_counts,
    choice_count,
    keeps_weights,
    recut,
    splits,
    whole_or,
    widths,
    with_weights,
    working_cores,
)
from compiler.space.knobs import part_counts
from compiler.space.persistent import cut_tensors, holding, wanted
from compiler.space.strips import fewest_strips, nearest_strips
from compiler.target.level_limits import limited_to, memory_grants
from compiler.target.target_graph import TargetGraph

_MOST_PASSED = 128  # most operators in all drawn passes: more operators take tenths of a second to lay out, and are hardly ever faster

Move = Callable[[TargetGraph, Genome, np.random.Generator], Genome | None]


def _pick(genome: Genome, rng: np.random.Generator) -> int:
    return int(rng.integers(len(genome)))


def _swap(genome: Genome, index: int, *genes: Gene, width: int = 1) -> Genome:
    """Genome with other genes from `index` on; later genes keep their ends of L1, so their times stay valid."""
    following = genome[index + width :]
    if following and _turns(genes) != _turns(genome[index : index + width]):
        following = (_turned(following[0]), *following[1:])
    return (*genome[:index], *genes, *following)


def _turns(genes: Sequence[Gene]) -> bool:
    """Whether the last of `genes` uses another end of L1 than the gene before them."""
    return sum([not gene.same_end for gene in genes]) % 2 == 1


def _turned(gene: Gene) -> Gene:
    return gene._replace(same_end=not gene.same_end)


def _granted(target_graph: TargetGraph, gene: Gene) -> TargetGraph:
    return limited_to(target_graph, memory_grants(target_graph.machine)[gene.grant])


def _settings_over(gene: Gene, settings: tuple[int, ...], start: int, stop: int) -> tuple[int, ...]:
    """Setting per operator of [start, stop), from settings of the gene's operators; 0 for operators outside the gene, () if all are 0."""
    by_operator = dict(zip(range(gene.start, gene.stop), settings, strict=True)) if settings else {}
    selected = tuple(by_operator.get(k, 0) for k in range(start, stop))
    return selected if any(selected) else ()


def resized(target_graph: TargetGraph, gene: Gene, start: int, stop: int) -> Gene:
    """Gene of operators [start, stop).

    Choices of common operators stay.  The number of blocks is reduced if there are fewer rows.  Rows are split if channels cannot be split.
    Strips are added if rows do not fit L1, and passes are dropped if the operators do not allow them.
    """
    choices, on_vector = (_settings_over(gene, settings, start, stop) for settings in (gene.choices, gene.on_vector))
    counts = block_counts(target_graph, start, stop)
    up, down = max(0, gene.start - start), max(0, start - gene.start)
    cached = -1 if gene.cached == -1 else gene.cached << up >> down
    held = gene.held << up >> down & (1 << stop - start) - 1
    blocks = max(c for c in counts if c <= max(gene.blocks, 1))
    columns = nearest_strips(_granted(target_graph, gene), start, stop, gene.columns)
    divided = gene.passes if gene.passes in pass_counts(target_graph, start, stop) else 1
    inputs = gene.input_passes if gene.input_passes in input_counts(target_graph, start, stop) else 1
    divisions = {"blocks": blocks, "columns": columns, "passes": divided, "input_passes": inputs}
    resized = recut(gene, start=start, stop=stop, choices=choices, held=held, on_vector=on_vector, **divisions)
    if resized.split not in splits(target_graph, resized, len(resized.cores)):
        resized = recut(resized, split="rows")
    return recut(resized, cached=whole_or(resized, cached), cores=working_cores(target_graph, resized))


def split_segment(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Insert a DDR write and read: cut a segment in two."""
    longer = [i for i, g in enumerate(genome) if g.stop - g.start > 1]
    if not longer:
        return None
    i = longer[int(rng.integers(len(longer)))]
    gene = genome[i]
    border = int(rng.integers(gene.start + 1, gene.stop))
    return _swap(genome, i, *_cut(target_graph, gene, border))


def _cut(target_graph: TargetGraph, gene: Gene, at: int) -> tuple[Gene, Gene]:
    """Two genes, cut before operator `at`; the second one uses the other end of L1."""
    return resized(target_graph, gene, gene.start, at), resized(target_graph, gene, at, gene.stop)._replace(same_end=False)


def merge_segments(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Remove a DDR write and read: join two neighbours, with the block count of either."""
    if len(genome) < 2:
        return None
    i = int(rng.integers(len(genome) - 1))
    a, b = genome[i], genome[i + 1]
    base = a if rng.random() < 0.5 else b
    joined = resized(target_graph, base, a.start, b.stop)._replace(held=a.held | b.held << b.start - a.start, same_end=a.same_end)
    return _swap(genome, i, joined, width=2)


def shift_border(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Move a border between segments by one or two operators."""
    if len(genome) < 2:
        return None
    i = int(rng.integers(len(genome) - 1))
    a, b = genome[i], genome[i + 1]
    border = a.stop + int(rng.choice([-2, -1, 1, 2]))
    if not a.start < border < b.stop:
        return None
    return _swap(genome, i, resized(target_graph, a, a.start, border), resized(target_graph, b, border, b.stop), width=2)


def toggle_held(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Make one tensor of a random segment persistent, or no longer persistent; or make all tensors persistent, or none."""
    tensors = cut_tensors(target_graph, genome)
    if not tensors:
        return None
    asked = wanted(target_graph, genome)
    if rng.random() < 0.2:
        return holding(genome, () if len(asked) == len(tensors) else tensors)
    index = tensors[int(rng.integers(len(tensors)))].birth
    some = [tensor for tensor in tensors if tensor.birth <= index <= tensor.death]
    one = some[int(rng.integers(len(some)))]
    return holding(genome, [tensor for tensor in tensors if (tensor in asked) != (tensor == one)])


def cut_on_chip(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Cut a segment in two and make tensors between the parts persistent: blocks and tiles may change without DDR traffic."""
    cut = split_segment(target_graph, genome, rng)
    if cut is None:
        return None
    index = next(i for i, (new, old) in enumerate(zip(cut, genome, strict=False)) if new != old)
    asked = {tensor.storage for tensor in wanted(target_graph, cut)}
    persistent = [tensor for tensor in cut_tensors(target_graph, cut) if tensor.storage in asked or tensor.birth <= index < tensor.death]
    return holding(cut, persistent)


def change_blocks(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Change the number of blocks, mostly to a neighbouring count; for a segment in strips possibly the number of strips; or change the
    images of a block."""
    i = _pick(genome, rng)
    gene = genome[i]
    if target_graph.images > 1 and rng.random() < 0.4:
        alternatives = [count for count in counts_together(target_graph) if count != gene.images]
        changed = recut(gene, blocks=1, images=alternatives[int(rng.integers(len(alternatives)))])
        return _swap(genome, i, recut(changed, cores=working_cores(target_graph, changed)))
    if gene.columns > 1 and rng.random() < 0.3:
        columns = nearest_strips(_granted(target_graph, gene), gene.start, gene.stop, gene.columns + int(rng.choice([-1, 1, 2])))
        return None if columns == gene.columns else _swap(genome, i, recut(gene, columns=columns))
    counts = block_counts(target_graph, gene.start, gene.stop)
    if len(counts) < 2:
        return None
    position = counts.index(gene.blocks) if gene.blocks in counts else 0
    if rng.random() < 0.7:
        position = int(np.clip(position + rng.choice([-2, -1, 1, 2]), 0, len(counts) - 1))
    else:
        position = int(rng.integers(len(counts)))
    if counts[position] == gene.blocks:
        return None
    changed = recut(gene, blocks=counts[position])
    return _swap(genome, i, recut(changed, cores=working_cores(target_graph, changed)))


def toggle_halo(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Cache the halo of all operators instead of recomputing it, or the reverse."""
    cut = [i for i, gene in enumerate(genome) if gene.blocks > 1]
    if not cut:
        return None
    i = cut[int(rng.integers(len(cut)))]
    return _swap(genome, i, recut(genome[i], cached=0 if genome[i].cached else -1))


def change_window(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Run blocks one after the other, or list-schedule them in a window of another width."""
    longer = [i for i, g in enumerate(genome) if g.stop - g.start > 1]
    if not longer:
        return None
    i = longer[int(rng.integers(len(longer)))]
    gene = genome[i]
    once = gene.blocks == 1 and target_graph.images == gene.images
    choices = [(1, False), *((window, True) for window in ((1,) if once else WINDOWS))]
    alternatives = [choice for choice in choices if choice != (gene.window, gene.sliding)]
    window, sliding = alternatives[int(rng.integers(len(alternatives)))]
    return _swap(genome, i, gene._replace(window=window, sliding=sliding))


def change_prefetch(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Change the slots of loaded tensors by one, or toggle overtaking or urgency."""
    i = _pick(genome, rng)
    gene = genome[i]
    if gene.blocks == 1 or rng.random() < 0.3:
        name = "urgent" if rng.random() < 0.5 else "overtake"
        return _swap(genome, i, recut(gene, **{name: not getattr(gene, name)}))
    slots = int(np.clip(gene.prefetch + rng.choice([-1, 1]), 1, MAX_PREFETCH))
    return None if slots == gene.prefetch else _swap(genome, i, gene._replace(prefetch=slots))


def change_end(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Change the end of L1 and UB for one segment, or for all segments from there on; the first segment does not change."""
    if len(genome) == 1:
        return None
    i = int(rng.integers(1, len(genome)))
    turned = _turned(genome[i])
    return _swap(genome, i, turned) if rng.random() < 0.5 else (*genome[:i], turned, *genome[i + 1 :])


def change_weights(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Change the size of the chunks of streamed weights, or switch between streamed and resident weights."""
    i = _pick(genome, rng)
    gene = genome[i]
    if rng.random() < 0.3:
        return _swap(genome, i, with_weights(target_graph, gene, not keeps_weights(target_graph, gene))._replace(pinned=()))
    chunk = int(rng.integers(len(CHUNK_BUDGETS)))
    return None if chunk == gene.chunk else _swap(genome, i, gene._replace(chunk=chunk, pinned=()))


def change_tiling(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Change the tiling of one operator, mostly to a tiling with a good estimate; or the planes of a depthwise convolution on VECTOR."""
    i = _pick(genome, rng)
    gene = genome[i]
    k = int(rng.integers(gene.stop - gene.start))
    if (planes := divisible(target_graph, gene.start + k, gene.start + k + 1)[0]) and rng.random() < 0.5:
        shares = list(gene.on_vector or (0,) * (gene.stop - gene.start))
        before, shares[k] = shares[k], int(np.clip(shares[k] + rng.choice([-4, -2, -1, 1, 2, 4]), 0, planes - 1))
        changed = gene._replace(on_vector=tuple(shares) if any(shares) else ())
        if shares[k] == before:
            return None
        return _swap(genome, i, changed if before and shares[k] else changed._replace(pinned=()))
    limit = choice_count(target_graph, gene.start + k)
    choice = min(limit - 1, int(rng.geometric(0.15)) - 1) if rng.random() < 0.8 else int(rng.integers(limit))
    choices = list(gene.choices or (0,) * (gene.stop - gene.start))
    if choices[k] == choice:
        return None
    choices[k] = choice
    return _swap(genome, i, gene._replace(choices=tuple(choices) if any(choices) else (), pinned=()))


def drawn_passes(target_graph: TargetGraph, gene: Gene) -> dict[Literal["passes", "input_passes"], tuple[int, ...]]:
    """Numbers of passes of each kind that `change_passes` may draw, without 1."""
    counts = pass_counts(target_graph, gene.start, gene.stop), input_counts(target_graph, gene.start, gene.stop)
    largest = _MOST_PASSED // (gene.stop - gene.start)
    passes, inputs = (
        tuple(count for count in options if count * factor <= largest)
        for options, factor in zip(counts, (gene.input_passes, gene.passes), strict=True)
    )
    return {"passes": passes, "input_passes": inputs}


def change_passes(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Change the number of passes over hidden channels or over inputs.  Blocks may get fewer, since passes make room for larger blocks."""
    able = []
    for i, gene in enumerate(genome):
        able += [(i, key, counts) for key, counts in drawn_passes(target_graph, gene).items() if counts]
    if not able:
        return None
    i, key, counts = able[int(rng.integers(len(able)))]
    gene = genome[i]
    alternatives = [count for count in (1, *counts) if count != getattr(gene, key)]
    on_grid = key == "input_passes" and bool(part_counts(len(gene.cores)))
    split = gene.split if on_grid else "rows"
    changed = recut(gene, split=split, **{key: alternatives[int(rng.integers(len(alternatives)))]})
    if gene.blocks > 1 and rng.random() < 0.5:
        fewer = [count for count in block_counts(target_graph, gene.start, gene.stop) if count < gene.blocks]
        changed = recut(changed, blocks=fewer[int(rng.integers(len(fewer)))])
    changed = recut(changed, cores=working_cores(target_graph, changed))
    if changed.split not in splits(target_graph, changed, len(changed.cores)):
        changed = recut(changed, split="rows")
        changed = recut(changed, cores=working_cores(target_graph, changed))
    return _swap(genome, i, changed)


def change_cores(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Change the number of cores, or the cores.  A split by rows gets more blocks if the cores need them, and with too few rows becomes a
    split by channels."""
    count = target_graph.machine.cores
    if count == 1:
        return None
    i = _pick(genome, rng)
    gene = genome[i]
    width = len(gene.cores)
    if rng.random() < 0.25:
        first = int(rng.integers(count))
        cores = tuple(sorted((first + c) % count for c in range(width)))
        return None if set(cores) == set(gene.cores) else _swap(genome, i, gene._replace(cores=cores))
    position = bisect_left(options := widths(target_graph), width)
    wanted = options[int(np.clip(position + rng.choice([-1, 1]), 0, len(options) - 1))]
    if wanted == width:
        return None
    counts = [c for c in block_counts(target_graph, gene.start, gene.stop) if c >= gene.blocks]
    shared = (recut(gene, blocks=c, split=split) for split in sorted(get_args(Split), key=lambda s: s != gene.split) for c in counts)
    fitting = next((g for g in shared if wanted == 1 or g.split in splits(target_graph, g, wanted)), None)
    if fitting is None:
        return None
    nearest = dict.fromkeys([*gene.cores, *((gene.cores[0] + c) % count for c in range(count))])
    return _swap(genome, i, recut(fitting, cores=tuple(sorted(list(nearest)[:wanted])), split="rows" if wanted == 1 else fitting.split))


def change_split(target_graph: TargetGraph, genome: Genome, rng: np.random.Generator) -> Genome | None:
    """Switch between the splits by rows, by channels and by both in a grid; a segment on one core gets several cores."""
    if target_graph.machine.cores == 1:
        return None
    i = _pick(genome, rng)
    gene = genome[i]
    if len(gene.cores) == 1:
        wanted = int(rng.choice(widths(target_graph)[1:]))
        gene = recut(gene, cores=tuple(sorted((gene.cores[0] + c) % target_graph.machine.cores for c in range(wanted))))
    if grids := part_counts(len(gene.cores)):
        ways: list[tuple[Split, int]] = [("rows", 0), ("channels", 0), *(("channels", parts) for parts in grids)]
        ways.remove((gene.split, gene.parts))
        split, parts = ways[int(rng.integers(len(ways)))]
        least = len(gene.cores) // (parts or len(gene.cores)) if split == "channels" else 1
        counts = block_counts(target_graph, gene.start, gene.stop)
        blocks = next((count for count in counts if count >= max(gene.blocks, least)), gene.blocks)
        changed = recut(gene, split=split, parts=parts, blocks=blocks)
    else:
        changed = recut(gene, split="channels" if gene.split == "rows" else "rows")
    return _swap(genome, i, changed) if changed.split in splits(target_graph, changed, len(changed.cores)) else None


MOVES: dict[str, Move] = {
    "split_segment": split_segment,
    "merge_segments": merge_segments,
    "shift_border": shift_border,
    "change_blocks": change_blocks,
    "toggle_held": toggle_held,
    "cut_on_chip": cut_on_chip,
    "toggle_halo": toggle_halo,
    "change_window": change_window,
    "change_prefetch": change_prefetch,
    "change_end": change_end,
    "change_weights": change_weights,
    "change_tiling": change_tiling,
    "change_passes": change_passes,
    "change_cores": change_cores,
    "change_split": change_split,
}
SWITCHES = {  # keys of `use` in the configuration
    "change_window": "window", "toggle_halo": "halo_cache", "change_passes": "passes", "toggle_held": "held", "cut_on_chip": "held",
    "change_prefetch": "prefetch", "change_cores": "cores", "change_split": "cores",
}  # fmt: skip
OF_PROGRAMS = {"split_segment", "merge_segments", "shift_border", "toggle_held", "cut_on_chip", "change_end"}
"""Moves of borders, and of knobs with `outside` (`knobs.Knob`); all other moves change a segment by itself."""


def crossover(one: Genome, second: Genome, rng: np.random.Generator) -> Genome | None:
    """First parent with a stretch of the second parent, between neighbouring common borders with different segments (`bare`).

    Persistent tensors and ends of L1 come with the stretch; later segments keep their ends.
    """
    borders = sorted({g.start for g in one} & {g.start for g in second})
    stretches = []
    for start, stop in zip(borders, [*borders[1:], one[-1].stop], strict=True):
        old_genes, new_genes = ([g for g in genome if start <= g.start < stop] for genome in (one, second))
        if [bare(g) for g in old_genes] != [bare(g) for g in new_genes]:
            stretches.append((one.index(old_genes[0]), len(old_genes), new_genes))
    if not stretches:
        return None
    first, width, new_genes = stretches[int(rng.integers(len(stretches)))]
    return _swap(one, first, *new_genes, width=width)


def random_genome(target_graph: TargetGraph, rng: np.random.Generator, mean_length: float = 3.0) -> Genome:
    """Genome with random borders, blocks and cores over the topological order."""
    genes, start = [], 0
    while start < len(target_graph.operators):
        stop = min(len(target_graph.operators), start + int(rng.geometric(1 / mean_length)))
        counts = block_counts(target_graph, start, stop)
        blocks, columns = counts[int(rng.integers(len(counts)))], fewest_strips(target_graph, start, stop)
        genes.append(on_random_cores(target_graph, Gene(start, stop, blocks, columns=columns), rng))
        start = stop
    return tuple(genes)


def on_random_cores(target_graph: TargetGraph, gene: Gene, rng: np.random.Generator) -> Gene:
    """Gene on a random number of neighbouring cores, if it has work for them; unchanged, without a draw, on a machine with one core."""
    if target_graph.machine.cores == 1:
        return gene
    options = [(width, split) for width in widths(target_graph) for split in splits(target_graph, gene, width)]
    (width, split), first = options[int(rng.integers(len(options)))], int(rng.integers(target_graph.machine.cores))
    return gene._replace(cores=tuple(sorted((first + c) % target_graph.machine.cores for c in range(width))), split=split)


def repaired(target_graph: TargetGraph, genome: Genome, fits: Callable[[Gene], bool]) -> Genome | None:
    """Genome in which segments that do not fit are halved until they fit; None if a single operator does not fit."""
    index = 0
    while index < len(genome):
        parts = _parts_that_fit(target_graph, genome[index], fits)
        if parts is None:
            return None
        if parts[0] is not genome[index]:
            genome = _swap(genome, index, *parts)
        index += len(parts)
    return genome


def _parts_that_fit(target_graph: TargetGraph, gene: Gene, fits: Callable[[Gene], bool]) -> Genome | None:
    """Parts of a gene that fit; the gene itself if it fits."""
    if fits(gene):
        return (gene,)
    if gene.stop - gene.start == 1:
        smaller = (recut(gene, blocks=count) for count in block_counts(target_graph, gene.start, gene.stop) if count > gene.blocks)
        one = next(filter(fits, smaller), None)
        return None if one is None else (one,)
    genes = list[Gene]()
    for half in _cut(target_graph, gene, (gene.start + gene.stop) // 2):
        parts = _parts_that_fit(target_graph, half, fits)
        if parts is None:
            return None
        genes += parts
    return tuple(genes)
