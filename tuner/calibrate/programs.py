"""Micro-programs: a few kinds of records, repeated, as a program of one machine.

All accesses lie inside the memories, and every engine reads another engine's output only after a flag, so the programs can run on a board
unchanged.
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
SPARE_BLOCKS = 64  # blocks at the end of UB, for the instruction that gives every program a time


def free_blocks(machine: Machine, memory: Memory) -> int:
    """Blocks of an on-chip memory available for transfers."""
    return machine.buffer_blocks(memory) - (SPARE_BLOCKS if memory == Memory.UB else 0)


def make_record(
    op: Op,
    engine: Engine,
    source: Memory = Memory.DDR,
    target: Memory = Memory.DDR,
    target_block: int = -1,
    source_block: int = -1,
    second_block: int = -1,
    parameters: Sequence[int] = (),
    dtype: DataType = DataType.float16,
) -> Code:
    """Instruction record: int32 [WORDS]."""
    row = np.zeros(WORDS, np.int32)
    row[: isa.P] = (op, engine, dtype, 0, source, target, target_block, source_block, second_block, -1)
    row[isa.P : isa.P + len(parameters)] = parameters
    return row


def flag(op: Op, engine: Engine, peer: Engine, core: int = 0, number: int = 0) -> Code:
    """Instruction SET or WAIT.  core: core of the peer engine."""
    return make_record(op, engine, parameters=(core, peer, number))


def copy(machine: Machine, source: Memory, target: Memory, start: int, place: int, length: int, count: int = 1, stride: int = 0) -> Code:
    """Copy of `count` bursts of `length` blocks; stride: between bursts, on the DDR side if there is one, with the other side packed; 0
    repeats the same burst.  start, place: first blocks."""
    path = machine.path(source, target)
    assert path is not None, f"{machine.name} has no path {source.name} -> {target.name}"
    length_or_zero = length if stride else 0
    strides = (stride, length_or_zero) if target != Memory.DDR else (length_or_zero, stride)
    return make_record(Op.COPY, Engine[path.engine], source, target, place, start, parameters=(length, count, *strides, 1, 0, 0))


def vector(op: Op, repeats: int, block: int = 0, dtype: DataType = DataType.float16) -> Code:
    """Vector instruction of full repeats, in place."""
    step = isa.REPEAT_BLOCKS
    sources = isa.OPS[op].sources
    place = [block if i < sources else -1 for i in range(2)]
    strides = [word for i in range(3) for word in ((1, step) if i < sources else (0, 0))]
    parameters = (step, repeats, 1, step, *strides, isa.float_bits(1.0))
    return make_record(op, Engine.VECTOR, Memory.UB, Memory.UB, block, place[0], place[1], parameters, dtype)


def mmad(rows: int, depth: int, n1: int, dtype: DataType) -> Code:
    """Product of `rows` rows, `depth` blocks and n1 times 16 columns."""
    right = dtype if dtype in BYTES else 0
    return make_record(Op.MMAD, Engine.CUBE, Memory.L0A, Memory.L0C, 0, 0, 0, (rows, depth, n1, 0, right), dtype)


def im2col(machine: Machine, pixels: int, depth: int) -> Code:
    """Im2col of `depth` blocks of `pixels` rows from L1 to L0A: a window of one pixel over rows of 16."""
    path = machine.path(Memory.L1, Memory.L0A)
    assert path is not None
    rows = pixels // 16
    parameters = (rows, 16, 16, pixels, 1, 1, 1, 1, 1, 1, 0, 0, 16, 0, pixels, pixels, 0, depth, DataType.float16.lanes, 0, 0)
    return make_record(Op.IM2COL, Engine[path.engine], Memory.L1, Memory.L0A, 0, 0, parameters=parameters)


def fixpipe(machine: Machine, target: Memory, rows: int, n1: int) -> Code:
    """Fixpipe of `rows` rows of n1 times 16 sums from L0C."""
    path = machine.path(Memory.L0C, target)
    assert path is not None
    padded = -(-rows // 16) * 16
    return make_record(Op.FIXPIPE, Engine[path.engine], Memory.L0C, target, 0, 0, parameters=(rows, padded, n1, rows, 0, 0, 0))


def spare_instruction(machine: Machine) -> Code:
    """Short vector instruction on blocks that no other instruction uses."""
    return vector(Op.VADDS, 1, machine.buffer_blocks(Memory.UB) - SPARE_BLOCKS)


def make_program(machine: Machine, streams: Sequence[Body]) -> Program:
    """Program with one stream per core; further cores get an empty stream."""
    codes = [np.stack(list(body)).astype(np.int32) if len(body) else np.zeros((0, WORDS), np.int32) for body in streams]
    codes += [np.zeros((0, WORDS), np.int32)] * (machine.cores - len(codes))
    memory = MemoryMap(DataType.float16, (DdrBuffer("probe", "scratch", 0, DDR_BLOCKS),), DDR_BLOCKS)
    return Program(machine.digest, tuple(codes), memory)


def encode_program(micro_program: Program, machine: Machine, level: str, cycles: int) -> Encoded:
    """Container for a runner.  cycles: expected at the level."""
    variant = Variant(level, micro_program.streams, "", {level: cycles})
    container = Container("0" * 32, machine, micro_program.memory, (variant,), np.zeros(0, np.uint8))
    return Encoded(encode(container), machine, "program")
