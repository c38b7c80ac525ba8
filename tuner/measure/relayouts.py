"""Cost of relayouts: operators that bring values to other places, and nothing else.

Their share of a run is that of the links of its critical path (`simulator.critical_path`), which add up to the run.  A relayout's least
cycles are its payload at the rate of the slowest path that it takes; its cycles are those of its busiest engine, with start-ups and bursts
that a granule fills only in part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from compiler.build import MeasuredModel
from compiler.ir.operators import MatMul, Operator, QuantisedMatMul, Reflow, Relayout, Shuffle
from compiler.model import LoweredModel
from compiler.target.target_graph import TargetGraph
from simulator.critical_path import chain_cycles, critical_chain
from simulator.npu import isa
from simulator.npu.cycles import cost_tables, price, record_cycles
from simulator.npu.isa import Op
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, Memory
from simulator.timeline import Timeline, timeline
from simulator.timing_state import Ints


class RelayoutRow(NamedTuple):
    """One relayout of a run.  cycles: of its busiest engine without contention.  least_cycles: 0 without moves of its own."""

    name: str
    bytes: int
    cycles: int
    least_cycles: int

    @property
    def ratio(self) -> float:
        return self.cycles / self.least_cycles if self.least_cycles else 0.0


class RelayoutCost(NamedTuple):
    """Relayouts of a model.  chain_cycles: cycles of the critical path that are theirs, of `cycles`."""

    rows: tuple[RelayoutRow, ...]
    chain_cycles: int
    cycles: int

    @property
    def share(self) -> float:
        return self.chain_cycles / self.cycles if self.cycles else 0.0

    def __str__(self) -> str:
        line = f"relayouts: {len(self.rows)} operators, {self.share:.1%} of the cycles"
        longest = max(self.rows, key=lambda row: row.cycles)
        if not longest.least_cycles:
            return line
        rate = f"{longest.bytes:,} bytes, {longest.ratio:.2f} times as long as they take at the rate of their path"
        return f"{line}; the longest, {longest.name!r}: {longest.cycles:,} cycles for {rate}"

    def row(self) -> dict[str, object]:
        """Row of JSON."""
        rows = [{**row._asdict(), "ratio": row.ratio} for row in self.rows]
        return {"share": self.share, "chain_cycles": self.chain_cycles, "cycles": self.cycles, "operators": rows}


def relayout_cost(lowered: LoweredModel, measured: MeasuredModel, level: str) -> RelayoutCost | None:
    """Cost of the relayouts of a model at a level; None without any."""
    rows: list[RelayoutRow] = []
    chain = cycles = 0
    for target_graph, piece in zip(lowered.target_graphs, measured.pieces, strict=True):
        moving = [op.tag for op in target_graph.operators if is_relayout(op.operator, target_graph)]
        cycles += piece.timings[level].cycles
        if not moving:
            continue
        run = timeline(piece.program, lowered.machine, lowered.machine.contention[level])
        rows += _rows(run, target_graph, moving, lowered.machine)
        chain += sum(link.cycles for link in chain_cycles(run, critical_chain(run)) if link.operator in moving)
    return RelayoutCost(tuple(rows), chain, cycles) if rows else None


def is_relayout(op: Operator, target_graph: TargetGraph) -> bool:
    """Whether an operator brings values to other places, and nothing else; a product with an identity matrix exchanges lanes and pixels."""
    if isinstance(op, MatMul | QuantisedMatMul):
        operand = target_graph.graph.constants.get(op.inputs[0])
        return operand is not None and np.array_equal(operand[0, :, :, 0], np.eye(*operand.shape[1:3]))
    return isinstance(op, Relayout | Reflow | Shuffle)


def _rows(run: Timeline, target_graph: TargetGraph, moving: Sequence[int], machine: Machine) -> list[RelayoutRow]:
    rate, cycles = cost_tables(machine).rate, record_cycles(run.code, price(run.code, machine), machine)
    rows = []
    for op in target_graph.operators:
        if op.tag not in moving:
            continue
        records = np.flatnonzero((run.operator == op.tag) & run.work)
        if not len(records):  # its values are read where they lie
            continue
        busy = np.bincount(run.engine[records], cycles[records])
        copies = run.code[records][run.code[records, isa.OP] == Op.COPY]
        least, moved = _least(copies, rate) if isinstance(op.operator, Relayout) else (0, 0)
        rows.append(RelayoutRow(op.name, moved, int(busy.max()), least))
    return rows


def _least(copies: Ints, rate: Ints) -> tuple[int, int]:
    """(cycles of the slowest path at its rate, bytes on it) of moves."""
    payload = copies[:, [isa.C_LENGTH, isa.C_COUNT, isa.C_COUNT2]].astype(np.int64).prod(axis=1) * BLOCK_BYTES
    paths = {(int(a), int(b)) for a, b in copies[:, [isa.SRC, isa.DST]]}
    costs = []
    for source, target in paths:
        moved = int(payload[(copies[:, isa.SRC] == source) & (copies[:, isa.DST] == target)].sum())
        unit = SHARE_UNIT if Memory.DDR in (source, target) else 1
        costs.append((-(-moved * unit // int(rate[source, target])), moved))
    return max(costs, default=(0, 0))
