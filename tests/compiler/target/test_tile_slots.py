"""Slots of tiles in the memories of the matrix unit."""

from __future__ import annotations

import pytest

from compiler.target.capabilities import MAX_SLOTS, least_slot, room_blocks, tile_slot
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Memory

MEMORIES = (Memory.L0A, Memory.L0B, Memory.L0C)


@pytest.mark.parametrize("name", ["edge", "tiny", "nvdla-large", "ethos-u65-512", "tpu-like"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_tiles_have_two_slots_and_small_ones_many(name: str, memory: Memory) -> None:
    machine = load_machine(name)
    room = room_blocks(machine, memory)
    for size in range(1, room // 2 + 1, max(1, room // 200)):
        slot, together = tile_slot(machine, memory, size)
        assert size <= slot <= room // 2
        assert together in range(2 * slot, room + 1, slot)
        assert slot % least_slot(machine, memory) == 0, "schedules tell slots apart"
    assert tile_slot(machine, memory, 1)[1] // tile_slot(machine, memory, 1)[0] <= MAX_SLOTS
