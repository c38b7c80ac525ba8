"""Theorem 1 of `docs/bounds.md`: cycles of engines that no tiling of an operator does without, and the best deal of all of them.

| name      | dtype         | of every operator of a unit, in all images, on one core                                       |
|-----------|---------------|-----------------------------------------------------------------------------------------------|
| matrix    | float [n, 3]  | cycles of CUBE (without start-ups), MTE1 and FIXPIPE where the matrix unit makes a product    |
| starts    | float [n]     | start-ups of CUBE                                                                             |
| on_vector | float [n]     | cycles of VECTOR where that makes the same product                                            |
| rows      | float [n, 2]  | which part of CUBE's steps, and of rows, whole steps have                                     |
| pairs     | float [n, 4, 2] | which part of pairs of blocks, and of products, is in `Cells`                               |
| columns   | float [n, 2]  | which part of blocks of columns, and of columns, full blocks have                             |
| lanes     | float [n, 2]  | which part of the lanes of CUBE's blocks, and of VECTOR's, have a channel                     |
| vector    | float [n]     | cycles of VECTOR of what only that can do                                                     |
| back      | float [n]     | bytes of such a result that products read: MTE3 takes them out of UB                          |
| weights   | int [n]       | bytes of weights and biases that some needed value is made of                                 |
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.bound.dependences import Box, Needs
from compiler.ir.operators import Conv, Convolution, LayerNorm, Operator, Pool, Softmax, Vector
from compiler.ir.operators.matmul import HeadedProduct
from compiler.target.target_graph import TargetGraph
from simulator.npu.cycles import CostTables, cost_tables, steps
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS, Op
from simulator.npu.machine import Machine
from simulator.npu.machine_parts import DataPath
from simulator.npu.parts import BLOCK_BYTES, SUM_BYTES, DataType, Engine, Fractal, Memory

REPEAT_BYTES = REPEAT_BLOCKS * BLOCK_BYTES
SHORT = 64  # products that VECTOR may add up in the type of its operands; sums of more are float32 or int32, as the matrix unit has them
FOUR = 4  # lanes of a pixel of an image whose channels lie in one block with those of other pixels
_OPCODES = {
    "exp": Op.VEXP, "ln": Op.VLN, "sqrt": Op.VSQRT, "erf": Op.VEXP, "gelu": Op.VEXP,
    "reciprocal": Op.VRECIPROCAL, "div": Op.VDIV, "rdiv": Op.VDIV,
}  # fmt: skip
Floats = NDArray[np.float64]


class LeastWork(NamedTuple):
    """See the table at the top of this file."""

    matrix: Floats
    starts: Floats
    on_vector: Floats
    rows: Floats
    pairs: Floats
    columns: Floats
    lanes: Floats
    vector: Floats
    back: Floats
    weights: NDArray[np.int64]

    @property
    def cube(self) -> Shared:
        """With start-ups.  By whole steps of rows and others, and pairs of blocks."""
        steps, rows = (_parts(self.rows[:, i])[:, :, None] for i in range(2))
        pairs, products = (self.pairs[:, None, :, i] for i in range(2))
        cycles = (self.matrix[:, :1, None] * steps + self.starts[:, None, None] * rows) * pairs
        return Shared(_flat(cycles), _flat(self.on_vector[:, None, None] * rows * products))

    @property
    def spread(self) -> Shared:
        """Of CUBE for all weights, in proportion for a part of them (Theorem 2).  By whole steps of rows and others."""
        steps, rows = (_parts(self.rows[:, i]) for i in range(2))
        cycles = self.matrix[:, :1] * steps + self.starts[:, None] * rows
        return Shared(self.lanes[:, :1] * cycles, self.lanes[:, 1:] * self.on_vector[:, None] * rows)

    @property
    def loads(self) -> Shared:
        """Of MTE1, which may bring weights to L0B before.  By pairs of blocks."""
        return Shared(self.matrix[:, 1:2] * self.pairs[:, :, 0], self.on_vector[:, None] * self.pairs[:, :, 1])

    @property
    def fixpipe(self) -> Shared:
        """By full blocks of columns and others."""
        blocks, columns = (_parts(self.columns[:, i]) for i in range(2))
        return Shared(self.matrix[:, 2:] * blocks, self.on_vector[:, None] * columns)


class Shared(NamedTuple):
    """Of every operator's product, in cells that are done by one engine or the other: float64 [n, cells], cycles of either."""

    cycles: Floats
    on_vector: Floats


