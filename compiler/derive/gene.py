"""Genes: what evolution changes.  A gene says what is wanted of a segment; `realise` makes the plan that does it, or says that none fits.

A genome is a tuple of genes that cover the operators in order.  Genes are small, hashable, and pickle to a few bytes; plans are what they
become: explicit, readable, complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from compiler.derive.fit_ub import fitted
from compiler.derive.formula import formula_window
from compiler.derive.plan import Halo, Infeasible, Plan, SegmentPlan, Split, Tiling, Window
from compiler.ir.region import has_halo
from compiler.schedule.blocks import Blocks, cut, needed
from compiler.schedule.buffers import Wish, fits
from compiler.schedule.memory import apart_rule, staged_wishes, ub_wishes, weight_wishes
from compiler.schedule.run import can_stream
from compiler.tile.channels import can_split, channel_parts, largest
from compiler.tile.features import expected_cycles, raw_features
from compiler.tile.siblings import Joined, chosen, families_in, joined, with_siblings
from compiler.tile.space import CHUNK_BUDGETS, KEPT, LAST_BUDGETS, UB_SLOT_BLOCKS, conv_tiling, vector_tiling
from compiler.tile.spec import ConvSpec, MatMulSpec, Unit, signature
from simulator.npu.machine import Memory

BLOCK_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 160, 224)
MAX_SEGMENT = 24  # operators; longer segments recompute more halo than they save, and cost more to measure
_PREFETCH = (2, 1)
ALL, FORMULA = 0, -1  # a gene's windows beside numbers: a slot for every block, and what `formula_window` says
WINDOWS = (1, 2, 3, 4, FORMULA, ALL)
AHEAD_KIB = (0, 16, 32, 64, 128, 256, 512)
UB_SLOTS = (UB_SLOT_BLOCKS, UB_SLOT_BLOCKS // 2, UB_SLOT_BLOCKS * 2, UB_SLOT_BLOCKS // 4)


class Gene(NamedTuple):
    """Operators [start, stop) in `blocks` blocks.

    prefetch, window: slots of loaded tensors and of intermediates (a number, `ALL` or `FORMULA`).  chunk: the largest chunk of streamed
    weights that may be used (place in `CHUNK_BUDGETS`; smaller ones follow where L1 is short).  resident: whether weights that are needed
    again may stay.  choices: per operator, the place of its tiling in the ranking by estimate; () is all zeros.
    cores: where its iterations (every block of every image) run; more cores than iterations: the first ones.
    cached: bit k is set where operator start + k caches its halo; -1 where all of them do.
    sliding, spread, ahead_kib, split: as in a plan.
    siblings: bit i is set where the i-th family of siblings that lies whole in the segment is one convolution (`tile.siblings`).
    """

    start: int
    stop: int
    blocks: int = 1
    prefetch: int = 2
    window: int = 1
    chunk: int = 0
    resident: bool = True
    choices: tuple[int, ...] = ()
    cores: tuple[int, ...] = (0,)
    cached: int = 0
    sliding: bool = False
    spread: bool = True
    ahead_kib: int = 0
    split: Split = "rows"
    siblings: int = 0


Genome = tuple[Gene, ...]
Tail = tuple[Any, ...]  # a gene without its place: all of its fields but start and stop
Key = tuple[str, Tail]


def choice_count(unit: Unit, kernel: int) -> int:
    """How many tilings of a kernel a gene can name."""
    return KEPT if isinstance(unit.kernels[kernel], ConvSpec) else len(UB_SLOTS)


def working_cores(unit: Unit, gene: Gene) -> tuple[int, ...]:
    """The cores of a gene that get an iteration, or some of its channels."""
    return gene.cores if gene.split == "channels" else gene.cores[: gene.blocks * unit.storages[0].n]


def splits(unit: Unit, gene: Gene, width: int) -> list[Split]:
    """How a gene's work can be split over so many cores."""
    ways: list[Split] = []
    if gene.blocks * unit.storages[0].n >= width:
        ways.append("rows")
    if width > 1 and can_split(unit, gene.start, gene.stop, width):
        ways.append("channels")
    return ways


def widths(unit: Unit) -> list[int]:
    """Numbers of cores worth trying: powers of two, and all of the machine's."""
    cores = unit.machine.cores
    return sorted({*(1 << i for i in range(cores.bit_length())), cores})


