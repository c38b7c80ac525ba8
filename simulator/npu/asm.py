"""Text form of a stream: one line per instruction, printed and parsed without loss.

    VECTOR  VADD        UB[0] UB[64] UB[128]  blocks=8 repeats=4 dbs=1 drs=8 s0bs=1 s0rs=8 s1bs=1 s1rs=8  f16 @3.12.1
    MTE1    COPY        L0B[0] L1[640]  length=32 count=1 count2=1  f16
    CUBE    MMAD        L0C[0] L0A[0] L0B[64]  mpad=128 k=8 n1=8 acc=1  f16 @3.12
    CUBE    MMAD        L0C[0] L0A[0] L0B[64]  mpad=128 k=8 n1=8 right=i8  u8 @3.12
    CUBE    MMAD_IM2COL L0C[0] L1[0] L1[640]  h=16 w=16 pitch=16 plane=256 kernel=1.1 stride=1.1 dilation=1.1 n1=2 rstride=64 ow=16 ...
    FIXPIPE SET         core=0 engine=MTE3 id=2

Engine, opcode, operands (destination first; `-` where an optional one is absent), parameters by the names of `isa.OPS` (zero where left
out), data type (f16, f32, i8, u8, i32), and @segment.operator.block where they are not all zero (a block of zero is left out).  Words that
hold a data type (`right`, `sums`, `imm` of VCONVERT) or a memory (`side`) are printed by name, words with two fields as `y.x`.  `pad` of
IM2COL, MMAD_IM2COL and FRACTAL is left out if it is -1.  An immediate is printed as a number if that gives its bits back, else as hex bits.
All other content of a record is printed as word<index>=value, so that every record with a known opcode makes the round trip.  `#` starts a
comment; numbers in front of `:` are labels for the reader.
"""

from __future__ import annotations

import re
import struct
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.errors import BadInputError
from simulator.npu.isa import OPS, WORDS, Op, OpSpec, P
from simulator.npu.parts import DataType, Engine, Memory

_TYPES = {DataType.float16: "f16", DataType.float32: "f32", DataType.int8: "i8", DataType.uint8: "u8", DataType.int32: "i32"}
_TYPE_NUMBERS = {name: int(dtype) for dtype, name in _TYPES.items()}
_OPERAND = re.compile(r"(-|[A-Za-z0-9]+\[-?\d+\])\Z")
_NAMED = re.compile(r"([a-z]\w*)=(\S+)\Z")
_WORD = re.compile(r"word[0-9]{1,2}\Z")
_TOKEN_CHARS = 60  # characters of a token in a message
_LABEL = re.compile(r"\A\s*\d+:")
_FLAGS = (Op.SET, Op.WAIT)
_PADDED = (Op.IM2COL, Op.FRACTAL, Op.MMAD_IM2COL)
_OF_TYPE = ((Op.VCONVERT, "imm"), (Op.MMAD, "right"), (Op.MMAD_IM2COL, "right"), (Op.FIXPIPE, "sums"), (Op.FIXPIPE, "rtype"))
_PAIRS = tuple((Op.MMAD_IM2COL, name) for name in ("kernel", "stride", "dilation", "padding"))
_PAIR = re.compile(r"(-?[0-9]+)\.(-?[0-9]+)\Z")


def _sources(spec: OpSpec) -> int:
    """Number of operands after the destination; optional ones with -1 print as `-`."""
    return spec.sources + spec.optional


def _is_vector(spec: OpSpec) -> bool:
    """Whether it is a VECTOR opcode: its operands are all in one memory."""
    return spec.engines == (Engine.VECTOR,)


def _memories(op: Op, record: list[int]) -> list[int]:
    """Memories of the destination and of every source; those of the later sources of MMAD and FIXPIPE are implied."""
    second_source = {Op.MMAD: Memory.L0B, Op.FIXPIPE: Memory.L1 if record[isa.F_SIDE] == Memory.L1 else Memory.UB}.get(op, record[isa.SRC])
    return [record[isa.DST], record[isa.SRC], int(second_source), int(second_source)]


def _is_float(op: Op, name: str) -> bool:
    return name == "imm" and op != Op.VCONVERT


def _print_param(op: Op, name: str, word: int) -> str:
    if name == "engine" and 0 <= word < len(Engine):
        return f"engine={Engine(word).name}"
    if (op, name) in _OF_TYPE and 0 <= word < len(DataType):
        return f"{name}={_TYPES[DataType(word)]}"
    if (op, name) in _PAIRS and isa.pack_pair(*isa.unpack_pair(word)) == word:
        return f"{name}={'.'.join(map(str, isa.unpack_pair(word)))}"
    if name == "side" and 0 <= word < len(Memory):
        return f"side={Memory(word).name}"
    if _is_float(op, name):
        text = str(np.float32(isa.bits_float(word)))
        return f"imm={text if text != 'nan' and isa.float_bits(float(text)) == word else hex(word & 0xFFFFFFFF)}"
    return f"{name}={word}"