def _parts(part: Floats) -> Floats:
    """float64 [n, 2]: a part and the rest."""
    return np.stack((part, 1 - part), 1)


def _flat(cells: Floats) -> Floats:
    return cells.reshape(len(cells), -1)


class AxisBlocks(NamedTuple):
    """Along an axis: full blocks and others, and lanes in these."""

    full: float
    rest: float
    full_lanes: float
    rest_lanes: float

    @classmethod
    def of(cls, lanes: int, block: int, times: int = 1) -> AxisBlocks:
        full, rest = divmod(lanes, block)
        return cls(times * full, times * bool(rest), times * full * block, times * rest)


class Multiplied(NamedTuple):
    """`times` products of [rows x k] by [k x columns].

    cells: float64 [4, 2], pairs of a block of k and one of columns, and products of a row in these: of full blocks of both, of full ones of
    k and others of columns, the other way round, and of others of both.  left: blocks of k of all left operands of a row.
    reuse: pairs that a block of k is in at most, and a block of columns.  weights: values, and biases where they are not zero.
    """

    times: int
    rows: int
    columns: int
    cells: Floats
    left: int
    reuse: tuple[float, float]
    weights: int

    @property
    def pairs(self) -> float:
        return float(self.cells[:, 0].sum())

    @property
    def parts(self) -> tuple[Floats, float]:
        """Of `LeastWork`: pairs; and lanes, of which no pair has more than that cell's that has most."""
        total = self.cells.sum(0)
        most = (self.cells[:, 1] / np.maximum(self.cells[:, 0], 1e-9)).max()
        return self.cells / total, float(total[1] / (total[0] * most))

    @property
    def summed(self) -> float:
        """Products that a sum is of."""
        return float(self.cells[:, 1].sum()) / self.columns


