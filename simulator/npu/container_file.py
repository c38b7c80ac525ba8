"""The compiled model as one binary: streams of every variant, one memory map, the constants once, and digests over all of it.

| bytes            | meaning                                                                                   |
|------------------|-------------------------------------------------------------------------------------------|
| 0..8             | magic: not text, and a transfer that rewrites line ends damages it (the idea of PNG)       |
| 8..12, 12..16    | format version, zero (uint32, little-endian as everything here)                           |
| 16..24, 24..32   | length of the whole file, length of the header (uint64)                                   |
| 32..64           | SHA-256 over bytes 0..32 and the header                                                   |
| 64..             | header: canonical JSON (`_Header`), which holds a SHA-256 for every section               |
| aligned to 64 .. | sections in the order of the header, each aligned to 64, gaps zero: constants, then streams |

A stream section holds one distinct variant: the records of core 0, of core 1, ... without gaps.  Levels whose champions are equal name the
same section, so switching between variants changes the start address and nothing else.

Files are not trusted: `decode` raises `ContainerError`, and no other exception, for any bytes.  Every bit is either under a digest or
required to be zero.  A digest is no signature: an attacker can compute it for changed data, so values are checked as well.

Files are parsed, checked and never pickled, since they may come from anywhere.
"""

from __future__ import annotations

import hashlib
import json
import operator
import struct
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulator.npu import isa
from simulator.npu.container import Container, ContainerError, OperatorEntry, SegmentEntry, Variant, check_container, program
from simulator.npu.controller_table import ControllerTable
from simulator.npu.isa import WORDS
from simulator.npu.level import LevelText
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType, TypeName
from simulator.npu.program import Code, DdrBuffer, MemoryMap
from simulator.npu.validation import validation_line

MAGIC = b"\x89TFNPU\r\n"
VERSION = 4
ALIGN = 64
RECORD_BYTES = 4 * WORDS
ISA_DIGEST = hashlib.sha256(isa.digest_inputs().encode()).hexdigest()[:32]

_FRONT = struct.Struct("<8sIIQQ")
_HEADER_AT = _FRONT.size + hashlib.sha256().digest_size
_MAX_BLOCK = 2**31 - 1  # addresses in records are int32
MAX_OPERATORS = isa.OPERATOR_MASK + 1
MAX_NAME = 256  # characters of an operator's name
_AGAIN = "make a new one: tilefarm compile MODEL --machine NAME --out FILE"
assert _HEADER_AT == ALIGN


# --- header ------------------------------------------------------------------------------------------------------

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_Block = Annotated[int, Field(ge=0, le=_MAX_BLOCK)]
_Axis = Annotated[int, Field(ge=0, le=3)]
_Size = Annotated[int, Field(ge=0, le=2**62)]
_Cycles = Annotated[int, Field(ge=0, le=2**62)]
_Count = Annotated[int, Field(ge=1, le=MAX_OPERATORS)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Section(_Part):
    offset: _Size
    length: _Size
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _StreamSection(_Section):
    instructions: tuple[_Size, ...]  # per core


class _Operator(_Part):
    name: Annotated[str, Field(max_length=MAX_NAME)]
    macs: _Size
    accumulators: _Size


class _Segment(_Part):
    operators: _Count
    blocks: _Count


class _Variant(_Part):
    level: LevelText
    section: _Size
    plan: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]
    cycles: dict[LevelText, _Cycles | None]
    segments: Annotated[tuple[_Segment, ...], Field(max_length=MAX_OPERATORS)]


class _Buffer(_Part):
    name: str
    kind: Literal["constant", "input", "output", "scratch"]
    offset_blocks: _Block
    size_blocks: _Block
    shape: tuple[_Block, _Block, _Block, _Block]
    onnx_shape: tuple[_Block, ...]
    lanes: tuple[_Block, ...]
    pixel_lanes: _Block
    planes: _Block
    order: tuple[_Axis, _Axis, _Axis, _Axis]
    dtype: TypeName | None


class _Header(_Part):
    model: _Digest
    isa: _Digest
    machine_digest: _Digest
    machine: Machine
    dtype: Literal["float16", "float32"]
    size_blocks: _Block
    buffers: tuple[_Buffer, ...]
    constants: _Section
    streams: Annotated[tuple[_StreamSection, ...], Field(min_length=1)]
    variants: Annotated[tuple[_Variant, ...], Field(min_length=1)]
    operators: Annotated[tuple[_Operator, ...], Field(max_length=MAX_OPERATORS)]
    controller: ControllerTable | None


def _canonical(header: _Header) -> bytes:
    # keys in the order of the fields, not sorted: the order of a machine's contention levels means something
    return json.dumps(header.model_dump(mode="json"), separators=(",", ":"), allow_nan=False).encode()


# --- encode ------------------------------------------------------------------------------------------------------


