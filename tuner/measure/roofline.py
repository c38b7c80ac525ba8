"""Lower bound of a program of a model, or of some of its operators."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.operators import Concat, Convolution, Operator, Shuffle
from compiler.ir.region import EMPTY, Rows
from compiler.segment.blocks import operand_rows, rows_needed
from compiler.target.target_graph import TargetGraph
from simulator.npu.cycles import port_units
from simulator.npu.level import SHARE_UNIT
from simulator.npu.parts import DataType


class Roofline:
    """The model's own lower bound: MACs over all granted cores' peak, or unpadded bytes of weights, inputs and outputs over the bandwidth.

    Only rows that some operator or output reads count.
    """

    def __init__(self, target_graph: TargetGraph) -> None:
        self.target_graph = target_graph
        self._works: dict[tuple[int, ...], tuple[dict[DataType, int], int]] = {}
        self._cycles: dict[tuple[tuple[int, ...], str], int] = {}
        layout, shapes = target_graph.layout, target_graph.graph.shapes
        images = {storage.name: storage.n for storage in target_graph.storages}
        self.row_bytes = {
            name: images[layout.placements[name].storage] * shape[1] * shape[3] * layout.type_of(name).size_bytes
            for name, shape in shapes.items()
        }
        # a concatenation or a shuffle moves nothing: its parts count
        self._leaves: dict[str, set[str]] = {name: {name} for name in shapes}
        for op in target_graph.graph.operators:
            if isinstance(op, Concat | Shuffle):
                self._leaves[op.y] = set().union(*(self._leaves[name] for name in op.inputs))
        self.weight_bytes = [_weight_bytes(spec.operator, target_graph.type_of(spec.reads[0])) for spec in target_graph.operators]

    def cycles(self, start: int, stop: int, level: str) -> int:
        """Roofline cycles of operators [start, stop) alone."""
        return self.cycles_of(range(start, stop), level)

    def cycles_of(self, operators: Sequence[int], level: str) -> int:
        """Roofline cycles of some operators, ascending, alone."""
        key = tuple(operators), level
        if key not in self._cycles:
            self._cycles[key] = self._compute_cycles(*key)
        return self._cycles[key]

    def _compute_cycles(self, operators: tuple[int, ...], level: str) -> int:
        macs, moved = self.work(operators)
        machine, cores = self.target_graph.machine, self.target_graph.machine.granted(level).cores
        compute_cycles = sum(-(-count // (machine.macs_per_cycle[dtype.name] * cores)) for dtype, count in macs.items())
        rate = port_units(machine, machine.contention[level].share_units)
        return max(compute_cycles, -(-moved * SHARE_UNIT // rate))

    def work(self, operators: tuple[int, ...]) -> tuple[dict[DataType, int], int]:
        """(MACs by operand type, unpadded bytes) of operators."""
        cached_work = self._works.get(operators)
        if cached_work is not None:
            return cached_work
        target_graph, members = self.target_graph, set(operators)
        specs = [target_graph.operators[k] for k in operators]
        rows = rows_needed(target_graph)
        macs: dict[DataType, int] = {}
        for spec in specs:
            dtype = target_graph.type_of(spec.reads[0]).product
            macs[dtype] = macs.get(dtype, 0) + spec.macs * rows[spec.index].size // spec.out_h * target_graph.images
        # rows that cross the border of the operators: operands from outside, and results with readers outside
        produced = {spec.operator.y for spec in specs}
        read: dict[str, Rows] = {}
        for spec in specs:
            for name, rows_used in zip(spec.operator.operands, operand_rows(target_graph, spec.index), strict=True):
                for leaf in self._leaves[name] - produced:
                    read[leaf] = read.get(leaf, EMPTY).hull(rows_used)
        stored_rows = {
            spec.operator.y: rows[spec.index]
            for spec in specs
            if spec.index in target_graph.escapes or not members.issuperset(target_graph.consumers[spec.index])
        }
        if target_graph.machine.l2 is not None:
            stored_rows = {}  # an L2 may take all results
        moved = sum(self.row_bytes[name] * rows_used.size for name, rows_used in (*read.items(), *stored_rows.items()))
        moved += sum(self.weight_bytes[k] for k in operators)
        self._works[operators] = macs, moved
        return macs, moved


def _weight_bytes(operator: Operator, dtype: DataType) -> int:
    """Bytes of weights and bias that belong to an input of that type."""
    if not isinstance(operator, Convolution):
        return 0
    bias = dtype if dtype.is_float else dtype.sums
    return int(operator.weights.size) * dtype.size_bytes + int(operator.bias.size) * bias.size_bytes
