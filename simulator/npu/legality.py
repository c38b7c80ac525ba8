"""Legality of single records on a machine: opcodes, data types, engines, paths, parameters, and flags that exist.

`Program.verify` checks addresses, since it has the memory map.
"""

from __future__ import annotations

from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.errors import ProgramError
from simulator.npu.isa import OPS, WORDS, Op
from simulator.npu.machine import Machine
from simulator.npu.parts import BYTES, DataType, Engine, Memory
from simulator.npu.typed_words import TYPE_RULES


def op_name(code: NDArray[np.int32], row: int) -> str:
    return Op(int(code[row, isa.OP])).name


def check_shape(code: NDArray[np.int32], core: int) -> None:
    if code.ndim != 2 or code.shape[1] != WORDS or code.dtype != np.int32:
        raise ProgramError(f"core {core}: a stream is int32 [n, {WORDS}], found {code.dtype} {list(code.shape)}")


def _opcodes(code: NDArray[np.int32]) -> NDArray[np.int32]:
    """Opcodes of all records, contiguous: in the stream each opcode is on another cache line."""
    return np.ascontiguousarray(code[:, isa.OP])


def _rows(opcodes: NDArray[np.int32], *ops: Op) -> NDArray[np.int64]:
    """Row numbers of records with these opcodes, so that a check reads no others."""
    if len(ops) == 1:
        return np.flatnonzero(opcodes == ops[0])
    wanted = np.zeros(max(OPS) + 1, bool)
    wanted[list(ops)] = True
    return np.flatnonzero(wanted[opcodes])


def _reject(code: NDArray[np.int32], core: int, rows: NDArray[np.int64], bad: NDArray[np.bool_], why: str) -> None:
    if bad.any():
        i = int(rows[np.argmax(bad)])
        raise ProgramError(f"core {core} instruction {i}: {why} (record {code[i].tolist()})")


class _Legal(NamedTuple):
    """The legal combinations of a machine.

    types: bool [opcodes, data types].  moves: bool [opcodes, engines, sources, destinations].  unpriced: VECTOR operations that it lacks.
    """

    types: NDArray[np.bool_]
    moves: NDArray[np.bool_]
    unpriced: tuple[Op, ...]


@lru_cache(maxsize=64)
def _legal(machine: Machine) -> _Legal:
    multiplied = {DataType[name] for name in machine.matrix.data_types}
    multiplied |= set(BYTES) if DataType.int8 in multiplied else set()
    types = np.zeros((max(OPS) + 1, len(DataType)), bool)
    moves = np.zeros((max(OPS) + 1, len(Engine), len(Memory), len(Memory)), bool)
    for op, spec in OPS.items():
        types[op, [dtype for dtype in spec.types if op not in isa.PRODUCT_OPS or dtype in multiplied]] = True
        if not spec.moves:
            moves[op, list(spec.engines)] = True
        for source, destination in spec.moves:
            if spec.cost_class and source != machine.vector_memory:
                continue
            path = machine.path(source, destination)
            if spec.engines or path is not None:
                moves[op, spec.engines[0] if path is None or spec.engines else Engine[path.engine], source, destination] = True
    priced = {op for op, spec in OPS.items() if spec.cost_class and getattr(machine.vector, f"{spec.cost_class}_cycles") is not None}
    return _Legal(types, moves, tuple(op for op, spec in OPS.items() if spec.cost_class and op not in priced))


def _within(words: NDArray[np.int32], limit: int) -> NDArray[np.bool_]:
    return (words >= 0) & (words < limit)


def check_kinds(code: NDArray[np.int32], core: int, machine: Machine) -> None:
    opcodes, everywhere = _opcodes(code), np.arange(len(code))
    is_known = np.isin(opcodes, list(OPS))
    _reject(code, core, everywhere, ~is_known, f"unknown opcode; opcodes: {', '.join(f'{op.name}={int(op)}' for op in OPS)}")
    is_flag, legal = (opcodes == Op.SET) | (opcodes == Op.WAIT), _legal(machine)
    for rows in (np.flatnonzero(is_flag), np.flatnonzero(~is_flag)):
        op, engine = opcodes[rows], code[rows, isa.ENGINE]
        bad = ~_within(engine, len(Engine))
        if not is_flag[rows[:1]].any():
            dtype, source, destination = (code[rows, word] for word in (isa.DTYPE, isa.SRC, isa.DST))
            _reject(code, core, rows, ~np.isin(dtype, machine.data_types), f"data type not supported by {machine.name}")
            bad_type = ~legal.types[op, dtype]
            if bad_type.any():
                first = Op(int(op[np.argmax(bad_type)]))
                accepted = ", ".join(DataType(i).name for i in np.flatnonzero(legal.types[first]).tolist())
                _reject(code, core, rows, bad_type, f"data type not supported by {first.name} on {machine.name}; accepted: {accepted}")
            for missing in legal.unpriced:
                why = f"{machine.name} has no {missing.name}: vector.{OPS[missing].cost_class}_cycles is not given"
                _reject(code, core, rows, op == missing, why)
            bad |= ~(_within(source, len(Memory)) & _within(destination, len(Memory)))
            bad = bad | ~legal.moves[op, np.where(bad, 0, engine), np.where(bad, 0, source), np.where(bad, 0, destination)]
        if bad.any():
            name = op_name(code, int(rows[np.argmax(bad)]))
            _reject(code, core, rows, bad, f"{name}: no such path or engine on {machine.name}")