def encode(container: Container) -> bytes:
    """The container as bytes; equal containers give equal bytes.  Raises `ContainerError` where `decode` would refuse them."""
    return b"".join(encode_chunks(container))


def encode_chunks(source: Container) -> list[bytes | memoryview]:
    """The chunks of `encode`, without a copy of the constants."""
    digests: dict[str, int] = {}
    constants = _constants_of(source)
    container = replace(source, constants=constants)
    chunks: list[bytes | memoryview] = [constants]
    instructions: list[dict[str, list[int]]] = [{}]  # the constants have none
    table = []
    for variant in container.variants:
        streams = tuple(np.ascontiguousarray(code, "<i4") for code in variant.streams)
        # a digest of the bytes would not see how they are divided over the cores: `Program.digest` includes the lengths
        digest = program(source, variant.level).digest
        if digest not in digests:
            digests[digest] = len(digests)
            chunks.append(b"".join(code.tobytes() for code in streams))
            instructions.append({"instructions": [len(code) for code in streams]})
        table.append({"level": variant.level, "section": digests[digest],
                      "plan": variant.plan_digest, "cycles": dict(variant.cycles),
                      "segments": [asdict(segment) for segment in variant.segments]})  # fmt: skip
    fields: dict[str, Any] = {
        "model": container.model_digest,
        "isa": ISA_DIGEST,
        "machine_digest": container.machine.digest,
        "machine": container.machine.model_dump(mode="json"),
        "dtype": container.dtype.name,
        "size_blocks": container.memory.size_blocks,
        "buffers": [asdict(buffer) for buffer in container.memory.buffers],
        "variants": table,
        "operators": [asdict(operator) for operator in container.operators],
        "controller": None if container.controller is None else container.controller.dump(),
    }
    # offsets depend on the length of the header, which depends on their digits: repeat to a fixed point
    hashes = [hashlib.sha256(chunk).hexdigest() for chunk in chunks]
    size = 0
    while True:
        sections: list[dict[str, Any]] = []
        offset = _aligned(_HEADER_AT + size)
        for chunk, sha, counts in zip(chunks, hashes, instructions, strict=True):
            sections.append({"offset": offset, "length": len(chunk), "sha256": sha} | counts)
            end = offset + len(chunk)
            offset = _aligned(end)
        try:
            # numpy integers, which a compiler's addresses may be, become integers
            header = _Header.model_validate_json(
                json.dumps(fields | {"constants": sections[0], "streams": sections[1:]}, default=operator.index)
            )
        except ValidationError as error:
            raise ContainerError(f"container: {validation_line(error)}") from None
        text = _canonical(header)
        if len(text) == size:
            break
        size = len(text)
    check_container(container)
    front = _FRONT.pack(MAGIC, VERSION, 0, end, len(text))
    parts: list[bytes | memoryview] = [front, hashlib.sha256(front + text).digest(), text]
    length = _HEADER_AT + len(text)
    for chunk in chunks:
        parts += [bytes(_aligned(length) - length), chunk]
        length = _aligned(length) + len(chunk)
    return parts


def _constants_of(container: Container) -> memoryview:
    """The constants, without the zeros that alignment puts after the last one."""
    constants = container.constants
    view = (np.ascontiguousarray(constants).data if isinstance(constants, np.ndarray) else memoryview(constants)).cast("B")
    size = container.memory.constant_blocks * BLOCK_BYTES
    if any(view[size:]):
        raise ContainerError(f"container: {len(view)} bytes of constants, those behind the memory map's {size} are not zero")
    return view[:size]


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN) * ALIGN


# --- decode ------------------------------------------------------------------------------------------------------


def decode(data: bytes | memoryview) -> Container:
    """The container in `data`.  Constants are a view into it, streams are copies.

    Raises `ContainerError` (one line with problem and position) for bytes that `encode` does not write: damage, truncation, trailing bytes,
    another format or instruction set, a program that its machine cannot run.
    """
    view = memoryview(data).cast("B").toreadonly()
    header = _read_header(view)
    _check_sections(header, view)
    constants = _section(view, header.constants, "constants")
    streams = [_streams(view, section, f"streams[{i}]") for i, section in enumerate(header.streams)]
    memory = MemoryMap(DataType[header.dtype], tuple(DdrBuffer(**buffer.model_dump()) for buffer in header.buffers), header.size_blocks)
    variants = tuple(
        Variant(v.level, streams[v.section], v.plan, v.cycles, tuple(SegmentEntry(s.operators, s.blocks) for s in v.segments))
        for v in _variants(header)
    )
    operators = tuple(OperatorEntry(o.name, o.macs, o.accumulators) for o in header.operators)
    container = Container(header.model, header.machine, memory, variants, constants, operators, header.controller)
    check_container(container)
    return container