def gene_json(gene: Sequence[Any]) -> list[Any]:
    """JSON form of a gene, or of the end of one."""
    return [list(value) if isinstance(value, tuple) else value for value in gene]


def gene_values(row: Sequence[Any]) -> tuple[Any, ...]:
    """The values that `gene_json` made a row of."""
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)


def block_counts(unit: Unit, start: int, stop: int) -> list[int]:
    """Block counts worth trying for operators [start, stop): up to one block per row of the lowest output."""
    height = min(rows.size for rows in needed(unit)[start:stop])
    return [count for count in BLOCK_COUNTS if count <= max(1, height)]


def has_halos(unit: Unit, start: int, stop: int) -> bool:
    """Whether blocks of operators [start, stop) share rows at all."""
    return any(has_halo(spec.kernel) for spec in unit.kernels[start:stop])


def bits(gene: Gene) -> int:
    """`cached` without the bits of operators that the segment does not have."""
    return gene.cached & ((1 << (gene.stop - gene.start)) - 1)


def whole_or(gene: Gene, cached: int) -> int:
    """`cached` as genes spell it: -1 where every operator of the gene caches."""
    every = (1 << (gene.stop - gene.start)) - 1
    return -1 if cached & every == every else cached & every


def realise(unit: Unit, gene: Gene) -> SegmentPlan | None:
    """The plan of a gene; None where L1 or UB cannot hold it.

    Weights stay where a second block would read them again, the smallest first, while L1 holds them; the others are streamed.  The right
    operand of a product of two tensors stays as a whole where that fits.  Where UB cannot hold the tiles that are named, the best by
    estimate take their place, and are split until they fit (`derive.fit_ub`).
    """
    families = chosen(unit, gene.start, gene.stop, gene.siblings)
    if families:
        made = joined(unit, gene.start, gene.stop, families)
        plan = realise(made.unit, of_joined(gene, made))
        return None if plan is None else with_siblings(unit, plan, made, gene.stop - gene.start)
    seen = seen_by_core(unit, gene)
    if seen is None:
        return None
    unit, gene, layout = seen
    for streamed in (0, *_large_rights(unit, gene)):
        if streamed:
            layout = _layout(unit, gene, streamed)
        fitting = _Fitting(unit, gene, layout)
        if not fitting.fill():
            continue
        if not fitting.fits_ub():
            fitting = _Fitting(unit, gene._replace(choices=()), layout)
            if not fitting.fill() or not fitting.split_ub():
                continue
        return fitting.plan()
    return None


def _large_rights(unit: Unit, gene: Gene) -> list[int]:
    """Operators, as bits, whose right operand may come in chunks: the largest, then the two largest, ..."""
    kernels = unit.kernels[gene.start : gene.stop]
    blocks = {k: spec.reads[1].planes * spec.pixels for k, spec in enumerate(kernels) if isinstance(spec, MatMulSpec)}
    found = [0]
    for k in sorted(blocks, key=lambda k: (-blocks[k], k)):
        if can_stream(unit, gene.start, k):
            found.append(found[-1] | 1 << k)
    return found[1:]


def of_joined(gene: Gene, made: Joined) -> Gene:
    """The gene of the same segment where its siblings are one."""
    choices = tuple(gene.choices[k] for k in made.kept) if gene.choices else ()
    cached = gene.cached if gene.cached == -1 else sum((gene.cached >> k & 1) << i for i, k in enumerate(made.kept))
    stop = gene.start + len(made.kept)
    inner = gene._replace(stop=stop, choices=choices if any(choices) else (), siblings=0)
    return inner._replace(cached=whole_or(inner, cached))


def seen_by_core(unit: Unit, gene: Gene) -> tuple[Unit, Gene, Blocks] | None:
    """The unit whose kernels the gene's cores run, the gene as one core has it, and its blocks; None where channels cannot be split so."""
    cores = working_cores(unit, gene)
    if len(cores) == 1:
        gene = gene._replace(split="rows")
    if gene.split == "channels":
        parts = channel_parts(unit, gene.start, gene.stop, len(cores))
        if isinstance(parts, Infeasible):
            return None
        unit = largest(parts, gene.start, gene.stop)
    return unit, gene, _layout(unit, gene)