# opcode -> (word, smallest, largest) of parameters; sources and strides are bounded by the memories instead
_POSITIVE = 2**31 - 1
_RANGES: dict[tuple[Op, ...], tuple[tuple[int, int, int], ...]] = {
    (Op.COPY,): ((isa.C_LENGTH, 1, _POSITIVE), (isa.C_COUNT, 1, _POSITIVE), (isa.C_COUNT2, 1, _POSITIVE)),
    (Op.IM2COL,): (
        *((word, 1, 1 << 20) for word in (isa.I_H, isa.I_W, isa.I_PITCH, isa.I_PLANE, isa.I_OW, isa.I_M, isa.I_K)),
        *((word, 1, isa.MAX_WINDOW) for word in (isa.I_KH, isa.I_KW, isa.I_SH, isa.I_SW, isa.I_DH, isa.I_DW)),
        (isa.I_PT, 0, isa.MAX_WINDOW),
        (isa.I_PL, -7, isa.MAX_WINDOW),  # below 0 the image begins in front of the first window: inside a block where pixels share one
        *((word, 0, 1 << 24) for word in (isa.I_MOFF, isa.I_KOFF)),
        *((word, 0, 1 << 20) for word in (isa.I_RING, isa.I_FIRST)),
        (isa.I_MPAD, 1, 1 << 20),
        (isa.I_LANES, 4, 32),
        (isa.S0, 0, _POSITIVE),  # reads may start behind the address, so the bounds check alone does not find a negative one
        (isa.PAD, -1, 255),
    ),
    (Op.MMAD_IM2COL,): (
        *((word, 1, 1 << 20) for word in (isa.I_H, isa.I_W, isa.I_PITCH, isa.I_PLANE, isa.I_OW, isa.I_M, isa.I_K, isa.W_N1)),
        *((word, 0, 1 << 24) for word in (isa.I_MOFF, isa.I_KOFF)),
        *((word, 0, 1 << 20) for word in (isa.I_RING, isa.I_FIRST)),
        (isa.I_MPAD, 1, 1 << 20),
        (isa.I_LANES, 4, 32),
        (isa.W_ACC, 0, 1),
        (isa.W_RSTRIDE, 0, _POSITIVE),
        (isa.S0, 0, _POSITIVE),
        (isa.PAD, -1, 255),
    ),
    (Op.FRACTAL,): (
        (isa.R_PLANE, 1, _POSITIVE), (isa.R_PIXELS, 1, 1 << 24), (isa.R_K, 1, 1 << 16), (isa.R_N1, 1, 1 << 16), (isa.R_TRANSPOSE, 0, 1),
        (isa.PAD, -1, 255),
    ),
    (Op.VCONVERT,): ((isa.V_IMM, min(DataType), max(DataType)),),
    (Op.MMAD,): ((isa.M_MPAD, 1, 1 << 20), (isa.M_K, 1, 1 << 20), (isa.M_N1, 1, 1 << 20), (isa.M_ACC, 0, 1)),
    (Op.FIXPIPE,): (
        (isa.F_M, 1, 1 << 20), (isa.F_MPAD, 1, 1 << 20), (isa.F_N1, 1, 1 << 20),
        (isa.F_DPLANE, 0, _POSITIVE), (isa.F_RPLANE, 0, _POSITIVE), (isa.F_ACT, 0, 2),
        (isa.F_LIMIT, 0, isa.float_bits(float(np.finfo(np.float32).max))),
        (isa.F_SCALE, -1, _POSITIVE), (isa.F_LAST, 0, 1),
    ),
    tuple(op for op in OPS if op >= isa.FIRST_VECTOR_OP): ((isa.V_BLOCKS, 1, isa.REPEAT_BLOCKS), (isa.V_REPEATS, 1, isa.MAX_REPEATS)),
}  # fmt: skip


_MAX_COPY_BLOCKS = 1 << 24  # bursts may overlap, so the sizes of the memories do not limit what a COPY moves


