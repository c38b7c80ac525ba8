"""Least engine work of operators: Theorem 1 of `docs/bounds.md`, cycles that every tiling of an operator needs.

| name      | dtype         | of every operator, in all images, on one core                                                 |
|-----------|---------------|-----------------------------------------------------------------------------------------------|
| matrix    | float [n, 3]  | cycles of CUBE (without start-ups), MTE1 and FIXPIPE if the matrix unit computes a product    |
| starts    | float [n]     | start-ups of CUBE                                                                             |
| on_vector | float [n]     | cycles of VECTOR if VECTOR computes the same product                                          |
| rows      | float [n, 2]  | share of CUBE's steps, and of rows, in full steps                                             |
| pairs     | float [n, 4, 2] | share of pairs of blocks, and of products, in `Cells`                                       |
| columns   | float [n, 2]  | share of blocks of columns, and of columns, in full blocks                                    |
| lanes     | float [n, 2]  | share of the lanes of CUBE's blocks, and of VECTOR's, that have a channel                     |
| vector    | float [n]     | cycles of VECTOR for work that no other engine can do                                         |
| back      | float [n]     | bytes of a VECTOR result that products read: MTE3 moves them out of UB                        |
| weights   | int [n]       | bytes of weights and biases of needed values                                                  |
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
SHORT = 64  # products that VECTOR may sum in the operands' type; longer sums are float32 or int32, as in the matrix unit
FOUR = 4  # lanes of a pixel of an image that has several pixels in one block
_OPCODES = {
    "exp": Op.VEXP, "ln": Op.VLN, "sqrt": Op.VSQRT, "erf": Op.VEXP, "gelu": Op.VEXP,
    "reciprocal": Op.VRECIPROCAL, "div": Op.VDIV, "rdiv": Op.VDIV,
}  # fmt: skip
Floats = NDArray[np.float64]


class LeastWork(NamedTuple):
    """Least work of operators: see the table at the top of this file."""

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
        """Cycles of CUBE with start-ups, by full and other steps of rows, and pairs of blocks."""
        steps, rows = (_parts(self.rows[:, i])[:, :, None] for i in range(2))
        pairs, products = (self.pairs[:, None, :, i] for i in range(2))
        cycles = (self.matrix[:, :1, None] * steps + self.starts[:, None, None] * rows) * pairs
        return Shared(_flat(cycles), _flat(self.on_vector[:, None, None] * rows * products))

    @property
    def spread(self) -> Shared:
        """Cycles of CUBE for all weights, in proportion for a part of them (Theorem 2), by full and other steps of rows."""
        steps, rows = (_parts(self.rows[:, i]) for i in range(2))
        cycles = self.matrix[:, :1] * steps + self.starts[:, None] * rows
        return Shared(self.lanes[:, :1] * cycles, self.lanes[:, 1:] * self.on_vector[:, None] * rows)

    @property
    def loads(self) -> Shared:
        """Cycles of MTE1, counted by pairs of blocks; they may come early, since MTE1 can move weights to L0B before other work."""
        return Shared(self.matrix[:, 1:2] * self.pairs[:, :, 0], self.on_vector[:, None] * self.pairs[:, :, 1])

    @property
    def fixpipe(self) -> Shared:
        """Cycles of FIXPIPE, by full and other blocks of columns."""
        blocks, columns = (_parts(self.columns[:, i]) for i in range(2))
        return Shared(self.matrix[:, 2:] * blocks, self.on_vector[:, None] * columns)


class Shared(NamedTuple):
    """Cells of every operator's product, each computed by one engine or the other: float64 [n, cells], cycles of either."""

    cycles: Floats
    on_vector: Floats


def _parts(part: Floats) -> Floats:
    """Share and remainder, float64 [n, 2]."""
    return np.stack((part, 1 - part), 1)


def _flat(cells: Floats) -> Floats:
    return cells.reshape(len(cells), -1)