def container_lengths(view: memoryview) -> list[tuple[int, int]]:
    """(start, stop) of consecutive containers, from the length at the start of each.

    Raises `ContainerError` if the bytes do not end with the last container.
    """
    spans, offset = [], 0
    while offset < len(view):
        front = bytes(view[offset : offset + _FRONT.size])
        if len(front) < _FRONT.size or not front.startswith(MAGIC):
            raise ContainerError(f"context: byte {offset} of {len(view)} starts {front[:8]!r}, expected a container ({MAGIC!r})")
        size = _FRONT.unpack(front)[3]
        if not _HEADER_AT <= size <= len(view) - offset:
            raise ContainerError(f"context: the container at byte {offset} says it has {size} bytes, {len(view) - offset} are left")
        spans.append((offset, offset + size))
        offset += size
    return spans


def _read_header(view: memoryview) -> _Header:
    if len(view) < _HEADER_AT:
        raise ContainerError(f"container: {len(view)} bytes, the shortest one has more than {_HEADER_AT}")
    magic, version, zero, total, size = _FRONT.unpack(view[: _FRONT.size])
    if magic != MAGIC:
        raise ContainerError(f"container: starts with {bytes(magic)!r}, expected {MAGIC!r}")
    if version != VERSION or zero:
        raise ContainerError(f"container: format version {version}.{zero}, this program reads {VERSION}.0; {_AGAIN}")
    if total != len(view):
        raise ContainerError(f"container: {len(view)} bytes, its header says {total}: cut short or bytes behind the end")
    if size > total - _HEADER_AT:
        raise ContainerError(f"container: header of {size} bytes does not fit into {total} bytes")
    # the header is parsed only after its digest is checked
    text = bytes(view[_HEADER_AT : _HEADER_AT + size])
    if hashlib.sha256(bytes(view[: _FRONT.size]) + text).digest() != view[_FRONT.size : _HEADER_AT]:
        raise ContainerError("container: header is damaged (SHA-256 differs)")
    try:
        header = _Header.model_validate_json(text)
    except ValidationError as error:
        raise ContainerError(f"container: header: {validation_line(error)}") from None
    if header.isa != ISA_DIGEST:
        raise ContainerError(f"container: instruction set {header.isa}, this program has {ISA_DIGEST}; {_AGAIN}")
    if header.machine.digest != header.machine_digest:
        raise ContainerError(f"container: machine digest {header.machine_digest}, its spec gives {header.machine.digest}")
    # one encoding per container: equal containers are equal bytes
    if _canonical(header) != text:
        raise ContainerError("container: header is not in canonical form")
    return header


def _check_sections(header: _Header, view: memoryview) -> None:
    """Sections follow one another in order, aligned, with nothing but zeros between; the last one ends the file."""
    end = _HEADER_AT + len(_canonical(header))
    names = ["constants", *(f"streams[{i}]" for i in range(len(header.streams)))]
    for name, section in zip(names, (header.constants, *header.streams), strict=True):
        if section.offset != _aligned(end):
            raise ContainerError(f"container: {name} at byte {section.offset}, expected {_aligned(end)}")
        if section.offset + section.length > len(view):
            raise ContainerError(f"container: {name} ends at byte {section.offset + section.length} of {len(view)}")
        if any(view[end : section.offset]):
            raise ContainerError(f"container: bytes {end}..{section.offset} before {name} are not zero")
        end = section.offset + section.length
    if end != len(view):
        raise ContainerError(f"container: sections end at byte {end} of {len(view)}")


def _section(view: memoryview, section: _Section, name: str) -> memoryview:
    body = view[section.offset : section.offset + section.length]
    if hashlib.sha256(body).hexdigest() != section.sha256:
        raise ContainerError(f"container: {name} is damaged (SHA-256 differs)")
    return body


def _streams(view: memoryview, section: _StreamSection, name: str) -> tuple[Code, ...]:
    if section.length != sum(section.instructions) * RECORD_BYTES:
        raise ContainerError(f"container: {name} has {section.length} bytes for {sum(section.instructions)} records of {RECORD_BYTES}")
    # a copy: writable and aligned, so that compiled kernels meet one array type wherever a program comes from
    records = np.frombuffer(_section(view, section, name), "<i4").astype(np.int32).reshape(-1, WORDS)
    return tuple(np.split(records, np.cumsum(section.instructions)[:-1])) if section.instructions else ()


def _variants(header: _Header) -> tuple[_Variant, ...]:
    """Variants, after a check of their section numbers: in order of first use, without unused sections."""
    used = 0
    for variant in header.variants:
        if variant.section > used or variant.section >= len(header.streams):
            raise ContainerError(f"container: variant {variant.level!r} names stream section {variant.section}, the next one is {used}")
        used = max(used, variant.section + 1)
    if used != len(header.streams):
        raise ContainerError(f"container: {len(header.streams)} stream sections, variants use {used}")
    return header.variants