def _layout(unit: Unit, gene: Gene, streamed: int = 0) -> Blocks:
    dealt = 1 if gene.split == "channels" else len(working_cores(unit, gene))
    return cut(unit, gene.start, gene.stop, gene.blocks, bits(gene), dealt, streamed)


class _Fitting:
    """The tilings of a segment while some are exchanged: what is taken fits L1."""

    def __init__(self, unit: Unit, gene: Gene, layout: Blocks) -> None:
        self.unit, self.gene, self.layout = unit, gene, layout
        self.rows = [layout.rows(k) for k in range(gene.stop - gene.start)]
        self.tilings: dict[int, Tiling] = {}
        self.weights: dict[int, list[Wish]] = {}
        self._slots(1 if gene.window == FORMULA else "all" if gene.window == ALL else gene.window)

    def _slots(self, window: Window) -> None:
        unit, layout, gene = self.unit, self.layout, self.gene
        self.window = window
        self.staged = staged_wishes(unit, layout, gene.prefetch, window)
        self.apart = apart_rule(unit, layout, gene.sliding, window)

    def fill(self) -> bool:
        """Tilings of all operators, with as many weights that stay as fit; False where nothing does."""
        unit, gene, count = self.unit, self.gene, len(self.rows)
        sizes = {
            k: spec.weight_blocks
            for k, spec in enumerate(unit.kernels[gene.start : gene.stop])
            if isinstance(spec, ConvSpec) and spec.weight_blocks
        }
        by_size = sorted(sizes, key=lambda k: (sizes[k], k))
        if gene.blocks * unit.storages[0].n == 1 or not gene.resident:
            by_size = []
        for budget in CHUNK_BUDGETS[gene.chunk :]:
            if not self.take(dict.fromkeys(range(count), False), budget):
                continue
            if gene.window == FORMULA:
                self.widen()
            for k in by_size:
                if not self.take({k: True}, budget):
                    break
            return True
        # two slots of the smallest chunk may need more than all of the weights
        every = {k: k in sizes for k in range(count)}
        return self.take(every, CHUNK_BUDGETS[-1]) or any(self.take(dict.fromkeys(every, False), budget) for budget in LAST_BUDGETS)

    def fits_ub(self) -> bool:
        wishes = ub_wishes(self.unit, self.layout, [self.tilings[k] for k in range(len(self.rows))])
        return fits(wishes, self.unit.machine.buffer_blocks(Memory.UB), self.apart)

    def split_ub(self) -> bool:
        """Tilings that UB can hold; False where there are none."""
        found = fitted(self.unit, self.layout, [self.tilings[k] for k in range(len(self.rows))], self.apart)
        self.tilings = dict(enumerate(found or ()))
        return found is not None

    def widen(self) -> None:
        """As many slots as the formula gives, where they fit beside the tilings taken."""
        tilings = [self.tilings[k] for k in range(len(self.rows))]
        self._slots(formula_window(self.unit, self.layout, self.gene.prefetch, tilings))
        if not self.take({}, 0):
            self._slots(1)

    def take(self, resident: dict[int, bool], budget: int) -> bool:
        """Kernels with weights resident or streamed, the others as they are; False, and nothing changes, where that does not fit."""
        tilings = dict(self.tilings)
        weights = dict(self.weights)
        for k, stays in resident.items():
            tiling = self._tiling(k, stays, budget)
            if tiling is None:
                return False
            tilings[k] = tiling
            weights[k] = weight_wishes(self.unit, self.layout, k, tiling)
        if not fits([*self.staged, *chain.from_iterable(weights.values())], self.unit.machine.buffer_blocks(Memory.L1), self.apart):
            return False
        self.tilings, self.weights = tilings, weights
        return True

    def plan(self) -> SegmentPlan:
        gene = self.gene
        names = tuple(spec.name for spec in self.unit.kernels[gene.start : gene.stop])
        tilings = tuple(self.tilings[k] for k in range(len(names)))
        halo: tuple[Halo, ...] = tuple("cache" if used else "recompute" for used in _caching(self.unit, gene, self.layout))
        return SegmentPlan.model_construct(
            operators=names,
            blocks=gene.blocks,
            prefetch=gene.prefetch,
            window=self.window,
            tilings=tilings,
            halo=halo if "cache" in halo else (),
            cores=working_cores(self.unit, gene),
            sliding=gene.sliding,
            spread=gene.spread,
            ahead_kib=gene.ahead_kib,
            split=gene.split,
        )

    def _tiling(self, k: int, resident: bool, budget: int) -> Tiling | None:
        gene = self.gene
        spec, rows, choice = self.unit.kernels[gene.start + k], self.rows[k], gene.choices[k] if gene.choices else 0
        if isinstance(spec, ConvSpec):
            whole = resident or (isinstance(spec, MatMulSpec) and not self.layout.streamed >> k & 1)
            return conv_tiling(self.unit, spec, rows, self.layout.inside[k], whole, budget, choice)
        return vector_tiling(self.unit, spec, rows, UB_SLOTS[choice % len(UB_SLOTS)])


