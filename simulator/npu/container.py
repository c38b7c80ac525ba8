"""A compiled model: the streams of every variant, one memory map, and the constants once.  `check_container` verifies it.

`simulator.npu.container_file` encodes it as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.npu.controller_table import ControllerTable
from simulator.npu.errors import BadInputError, ProgramError
from simulator.npu.grant import Grant
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, BYTES, DataType
from simulator.npu.program import Code, MemoryMap, Program


class ContainerError(BadInputError):
    """Bytes that are no container of this version; the message names the fault and its place."""


@dataclass(frozen=True)
class OperatorEntry:
    """Operator of the model; the lower half of a TAG counts them.  For reports only: no instruction depends on it.

    macs: multiply-accumulates that the model needs, without padding.  accumulators: L0C values in one pass over the needed output, with
    channels rounded up to 16; a program with more of them computes rows twice.  Both are 0 without a product.
    """

    name: str
    macs: int = 0
    accumulators: int = 0


@dataclass(frozen=True)
class SegmentEntry:
    """Segment; the upper half of a TAG counts them.  Its operators follow those of the previous segment; it also has a number of blocks."""

    operators: int
    blocks: int


@dataclass(frozen=True, eq=False)
class Variant:
    """The best program for one contention level.

    streams: int32 [n, 32] per core.  cycles: expected cycles of this variant at every level of the container, by level name; None where the
    level grants less than the variant needs (`Program.needs`).  segments: all operators of the container, grouped, in order; () if unknown.
    """

    level: str
    streams: tuple[Code, ...]
    plan_digest: str  # 32 hex digits, or "" without a plan
    cycles: Mapping[str, int | None]
    segments: tuple[SegmentEntry, ...] = ()


@dataclass(frozen=True, eq=False)
class Container:
    """A compiled model.  `constants` is the DDR image of blocks 0..memory.constant_blocks, the same for all variants."""

    model_digest: str  # 32 hex digits
    machine: Machine
    memory: MemoryMap
    variants: tuple[Variant, ...]
    constants: bytes | memoryview | NDArray[np.uint8]  # a read-only memoryview after `decode`
    operators: tuple[OperatorEntry, ...] = ()  # in the order of the numbers in TAG, the same for all variants
    controller: ControllerTable | None = None  # table of the whole model; None if no variants are switched at run time

    @cached_property
    def programs(self) -> Mapping[str, Program]:
        """Programs by level; variants with equal streams share one object, so that its digest is computed once."""
        programs = {id(v.streams): Program(self.machine.digest, v.streams, self.memory) for v in self.variants}
        return {v.level: programs[id(v.streams)] for v in self.variants}

    @property
    def dtype(self) -> DataType:
        return self.memory.dtype

    @property
    def levels(self) -> tuple[str, ...]:
        """Level names in the order of the table, the first one the default."""
        return tuple(variant.level for variant in self.variants)

    def variant(self, level: str) -> Variant:
        """Raises `BadInputError` naming the levels that exist."""
        for variant in self.variants:
            if variant.level == level:
                return variant
        raise BadInputError(f"level {level!r}: not in the compiled model; levels: {', '.join(self.levels)}")

    def same_as(self, level: str) -> str | None:
        """Earlier level whose variant has the same streams, or None."""
        digest = program(self, level).digest
        for earlier_level in self.levels[: self.levels.index(level)]:
            if program(self, earlier_level).digest == digest:
                return earlier_level
        return None


def program(container: Container, level: str) -> Program:
    """The program of a level, over the container's one memory map."""
    return container.programs[container.variant(level).level]


# --- conditions on the values, in memory or from a file ----------------------------------------------------------------


def check_container(container: Container) -> None:
    """Check the values of a container, whether from memory or from a file.  Raises `ContainerError`."""
    levels = container.levels
    if len(set(levels)) != len(levels):
        raise ContainerError(f"container: a level is given twice: {', '.join(levels)}")
    for variant in container.variants:
        if variant.level not in container.machine.contention:
            level_names = ", ".join(container.machine.contention)
            raise ContainerError(f"container: level {variant.level!r}: {container.machine.name} has {level_names}")
        if tuple(variant.cycles) != levels:
            raise ContainerError(f"container: variant {variant.level!r} has cycles for {list(variant.cycles)}, levels: {list(levels)}")
        operators = sum(segment.operators for segment in variant.segments)
        if variant.segments and operators != len(container.operators):
            raise ContainerError(
                f"container: segments of variant {variant.level!r} have {operators} operators, the model has {len(container.operators)}"
            )
    if container.controller is not None:
        check_controller(container, container.controller)
    expected = container.memory.constant_blocks * BLOCK_BYTES
    if len(container.constants) != expected:
        raise ContainerError(f"container: {len(container.constants)} bytes of constants, the memory map has {expected}")
    _check_buffers(container)
    # streams that several variants share are verified once
    verified_ids: set[int] = set()
    for variant in container.variants:
        if id(variant.streams) in verified_ids:
            continue
        verified_ids.add(id(variant.streams))
        if not variant.streams:
            raise ContainerError(f"container: variant {variant.level!r} has no cores")
        try:
            program(container, variant.level).verify(container.machine)
        except ProgramError as error:
            raise ContainerError(f"container: variant {variant.level!r}: {error}") from None
    _check_grants(container)


