"""Genes: what evolution changes.  A gene says what is wanted of a segment; `realise` makes the plan that does it, or says that none fits.

A genome is a tuple of genes that cover the operators in order.  Genes are small, hashable, and pickle to a few bytes; plans are what they
become: explicit, readable, complete.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import NamedTuple

from compiler.derive.plan import Plan, SegmentPlan, Tiling
from compiler.emit.segment import Infeasible, l1_need
from compiler.schedule.blocks import Blocks, cut
from compiler.tile.space import CHUNK_BUDGETS, KEPT, UB_SLOT_BLOCKS, conv_tiling, vector_tiling
from compiler.tile.spec import ConvSpec, Unit, signature
from simulator.npu.machine import Memory

BLOCK_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 160, 224)
MAX_SEGMENT = 24  # operators; longer segments recompute more halo than they save, and cost more to measure
_SLOTS = (UB_SLOT_BLOCKS, UB_SLOT_BLOCKS // 2, UB_SLOT_BLOCKS * 2, UB_SLOT_BLOCKS // 4)


class Gene(NamedTuple):
    """Operators [start, stop) in `blocks` blocks.

    prefetch, window: slots of loaded tensors and of intermediates.  chunk: the largest chunk of streamed weights that may be used
    (place in `CHUNK_BUDGETS`; smaller ones follow where L1 is short).  resident: whether weights that are needed again may stay.
    choices: per operator, the place of its tiling in the ranking by estimate; () is all zeros.
    """

    start: int
    stop: int
    blocks: int = 1
    prefetch: int = 2
    window: int = 1
    chunk: int = 0
    resident: bool = True
    choices: tuple[int, ...] = ()


Genome = tuple[Gene, ...]
Tail = tuple[int, int, int, int, bool, tuple[int, ...]]  # a gene without its place
Key = tuple[str, Tail]


def choice_count(unit: Unit, kernel: int) -> int:
    """How many tilings of a kernel a gene can name."""
    return KEPT if isinstance(unit.kernels[kernel], ConvSpec) else len(_SLOTS)


def block_counts(unit: Unit, start: int, stop: int) -> list[int]:
    """Block counts worth trying for operators [start, stop): up to one block per row of the lowest output."""
    height = min(spec.out_h for spec in unit.kernels[start:stop])
    return [count for count in BLOCK_COUNTS if count <= max(1, height)]


def realise(unit: Unit, gene: Gene) -> SegmentPlan | None:
    """The plan of a gene; None where L1 cannot hold it.

    Weights stay where a second block would read them again, the smallest first, while L1 holds them; the others are streamed.
    """
    layout = cut(unit, gene.start, gene.stop, gene.blocks)
    names = tuple(spec.name for spec in unit.kernels[gene.start : gene.stop])
    plan = SegmentPlan.model_construct(operators=names, blocks=gene.blocks, prefetch=gene.prefetch, window=gene.window, tilings=())
    sizes = {k: spec.weight_blocks for k, spec in enumerate(unit.kernels[gene.start : gene.stop]) if isinstance(spec, ConvSpec)}
    by_size = sorted(sizes, key=lambda k: (sizes[k], k))
    if gene.blocks * unit.storages[0].n == 1 or not gene.resident:
        by_size = []
    for budget in CHUNK_BUDGETS[gene.chunk :]:
        resident: set[int] = set()
        found = _fitting(unit, gene, plan, layout, resident, budget)
        if found is None:
            continue
        for k in by_size:
            better = _fitting(unit, gene, plan, layout, resident | {k}, budget)
            if better is None:
                break
            resident.add(k)
            found = better
        return found
    # two slots of the smallest chunk may need more than all of the weights
    return _fitting(unit, gene, plan, layout, set(sizes), CHUNK_BUDGETS[-1])


def _fitting(unit: Unit, gene: Gene, plan: SegmentPlan, layout: Blocks, resident: set[int], budget: int) -> SegmentPlan | None:
    tilings = []
    for k in range(gene.stop - gene.start):
        tiling = _tiling(unit, layout, k, k in resident, budget, gene.choices[k] if gene.choices else 0)
        if tiling is None:
            return None
        tilings.append(tiling)
    trial = plan.model_copy(update={"tilings": tuple(tilings)})
    return trial if l1_need(unit, trial, layout) <= unit.machine.buffer_blocks(Memory.L1) else None


def _tiling(unit: Unit, layout: Blocks, k: int, resident: bool, budget: int, choice: int) -> Tiling | None:
    spec = unit.kernels[layout.start + k]
    rows = max(1, max(r.size for r in layout.computed[k]))
    if isinstance(spec, ConvSpec):
        return conv_tiling(unit, spec, rows, layout.inside[k], resident, budget, choice)
    return vector_tiling(unit, spec, rows, _SLOTS[choice % len(_SLOTS)])


def plan_of(unit: Unit, segments: list[SegmentPlan]) -> Plan:
    """A plan of a unit from its segments in order."""
    return Plan.model_construct(
        version=1, model=unit.graph.digest, machine=unit.machine.digest, dtype=unit.dtype.name, segments=tuple(segments)
    )


def realise_all(unit: Unit, genome: Genome) -> Plan | Infeasible:
    """The plan of a genome, or the first segment that does not fit."""
    segments = []
    for index, gene in enumerate(genome):
        plan = realise(unit, gene)
        if plan is None:
            names = f"{unit.kernels[gene.start].name}..{unit.kernels[gene.stop - 1].name}"
            return Infeasible(
                f"segment {index}, {names}", f"no tiling in {gene.blocks} blocks fits {unit.machine.buffers_bytes.L1:,} B of L1"
            )
        segments.append(plan)
    return plan_of(unit, segments)


def single_operators(unit: Unit) -> Genome | Infeasible:
    """Every operator its own segment, in as few blocks as fit L1 with prefetch: where every search starts."""
    genes = []
    for k, spec in enumerate(unit.kernels):
        candidates = (Gene(k, k + 1, blocks) for blocks in block_counts(unit, k, k + 1))
        gene = next((g for g in candidates if realise(unit, g) is not None), None)
        if gene is None:
            return Infeasible(spec.name, f"no tiling fits {unit.machine.buffers_bytes.L1:,} B of L1")
        genes.append(gene)
    return tuple(genes)


def layer_by_layer(unit: Unit) -> Plan | Infeasible:
    """`single_operators` as a plan: what `compile` does without a plan, and what every search has to beat."""
    genome = single_operators(unit)
    return genome if isinstance(genome, Infeasible) else realise_all(unit, genome)


class Structures:
    """Names the computation of every run of operators, so that equal segments of a network (and of other networks) share their tasks."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self._signatures = [_short(json.dumps(signature(unit, spec), sort_keys=True)) for spec in unit.kernels]
        self._digest = lru_cache(maxsize=1 << 16)(self._structure)

    def key(self, gene: Gene) -> Key:
        """Equal keys cost the same: the structure, and everything of the gene but its place."""
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
            rows += [(names.setdefault(p.storage, len(names)), p.plane) for p in (*spec.reads, spec.y)]
            rows.append([s - start for s in unit.producers[k] if s >= start])
            rows.append(k in unit.escapes or any(c >= stop for c in unit.consumers[k]))
        return _short(repr(rows))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
