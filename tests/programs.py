"""Random legal programs for tests.

A program is built from a list of small integer tuples (`Move`); hypothesis draws and shrinks such lists, and a seeded numpy
generator draws them where a test wants many.  Every program verifies and runs to its end: each WAIT stands behind its SET in the
order of the list, and every stream keeps that order.  Nothing keeps accesses apart, so values may race and memory may be read
unwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from simulator.npu import isa
from simulator.npu.isa import OPS, WORDS, Op
from simulator.npu.machine import Machine
from simulator.npu.parts import BYTES, FLOATS, DataType, Engine, Memory
from simulator.npu.program import Code, DdrBuffer, MemoryMap, Program

DDR_BLOCKS, CONSTANT_BLOCKS = 1024, 64

# (core, what, a, b, c, d): `what` picks a template, a..d its sizes, addresses and flags; any non-negative integers do
Move = tuple[int, int, int, int, int, int]
_LIMIT = 1 << 12


def memory_map() -> MemoryMap:
    """64 blocks of constants and a scratch buffer."""
    rest = DDR_BLOCKS - CONSTANT_BLOCKS
    buffers = (DdrBuffer("weights", "constant", 0, CONSTANT_BLOCKS), DdrBuffer("scratch", "scratch", CONSTANT_BLOCKS, rest))
    return MemoryMap(DataType.float16, buffers, DDR_BLOCKS)


def record(op: Op, engine: Engine, *p: int, dtype: int = 0, src: int = 0, dst: int = 0, d: int = -1, s: tuple[int, ...] = ()) -> Code:
    """One instruction: parameters in the order of `OPS[op].params`, addresses in blocks."""
    row = np.zeros(WORDS, np.int32)
    row[: isa.P] = (op, engine, dtype, 0, src, dst, d, *(*s, -1, -1, -1)[:3])
    row[isa.P : isa.P + len(p)] = p
    return row


def copy(machine: Machine, src: Memory, dst: Memory, blocks: int, *, at: int = 0, to: int = 0) -> Code:
    """A contiguous copy, on the engine that the machine's path names."""
    path = machine.path(src, dst)
    assert path is not None
    return record(Op.COPY, Engine[path.engine], blocks, 1, blocks, blocks, 1, 0, 0, src=src, dst=dst, d=to, s=(at,))


def flag_set(engine: Engine, core: int, other: Engine, flag: int = 0) -> Code:
    """SET in `engine`'s queue, for queue `other` of `core`."""
    return record(Op.SET, engine, core, other, flag)


def flag_wait(engine: Engine, core: int, other: Engine, flag: int = 0) -> Code:
    """WAIT in `engine`'s queue, for a SET by queue `other` of `core`."""
    return record(Op.WAIT, engine, core, other, flag)


def program(machine: Machine, *streams: Sequence[Code]) -> Program:
    """Streams of records; cores that are left out get an empty one."""
    empty = np.zeros((0, WORDS), np.int32)
    codes = [np.stack(list(rows)) if len(rows) else empty for rows in streams]
    return Program(machine.digest, tuple(codes + [empty] * (machine.cores - len(codes))), memory_map())


def _blocks(machine: Machine, memory: Memory) -> int:
    return DDR_BLOCKS if memory == Memory.DDR else machine.buffer_blocks(memory)


def _place(machine: Machine, memory: Memory, wanted: int, extent: int, write: bool = False) -> int:
    low = CONSTANT_BLOCKS if write and memory == Memory.DDR else 0
    return low + wanted * 7 % (_blocks(machine, memory) - extent - low + 1)


def _random_copy(machine: Machine, src: Memory, dst: Memory, a: int, b: int, c: int, d: int) -> Code:
    path = machine.path(src, dst)
    assert path is not None
    length, count, count2 = a % 6 + 1, b % 3 + 1, b // 3 % 2 + 1
    gap_s, gap_d = b // 6 % 2, b // 12 % 2
    strides = (length + gap_s, length + gap_d, count * (length + gap_s), count * (length + gap_d))
    at = _place(machine, src, c, count2 * strides[2])
    to = _place(machine, dst, d, count2 * strides[3], write=True)
    p = (length, count, strides[0], strides[1], count2, strides[2], strides[3])
    return record(Op.COPY, Engine[path.engine], *p, dtype=a % 2, src=src, dst=dst, d=to, s=(at,))


