"""Theorem 1 of `docs/bounds.md`: cycles of engines that no tiling of an operator does without, and the best deal of all of them.

| name      | dtype      | of every operator of a unit, in all images, on one core                                          |
|-----------|------------|--------------------------------------------------------------------------------------------------|
| matrix    | float [n, 3] | cycles of CUBE, MTE1 and FIXPIPE where the matrix unit makes a product                           |
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
from compiler.ir.operators import Convolution, LayerNorm, Operator, Pool, Softmax, Vector
from compiler.ir.operators.matmul import HeadedProduct
from compiler.unit.unit import Unit
from simulator.npu.cycles import CostTables, cost_tables, steps
from simulator.npu.isa import REPEAT_BLOCKS, Op
from simulator.npu.machine import CubeUnit, DataPath, Machine
from simulator.npu.parts import BLOCK_BYTES, SUM_BYTES, DataType, Engine, Memory

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
    spread: Floats
    on_vector: Floats
    vector: Floats
    back: Floats
    weights: NDArray[np.int64]


class Multiplied(NamedTuple):
    """`times` products of [rows x inner] by [inner x columns].  inner: blocks of C0 lanes.  left: blocks of k of all left operands of a
    row.  macs: of all of them, without lanes that have no channel.  weights: values, and biases where they are not zero."""

    times: int
    rows: int
    inner: int
    columns: int
    left: int
    macs: int
    weights: int


def product_of(op: Operator, box: Box, images: int, channels: int, c0: int) -> Multiplied | None:
    """The product that makes a box of an operator's result; None where it is none.  channels: of its left operand."""
    columns = int(box.channels.sum())
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
        return Multiplied(1, rows, inner, columns, left, rows * weights, weights + columns * bool(np.any(op.bias)))
    if isinstance(op, HeadedProduct):
        inner, columns = channels // op.heads, columns // op.heads
        blocks, times = -(-inner // c0), images * op.heads
        return Multiplied(times, box.pixels, blocks, columns, blocks, times * box.pixels * inner * columns, 0)
    return None


def work_of(unit: Unit, needs: Needs) -> LeastWork:
    count, machine, t = len(unit.operators), unit.machine, cost_tables(unit.machine)
    none = [np.zeros(count) for _ in range(4)]
    found = LeastWork(np.zeros((count, 3)), none[0], none[1], none[2], none[3], np.zeros(count, np.int64))
    added = set(unit.layout.copies)  # this compiler's own, not of the graph
    shapes = unit.graph.shapes
    for spec, leaf in zip(unit.operators, needs.made, strict=True):
        op, k, box = spec.operator, spec.index, leaf.needed
        if box is None or spec.name in added:
            continue
        dtype = unit.type_of(spec.reads[0])
        product = product_of(op, box, leaf.images, shapes[op.inputs[0]][1], dtype.lanes)
        if product is not None:
            found.matrix[k] = _matrix(machine, t, dtype, product)
            found.spread[k] = _spread(machine, dtype, product)
            summed = product.macs // (product.times * product.rows * product.columns)
            lanes = REPEAT_BYTES // (SUM_BYTES if summed > SHORT or not dtype.is_float else dtype.size_bytes)
            found.on_vector[k] = product.macs / lanes * int(t.vector_cycles[Op.VMADD])
            found.weights[k] = product.weights * dtype.size_bytes
            continue
        made, read = leaf.needed_bytes, sum(r.box.values * of.images * of.size_bytes for of, r in needs.read_by(k))
        found.vector[k] = _vector(op, t, made / REPEAT_BYTES, read / REPEAT_BYTES)
        if found.vector[k]:
            read_as = [(unit.operators[r.reader].operator, r) for r in leaf.readings]
            multiplied = [r for by, r in read_as if isinstance(by, HeadedProduct) or (isinstance(by, Convolution) and r.operand == 0)]
            found.back[k] = max([r.box.values for r in multiplied], default=0) * leaf.images * leaf.size_bytes
    return found


def _matrix(machine: Machine, t: CostTables, dtype: DataType, p: Multiplied) -> tuple[float, float, float]:
    """Cycles of CUBE, MTE1 and FIXPIPE (docs/bounds.md, Lemma 2)."""
    fractal, axes = machine.fractal(dtype), t.matrix[dtype]
    n1 = -(-p.columns // fractal.columns)
    lanes = p.inner * fractal.lanes
    inner, columns = _least_steps(axes[1], fractal.lanes, p.inner), _least_steps(axes[2], fractal.columns, n1)
    cycles = p.times * steps(p.rows, axes[0]) * inner * columns * int(t.step_cycles[dtype])
    sizes = machine.buffers_bytes
    volume = p.times * p.rows * lanes * n1 * fractal.columns  # what an MMAD makes of all of L0: Loomis and Whitney
    if sizes.L0A is not None and sizes.L0B is not None:
        most = sqrt((sizes.L0A / dtype.size_bytes) * (sizes.L0B / dtype.size_bytes) * (sizes.L0C / SUM_BYTES))
        cycles += int(volume / most) * machine.matrix.startup_cycles
    left = p.times * p.rows * p.left * BLOCK_BYTES
    right = p.times * p.inner * n1 * fractal.weight_blocks * BLOCK_BYTES
    out = p.times * p.rows * n1 * fractal.columns * SUM_BYTES
    moved = sum(size / rate for size, rate in ((left, into(machine, Memory.L0A)), (right, into(machine, Memory.L0B))))
    return float(cycles), moved, out / out_of(machine, Memory.L0C, Engine.FIXPIPE)


def _least_steps(axis: NDArray[np.int64], size: int, count: int) -> float:
    """Steps along an axis of `count` blocks of so many lanes, however they are dealt to MMADs: each block has its part of one's steps."""
    unit, least, fill = axis.tolist()
    blocks = np.arange(1, count + 1)
    return float(count * ((np.maximum(-(-blocks * size // unit), least) + fill) / blocks).min())


def into(machine: Machine, memory: Memory) -> float:
    """Bytes per cycle that MTE1 brings to a memory at most; infinite where another engine may do it."""
    return _fastest([path for path in machine.paths if path.destination == memory.name], Engine.MTE1)


def out_of(machine: Machine, memory: Memory, engine: Engine) -> float:
    """Bytes per cycle that an engine takes out of a memory at most; infinite where another one may do it."""
    return _fastest([path for path in machine.paths if path.source == memory.name], engine)


def _fastest(paths: Sequence[DataPath], engine: Engine) -> float:
    return max((float(path.bytes_per_cycle) if path.engine == engine.name else inf for path in paths), default=inf)


def _spread(machine: Machine, dtype: DataType, p: Multiplied) -> float:
    """Cycles of CUBE in proportion to multiply-accumulates, rows in whole cubes (docs/bounds.md, Theorem 2)."""
    peak = machine.macs_per_cycle[dtype.product.name]
    if not isinstance(machine.matrix, CubeUnit):
        return float(p.macs / peak)
    rows = machine.matrix.by_type[dtype.product].m0
    return float(p.macs / peak * (-(-p.rows // rows) * rows) / p.rows)


def _vector(op: Operator, t: CostTables, made: float, read: float) -> float:
    """Cycles of VECTOR of what no other engine does (docs/bounds.md, Lemma 3).  made, read: repeats of its result, and of what it reads."""
    cycles = t.vector_cycles
    simple = int(cycles[Op.VMAX])
    if isinstance(op, Vector):
        return made * sum(int(cycles[_OPCODES[step.op]]) for step in op.steps if step.op in _OPCODES)
    if isinstance(op, Pool) and op.mode == "max":
        return max(made, read / 2) * simple
    if isinstance(op, Softmax):
        return made * int(cycles[Op.VEXP])
    if isinstance(op, LayerNorm):
        return made * int(cycles[Op.VMUL])
    return 0.0


def dealt(cycles: Floats, on_vector: Floats, vector: float) -> tuple[float, float]:
    """(the least that the busier of two engines works, the weight of the first in the deal that shows it).

    cycles, on_vector: of every product on the one and on the other.  vector: what the second has to do anyway.  The fractional deal is
    solved by the ratio of the two, as a continuous knapsack; weights (w, 1 - w) are the optimal multipliers of its linear program.
    """
    order = np.argsort(on_vector / np.maximum(cycles, 1e-9), kind="stable")
    order = order[cycles[order] > 0]
    if not len(order):
        return vector, 0.5
    first = cycles.sum() - np.concatenate([[0.0], np.cumsum(cycles[order])])  # after so many products have moved over
    second = vector + np.concatenate([[0.0], np.cumsum(on_vector[order])])
    at = int(np.argmax(second >= first))
    if at == 0:
        return vector, 0.0
    one, other = float(cycles[order[at - 1]]), float(on_vector[order[at - 1]])
    part = float(first[at - 1] - second[at - 1]) / (one + other)
    return float(second[at - 1] + part * other), other / (one + other)
