"""Levels that grant less than all: which of them leave the same, and what is said of a program that does not fit."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.npu.errors import BadInputError
from simulator.npu.grant import Grant
from simulator.npu.machine import Machine

NEVER = 1 << 50
"""Cycles of a program at a level that does not grant what it needs: more than any takes, and sums of thousands of them are still exact."""


def same_grants(machine: Machine, levels: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Places of levels, those that grant the same together, in their order: programs fit all levels of a group, or none."""
    groups: dict[Grant, list[int]] = {}
    for index, level in enumerate(levels):
        groups.setdefault(machine.granted(level), []).append(index)
    return tuple(map(tuple, groups.values()))


def check_grants(machine: Machine, levels: Sequence[str], candidates: int | None) -> None:
    """Raise `BadInputError` for fewer programs than one for each grant."""
    groups = len(same_grants(machine, levels))
    if candidates is not None and candidates < groups and groups > 1:
        raise BadInputError(f"{candidates} candidates: levels grant {groups} different things; accepted: {groups} or more, one for each")


def refusal(machine: Machine, level: str) -> str:
    """Why a program does not run at a level that grants less than it needs."""
    return f"needs more than level {level} grants: {granted_text(machine, level)}"


def granted_text(machine: Machine, level: str) -> str:
    """Memory and cores that a level leaves, where that is not all."""
    return ", ".join(f"{have:,} {resource}" for have, resource, _ in machine.granted(level).smaller_sizes(machine.full_grant))
