"""`memory.json`: the binaries of a bundle, their places in DDR, and the host's layout of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from simulator.bundle.bundle_files import MEMORY, Parts, pretty_json
from simulator.compiled import Compiled, CompiledPiece
from simulator.npu.container import Container, OperatorEntry, SegmentEntry, Variant
from simulator.npu.container_file import ISA_DIGEST, RECORD_BYTES
from simulator.npu.controller_table import ControllerTable
from simulator.npu.isa import WORDS
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType
from simulator.npu.program import Code, DdrBuffer, MemoryMap

_Size = Annotated[int, Field(ge=0, le=2**62)]

Refuse = Callable[[str, str], Exception]
"""(part, problem) -> the error to raise."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BundleStream(_Entry):
    """instructions: records of every core, in the order of the file."""

    file: str
    instructions: tuple[_Size, ...]


class BundleVariant(_Entry):
    """Program of a level.  cycles: level -> cycles; null if the level grants less than the program needs.

    plan: digest of its plan.  stream: index in the piece's list.
    """

    level: str
    stream: _Size
    plan: str
    cycles: dict[str, _Size | None]
    segments: tuple[SegmentEntry, ...]


class BundlePiece(_Entry):
    """A part of the model with one program per level and its own DDR image.  Addresses and sizes in blocks, as in `DdrBuffer`."""

    name: str
    size_blocks: _Size
    weights: str
    buffers: tuple[DdrBuffer, ...]
    streams: tuple[BundleStream, ...]
    variants: tuple[BundleVariant, ...]
    operators: tuple[OperatorEntry, ...]


class BundleMemory(_Entry):
    byte_order: Literal["little"] = "little"
    block_bytes: int = BLOCK_BYTES
    record_bytes: int = RECORD_BYTES
    isa: str = ISA_DIGEST
    model: str
    dtype: Literal["float16", "float32"]
    machine: Machine
    pieces: Annotated[tuple[BundlePiece, ...], Field(min_length=1)]

    def text(self) -> bytes:
        return pretty_json(self.model_dump(mode="json"))


def memory_parts(compiled: Compiled) -> dict[str, bytes]:
    """`memory.json` and the binaries that it names.  compiled: model as read from a file."""
    parts: dict[str, bytes] = {}
    pieces = tuple(_piece(piece, f"piece{k}", parts) for k, piece in enumerate(compiled.pieces))
    memory = BundleMemory(model=compiled.model_digest, dtype=compiled.dtype.name, machine=compiled.machine, pieces=pieces)  # type: ignore[arg-type]
    return {MEMORY: memory.text(), **parts}


def _piece(piece: CompiledPiece, folder: str, parts: dict[str, bytes]) -> BundlePiece:
    container = piece.container
    weights = f"{folder}/weights.bin"
    parts[weights] = bytes(container.constants)
    streams: dict[str, BundleStream] = {}  # level -> stream
    for level in container.levels:
        if container.same_as(level) is None:
            codes = container.variant(level).streams
            # `weights` is a name that a level may have
            streams[level] = BundleStream(file=f"{folder}/{level}.stream.bin", instructions=tuple(len(code) for code in codes))
            parts[streams[level].file] = b"".join(np.ascontiguousarray(code, "<i4").tobytes() for code in codes)
    return BundlePiece(
        name=piece.name,
        size_blocks=container.memory.size_blocks,
        weights=weights,
        buffers=container.memory.buffers,
        streams=tuple(streams.values()),
        variants=tuple(
            BundleVariant(
                level=v.level,
                stream=list(streams).index(container.same_as(v.level) or v.level),
                plan=v.plan_digest,
                cycles=dict(v.cycles),
                segments=v.segments,
            )
            for v in container.variants
        ),
        operators=container.operators,
    )


def build_container(memory: BundleMemory, piece: BundlePiece, parts: Parts, controller: ControllerTable, refuse: Refuse) -> Container:
    """Container of a piece; its values are not checked yet.  Raises `refuse(...)` for a part that does not match."""
    layout = MemoryMap(DataType[memory.dtype], piece.buffers, piece.size_blocks)
    for file in (piece.weights, *(stream.file for stream in piece.streams)):
        if file not in parts:
            raise refuse(file, f"{MEMORY} names it, and there is no such part")
    weights, expected = parts[piece.weights], layout.constant_blocks * BLOCK_BYTES
    if len(weights) != expected:
        raise refuse(piece.weights, f"{len(weights)} bytes, the memory map of {MEMORY} has {expected}")
    codes = [_codes(stream, parts[stream.file], refuse) for stream in piece.streams]
    for variant in piece.variants:
        if variant.stream >= len(codes):
            raise refuse(MEMORY, f"level {variant.level!r} has stream {variant.stream}, there are {len(codes)}")
    variants = tuple(Variant(v.level, codes[v.stream], v.plan, v.cycles, v.segments) for v in piece.variants)
    return Container(memory.model, memory.machine, layout, variants, weights, piece.operators, controller)


def _codes(stream: BundleStream, content: bytes, refuse: Refuse) -> tuple[Code, ...]:
    expected = sum(stream.instructions) * RECORD_BYTES
    if not stream.instructions or len(content) != expected:
        raise refuse(stream.file, f"{len(content)} bytes, {MEMORY} has {sum(stream.instructions)} records of {RECORD_BYTES} for it")
    records = np.frombuffer(content, "<i4").astype(np.int32).reshape(-1, WORDS)
    return tuple(np.split(records, np.cumsum(stream.instructions)[:-1]))