def product_of(op: Operator, box: Box, images: int, channels: int, fractal: Fractal) -> Multiplied | None:
    """The product that makes a box of an operator's result; None where it is none.  channels: of its left operand."""
    columns, c0, c1 = int(box.channels.sum()), fractal.lanes, fractal.columns
    if isinstance(op, Convolution):
        c_out, c_in, high, wide = op.weights.shape
        taps, rows = high * wide, images * box.pixels
        inner, left, reuse = AxisBlocks.of(c_in, c0, taps), -(-c_in // c0) * taps, (inf, inf)
        if op.groups == 1:
            if c_in <= FOUR and -(-taps * FOUR // c0) < left:
                fours, used = AxisBlocks.of(taps * FOUR, c0), c_in / FOUR
                inner, left = fours._replace(full_lanes=fours.full_lanes * used, rest_lanes=fours.rest_lanes * used), -(-taps * FOUR // c0)
            cells = _cells(inner, AxisBlocks.of(columns, c1))
        else:
            groups = -(-columns * op.groups // c_out)
            left = max(left, -(-groups * c_in // c0) * taps)
            reuse = c_out / op.groups / c1, c_in * taps / c0
            cells = _in_groups(op, columns, fractal)
        return Multiplied(1, rows, columns, cells, left, reuse, columns * (c_in * taps + bool(np.any(op.bias))))
    if isinstance(op, HeadedProduct):
        lanes, columns = channels // op.heads, columns // op.heads
        cells = _cells(AxisBlocks.of(lanes, c0), AxisBlocks.of(columns, c1))
        return Multiplied(images * op.heads, box.pixels, columns, cells, -(-lanes // c0), (inf, inf), 0)
    return None


def _cells(inner: AxisBlocks, columns: AxisBlocks) -> Floats:
    """`Multiplied.cells`, each block of one with each of the other."""
    pairs, products = (np.outer(inner[i : i + 2], columns[i : i + 2]).ravel() for i in (0, 2))
    return np.stack((pairs, products), 1).astype(np.float64)


def _in_groups(op: Convolution, columns: int, fractal: Fractal) -> Floats:
    """The same of groups (docs/bounds.md, Lemma 2)."""
    c_out, c_in, high, wide = op.weights.shape
    taps, c0, c1 = high * wide, fractal.lanes, fractal.columns
    if op.is_depthwise:
        return np.array([(taps * -(-columns // c1), taps * columns), (0, 0), (0, 0), (0, 0)], np.float64)
    cells = np.zeros((4, 2))
    if columns == c_out and c_in > c0:
        cells = _cells(AxisBlocks.of(c_in - c0, c0, taps), AxisBlocks.of(c_out // op.groups, c1, op.groups))
    cells[0] += taps * columns / c1, taps * columns * min(c_in, c0)
    return cells


def _on_vector(op: Operator, t: CostTables, dtype: DataType, p: Multiplied) -> tuple[float, float]:
    """Cycles of VECTOR; which part of the lanes of its blocks have a channel (docs/bounds.md, Lemma 3)."""
    lanes = BLOCK_BYTES // (SUM_BYTES if p.summed > SHORT or not dtype.is_float else dtype.size_bytes)
    blocks = p.columns / lanes
    if isinstance(op, Convolution) and op.is_depthwise and p.columns > FOUR:  # a pixel's channels by planes
        blocks = -(-p.columns // lanes)
    return _repeats(t, p.times * p.rows * p.summed * blocks / REPEAT_BLOCKS, Op.VMADD), p.columns / (lanes * blocks)


def _full_rows(rows: int, axis: NDArray[np.int64]) -> tuple[float, float]:
    """Which part of steps, and of rows, is in whole steps."""
    whole = rows // int(axis[0]) * int(axis[0])
    return (steps(whole, axis) / steps(rows, axis), whole / rows) if whole else (1.0, 1.0)


def _full_columns(op: Operator, columns: int, block: int) -> tuple[float, float]:
    """Which part of blocks of columns, and of columns, is in full ones."""
    if columns < block or (isinstance(op, Convolution) and op.is_depthwise):  # of which VECTOR takes planes, too
        return 1.0, 1.0
    return (columns // block) / -(-columns // block), columns // block * block / columns


def work_of(target_graph: TargetGraph, needs: Needs) -> LeastWork:
    count, machine, t = len(target_graph.operators), target_graph.machine, cost_tables(target_graph.machine)
    starts, on_vector, own, back = (np.zeros(count) for _ in range(4))
    rows, pairs, columns, lanes = (np.ones((count, *shape)) for shape in ((2,), (4, 2), (2,), (2,)))
    weights = np.zeros(count, np.int64)
    found = LeastWork(np.zeros((count, 3)), starts, on_vector, rows, pairs, columns, lanes, own, back, weights)
    loaded, added_up = _loaded_for_it(target_graph, needs), _added_up(target_graph, needs)
    added = set(target_graph.layout.copies)  # this compiler's own, not of the graph
    shapes = target_graph.graph.shapes
    for spec, leaf in zip(target_graph.operators, needs.made, strict=True):
        op, k, box = spec.operator, spec.index, leaf.needed
        if box is None or spec.name in added:
            continue
        dtype = target_graph.type_of(spec.reads[0])
        product = product_of(op, box, leaf.images, shapes[op.inputs[0]][1], machine.fractal(dtype))
        if product is not None:
            found.matrix[k], found.starts[k] = _matrix(machine, t, dtype, product, loaded[k])
            if added_up[k]:
                found.matrix[k, 2] = 0
            found.rows[k] = _full_rows(product.rows, t.matrix[dtype, 0])
            found.pairs[k], found.lanes[k, 0] = product.parts
            found.columns[k] = _full_columns(op, product.columns, machine.fractal(dtype).columns)
            found.on_vector[k], found.lanes[k, 1] = _on_vector(op, t, dtype, product)
            found.weights[k] = product.weights * dtype.size_bytes
            continue
        made, read = leaf.needed_bytes, sum(r.box.values * of.images * of.size_bytes for of, r in needs.read_by(k))
        found.vector[k] = _vector(op, t, made / REPEAT_BYTES, read / REPEAT_BYTES)
        if found.vector[k]:
            read_as = [(target_graph.operators[r.reader].operator, r) for r in leaf.readings]
            multiplied = [r for by, r in read_as if isinstance(by, HeadedProduct) or (isinstance(by, Convolution) and r.operand == 0)]
            found.back[k] = max([r.box.values for r in multiplied], default=0) * leaf.images * leaf.size_bytes
    return found


class OwnLoads(NamedTuple):
    """Of an operator the part of its left operand, and whether the right one, that are counted as loads of it; whether others read the
    left one, too."""

    left: float
    right: bool
    shared: bool


def _loaded_for_it(target_graph: TargetGraph, needs: Needs) -> list[OwnLoads]:
    """What several products read is loaded for all of them at once, by a program that likes to, so it is counted for one."""
    count = len(target_graph.operators)
    elsewhere, right, shared = np.zeros(count), np.ones(count, np.bool_), np.zeros(count, np.bool_)
    for leaf in (*needs.made, *needs.given):
        for operand, kinds in ((0, Convolution | HeadedProduct), (1, HeadedProduct)):
            readers = [r for r in leaf.readings if r.operand == operand and isinstance(target_graph.operators[r.reader].operator, kinds)]
            shared[[r.reader for r in readers if operand == 0 and len(readers) > 1]] = True
            for reading in sorted(readers, key=lambda r: -needs.made[r.reader].needed_bytes)[1:]:
                if operand == 0:
                    elsewhere[reading.reader] += reading.box.channels.sum()
                else:
                    right[reading.reader] = False
    found = []
    for spec in target_graph.operators:
        op, lanes, k = spec.operator, target_graph.type_of(spec.reads[0]).lanes, spec.index
        channels = target_graph.graph.shapes[op.inputs[0]][1]
        whole = isinstance(op, Convolution) and op.groups == 1
        part = (channels - elsewhere[k]) / (-(-channels // lanes) * lanes) if whole else 0.0
        found.append(OwnLoads(float(part) if elsewhere[k] else 1.0, bool(right[k]), bool(shared[k])))
    return found


def _added_up(target_graph: TargetGraph, needs: Needs) -> list[bool]:
    """Whether the sums of an operator may stay in L0C until others are added to them there, so that they are no moves of their own."""

    def adds(op: Operator, operand: int) -> bool:
        if isinstance(op, Vector):
            return any(step.op in ("add", "sub", "rsub") for step in op.steps)
        return (isinstance(op, Convolution) and operand > 0) or (isinstance(op, Pool) and op.mode == "average")

    found = []
    for spec, leaf in zip(target_graph.operators, needs.made, strict=True):
        linear = isinstance(spec.operator, Conv) and spec.operator.activation == "none" and not leaf.outside
        found.append(linear and all(adds(target_graph.operators[r.reader].operator, r.operand) for r in leaf.readings))
    return found


def _matrix(machine: Machine, t: CostTables, dtype: DataType, p: Multiplied, loaded: OwnLoads) -> tuple[Floats, float]:
    """float64 [3]: cycles of CUBE, MTE1 and FIXPIPE; of CUBE's start-ups (docs/bounds.md, Lemma 2)."""
    fractal, axes = machine.fractal(dtype), t.matrix[dtype]
    n1, blocks = -(-p.columns // fractal.columns), machine.buffers_bytes.L0C // (fractal.columns * SUM_BYTES)
    columns = blocks if loaded.shared or p.reuse[0] < inf else min(blocks, p.times * n1)
    each = _least_step(axes[1], fractal.lanes, p.times * p.left) * _least_step(axes[2], fractal.columns, columns)
    cycles = p.times * steps(p.rows, axes[0]) * p.pairs * each * int(t.step_cycles[dtype])
    left = p.times * p.rows * p.left * BLOCK_BYTES * loaded.left
    right = p.times * p.pairs * fractal.weight_blocks * BLOCK_BYTES if loaded.right else 0
    out = p.times * p.rows * n1 * fractal.columns * SUM_BYTES
    into_a, into_b, out_of_c = way_to(machine, Memory.L0A), way_to(machine, Memory.L0B), way_from(machine, Memory.L0C, Engine.FIXPIPE)
    a, b, c = (machine.buffers_bytes.there.get(name, 0) for name in ("L0A", "L0B", "L0C"))
    starts = 0.0
    if a and b:
        rooms = a // BLOCK_BYTES, b // (fractal.weight_blocks * BLOCK_BYTES), c // (fractal.columns * SUM_BYTES)
        most = _most(rooms, (p.rows, p.times * p.left, columns), p.reuse)
        of_row = p.pairs if p.reuse[0] == inf else p.summed * p.columns / (fractal.lanes * fractal.columns)
        starts = p.times * p.rows * of_row / most * machine.matrix.startup_cycles
    return np.array((cycles, into_a.cycles(left, a) + into_b.cycles(right, b), out_of_c.cycles(out, c)), np.float64), starts


def _most(rooms: tuple[int, int, int], axes: tuple[int, int, int], reuse: tuple[float, float]) -> float:
    """The most pairs of blocks, for a row each, that one MMAD makes; of groups in pairs whose lanes are all full.

    rooms: of L0A in blocks of k of a row, of L0B in pairs of blocks, of L0C in blocks of columns of a row.  axes: rows, blocks of k and of
    columns that there are.  reuse: as in `Multiplied`.
    """
    (left, right, sums), (rows, *others) = rooms, axes
    inner, columns = np.meshgrid(*(np.arange(1, min(count, right) + 1) for count in others))
    fits = inner * columns <= right
    k, n = inner[fits], columns[fits]
    useful = np.minimum(k * n, np.minimum(k * reuse[0], n * reuse[1]))
    return float((np.minimum(np.minimum(left // k, sums // n), rows) * useful).max())


class FastestPath(NamedTuple):
    """How data come to a memory, or leave it, at most.  bytes_per_cycle: infinite where several engines may move them."""

    bytes_per_cycle: float
    startup_cycles: int

    def cycles(self, size_bytes: float, each_bytes: float) -> float:
        """each_bytes: of what one instruction moves at most."""
        return size_bytes / self.bytes_per_cycle + (size_bytes / each_bytes * self.startup_cycles if each_bytes else 0)


def way_to(machine: Machine, memory: Memory) -> FastestPath:
    """By MTE1."""
    return _fastest([path for path in machine.paths if path.destination == memory.name], Engine.MTE1)


def way_from(machine: Machine, memory: Memory, engine: Engine) -> FastestPath:
    return _fastest([path for path in machine.paths if path.source == memory.name], engine)


def _fastest(paths: Sequence[DataPath], engine: Engine) -> FastestPath:
    if not paths or any(path.engine != engine.name for path in paths):
        return FastestPath(inf, 0)
    return FastestPath(max(float(path.bytes_per_cycle) for path in paths), min(path.startup_cycles for path in paths))


def _least_step(axis: NDArray[np.int64], size: int, most: int) -> float:
    """Steps along an axis of a block of so many lanes, as its part of an MMAD of up to `most` of them."""
    target_graph, least, fill = axis.tolist()
    blocks = np.arange(1, most + 1)
    return float(((np.maximum(-(-blocks * size // target_graph), least) + fill) / blocks).min())


def _repeats(t: CostTables, repeats: float, *ops: Op) -> float:
    """Cycles of so many repeats of each of some opcodes, in instructions of as many as one takes."""
    return sum(repeats * (int(t.vector_cycles[op]) + int(t.scalars[1]) / MAX_REPEATS) for op in ops)


def _vector(op: Operator, t: CostTables, made: float, read: float) -> float:
    """Cycles of VECTOR of what no other engine does (docs/bounds.md, Lemma 3).  made, read: repeats of its result, and of what it reads."""
    if isinstance(op, Vector):
        return _repeats(t, made, *(_OPCODES[step.op] for step in op.steps if step.op in _OPCODES))
    if isinstance(op, Pool) and op.mode == "max":
        return _repeats(t, max(made, read / 2), Op.VMAX)
    if isinstance(op, Softmax):
        return _repeats(t, made, Op.VEXP)
    if isinstance(op, LayerNorm):
        return _repeats(t, made, Op.VMUL)
    return 0.0