class AxisBlocks(NamedTuple):
    """Blocks along an axis: the number of full blocks and of partial ones, and the lanes in each kind."""

    full: float
    partial: float
    full_lanes: float
    partial_lanes: float

    @classmethod
    def of(cls, lanes: int, block: int, times: int = 1) -> AxisBlocks:
        full, remainder = divmod(lanes, block)
        return cls(times * full, times * bool(remainder), times * full * block, times * remainder)


class Multiplied(NamedTuple):
    """`times` products of [rows x k] by [k x columns].

    cells: float64 [4, 2] of (pairs of a block of k and a block of columns, multiply-accumulates of one row in these pairs).  The four rows:
    both blocks full; only k full; only columns full; both partial.  k_blocks: blocks of k of all left operands of a row.
    reuse: most pairs that one block of k is in, and most pairs that one block of columns is in.  weights: number of weights and nonzero
    biases.
    """

    times: int
    rows: int
    columns: int
    cells: Floats
    k_blocks: int
    reuse: tuple[float, float]
    weights: int

    @property
    def pairs(self) -> float:
        return float(self.cells[:, 0].sum())

    @property
    def parts(self) -> tuple[Floats, float]:
        """Shares for `LeastWork`: share of pairs in each cell; share of lanes, relative to the densest cell."""
        total = self.cells.sum(0)
        densest = (self.cells[:, 1] / np.maximum(self.cells[:, 0], 1e-9)).max()
        return self.cells / total, float(total[1] / (total[0] * densest))

    @property
    def summed(self) -> float:
        """Products that are added up for a value."""
        return float(self.cells[:, 1].sum()) / self.columns