def check_parameters(code: NDArray[np.int32], core: int, machine: Machine) -> None:
    opcodes = _opcodes(code)
    rows_of_op = {op: _rows(opcodes, op) for op in (Op.COPY, Op.IM2COL, Op.MMAD, Op.FIXPIPE, Op.MMAD_IM2COL)}
    copies, images, products, results, windows = rows_of_op.values()
    if len(windows):
        images = np.concatenate((images, windows))
    for ops, limits in _RANGES.items():
        rows = rows_of_op[ops[0]] if len(ops) == 1 and ops[0] in rows_of_op else _rows(opcodes, *ops)
        for word, low, high in limits if len(rows) else ():
            values = code[rows, word]
            _reject(code, core, rows, (values < low) | (values > high), f"parameter word {word} must be in {low}..{high}")
    for word, low in ((isa.W_KERNEL, 1), (isa.W_STRIDE, 1), (isa.W_DILATION, 1), (isa.W_PADDING, 0)) if len(windows) else ():
        y, x = isa.unpack_pair(code[windows, word].astype(np.int64))
        bad = (y < low) | (y > isa.MAX_WINDOW) | (x < (low or -7)) | (x > isa.MAX_WINDOW)
        _reject(code, core, windows, bad, f"parameter word {word} must hold two of {low}..{isa.MAX_WINDOW}")
    side = int(machine.vector_memory)  # 0 is UB, too
    bad = (code[results, isa.F_SIDE] != side) & (code[results, isa.F_SIDE] != side % Memory.UB)
    _reject(code, core, results, bad, f"side must be {side}, {machine.vector_memory.name}")
    moved_blocks = code[copies, isa.C_COUNT].astype(np.float64) * code[copies, isa.C_COUNT2] * code[copies, isa.C_LENGTH]
    _reject(code, core, copies, moved_blocks > _MAX_COPY_BLOCKS, f"a COPY moves at most {_MAX_COPY_BLOCKS} blocks")
    padding = np.array([machine.fractal(dtype).rows for dtype in DataType])
    for rows, word in ((images, isa.I_MPAD), (products, isa.M_MPAD)):
        step = padding[code[rows, isa.DTYPE]]
        bad = code[rows, word] % step != 0
        _reject(code, core, rows, bad, f"mpad must be a multiple of {step[np.argmax(bad)] if len(rows) else 0}")
    for rows, word, padded in ((images, isa.I_M, isa.I_MPAD), (results, isa.F_M, isa.F_MPAD)):
        _reject(code, core, rows, code[rows, word] > code[rows, padded], "m must not exceed mpad")
    rings = images[code[images, isa.I_RING] > 0]
    _reject(code, core, rings, code[rings, isa.I_H] > code[rings, isa.I_RING], "h must not exceed the ring's rows")
    _reject(code, core, rings, code[rings, isa.I_FIRST] >= code[rings, isa.I_RING], "first must be a row of the ring")
    lanes = isa.TYPE_LANES[code[images, isa.DTYPE]]
    is_four_lane = (code[images, isa.I_LANES] == 4) & (code[images, isa.DTYPE] != DataType.float32)
    why = "lanes must be C0 of the data type, or 4 for float16, int8 and uint8"
    _reject(code, core, images, (code[images, isa.I_LANES] != lanes) & ~is_four_lane, why)
    for ops, rules in TYPE_RULES.items():
        rows = _rows(opcodes, *ops)
        words = cache(partial(_words, code, rows))
        for rule in rules if len(rows) else ():
            _reject(code, core, rows, rule.bad(words), rule.why)


def _words(code: NDArray[np.int32], rows: NDArray[np.int64], word: int) -> NDArray[np.int32]:
    return code[rows, word]


def count_flags(code: NDArray[np.int32], core: int, machine: Machine, balance: dict[tuple[int, ...], int]) -> None:
    rows = _rows(_opcodes(code), Op.SET, Op.WAIT)
    flags = code[rows[:, None], [isa.OP, isa.ENGINE, isa.FLAG_CORE, isa.FLAG_ENGINE, isa.FLAG_ID]]
    limits = ((1, len(Engine)), (2, machine.cores), (3, len(Engine)), (4, machine.flags.ids_per_pair))
    for column, limit in limits:
        bad = (flags[:, column] < 0) | (flags[:, column] >= limit)
        if bad.any():
            i = int(rows[int(np.argmax(bad))])
            field, value = ("", "engine", "core", "engine", "flag id")[column], int(flags[int(np.argmax(bad)), column])
            raise ProgramError(f"core {core} instruction {i}: {op_name(code, i)} names {field} {value}, {machine.name} has {limit}")
    sizes = (Op.WAIT + 1, *(limit for _, limit in limits))
    keys, counts = np.unique(np.ravel_multi_index(tuple(flags.T), sizes), return_counts=True)  # unique rows take thirty times as long
    for op, engine, other_core, other_engine, flag, count in zip(
        *(k.tolist() for k in np.unravel_index(keys, sizes)), counts.tolist(), strict=True
    ):
        if op == Op.SET:
            key, sign = (core, engine, other_core, other_engine, flag), 1
        else:
            key, sign = (other_core, other_engine, core, engine, flag), -1
        balance[key] = balance.get(key, 0) + sign * count