def _caching(unit: Unit, gene: Gene, layout: Blocks) -> list[bool]:
    """Per operator, whether it caches a halo that there is: plans do not name others, so that equal plans are spelt alike."""
    rings = {storage for storage, staged in layout.staged.items() if staged.cached}
    mask = bits(gene)
    return [
        bool(mask >> k & 1) and any(read.storage in rings for read in spec.reads)
        for k, spec in enumerate(unit.kernels[gene.start : gene.stop])
    ]


def plan_of(unit: Unit, segments: list[SegmentPlan]) -> Plan:
    """A plan of a unit from its segments in order."""
    return Plan.model_construct(
        version=1,
        model=unit.graph.digest,
        machine=unit.machine.digest,
        dtype=unit.dtype.name,  # type: ignore[arg-type]
        segments=tuple(segments),
    )


def realise_all(unit: Unit, genome: Genome) -> Plan | Infeasible:
    """The plan of a genome, or the first segment that does not fit."""
    segments = []
    for index, gene in enumerate(genome):
        plan = realise(unit, gene)
        if plan is None:
            names = f"{unit.kernels[gene.start].name}..{unit.kernels[gene.stop - 1].name}"
            sizes = unit.machine.buffers_bytes
            what = f"no tiling in {gene.blocks} blocks fits {sizes.L1:,} B of L1 and {sizes.UB:,} B of UB"
            return Infeasible(f"segment {index}, {names}", what)
        segments.append(plan)
    return plan_of(unit, segments)


def single_operators(unit: Unit) -> Genome | Infeasible:
    """Every operator its own segment, in as few blocks as fit L1 with prefetch, or without where none does: where every search starts.

    On one core; one of which not even a row fits there, on all cores by channels.
    """
    genes = []
    for k, spec in enumerate(unit.kernels):
        counts = sorted({*block_counts(unit, k, k + 1), needed(unit)[k].size})
        narrow = Gene(k, k + 1)
        wide = narrow._replace(cores=tuple(range(unit.machine.cores)), split="channels")
        candidates = (
            gene._replace(blocks=blocks, prefetch=prefetch) for gene in (narrow, wide) for prefetch in _PREFETCH for blocks in counts
        )
        found = next((g for g in candidates if realise(unit, g) is not None), None)
        if found is None:
            sizes = ", ".join(f"{size:,} B of {name}" for name, size in unit.machine.buffers_bytes)
            return Infeasible(spec.name, f"no tiling fits {sizes}")
        genes.append(found)
    return tuple(genes)


def spread(unit: Unit, genome: Genome) -> Genome:
    """Every segment over all cores of the machine, in the fewest blocks that give each of them work; split as it says, or else as it can
    be; as it is where none of that fits."""
    return tuple(on_cores(unit, gene, unit.machine.cores) or gene for gene in genome)


def on_cores(unit: Unit, gene: Gene, width: int) -> Gene | None:
    """The gene over the first `width` cores, in the fewest blocks from its own on that give each of them work; split as it says, or else
    as it can be; None where none of that fits."""
    ways: tuple[Split, ...] = ("channels", "rows") if gene.split == "channels" else ("rows", "channels")
    return next(filter(None, (over(unit, gene, width, split) for split in ways)), None)


