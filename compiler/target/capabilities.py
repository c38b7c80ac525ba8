"""Capabilities of a machine: paths that emission needs, the refusal of machines that lack them, and room of memories.

Emission writes records for a machine with all memories.  This module names the substitute of a missing memory, and
`codegen.legalize_buffers` rewrites the records for the machine itself:

| memory    | its role is played by                                                                             |
|-----------|---------------------------------------------------------------------------------------------------|
| UB        | a region of L1, from its first block on; tensors in L1 come there, and back, by COPY L1 -> L1        |
| L0A, L0B  | nothing: MMAD_IM2COL reads L1                                                                     |
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from simulator.npu.errors import UnsupportedError
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, BYTES, L1_ALIGN_BLOCKS, DataType, Memory

Paths = dict[tuple[str, str], tuple[str, ...]]
# (source, destination) -> engines for which records are written; L0C directly to L1 or DDR is used if the machine has that path
_LOADS: Paths = {("DDR", "L1"): ("MTE2",), ("L1", "DDR"): ("MTE3",)}
_L0: Paths = {("L1", "L0A"): ("MTE1",), ("L1", "L0B"): ("MTE1",)}
_NO_L0: Paths = {("L1", "L0C"): ("CUBE",)}
_UB: Paths = {
    ("DDR", "UB"): ("MTE2",),
    ("L1", "UB"): ("MTE1",),
    ("L0C", "UB"): ("FIXPIPE", "VECTOR"),
    ("UB", "L1"): ("MTE3",),
    ("UB", "DDR"): ("MTE3",),
}
_NO_UB: Paths = {("L0C", "L1"): ("FIXPIPE", "VECTOR"), ("L1", "L1"): ("MTE1", "MTE3", "VECTOR")}
# for machines that have that memory
_SHARED: Paths = {("DDR", "SHARED"): ("MTE2",), ("SHARED", "L1"): ("MTE2",), ("L1", "SHARED"): ("MTE3",)}
_SHARED_UB: Paths = {("SHARED", "UB"): ("MTE2",), ("UB", "SHARED"): ("MTE3",)}

_REGION = 4  # 1 / part of L1 that replaces a missing UB
_NO_LIMIT = 1 << 17  # blocks: more than an instruction's operand has where the accumulators hold its sums


def paths_of(machine: Machine) -> Paths:
    """Paths that the compiler needs on a machine with these memories."""
    ub, l0 = machine.has(Memory.UB), machine.has(Memory.L0A)
    paths = _LOADS | (_L0 if l0 else _NO_L0) | (_UB if ub else _NO_UB)
    if machine.shared is not None:
        paths |= _SHARED | (_SHARED_UB if ub else {})
    return paths


def check_machine(machine: Machine, *dtypes: DataType) -> None:
    """Raise `UnsupportedError` for a machine that lacks a path that the compiler needs, or a data type."""
    gaps = list[str]()
    for (source, destination), engines in paths_of(machine).items():
        path = machine.path(Memory[source], Memory[destination])
        if path is None or path.engine not in engines:
            problem = "is missing" if path is None else f"belongs to {path.engine}"
            gaps.append(f"path {source} -> {destination} {problem}, needed of {' or '.join(engines)}")
    if machine.shared is not None and machine.path(Memory.L0C, Memory.DDR) is not None:
        gaps.append("path L0C -> DDR beside shared memory, whose residents come from UB or L1")
    if gaps:
        raise UnsupportedError(f"machine {machine.name}: the compiler has no code for it: {'; '.join(gaps)}")
    for dtype in dtypes:
        if refusal := _lacks(machine, dtype):
            raise UnsupportedError(refusal)


def _lacks(machine: Machine, dtype: DataType) -> str:
    types = machine.matrix.data_types
    if (DataType.int8 if dtype in BYTES else dtype).name in types:
        return ""
    return f"machine {machine.name}: its matrix unit has no {dtype.name}; it has {', '.join(types) or 'no data type'}"


def no_floats(machine: Machine, dtype: DataType) -> str:
    """The reason to leave float operators (of this type on the NPU) to the host: a machine of integers lacks the type; else ''."""
    return _lacks(machine, dtype) if DataType.int8.name in machine.matrix.data_types else ""


@lru_cache(maxsize=64)
def writes_result(machine: Machine, inside: bool) -> bool:
    """Whether results of the matrix unit go without UB to where they belong: L1 inside a segment, else DDR."""
    return machine.path(Memory.L0C, Memory.L1 if inside else Memory.DDR) is not None


def region_blocks(machine: Machine) -> int:
    """Count of the first blocks of L1 that stand in for UB; 0 on a machine with UB."""
    return 0 if machine.has(Memory.UB) else _part(machine.buffer_blocks(Memory.L1))


def _part(l1_blocks: int) -> int:
    return l1_blocks // _REGION // L1_ALIGN_BLOCKS * L1_ALIGN_BLOCKS


def least_ub_blocks(machine: Machine) -> int:
    """Blocks of UB, or of its substitute in L1, at the level that grants the least."""
    least = min(machine.granted(level).l1_bytes for level in machine.contention)
    return machine.buffer_blocks(Memory.UB) or _part(least // BLOCK_BYTES)


@lru_cache(maxsize=64)
def _rooms(machine: Machine) -> dict[Memory, int]:
    blocks, region = dict(machine.buffers_blocks), region_blocks(machine)
    blocks[Memory.L1] -= region
    blocks[Memory.UB] += region
    return blocks | {memory: _NO_LIMIT for memory in (Memory.L0A, Memory.L0B) if not machine.has(memory)}


def room_blocks(machine: Machine, memory: Memory) -> int:
    """Blocks of a memory, or of its substitute, that emission may allocate."""
    return _rooms(machine)[memory]


MAX_SLOTS = 16  # tiles in a memory of the matrix unit: more bring no gain, and each is a cell of its own in schedules


@lru_cache(maxsize=256)
def least_slot(machine: Machine, memory: Memory) -> int:
    """Blocks of the smallest slot that tiles of products have in L0A, L0B or L0C; larger ones are multiples of it."""
    room = room_blocks(machine, memory)
    slots = min(MAX_SLOTS, room & -room) if machine.has(memory) else 2
    return room // max(2, slots)


class L0(NamedTuple):
    """Sizes of L0A and L0B in blocks: the smallest slot (`least_slot`) and the whole memory."""

    least_a: int
    room_a: int
    least_b: int
    room_b: int


SINGLE_TILE = L0(1, 0, 1, 0)  # a tile that shares its slot with other data: only the latest content stays


@lru_cache(maxsize=64)
def l0_of(machine: Machine) -> L0:
    (least_a, room_a), (least_b, room_b) = ((least_slot(machine, m), room_blocks(machine, m)) for m in (Memory.L0A, Memory.L0B))
    return L0(least_a, room_a, least_b, room_b)


@lru_cache(maxsize=1 << 12)
def tile_slot(machine: Machine, memory: Memory, size: int) -> tuple[int, int]:
    """(blocks of the slot of a tile of `size` blocks, blocks of all such slots).  size: half of the memory at most."""
    least = least_slot(machine, memory)
    slot = -(-size // least) * least
    return slot, room_blocks(machine, memory) // slot * slot