def _products(machine: Machine) -> list[DataType]:
    """What the left operand of a product may be."""
    found = [DataType[name] for name in machine.matrix.data_types if name != "int8"]
    return [*found, *BYTES] if "int8" in machine.matrix.data_types else found


def _random_im2col(machine: Machine, a: int, b: int, c: int, d: int) -> Code:
    h = w = a % 3 + 2
    kernel, stride = b % 2 * 2 + 1, b // 2 % 2 + 1
    pad = kernel // 2
    out = (w + 2 * pad - kernel) // stride + 1
    m, mpad, k = out * out, 16, c % 4 + 1
    planes = (k - 1) // kernel**2 + 1
    at, to = _place(machine, Memory.L1, c, planes * h * w), _place(machine, Memory.L0A, d, k * mpad)
    types = [dtype for dtype in _products(machine) if dtype != DataType.float32]
    dtype = types[c // 4 % len(types)]
    p = (h, w, w, h * w, kernel, kernel, stride, stride, 1, 1, pad, pad, out, 0, m, mpad, 0, k, dtype.lanes)
    row = record(Op.IM2COL, Engine.MTE1, *p, dtype=dtype, src=Memory.L1, dst=Memory.L0A, d=to, s=(at,))
    row[isa.PAD] = d % 256 if dtype in BYTES else -1
    return row


def _random_mmad(machine: Machine, a: int, b: int, c: int, d: int) -> Code:
    mpad, k, n1 = (a % 2 + 1) * 16, a // 2 % 4 + 1, b % 2 + 1
    s0, s1 = _place(machine, Memory.L0A, c, k * mpad), _place(machine, Memory.L0B, c, n1 * k * 16)
    to = _place(machine, Memory.L0C, d, n1 * mpad * 2)
    types = _products(machine)
    dtype = types[b // 4 % len(types)]
    right = BYTES[c % 2] if dtype in BYTES else 0
    return record(Op.MMAD, Engine.CUBE, mpad, k, n1, b // 2 % 2, right, dtype=dtype, src=Memory.L0A, dst=Memory.L0C, d=to, s=(s0, s1))


def _random_fixpipe(machine: Machine, dst: Memory, a: int, b: int, c: int, d: int) -> Code:
    path = machine.path(Memory.L0C, dst)
    assert path is not None
    kinds = [(dtype, 0) for dtype in FLOATS]
    kinds += [(dtype, int(DataType.int32)) for dtype in DataType if DataType.int32 in machine.data_types]
    m, mpad, n1, (dtype, sums), rest = a % 16 + 1, 16, b % 2 + 1, kinds[b // 2 % len(kinds)], b // 2 // len(kinds)
    planes = -(-n1 * 16 // dtype.lanes)
    to = _place(machine, dst, d, planes * m)
    bias = _place(machine, Memory.UB, c + 1, n1 * 2) if rest % 2 else -1
    residual = _place(machine, Memory.UB, c + 2, planes * m) if rest // 2 % 2 and (not sums or dtype in BYTES) else -1
    scale = -1 if dtype == DataType.int32 else _place(machine, Memory.UB, c + 3, n1 * 2) if sums else 0
    p = (m, mpad, n1, m, m, a // 16 % 2 if dtype in FLOATS else 0, 0, sums, scale, *((1, 0, 100) if dtype in BYTES else (0, 0, 0)))
    if sums and residual >= 0:
        p = (*p, 0, int(BYTES[d % 2]), isa.float_bits(0.7), isa.float_bits(0.3), isa.float_bits(4.1), a // 16 % 2)
    s = (_place(machine, Memory.L0C, c, n1 * mpad * 2), bias, residual)
    return record(Op.FIXPIPE, Engine[path.engine], *p, dtype=dtype, src=Memory.L0C, dst=dst, d=to, s=s)


def _random_vector(machine: Machine, op: Op, a: int, b: int, c: int, d: int) -> Code:
    types = [dtype for dtype in OPS[op].types if dtype in machine.data_types]
    blocks, repeats, dtype = a % isa.REPEAT_BLOCKS + 1, b % 4 + 1, types[a // 8 % len(types)]
    source = types[b // 4 % len(types)] if op == Op.VCONVERT else DataType.uint8 if op == Op.VLUT else dtype
    lanes = max(dtype.lanes, source.lanes)
    d_repeat, s_repeat = blocks * lanes // dtype.lanes, blocks * lanes // source.lanes
    to = _place(machine, Memory.UB, d, repeats * d_repeat)
    table = isa.LUT_BLOCKS * lanes // dtype.lanes
    extents = [repeats * s_repeat, table if op == Op.VLUT else repeats * s_repeat, repeats * s_repeat]
    s = tuple(_place(machine, Memory.UB, c + i, extents[i]) for i in range(OPS[op].sources))
    imm = source if op == Op.VCONVERT else isa.float_bits(0.25 * (c % 9) - 1)
    p = (blocks, repeats, 1, d_repeat, 1, s_repeat, 1, s_repeat, 1, s_repeat, imm)
    return record(op, Engine.VECTOR, *p, dtype=dtype, src=Memory.UB, dst=Memory.UB, d=to, s=s)


def build(machine: Machine, moves: Sequence[Move]) -> Program:
    """The program that a list of moves stands for; SETs that no move waits for get their WAIT at the end."""
    moves_of = [pair for pair in OPS[Op.COPY].moves if machine.path(*pair)]
    vector_ops = [op for op, spec in OPS.items() if spec.cost_class and getattr(machine.vector, f"{spec.cost_class}_cycles")]
    fixpipe_to = [dst for dst in (Memory.UB, Memory.L1) if machine.path(Memory.L0C, dst)]
    streams: list[list[Code]] = [[] for _ in range(machine.cores)]
    open_flags: list[tuple[int, Engine, int, Engine, int]] = []

    def wait(index: int) -> None:
        source, engine, target, other, flag = open_flags.pop(index % len(open_flags))
        streams[target].append(flag_wait(other, source, engine, flag))

    for core, what, a, b, c, d in moves:
        core %= machine.cores
        what %= 20
        if what < 8:  # transfers of DDR and moves on chip
            streams[core].append(_random_copy(machine, *moves_of[what % len(moves_of)], a, b, c, d))
        elif what == 8:
            streams[core].append(_random_im2col(machine, a, b, c, d))
        elif what in (9, 10):
            streams[core].append(_random_mmad(machine, a, b, c, d))
        elif what == 11:
            streams[core].append(_random_fixpipe(machine, fixpipe_to[a // 32 % len(fixpipe_to)], a, b, c, d))
        elif what in (12, 13):
            streams[core].append(_random_vector(machine, vector_ops[(a // 16) % len(vector_ops)], a, b, c, d))
        elif what < 17:
            target = core if b % 3 else b // 3 % machine.cores
            key = (core, Engine(a % 7), target, Engine(c % 7), d % machine.flags.ids_per_pair)
            if open_flags.count(key) < machine.flags.count_limit:
                streams[core].append(flag_set(key[1], target, key[3], key[4]))
                open_flags.append(key)
        elif open_flags:
            # oldest first among equals: the i-th WAIT belongs to the i-th SET
            wait(open_flags.index(open_flags[a % len(open_flags)]))
    while open_flags:
        wait(0)
    return program(machine, *streams)


def random_program(machine: Machine, seed: int, moves: int) -> Program:
    """A program of about `moves` instructions from a seed."""
    drawn = np.random.default_rng(seed).integers(0, _LIMIT, (moves, 6))
    return build(machine, [(r[0], r[1], r[2], r[3], r[4], r[5]) for r in drawn.tolist()])


def programs(machine: Machine, max_moves: int = 40) -> st.SearchStrategy[Program]:
    """Hypothesis strategy of programs for a machine; shrinks towards few, small instructions."""
    number = st.integers(0, _LIMIT - 1)
    core = st.integers(0, machine.cores - 1)
    moves = st.lists(st.tuples(core, st.integers(0, 19), number, number, number, number), max_size=max_moves)
    return moves.map(lambda drawn: build(machine, drawn))