def on_all_cores(unit: Unit, gene: Gene) -> Gene | None:
    """The gene over all cores, in the fewest blocks from its own on that give each of them rows, else by channels; None where neither
    is possible.  It may not fit."""
    cores = unit.machine.cores
    wide = gene._replace(cores=tuple(range(cores)))
    counts = (count for count in block_counts(unit, gene.start, gene.stop) if count >= gene.blocks)
    tries = [wide, *(wide._replace(blocks=count, split="rows") for count in counts), wide._replace(split="channels")]
    return next((g for g in tries if g.split in splits(unit, g, cores)), None)


def over(unit: Unit, gene: Gene, width: int, split: Split) -> Gene | None:
    """The gene over the first `width` cores, in the fewest blocks from its own on that give each of them work; None where no such fits."""
    wider = gene._replace(cores=tuple(range(width)), split=split)
    counts = sorted({gene.blocks, *block_counts(unit, gene.start, gene.stop)})
    tries = (wider._replace(blocks=count) for count in counts if count >= gene.blocks)
    return next((g for g in tries if split in splits(unit, g, width) and realise(unit, g) is not None), None)


def layer_by_layer(unit: Unit) -> Plan | Infeasible:
    """`single_operators`, each over as many cores as look fastest, as a plan: what `compile` does without a plan."""
    genome = single_operators(unit)
    if isinstance(genome, Infeasible):
        return genome

    def looks(gene: Gene) -> float:
        plan = realise(unit, gene)
        return float("inf") if plan is None else float(expected_cycles(raw_features(unit, plan, gene.start)))

    ways: tuple[Split, ...] = ("rows", "channels")
    wider = [(width, split) for width in widths(unit)[1:] for split in ways]
    options = ([gene, *filter(None, (over(unit, gene, *way) for way in wider))] for gene in genome)
    return realise_all(unit, tuple(min(genes, key=looks) for genes in options))


class Structures:
    """Names the computation of every run of operators, so that equal segments of a network (and of other networks) share their tasks."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self._signatures = [_short(json.dumps(signature(unit, spec), sort_keys=True)) for spec in unit.kernels]
        self._digest = lru_cache(maxsize=1 << 16)(self._structure)
        self._keyed = lru_cache(maxsize=1 << 16)(self._key)

    def key(self, gene: Gene) -> Key:
        """Equal keys cost the same alone: the structure, and everything of the gene but its place (of its cores: how many there are).

        `ahead_kib` is not in it: what it saves is between the segment and its predecessor.
        """
        return self._keyed(gene)

    def _key(self, gene: Gene) -> Key:
        gene = gene._replace(cores=tuple(range(len(working_cores(self.unit, gene)))), ahead_kib=0)
        if len(gene.cores) == 1:
            gene = gene._replace(split="rows")
        if gene.stop - gene.start == 1:
            gene = gene._replace(window=1, sliding=False)  # there is nothing between operators
        if gene.blocks == 1 and self.unit.storages[0].n == 1:
            gene = gene._replace(prefetch=2, window=1, resident=True, cached=0)  # nothing is loaded or made twice
        elif gene.cached and not has_halos(self.unit, gene.start, gene.stop):
            gene = gene._replace(cached=0)
        if gene.siblings:
            gene = gene._replace(siblings=gene.siblings & (1 << len(families_in(self.unit, gene.start, gene.stop))) - 1)
        return self.structure(gene.start, gene.stop), gene[2:]

    def structure(self, start: int, stop: int) -> str:
        """16 hex digits over the operators [start, stop), how they are wired, and what leaves them."""
        return self._digest(start, stop)

    def _structure(self, start: int, stop: int) -> str:
        unit = self.unit
        rows: list[object] = [unit.machine.digest, unit.dtype.name, unit.storages[0].n]
        names: dict[int, int] = {}
        for k in range(start, stop):
            spec = unit.kernels[k]
            rows.append(self._signatures[k])
            rows.append(needed(unit)[k])
            rows += [(names.setdefault(p.storage, len(names)), p.plane) for p in (*spec.reads, spec.y)]
            rows.append([s - start for s in unit.producers[k] if s >= start])
            rows.append(k in unit.escapes or any(c >= stop for c in unit.consumers[k]))
        rows += [tuple(k - start for k in family) for family in families_in(unit, start, stop)]
        return _short(repr(rows))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