def print_record(words: NDArray[np.int32]) -> str:
    """One line for one record, without its number."""
    record = [int(word) for word in words]
    if record[isa.OP] not in OPS:
        raise BadInputError(f"opcode {record[isa.OP]}: expected one of {', '.join(f'{op.name}={int(op)}' for op in OPS)}")
    op = Op(record[isa.OP])
    spec = OPS[op]
    parsed = _blank(op)  # the record that the parser would build from the line so far
    # engine and opcode
    parsed[isa.ENGINE] = _legal(record[isa.ENGINE], len(Engine))
    parts = [f"{Engine(parsed[isa.ENGINE]).name:7} {op.name:11}"]
    # operands
    if op not in _FLAGS:
        parsed[isa.DST] = _legal(record[isa.DST], len(Memory))
        if _sources(spec):
            parsed[isa.SRC] = _legal(record[isa.SRC], len(Memory))
        elif _is_vector(spec):
            parsed[isa.SRC] = parsed[isa.DST]
        if op == Op.FIXPIPE:
            parsed[isa.F_SIDE] = record[isa.F_SIDE]
        operands = []
        for i, memory in enumerate(_memories(op, parsed)[: 1 + _sources(spec)]):
            word = parsed[isa.D + i] = record[isa.D + i]
            operands.append("-" if word == -1 and i > spec.sources else f"{Memory(memory).name}[{word}]")
        parts.append(" ".join(operands) + " ")
    # parameters
    parsed[P : P + len(spec.params)] = record[P : P + len(spec.params)]
    params = [_print_param(op, name, word) for name, word in zip(spec.params, record[P:], strict=False) if word or op in _FLAGS]
    if op in _PADDED and record[isa.PAD] != -1:
        parsed[isa.PAD] = record[isa.PAD]
        params.append(f"pad={record[isa.PAD]}")
    if params:
        parts.append(" ".join(params) + " ")
    # data type
    if 0 <= record[isa.DTYPE] < len(DataType) and (record[isa.DTYPE] or op not in _FLAGS):
        parts.append(_TYPES[DataType(record[isa.DTYPE])])
        parsed[isa.DTYPE] = record[isa.DTYPE]
    # segment, operator and block
    if record[isa.TAG] or record[isa.BLOCK]:
        block = f".{record[isa.BLOCK]}" if record[isa.BLOCK] else ""
        parts.append(f"@{isa.segment_of(record[isa.TAG])}.{isa.operator_of(record[isa.TAG])}{block}")
        parsed[isa.TAG], parsed[isa.BLOCK] = record[isa.TAG], record[isa.BLOCK]
    # words that the line does not give back
    parts += [f"word{i}={word}" for i, (word, parsed_word) in enumerate(zip(record, parsed, strict=True)) if word != parsed_word]
    return " ".join(parts).rstrip()


def _legal(word: int, count: int) -> int:
    """The word, or 0 if it is no number of `count` values."""
    return word if 0 <= word < count else 0


def _blank(op: Op) -> list[int]:
    """A record without operands or parameters: -1 in addresses that the opcode does not have, 0 elsewhere."""
    record = [0] * WORDS
    record[isa.OP] = int(op)
    spec = OPS[op]
    if op not in _FLAGS:
        for word in range(isa.D + 1 + spec.sources, isa.S2 + 1):
            record[word] = -1
        record[isa.SRC] = record[isa.DST] = int(Memory.UB) if _is_vector(spec) else 0
    return record


def print_program(code: NDArray[np.int32], *, numbers: bool = False) -> str:
    """Text of a stream (int32 [n, 32]), a line per record; `numbers` puts the record's number in front."""
    width = len(str(max(len(code) - 1, 0)))
    lines = [(f"{i:{width}}: " if numbers else "") + print_record(words) for i, words in enumerate(code)]
    return "".join(line + "\n" for line in lines)


def print_core(code: NDArray[np.int32], core: int, where: str = "") -> str:
    """`print_program` with numbers, behind a comment with the core and its instruction count.  where: text before the core."""
    return f"# {where}core {core}: {len(code)} instructions\n" + print_program(code, numbers=True)


def parse(text: str) -> NDArray[np.int32]:
    """Stream of a text, int32 [n, 32].  Raises `BadInputError` with the line, the token and the accepted form."""
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        tokens = _LABEL.sub("", line.partition("#")[0], count=1).split()
        if tokens:
            records.append(_Line(number).parse(tokens))
    return np.array(records, np.int64).reshape(-1, WORDS).astype(np.int32)


