"""Levels that grant less than the whole machine: groups with equal grants, and messages for programs that do not fit."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.npu.errors import BadInputError
from simulator.npu.grant import Grant
from simulator.npu.machine import Machine

NEVER = 1 << 50
"""Cycles of a program at a level with too small a grant: more than any real number of cycles, and sums of thousands of them are exact."""


def same_grants(machine: Machine, levels: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Indices of levels, grouped by equal grants, in order: a program fits all levels of a group, or none."""
    groups: dict[Grant, list[int]] = {}
    for index, level in enumerate(levels):
        groups.setdefault(machine.granted(level), []).append(index)
    return tuple(map(tuple, groups.values()))


def check_grants(machine: Machine, levels: Sequence[str], candidates: int | None) -> None:
    """Raise `BadInputError` if there are fewer programs than grants."""
    groups = len(same_grants(machine, levels))
    if candidates is not None and candidates < groups and groups > 1:
        raise BadInputError(f"{candidates} candidates: levels grant {groups} different things; accepted: {groups} or more, one for each")


def refusal(machine: Machine, level: str) -> str:
    """Reason why a program does not run at a level whose grant is too small."""
    return f"needs more than level {level} grants: {granted_text(machine, level)}"


def granted_text(machine: Machine, level: str) -> str:
    """Memory and cores that a level leaves, where that is not all."""
    return ", ".join(f"{size:,} {resource}" for size, resource, _ in machine.granted(level).smaller_sizes(machine.full_grant))
