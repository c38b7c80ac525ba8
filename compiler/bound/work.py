"""Theorem 1 of `docs/bounds.md`: cycles of engines that no tiling of an operator does without, and the best deal of all of them.

| name      | dtype      | of every operator of a unit, in all images, on one core                                          |
|-----------|------------|--------------------------------------------------------------------------------------------------|
| matrix    | float [n, 3] | cycles of CUBE (without start-ups), MTE1 and FIXPIPE where the matrix unit makes a product       |
| starts    | float [n, 4] | start-ups of CUBE: for what L0A, L0B and L0C hold of left operands, right ones, sums, and products |
| spread    | float [n]  | cycles of CUBE for all of its weights, in proportion for a part of them (Theorem 2)              |
| on_vector | float [n]  | cycles of VECTOR where that makes the same product                                               |
| vector    | float [n]  | cycles of VECTOR of what only that can do                                                        |
| back      | float [n]  | bytes of such a result that products read: MTE3 takes them out of UB                             |
| weights   | int [n]    | bytes of weights and biases that some needed value is made of                                    |
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.bound.needs import Box, Needs
from compiler.ir.operators import Conv, Convolution, LayerNorm, Operator, Pool, Softmax, Vector
from compiler.ir.operators.matmul import HeadedProduct
from compiler.unit.unit import Unit
from simulator.npu.cycles import CostTables, cost_tables, steps
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS, Op
from simulator.npu.machine import Machine
from simulator.npu.machine_parts import CubeUnit, DataPath
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
    spread: Floats
    on_vector: Floats
    vector: Floats
    back: Floats
    weights: NDArray[np.int64]

    @property
    def behind_values(self) -> Floats:
        """float64 [n, 5]: cycles of CUBE with each kind of start-ups, and of FIXPIPE, which all follow the values that are multiplied."""
        return np.column_stack((self.matrix[:, :1] + self.starts, self.matrix[:, 2]))

    @property
    def loads(self) -> Floats:
        """float64 [n]: cycles of MTE1, which may bring weights to L0B before."""
        return self.matrix[:, 1]


class Multiplied(NamedTuple):
    """`times` products of [rows x inner] by [inner x columns].  inner: blocks of C0 lanes.  beside: pairs of a block of k and one of
    columns that there are more, since groups end within blocks.  left: blocks of k of all left operands of a row.  macs: of all of them,
    without lanes that have no channel.  weights: values, and biases where they are not zero."""

    times: int
    rows: int
    inner: int
    columns: int
    beside: int
    left: int
    macs: int
    weights: int


def product_of(op: Operator, box: Box, images: int, channels: int, fractal: Fractal) -> Multiplied | None:
    """The product that makes a box of an operator's result; None where it is none.  channels: of its left operand."""
    columns, c0 = int(box.channels.sum()), fractal.lanes
    if isinstance(op, Convolution):
        c_out, c_in, high, wide = op.weights.shape
        taps = high * wide
        inner = -(-c_in // c0) * taps
        fours = -(-taps * FOUR // c0)
        if op.groups == 1 and c_in <= FOUR:
            inner = min(inner, fours)
        groups = -(-columns * op.groups // c_out)
        left = inner if op.groups == 1 else max(inner, -(-groups * c_in // c0) * taps)
        rows = images * box.pixels
        weights = columns * c_in * taps
        beside = _pairs_beside(op, fractal) * taps if columns == c_out else 0
        return Multiplied(1, rows, inner, columns, beside, left, rows * weights, weights + columns * bool(np.any(op.bias)))
    if isinstance(op, HeadedProduct):
        inner, columns = channels // op.heads, columns // op.heads
        blocks, times = -(-inner // c0), images * op.heads
        return Multiplied(times, box.pixels, blocks, columns, 0, blocks, times * box.pixels * inner * columns, 0)
    return None


def _blocks_on_vector(op: Operator, dtype: DataType, p: Multiplied) -> float:
    """Blocks of products, one in every lane (docs/bounds.md, Lemma 3)."""
    summed = p.macs // (p.times * p.rows * p.columns)
    lanes = BLOCK_BYTES // (SUM_BYTES if summed > SHORT or not dtype.is_float else dtype.size_bytes)
    if isinstance(op, Convolution) and op.is_depthwise and p.columns > FOUR:
        return p.rows * summed * -(-p.columns // lanes)  # a pixel's channels, by planes
    return p.macs / lanes


def _pairs_beside(op: Convolution, fractal: Fractal) -> int:
    """Of a tap: pairs of blocks beyond those of one group for each block of columns (docs/bounds.md, Lemma 2)."""
    c_out, c_in, *_ = op.weights.shape
    most = min(op.groups, fractal.columns)  # groups of a block of columns
    if most == 1:
        return 0
    blocks = -(-np.arange(1, most + 1) * c_in // fractal.lanes)  # of k that so many groups have at least
    more = ((blocks[1:] - blocks[0]) / np.arange(1, most)).min()
    several = op.groups * -(-(c_out // op.groups) // fractal.columns)  # pairs of a group and a block of columns that it has channels in
    return int(max(0, several - -(-c_out // fractal.columns)) * more)


def work_of(unit: Unit, needs: Needs) -> LeastWork:
    count, machine, t = len(unit.operators), unit.machine, cost_tables(unit.machine)
    none = [np.zeros(count) for _ in range(4)]
    found = LeastWork(np.zeros((count, 3)), np.zeros((count, 4)), none[0], none[1], none[2], none[3], np.zeros(count, np.int64))
    loaded, added_up = _loaded_for_it(unit, needs), _added_up(unit, needs)
    added = set(unit.layout.copies)  # this compiler's own, not of the graph
    shapes = unit.graph.shapes
    for spec, leaf in zip(unit.operators, needs.made, strict=True):
        op, k, box = spec.operator, spec.index, leaf.needed
        if box is None or spec.name in added:
            continue
        dtype = unit.type_of(spec.reads[0])
        product = product_of(op, box, leaf.images, shapes[op.inputs[0]][1], machine.fractal(dtype))
        if product is not None:
            found.matrix[k], found.starts[k] = _matrix(machine, t, dtype, product, loaded[k])
            if added_up[k]:
                found.matrix[k, 2] = found.starts[k, 2] = 0
            found.spread[k] = _spread(machine, dtype, product)
            found.on_vector[k] = _repeats(t, _blocks_on_vector(op, dtype, product) / REPEAT_BLOCKS, Op.VMADD)
            found.weights[k] = product.weights * dtype.size_bytes
            continue
        made, read = leaf.needed_bytes, sum(r.box.values * of.images * of.size_bytes for of, r in needs.read_by(k))
        found.vector[k] = _vector(op, t, made / REPEAT_BYTES, read / REPEAT_BYTES)
        if found.vector[k]:
            read_as = [(unit.operators[r.reader].operator, r) for r in leaf.readings]
            multiplied = [r for by, r in read_as if isinstance(by, HeadedProduct) or (isinstance(by, Convolution) and r.operand == 0)]
            found.back[k] = max([r.box.values for r in multiplied], default=0) * leaf.images * leaf.size_bytes
    return found


class OwnLoads(NamedTuple):
    """Of an operator the part of its left operand, and whether the right one, that are counted as loads of it; whether others read the
    left one, too."""

    left: float
    right: bool
    shared: bool


def _loaded_for_it(unit: Unit, needs: Needs) -> list[OwnLoads]:
    """What several products read is loaded for all of them at once, by a program that likes to, so it is counted for one."""
    count = len(unit.operators)
    elsewhere, right, shared = np.zeros(count), np.ones(count, np.bool_), np.zeros(count, np.bool_)
    for leaf in (*needs.made, *needs.given):
        for operand, kinds in ((0, Convolution | HeadedProduct), (1, HeadedProduct)):
            readers = [r for r in leaf.readings if r.operand == operand and isinstance(unit.operators[r.reader].operator, kinds)]
            shared[[r.reader for r in readers if operand == 0 and len(readers) > 1]] = True
            for reading in sorted(readers, key=lambda r: -needs.made[r.reader].needed_bytes)[1:]:
                if operand == 0:
                    elsewhere[reading.reader] += reading.box.channels.sum()
                else:
                    right[reading.reader] = False
    found = []
    for spec in unit.operators:
        op, lanes, k = spec.operator, unit.type_of(spec.reads[0]).lanes, spec.index
        channels = unit.graph.shapes[op.inputs[0]][1]
        whole = isinstance(op, Convolution) and op.groups == 1
        part = (channels - elsewhere[k]) / (-(-channels // lanes) * lanes) if whole else 0.0
        found.append(OwnLoads(float(part) if elsewhere[k] else 1.0, bool(right[k]), bool(shared[k])))
    return found


def _added_up(unit: Unit, needs: Needs) -> list[bool]:
    """Whether the sums of an operator may stay in L0C until others are added to them there, so that they are no moves of their own."""

    def adds(op: Operator, operand: int) -> bool:
        if isinstance(op, Vector):
            return any(step.op in ("add", "sub", "rsub") for step in op.steps)
        return (isinstance(op, Convolution) and operand > 0) or (isinstance(op, Pool) and op.mode == "average")

    found = []
    for spec, leaf in zip(unit.operators, needs.made, strict=True):
        linear = isinstance(spec.operator, Conv) and spec.operator.activation == "none" and not leaf.outside
        found.append(linear and all(adds(unit.operators[r.reader].operator, r.operand) for r in leaf.readings))
    return found


def _matrix(machine: Machine, t: CostTables, dtype: DataType, p: Multiplied, loaded: OwnLoads) -> tuple[Floats, Floats]:
    """float64 [3]: cycles of CUBE, MTE1 and FIXPIPE; [4]: of CUBE's start-ups (docs/bounds.md, Lemma 2)."""
    fractal, axes = machine.fractal(dtype), t.matrix[dtype]
    n1 = -(-p.columns // fractal.columns)
    pairs, blocks = p.inner * n1 + p.beside, machine.buffers_bytes.L0C // (fractal.columns * SUM_BYTES)
    each = _least_step(axes[1], fractal.lanes, p.times * p.left)
    each *= _least_step(axes[2], fractal.columns, blocks if loaded.shared else p.times * n1)
    cycles = p.times * steps(p.rows, axes[0]) * pairs * each * int(t.step_cycles[dtype])
    left = p.times * p.rows * p.left * BLOCK_BYTES * loaded.left
    right = p.times * pairs * fractal.weight_blocks * BLOCK_BYTES if loaded.right else 0
    out = p.times * p.rows * n1 * fractal.columns * SUM_BYTES
    into_a, into_b, out_of_c = way_to(machine, Memory.L0A), way_to(machine, Memory.L0B), way_from(machine, Memory.L0C, Engine.FIXPIPE)
    a, b, c = (machine.buffers_bytes.there.get(name, 0) for name in ("L0A", "L0B", "L0C"))
    starts = np.zeros(4)
    if a and b:
        volume = p.times * p.rows * pairs * fractal.lanes * fractal.columns
        most = sqrt((a / dtype.size_bytes) * (b / dtype.size_bytes) * (c / SUM_BYTES))  # Loomis and Whitney
        starts = np.array((left / a, right / b, out / c, volume / most)) * machine.matrix.startup_cycles
    moved = (cycles, into_a.cycles(left, a) + into_b.cycles(right, b), out_of_c.cycles(out, c))
    return np.array(moved, np.float64), starts


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
    unit, least, fill = axis.tolist()
    blocks = np.arange(1, most + 1)
    return float(((np.maximum(-(-blocks * size // unit), least) + fill) / blocks).min())


def _spread(machine: Machine, dtype: DataType, p: Multiplied) -> float:
    """Cycles of CUBE in proportion to multiply-accumulates, rows in whole cubes (docs/bounds.md, Theorem 2)."""
    peak = machine.macs_per_cycle[dtype.product.name]
    if not isinstance(machine.matrix, CubeUnit):
        return float(p.macs / peak)
    rows = machine.matrix.by_type[dtype.product].m0
    return float(p.macs / peak * (-(-p.rows // rows) * rows) / p.rows)


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
