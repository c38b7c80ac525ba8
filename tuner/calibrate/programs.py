"""Micro-programs: a few kinds of records, repeated, as a program of one machine.

What is touched lies inside every memory, and what one instruction writes no other engine reads without a flag: such a program can be
run on a board as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.npu import isa
from simulator.npu.container import Container, Variant
from simulator.npu.container_file import encode
from simulator.npu.isa import WORDS, Op
from simulator.npu.machine import Machine
from simulator.npu.parts import BYTES, DataType, Engine, Memory
from simulator.npu.program import Code, DdrBuffer, MemoryMap, Program
from tuner.measure.runner_api import Encoded

Body = Sequence[Code]
DDR_BLOCKS = 1 << 18  # 8 MiB: every core's loads and stores have a region of their own in it
SPARE_BLOCKS = 64  # at the end of UB: what fills a program that would take no time otherwise


def room(machine: Machine, memory: Memory) -> int:
    """Blocks of a memory on chip that moves may fill."""
    return machine.buffer_blocks(memory) - (SPARE_BLOCKS if memory == Memory.UB else 0)


def record(
    op: Op,
    engine: Engine,
    source: Memory = Memory.DDR,
    target: Memory = Memory.DDR,
    d: int = -1,
    s0: int = -1,
    s1: int = -1,
    parameters: Sequence[int] = (),
    dtype: DataType = DataType.float16,
) -> Code:
    """One instruction: int32 [WORDS]."""
    row = np.zeros(WORDS, np.int32)
    row[: isa.P] = (op, engine, dtype, 0, source, target, d, s0, s1, -1)
    row[isa.P : isa.P + len(parameters)] = parameters
    return row


def flag(op: Op, engine: Engine, other: Engine, core: int = 0, number: int = 0) -> Code:
    """SET or WAIT.  core: of the other engine."""
    return record(op, engine, parameters=(core, other, number))


def copy(machine: Machine, source: Memory, target: Memory, s: int, d: int, length: int, count: int = 1, stride: int = 0) -> Code:
    """`count` bursts of `length` blocks; stride: from burst to burst, in DDR if that is one of the two, packed on the other side; 0 for a
    burst that is moved again and again."""
    path = machine.path(source, target)
    assert path is not None, f"{machine.name} has no path {source.name} -> {target.name}"
    packed = length if stride else 0
    strides = (stride, packed) if target != Memory.DDR else (packed, stride)
    return record(Op.COPY, Engine[path.engine], source, target, d, s, parameters=(length, count, *strides, 1, 0, 0))


def vector(op: Op, repeats: int, d: int = 0, dtype: DataType = DataType.float16) -> Code:
    """A vector instruction of whole repeats, in place."""
    step = isa.REPEAT_BLOCKS
    sources = isa.OPS[op].sources
    place = [d if i < sources else -1 for i in range(2)]
    strides = [word for i in range(3) for word in ((1, step) if i < sources else (0, 0))]
    parameters = (step, repeats, 1, step, *strides, isa.float_bits(1.0))
    return record(op, Engine.VECTOR, Memory.UB, Memory.UB, d, place[0], place[1], parameters, dtype)


def mmad(m: int, k: int, n1: int, dtype: DataType) -> Code:
    """A product of m rows, k blocks and n1 times 16 columns."""
    right = dtype if dtype in BYTES else 0
    return record(Op.MMAD, Engine.CUBE, Memory.L0A, Memory.L0C, 0, 0, 0, (m, k, n1, 0, right), dtype)


def im2col(machine: Machine, m: int, k: int) -> Code:
    """k blocks of m rows from L1 to L0A: a window of one pixel over rows of 16."""
    path = machine.path(Memory.L1, Memory.L0A)
    assert path is not None
    rows = m // 16
    parameters = (rows, 16, 16, m, 1, 1, 1, 1, 1, 1, 0, 0, 16, 0, m, m, 0, k, DataType.float16.lanes, 0, 0)
    return record(Op.IM2COL, Engine[path.engine], Memory.L1, Memory.L0A, 0, 0, parameters=parameters)


def fixpipe(machine: Machine, target: Memory, m: int, n1: int) -> Code:
    """m rows of n1 times 16 sums from L0C."""
    path = machine.path(Memory.L0C, target)
    assert path is not None
    padded = -(-m // 16) * 16
    return record(Op.FIXPIPE, Engine[path.engine], Memory.L0C, target, 0, 0, parameters=(m, padded, n1, m, 0, 0, 0))


def spare(machine: Machine) -> Code:
    """A short vector instruction beside what the others touch."""
    return vector(Op.VADDS, 1, machine.buffer_blocks(Memory.UB) - SPARE_BLOCKS)


def program(machine: Machine, streams: Sequence[Body]) -> Program:
    """One stream per core, empty for those behind."""
    codes = [np.stack(list(body)).astype(np.int32) if len(body) else np.zeros((0, WORDS), np.int32) for body in streams]
    codes += [np.zeros((0, WORDS), np.int32)] * (machine.cores - len(codes))
    memory = MemoryMap(DataType.float16, (DdrBuffer("probe", "scratch", 0, DDR_BLOCKS),), DDR_BLOCKS)
    return Program(machine.digest, tuple(codes), memory)


def encoded(found: Program, machine: Machine, level: str, cycles: int) -> Encoded:
    """As a runner takes it.  cycles: that are expected at the level."""
    variant = Variant(level, found.streams, "", {level: cycles})
    container = Container("0" * 32, machine, found.memory, (variant,), np.zeros(0, np.uint8))
    return Encoded(encode(container), machine, "program")
