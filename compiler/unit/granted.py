"""A unit within the L1 that a level leaves: the same addresses in DDR and the same operators, less room on the chip.

Plans are decoded and laid out within one of the sizes that levels leave, the whole memory among them, so that what fits a smaller grant
stays within it to the last block.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from compiler.unit.unit import Unit
from simulator.npu.machine import Machine


@lru_cache(maxsize=64)
def l1_grants(machine: Machine) -> tuple[int, ...]:
    """Sizes of L1 in bytes that levels leave, descending; the first is all of it."""
    return tuple(sorted({machine.whole.l1_bytes, *(machine.granted(level).l1_bytes for level in machine.contention)}, reverse=True))


@lru_cache(maxsize=512)
def within(unit: Unit, grant: int) -> Unit:
    """The unit within `l1_grants(unit.machine)[grant]` bytes of L1; 0: the unit."""
    if not grant:
        return unit
    values = unit.machine.model_dump()
    values["buffers_bytes"]["L1"] = l1_grants(unit.machine)[grant]
    del values["contention"]  # of a part of a machine nobody asks what its levels leave
    return replace(unit, machine=Machine.model_validate(values))