def _check_grants(container: Container) -> None:
    """Check that every variant fits its level, and has cycles at exactly the levels that it fits."""
    machine, needs = container.machine, dict[int, Grant]()
    is_limited = any(machine.granted(level) != machine.full_grant for level in container.levels)
    for variant in container.variants:
        key = id(variant.streams)
        if is_limited and key not in needs:
            needs[key] = program(container, variant.level).needs
        variant_needs = needs.get(key, machine.full_grant)
        if shortage := variant_needs.shortage(machine.granted(variant.level)):
            raise ContainerError(f"container: variant {variant.level!r} does not fit its level: {shortage}")
        for level, cycles in variant.cycles.items():
            fits = variant_needs.fits(machine.granted(level))
            if (cycles is not None) != fits:
                statement = f"container: variant {variant.level!r}: {cycles} cycles at level {level!r}"
                raise ContainerError(f"{statement}, which {'grants' if fits else 'does not grant'} what it needs")


def check_controller(container: Container, table: ControllerTable) -> None:
    """Check that the table has these levels and streams.  Raises `ContainerError`."""
    made_for = {row.name: (row.share_units, row.latency_cycles) for row in table.levels if row.variant is not None}
    levels = {variant.level: container.machine.contention[variant.level] for variant in container.variants}
    if made_for != {name: (level.share_units, level.latency_cycles) for name, level in levels.items()}:
        raise ContainerError(f"container: controller has variants for {sorted(made_for)}, or these otherwise; levels: {sorted(levels)}")
    if table.granted:
        for number, variant in enumerate(table.variants):
            if shortage := program(container, variant.name).needs.shortage(table.needs(number)):
                raise ContainerError(f"container: controller: variant {variant.name!r} {shortage} by the controller")
    for row in table.levels:
        first = row.name if row.variant is None else table.variants[row.variant].name
        if first != row.name and program(container, row.name).digest != program(container, first).digest:
            raise ContainerError(f"container: controller: level {row.name!r} has the variant of {first!r}, its stream is another one")


def _check_buffers(container: Container) -> None:
    """Check the layouts by which the host writes inputs and reads outputs: every access stays inside its buffer."""
    names = [buffer.name for buffer in container.memory.buffers if buffer.kind in ("input", "output")]
    if len(set(names)) != len(names):
        raise ContainerError(f"container: memory map: an input or output is given twice: {', '.join(names)}")
    for buffer in container.memory.buffers:
        if buffer.kind not in ("input", "output"):
            continue
        where = f"container: memory map: {buffer.kind} {buffer.name!r}"
        (n, c, h, w), dtype = buffer.shape, container.memory.type_of(buffer)
        c0 = dtype.lanes
        if n * c * h * w == 0 or len(buffer.lanes) != c:
            raise ContainerError(f"{where}: shape {list(buffer.shape)} with {len(buffer.lanes)} lanes")
        size = 1
        for extent in buffer.onnx_shape:
            size *= extent
        if size != n * c * h * w:
            raise ContainerError(f"{where}: shape {list(buffer.shape)} is not the model's {list(buffer.onnx_shape)}")
        if sorted(buffer.order) != [0, 1, 2, 3]:
            raise ContainerError(f"{where}: order {list(buffer.order)} is not a permutation of (n, c, h, w)")
        if buffer.pixel_lanes == c0:
            lanes, blocks = buffer.planes * c0, n * buffer.planes * h * w
        elif buffer.pixel_lanes == 4 and dtype in (DataType.float16, *BYTES) and buffer.planes == 1:
            lanes, blocks = 4, n * h * -(-w // (c0 // 4))
        else:
            raise ContainerError(
                f"{where}: {buffer.pixel_lanes} lanes in a pixel of {buffer.planes} planes; {c0}, or 4 of one plane, not of float32"
            )
        # channels have lanes of their own, inside the planes
        if max(buffer.lanes) >= lanes or len(set(buffer.lanes)) != c:
            raise ContainerError(f"{where}: lanes are not {c} different ones below {lanes}")
        if buffer.size_blocks < blocks:
            raise ContainerError(f"{where}: {buffer.size_blocks} blocks, its layout needs {blocks}")
