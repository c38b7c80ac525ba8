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
def within(unit: Unit, grant: int, cores: int | None = None) -> Unit:
    """The unit within `l1_grants(unit.machine)[grant]` bytes of L1, and on its first `cores` cores; 0 and all of them: the unit."""
    if not grant and cores in (None, unit.machine.cores):
        return unit
    values = unit.machine.model_dump()
    values["buffers_bytes"]["L1"] = l1_grants(unit.machine)[grant]
    values["cores"] = unit.machine.cores if cores is None else cores
    del values["contention"]  # of a part of a machine nobody asks what its levels leave
    return replace(unit, machine=Machine.model_validate(values))


def grant_of(machine: Machine, level: str) -> int:
    """The place of what a level leaves of L1 in `l1_grants`."""
    return l1_grants(machine).index(machine.granted(level).l1_bytes)


def at_level(unit: Unit, level: str) -> Unit:
    """The unit within what a level leaves."""
    return within(unit, grant_of(unit.machine, level), unit.machine.granted(level).cores)
