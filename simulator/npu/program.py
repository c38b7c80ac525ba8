"""Programs: one instruction stream per core and their memory map; `verify` finds illegal records."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.npu.access import MAX_RANGES, accesses, extent
from simulator.npu.errors import ProgramError
from simulator.npu.grant import Grant
from simulator.npu.legality import check_kinds, check_parameters, check_shape, count_flags, op_name
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Engine, Memory, TypeName

Code = NDArray[np.int32]
BufferKind = Literal["constant", "input", "output", "scratch"]


@dataclass(frozen=True)
class DdrBuffer:
    """A named range of DDR; for inputs and outputs also the host's layout of values in it.

    shape: logical (n, c, h, w).  onnx_shape: the model's own shape, as the user passes it.
    lanes: for every logical channel, its lane in [C1][H][W][C0] (lane // C0 is the plane); () where not exposed.
    pixel_lanes: C0, or 4 for an image in the four-lane layout [H][pitch] with pitch a multiple of the pixels in a block.
    planes: C1 of the storage.
    order: permutation of (n, c, h, w) in which the host has the values, row-major.
    dtype: data type of its values; None: the map's data type.
    """

    name: str
    kind: BufferKind
    offset_blocks: int
    size_blocks: int
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    onnx_shape: tuple[int, ...] = ()
    lanes: tuple[int, ...] = ()
    pixel_lanes: int = 0
    planes: int = 0
    order: tuple[int, int, int, int] = (0, 1, 2, 3)
    dtype: TypeName | None = None


@dataclass(frozen=True)
class MemoryMap:
    """DDR addresses shared by every variant of a model.  Constants come first and are read-only.

    dtype: data type of buffers without one of their own.
    """

    dtype: DataType
    buffers: tuple[DdrBuffer, ...]
    size_blocks: int

    @cached_property
    def constant_blocks(self) -> int:
        """One past the last read-only block."""
        return max((b.offset_blocks + b.size_blocks for b in self.buffers if b.kind == "constant"), default=0)

    def of_kind(self, kind: BufferKind) -> tuple[DdrBuffer, ...]:
        return tuple(b for b in self.buffers if b.kind == kind)

    def type_of(self, buffer: DdrBuffer) -> DataType:
        """Data type of a buffer's values."""
        return self.dtype if buffer.dtype is None else DataType[buffer.dtype]

    def verify(self) -> None:
        """Raise `ProgramError` where buffers overlap, leave the map, or constants are not first."""
        end = 0
        constant_end = self.constant_blocks
        for b in sorted(self.buffers, key=lambda b: b.offset_blocks):
            if b.offset_blocks < end or b.size_blocks < 0:
                raise ProgramError(f"memory map: buffer {b.name!r} at block {b.offset_blocks} overlaps its predecessor")
            if b.kind != "constant" and b.offset_blocks < constant_end:
                raise ProgramError(f"memory map: buffer {b.name!r} ({b.kind}) lies between constants")
            end = b.offset_blocks + b.size_blocks
        if end > self.size_blocks:
            raise ProgramError(f"memory map: buffers end at block {end}, the map has {self.size_blocks}")


@dataclass(frozen=True)
class Program:
    """Streams (int32 [n, 32] per core, see `isa`) for one machine, over one memory map."""

    machine: str
    streams: tuple[Code, ...]
    memory: MemoryMap

    @property
    def instructions(self) -> int:
        return sum(len(code) for code in self.streams)

    @cached_property
    def digest(self) -> str:
        """32 hex digits over the streams' bytes."""
        h = hashlib.sha256(self.machine.encode())
        for code in self.streams:
            h.update(len(code).to_bytes(8, "little"))
            h.update(np.ascontiguousarray(code, "<i4").data)
        return h.hexdigest()[:32]

    def verify(self, machine: Machine) -> None:
        """Raise `ProgramError` at the first illegal record.

        Checked: opcode, data type, engine and path of the machine, parameter ranges, every touched block inside its
        memory, no write to constants, flags paired (as many SETs as WAITs per flag, ids and cores that exist).
        Whether flags suffice is the sanitizer's question.
        """
        balance = self.verify_records(machine)
        limits = block_limits(self.memory, machine)
        for core, code in enumerate(self.streams):
            row, memory, lo, hi = _first_out_of_bounds(np.ascontiguousarray(code), limits)
            if row >= 0:
                name, size = Memory(memory).name, int(limits[memory, 0])
                reason = "a read-only constant" if hi <= size and lo >= 0 else f"outside the {size} blocks of {name}"
                raise ProgramError(f"core {core} instruction {row}: {op_name(code, row)} touches {name} blocks {lo}..{hi}, {reason}")
        for (source, source_engine, target, target_engine, flag), count in balance.items():
            if count:
                raise ProgramError(
                    f"flag {flag} of core {source} {Engine(source_engine).name} -> core {target} {Engine(target_engine).name}: "
                    f"{'SETs' if count > 0 else 'WAITs'} exceed the others by {abs(count)}"
                )

    @cached_property
    def needs(self) -> Grant:
        """The smallest grant that the program runs with: blocks up to the last one touched, and cores up to the last non-empty one.

        The program must pass `verify_records`.
        """
        l1, shared = (max(sizes) for sizes in zip(*map(on_chip_ends, self.streams), strict=True))
        return Grant(l1, shared, max((core + 1 for core, code in enumerate(self.streams) if len(code)), default=1))

    def verify_records(self, machine: Machine) -> dict[tuple[int, ...], int]:
        """Check records one by one, without addresses (a part of `verify`); returns SETs - WAITs of every flag.

        `access.accesses` takes any program that passes.  Raises `ProgramError`.
        """
        self.memory.verify()
        if self.machine != machine.digest:
            raise ProgramError(f"program is for machine {self.machine}, this is {machine.name} ({machine.digest})")
        if len(self.streams) != machine.cores:
            raise ProgramError(f"program has {len(self.streams)} streams, {machine.name} has {machine.cores} cores")
        balance: dict[tuple[int, ...], int] = {}
        for core, code in enumerate(self.streams):
            check_shape(code, core)
            check_kinds(code, core, machine)
            check_parameters(code, core, machine)
            count_flags(code, core, machine, balance)
        return balance


def block_limits(memory_map: MemoryMap, machine: Machine) -> NDArray[np.int64]:
    """int64 [7, 2]: size of every memory in blocks, and its first writeable block."""
    limits = np.zeros((len(Memory), 2), np.int64)
    limits[Memory.DDR] = (memory_map.size_blocks, memory_map.constant_blocks)
    for memory in Memory:
        if memory != Memory.DDR:
            limits[memory, 0] = machine.buffer_blocks(memory)
    return limits


@njit(cache=True)
def _first_out_of_bounds(code: Code, limits: NDArray[np.int64]) -> tuple[int, int, int, int]:
    rows = np.empty((MAX_RANGES, 8), np.int64)
    for i in range(code.shape[0]):
        for j in range(accesses(code, i, rows)):
            lo, hi = extent(rows[j])
            memory = rows[j, 0]
            low = limits[memory, 1] if rows[j, 1] else 0
            if lo < low or hi > limits[memory, 0]:
                return i, memory, lo, hi
    return -1, 0, 0, 0


def on_chip_ends(code: Code) -> tuple[int, int]:
    """End of the used ranges of L1 and of the shared memory in bytes, over these records."""
    ends = _ends(np.ascontiguousarray(code), len(Memory))
    return int(ends[Memory.L1]) * BLOCK_BYTES, int(ends[Memory.SHARED]) * BLOCK_BYTES


@njit(cache=True)
def _ends(code: Code, memories: int) -> NDArray[np.int64]:
    """int64 [memories]: one past the last touched block of each memory."""
    rows, ends = np.empty((MAX_RANGES, 8), np.int64), np.zeros(memories, np.int64)
    for i in range(code.shape[0]):
        for j in range(accesses(code, i, rows)):
            memory = rows[j, 0]
            ends[memory] = max(ends[memory], extent(rows[j])[1])
    return ends