class _Line:
    """One line being parsed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def error(self, token: str, accepted: str) -> BadInputError:
        short = token if len(token) <= _TOKEN_CHARS else token[:_TOKEN_CHARS] + "..."
        return BadInputError(f"line {self.number}: {short!r}: expected {accepted}")

    def parse(self, tokens: list[str]) -> list[int]:
        if tokens[0] not in Engine.__members__:
            raise self.error(tokens[0], f"an engine: {', '.join(Engine.__members__)}")
        if len(tokens) < 2 or tokens[1] not in Op.__members__:
            raise self.error(tokens[1] if len(tokens) > 1 else "", f"an opcode: {', '.join(Op.__members__)}")
        op = Op[tokens[1]]
        record = _blank(op)
        record[isa.ENGINE] = int(Engine[tokens[0]])
        operands = list(takewhile(_OPERAND.match, tokens[2:]))
        self.operands(op, record, operands)
        seen: set[str] = set()
        for token in tokens[2 + len(operands) :]:
            if token in _TYPE_NUMBERS:
                name = "type"
            else:
                name = token.partition("=")[0] if "=" in token else token[:1]
            if name in seen:
                raise self.error(token, f"{name!r} once")
            seen.add(name)
            self.parameter(op, record, token)
        return record

    def operands(self, op: Op, record: list[int], operands: list[str]) -> None:
        spec = OPS[op]
        minimum, maximum = (0, 0) if op in _FLAGS else (1 + spec.sources, 1 + _sources(spec))
        if not minimum <= len(operands) <= maximum:
            count = str(maximum) if minimum == maximum else f"{minimum} to {maximum}"
            raise self.error(" ".join(operands), f"{count} operands of {op.name}, each as L1[12]{', or -' if minimum < maximum else ''}")
        for i, token in enumerate(operands):
            if token == "-":
                if i < minimum:
                    raise self.error(token, f"an operand as L1[12]; number {i + 1} of {op.name} is not optional")
                continue
            name, _, address = token[:-1].partition("[")
            if name not in Memory.__members__:
                raise self.error(token, f"a memory: {', '.join(Memory.__members__)}")
            if i < 2:
                record[isa.DST if i == 0 else isa.SRC] = int(Memory[name])
                if _is_vector(spec) and not _sources(spec):
                    record[isa.SRC] = record[isa.DST]
            elif op == Op.FIXPIPE and name in ("UB", "L1"):
                record[isa.F_SIDE] = 0 if name == "UB" else int(Memory.L1)
            elif _memories(op, record)[i] != Memory[name]:
                raise self.error(token, f"operand {i + 1} of {op.name} in {Memory(_memories(op, record)[i]).name}")
            record[isa.D + i] = self.integer(token, address)

    def parameter(self, op: Op, record: list[int], token: str) -> None:
        spec = OPS[op]
        if token in _TYPE_NUMBERS:
            record[isa.DTYPE] = _TYPE_NUMBERS[token]
            return
        if token.startswith("@"):
            numbers = [self.integer(token, number) for number in token[1:].split(".")]
            if len(numbers) not in (2, 3):
                raise self.error(token, "@segment.operator or @segment.operator.block")
            segment, operator = numbers[:2]
            if not (-(1 << 15) <= segment < 1 << 15 and 0 <= operator <= isa.OPERATOR_MASK):
                raise self.error(token, "@segment.operator with a segment of 16 bits and an operator in 0..65535")
            record[isa.TAG] = isa.tag_of(segment, operator)
            record[isa.BLOCK] = numbers[2] if len(numbers) == 3 else 0
            return
        # a name of the opcode, the pad value, or a raw word
        match = _NAMED.match(token)
        if match is None:
            raise self.error(token, f"name=value, a data type ({', '.join(_TYPE_NUMBERS)}) or @segment.operator")
        name, value = match.groups()
        if name in spec.params:
            record[P + spec.params.index(name)] = self.value(op, name, token, value)
        elif name == "pad" and op in _PADDED:
            record[isa.PAD] = self.integer(token, value)
        elif _WORD.match(name) and int(name[4:]) < WORDS:
            record[int(name[4:])] = self.integer(token, value)
        else:
            raise self.error(token, f"a parameter of {op.name}: {', '.join((*spec.params, *(['pad'] * (op in _PADDED))))}")

    def value(self, op: Op, name: str, token: str, value: str) -> int:
        if name == "engine" and not value.lstrip("-").isdigit():
            if value not in Engine.__members__:
                raise self.error(token, f"an engine: {', '.join(Engine.__members__)}")
            return int(Engine[value])
        if (op, name) in _OF_TYPE and value in _TYPE_NUMBERS:
            return _TYPE_NUMBERS[value]
        if (op, name) in _PAIRS and (both := _PAIR.match(value)):
            return isa.pack_pair(*(self.integer(token, half) for half in both.groups()))
        if name == "side" and value in Memory.__members__:
            return int(Memory[value])
        if _is_float(op, name):
            return self.immediate(token, value)
        return self.integer(token, value)

    def immediate(self, token: str, value: str) -> int:
        try:
            if value.startswith("0x"):
                return int(struct.unpack("<i", struct.pack("<I", int(value, 16)))[0])
            with np.errstate(over="ignore"):
                return isa.float_bits(float(value))
        except (ValueError, struct.error):
            raise self.error(token, "imm=number, or the bits of a float32 as 0x hex") from None

    def integer(self, token: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise self.error(token, "an integer") from None
        if not -(1 << 31) <= number < 1 << 31:
            raise self.error(token, "an integer of 32 bits")
        return number