def product_of(op: Operator, box: Box, images: int, channels: int, fractal: Fractal) -> Multiplied | None:
    """Product that computes a box of an operator's result; None if the operator is no product.  channels: channels of its left operand."""
    columns, c0, c1 = int(box.channels.sum()), fractal.lanes, fractal.columns
    if isinstance(op, Convolution):
        c_out, c_in, high, wide = op.weights.shape
        taps, rows = high * wide, images * box.pixels
        inner, k_blocks, reuse = AxisBlocks.of(c_in, c0, taps), -(-c_in // c0) * taps, (inf, inf)
        if op.groups == 1:
            if c_in <= FOUR and -(-taps * FOUR // c0) < k_blocks:
                fours, used = AxisBlocks.of(taps * FOUR, c0), c_in / FOUR
                inner, k_blocks = (
                    fours._replace(full_lanes=fours.full_lanes * used, partial_lanes=fours.partial_lanes * used),
                    -(-taps * FOUR // c0),
                )
            cells = _cells(inner, AxisBlocks.of(columns, c1))
        else:
            groups = -(-columns * op.groups // c_out)
            k_blocks = max(k_blocks, -(-groups * c_in // c0) * taps)
            reuse = c_out / op.groups / c1, c_in * taps / c0
            cells = _in_groups(op, columns, fractal)
        return Multiplied(1, rows, columns, cells, k_blocks, reuse, columns * (c_in * taps + bool(np.any(op.bias))))
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
    """Cells of a product in groups (docs/bounds.md, Lemma 2)."""
    c_out, c_in, high, wide = op.weights.shape
    taps, c0, c1 = high * wide, fractal.lanes, fractal.columns
    if op.is_depthwise:
        return np.array([(taps * -(-columns // c1), taps * columns), (0, 0), (0, 0), (0, 0)], np.float64)
    cells = np.zeros((4, 2))
    if columns == c_out and c_in > c0:
        cells = _cells(AxisBlocks.of(c_in - c0, c0, taps), AxisBlocks.of(c_out // op.groups, c1, op.groups))
    cells[0] += taps * columns / c1, taps * columns * min(c_in, c0)
    return cells


def _on_vector(op: Operator, tables: CostTables, dtype: DataType, product: Multiplied) -> tuple[float, float]:
    """Cycles of a product on VECTOR; share of the lanes of its blocks with a channel (docs/bounds.md, Lemma 3)."""
    lanes = BLOCK_BYTES // (SUM_BYTES if product.summed > SHORT or not dtype.is_float else dtype.size_bytes)
    blocks = product.columns / lanes
    if isinstance(op, Convolution) and op.is_depthwise and product.columns > FOUR:  # a pixel's channels by planes
        blocks = -(-product.columns // lanes)
    return _repeats(tables, product.times * product.rows * product.summed * blocks / REPEAT_BLOCKS, Op.VMADD), product.columns / (
        lanes * blocks
    )


def _full_rows(rows: int, axis: NDArray[np.int64]) -> tuple[float, float]:
    """Share of steps, and of rows, in full steps."""
    full = rows // int(axis[0]) * int(axis[0])
    return (steps(full, axis) / steps(rows, axis), full / rows) if full else (1.0, 1.0)


def _full_columns(op: Operator, columns: int, block: int) -> tuple[float, float]:
    """Share of the blocks of columns that are full, and share of the columns in full blocks."""
    if columns < block or (isinstance(op, Convolution) and op.is_depthwise):  # VECTOR computes depthwise planes too
        return 1.0, 1.0
    return (columns // block) / -(-columns // block), columns // block * block / columns


def work_of(target_graph: TargetGraph, needs: Needs) -> LeastWork:
    count, machine, tables = len(target_graph.operators), target_graph.machine, cost_tables(target_graph.machine)
    starts, on_vector, vector, back = (np.zeros(count) for _ in range(4))
    rows, pairs, columns, lanes = (np.ones((count, *shape)) for shape in ((2,), (4, 2), (2,), (2,)))
    weights = np.zeros(count, np.int64)
    work = LeastWork(np.zeros((count, 3)), starts, on_vector, rows, pairs, columns, lanes, vector, back, weights)
    loaded, added_up = _loaded_for_it(target_graph, needs), _added_up(target_graph, needs)
    added = set(target_graph.layout.copies)  # this compiler's own, not of the graph
    shapes = target_graph.graph.shapes
    for spec, leaf in zip(target_graph.operators, needs.produced, strict=True):
        op, k, box = spec.operator, spec.index, leaf.needed
        if box is None or spec.name in added:
            continue
        dtype = target_graph.type_of(spec.reads[0])
        product = product_of(op, box, leaf.images, shapes[op.inputs[0]][1], machine.fractal(dtype))
        if product is not None:
            work.matrix[k], work.starts[k] = _matrix(machine, tables, dtype, product, loaded[k])
            if added_up[k]:
                work.matrix[k, 2] = 0
            work.rows[k] = _full_rows(product.rows, tables.matrix[dtype, 0])
            work.pairs[k], work.lanes[k, 0] = product.parts
            work.columns[k] = _full_columns(op, product.columns, machine.fractal(dtype).columns)
            work.on_vector[k], work.lanes[k, 1] = _on_vector(op, tables, dtype, product)
            work.weights[k] = product.weights * dtype.size_bytes
            continue
        written, read = leaf.needed_bytes, sum(r.box.values * of.images * of.size_bytes for of, r in needs.read_by(k))
        work.vector[k] = _vector(op, tables, written / REPEAT_BYTES, read / REPEAT_BYTES)
        if work.vector[k]:
            read_as = [(target_graph.operators[r.reader].operator, r) for r in leaf.readings]
            multiplied = [r for by, r in read_as if isinstance(by, HeadedProduct) or (isinstance(by, Convolution) and r.operand == 0)]
            work.back[k] = max([r.box.values for r in multiplied], default=0) * leaf.images * leaf.size_bytes
    return work


class OwnLoads(NamedTuple):
    """Loads that count for an operator.  Fields: share of its left operand, whether the right operand, and whether others read the left one
    too."""

    left_share: float
    right: bool
    shared: bool


def _loaded_for_it(target_graph: TargetGraph, needs: Needs) -> list[OwnLoads]:
    """Loads of operands, each counted for one of its readers: a program may load them for all readers at once."""
    count = len(target_graph.operators)
    elsewhere, right, shared = np.zeros(count), np.ones(count, np.bool_), np.zeros(count, np.bool_)
    for leaf in (*needs.produced, *needs.given):
        for operand, kinds in ((0, Convolution | HeadedProduct), (1, HeadedProduct)):
            readers = [r for r in leaf.readings if r.operand == operand and isinstance(target_graph.operators[r.reader].operator, kinds)]
            shared[[r.reader for r in readers if operand == 0 and len(readers) > 1]] = True
            for reading in sorted(readers, key=lambda r: -needs.produced[r.reader].needed_bytes)[1:]:
                if operand == 0:
                    elsewhere[reading.reader] += reading.box.channels.sum()
                else:
                    right[reading.reader] = False
    loads = []
    for spec in target_graph.operators:
        op, lanes, k = spec.operator, target_graph.type_of(spec.reads[0]).lanes, spec.index
        channels = target_graph.graph.shapes[op.inputs[0]][1]
        dense = isinstance(op, Convolution) and op.groups == 1
        part = (channels - elsewhere[k]) / (-(-channels // lanes) * lanes) if dense else 0.0
        loads.append(OwnLoads(float(part) if elsewhere[k] else 1.0, bool(right[k]), bool(shared[k])))
    return loads


def _added_up(target_graph: TargetGraph, needs: Needs) -> list[bool]:
    """Flags per operator: True if its sums may stay in L0C until other sums are added there, without a move of the result."""

    def adds(op: Operator, operand: int) -> bool:
        if isinstance(op, Vector):
            return any(step.op in ("add", "sub", "rsub") for step in op.steps)
        return (isinstance(op, Convolution) and operand > 0) or (isinstance(op, Pool) and op.mode == "average")

    flags = []
    for spec, leaf in zip(target_graph.operators, needs.produced, strict=True):
        linear = isinstance(spec.operator, Conv) and spec.operator.activation == "none" and not leaf.outside
        flags.append(linear and all(adds(target_graph.operators[r.reader].operator, r.operand) for r in leaf.readings))
    return flags


def _matrix(machine: Machine, tables: CostTables, dtype: DataType, product: Multiplied, loaded: OwnLoads) -> tuple[Floats, float]:
    """Cycles of CUBE, MTE1 and FIXPIPE, float64 [3]; cycles of CUBE's start-ups (docs/bounds.md, Lemma 2)."""
    fractal, axes = machine.fractal(dtype), tables.matrix[dtype]
    n1, blocks = -(-product.columns // fractal.columns), machine.buffers_bytes.L0C // (fractal.columns * SUM_BYTES)
    columns = blocks if loaded.shared or product.reuse[0] < inf else min(blocks, product.times * n1)
    tile_steps = _least_step(axes[1], fractal.lanes, product.times * product.k_blocks) * _least_step(axes[2], fractal.columns, columns)
    cycles = product.times * steps(product.rows, axes[0]) * product.pairs * tile_steps * int(tables.step_cycles[dtype])
    left_bytes = product.times * product.rows * product.k_blocks * BLOCK_BYTES * loaded.left_share
    right_bytes = product.times * product.pairs * fractal.weight_blocks * BLOCK_BYTES if loaded.right else 0
    out = product.times * product.rows * n1 * fractal.columns * SUM_BYTES
    into_a, into_b, out_of_c = (
        fastest_path_to(machine, Memory.L0A),
        fastest_path_to(machine, Memory.L0B),
        fastest_path_from(machine, Memory.L0C, Engine.FIXPIPE),
    )
    a, b, c = (machine.buffers_bytes.present_sizes.get(name, 0) for name in ("L0A", "L0B", "L0C"))
    starts = 0.0
    if a and b:
        rooms = a // BLOCK_BYTES, b // (fractal.weight_blocks * BLOCK_BYTES), c // (fractal.columns * SUM_BYTES)
        pairs = _most(rooms, (product.rows, product.times * product.k_blocks, columns), product.reuse)
        of_row = product.pairs if product.reuse[0] == inf else product.summed * product.columns / (fractal.lanes * fractal.columns)
        starts = product.times * product.rows * of_row / pairs * machine.matrix.startup_cycles
    return np.array((cycles, into_a.cycles(left_bytes, a) + into_b.cycles(right_bytes, b), out_of_c.cycles(out, c)), np.float64), starts


def _most(rooms: tuple[int, int, int], axes: tuple[int, int, int], reuse: tuple[float, float]) -> float:
    """Most pairs of blocks, counted per row, of one MMAD on blocks whose lanes are all full.

    rooms: sizes of L0A in (row, block of k), of L0B in pairs of blocks, of L0C in (row, block of columns).  axes: number of rows, of blocks
    of k and of blocks of columns.  reuse: as in `Multiplied`.
    """
    (left_room, right_room, sums), (rows, *counts) = rooms, axes
    inner, columns = np.meshgrid(*(np.arange(1, min(count, right_room) + 1) for count in counts))
    fits = inner * columns <= right_room
    k, n = inner[fits], columns[fits]
    useful = np.minimum(k * n, np.minimum(k * reuse[0], n * reuse[1]))
    return float((np.minimum(np.minimum(left_room // k, sums // n), rows) * useful).max())


class FastestPath(NamedTuple):
    """Fastest rate into or out of a memory.  bytes_per_cycle: infinite if several engines may move the data."""

    bytes_per_cycle: float
    startup_cycles: int

    def cycles(self, size_bytes: float, each_bytes: float) -> float:
        """Least cycles of a transfer.  each_bytes: most bytes of one instruction."""
        return size_bytes / self.bytes_per_cycle + (size_bytes / each_bytes * self.startup_cycles if each_bytes else 0)


def fastest_path_to(machine: Machine, memory: Memory) -> FastestPath:
    """Fastest path of MTE1 into a memory."""
    return _fastest([path for path in machine.paths if path.destination == memory.name], Engine.MTE1)


def fastest_path_from(machine: Machine, memory: Memory, engine: Engine) -> FastestPath:
    return _fastest([path for path in machine.paths if path.source == memory.name], engine)


def _fastest(paths: Sequence[DataPath], engine: Engine) -> FastestPath:
    if not paths or any(path.engine != engine.name for path in paths):
        return FastestPath(inf, 0)
    return FastestPath(max(float(path.bytes_per_cycle) for path in paths), min(path.startup_cycles for path in paths))


def _least_step(axis: NDArray[np.int64], size: int, limit: int) -> float:
    """Steps along an axis for one block of `size` lanes: its share of an MMAD of up to `limit` blocks."""
    unit, least, fill = axis.tolist()
    blocks = np.arange(1, limit + 1)
    return float(((np.maximum(-(-blocks * size // unit), least) + fill) / blocks).min())


def _repeats(tables: CostTables, repeats: float, *ops: Op) -> float:
    """Cycles of `repeats` repeats of each opcode, in instructions of MAX_REPEATS repeats."""
    return sum(repeats * (int(tables.vector_cycles[op]) + int(tables.scalars[1]) / MAX_REPEATS) for op in ops)


def _vector(op: Operator, tables: CostTables, written: float, read: float) -> float:
    """Cycles of VECTOR for work of no other engine (docs/bounds.md, Lemma 3).  written, read: repeats of its result and of its inputs."""
    if isinstance(op, Vector):
        return _repeats(tables, written, *(_OPCODES[step.op] for step in op.steps if step.op in _OPCODES))
    if isinstance(op, Pool) and op.mode == "max":
        return _repeats(tables, max(written, read / 2), Op.VMAX)
    if isinstance(op, Softmax):
        return _repeats(tables, written, Op.VEXP)
    if isinstance(op, LayerNorm):
        return _repeats(tables, written, Op.VMUL)
    return 0.0
