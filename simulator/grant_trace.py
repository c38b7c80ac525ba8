"""Grants over time: memory and cores announced to a controller, and a rule that only runs programs that fit.

A larger grant holds from its announcement.  A smaller grant holds from its acknowledgement: the running inference keeps its resources, and
the next one, within the new grant, acknowledges it.  A `GrantedRule` has one inner rule for each set of variants that fit
together.  An inner rule knows only its own set, so no rule can choose a variant that does not fit.
"""

from __future__ import annotations

import csv
import reprlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from simulator.controller import Observation, SwitchingRule
from simulator.ddr import ContentionTrace
from simulator.npu.errors import BadInputError
from simulator.npu.grant import Grant
from simulator.npu.machine import Machine

COLUMNS = ("cycle", *Grant._fields)
_MAX_CYCLE = 1 << 50  # 13 days at 1 GHz


@dataclass(frozen=True)
class GrantTrace:
    """Grants over time: grants[i] holds from cycles[i] on; cycles start at 0 and ascend strictly, the last grant has no end.

    Raises `BadInputError` for other cycles.
    """

    cycles: tuple[int, ...]
    grants: tuple[Grant, ...]

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in pairwise(self.cycles))
        if not self.cycles or len(self.cycles) != len(self.grants) or self.cycles[0] != 0 or not ascending:
            raise BadInputError(f"grants from cycles {self.cycles}; accepted: one grant per cycle, from 0 on, ascending")

    def at(self, cycle: int) -> Grant:
        """The grant announced last."""
        return self.grants[bisect_right(self.cycles, cycle) - 1]

    def longest_wait(self, starts: Sequence[int], end: int) -> int:
        """Longest time from an announcement to the next of `starts`, which acknowledges it, or to the end."""
        ends = [*starts, end]
        waits = (ends[index] - cycle for cycle in self.cycles if (index := bisect_right(ends, cycle - 1)) < len(ends))
        return max(waits, default=0)


def read_grants(path: Path, machine: Machine) -> GrantTrace:
    """A CSV file with the header cycle,l1_bytes,shared_bytes,cores; an empty cell is all that the machine has.

    Raises `BadInputError` with file, line and value.
    """
    cycles, grants = list[int](), list[Grant]()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            if tuple(header) != COLUMNS:
                raise BadInputError(f"{path}:1: {reprlib.repr(','.join(header))}; accepted: the header {','.join(COLUMNS)}")
            for row in reader:
                where = f"{path}:{reader.line_num}"
                if len(row) != len(COLUMNS):
                    raise BadInputError(f"{where}: {reprlib.repr(','.join(row))} has {len(row)} values; accepted: {','.join(COLUMNS)}")
                cycle, *sizes = row
                cycles.append(_cycle(where, cycle.strip(), cycles))
                grants.append(_grant(where, [text.strip() for text in sizes], machine))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if not cycles:
        raise BadInputError(f"{path}: no rows; accepted: at least one row, the first at cycle 0")
    return GrantTrace(tuple(cycles), tuple(grants))


def level_grants(load: ContentionTrace, machine: Machine) -> GrantTrace | None:
    """Grants of a machine's levels along a load: at a share, the smallest sizes among levels of that share and above.

    None where every level grants the whole machine.
    """
    level_grant = [(level.share_units, machine.granted(name)) for name, level in machine.contention.items()]
    if all(grant == machine.full_grant for _, grant in level_grant):
        return None
    steps: list[tuple[int, Grant]] = []
    for cycle, share in zip(load.cycles, load.share_units, strict=True):
        grants = [grant for level_share, grant in level_grant if level_share >= share]
        smallest = Grant(*map(min, zip(machine.full_grant, *grants, strict=True)))
        if not steps or steps[-1][1] != smallest:
            steps.append((cycle, smallest))
    return GrantTrace(tuple(cycle for cycle, _ in steps), tuple(grant for _, grant in steps))


def _parse_whole(text: str) -> int | None:
    """Whole number of a text without sign; None for other texts."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _cycle(where: str, text: str, earlier_cycles: Sequence[int]) -> int:
    """Cycle of a cell, later than those of earlier rows.  Raises `BadInputError`."""
    cycle = _parse_whole(text)
    if cycle is None or cycle > _MAX_CYCLE:
        raise BadInputError(f"{where}: cycle {reprlib.repr(text)}; accepted: a whole number from 0 to {_MAX_CYCLE}")
    if not earlier_cycles and cycle != 0:
        raise BadInputError(f"{where}: cycle {cycle}; accepted: 0 in the first row")
    if earlier_cycles and cycle <= earlier_cycles[-1]:
        raise BadInputError(f"{where}: cycle {cycle}; accepted: above {earlier_cycles[-1]}")
    return cycle


def _grant(where: str, texts: Sequence[str], machine: Machine) -> Grant:
    """Grant of the cells of a row; an empty cell is all that the machine has.  Raises `BadInputError`."""
    sizes = []
    for name, text, full in zip(Grant._fields, texts, machine.full_grant, strict=True):
        size = _parse_whole(text) if text else full
        if size is None or size > full or (size < 1 and full):
            raise BadInputError(f"{where}: {name} {reprlib.repr(text)}; accepted: nothing for all, or 1 to {full}, what the machine has")
        sizes.append(size)
    return Grant(*sizes)


@dataclass(frozen=True)
class GrantedState:
    """State of a `GrantedRule`.  variant: variant to run next.  fitting: variants of the current inner rule.

    states: set of variants -> last state of its rule.
    """

    variant: int
    fitting: tuple[int, ...]
    states: Mapping[tuple[int, ...], Any] = field(default_factory=dict)


class GrantedRule:
    """Rule for grants over time.  needs: need of every variant.  make: makes the inner rule of a set of variants, numbered from 0 in their
    order."""

    def __init__(self, needs: Sequence[Grant], make: Callable[[tuple[int, ...]], SwitchingRule[Any]]) -> None:
        self.needs, self._make = tuple(needs), make
        self._rules: dict[tuple[int, ...], SwitchingRule[Any]] = {}

    def fitting(self, grant: Grant) -> tuple[int, ...]:
        """Variants that fit a grant.  Raises `BadInputError` if none does."""
        variants = tuple(number for number, needs in enumerate(self.needs) if needs.fits(grant))
        if not variants:
            least = min(self.needs)
            raise BadInputError(f"no variant fits what is granted: the one with the least L1 {least.shortage(grant)}")
        return variants

    def rule(self, fitting: tuple[int, ...]) -> SwitchingRule[Any]:
        """The rule of these variants, made once."""
        if fitting not in self._rules:
            self._rules[fitting] = self._make(fitting)
        return self._rules[fitting]

    def with_grant(self, state: GrantedState | None, grant: Grant) -> GrantedState:
        """State before an inference within a grant.  state: state after the last inference; None before the first.

        A rule that ran before continues from its last state.
        """
        fitting = self.fitting(grant)
        if state is not None and state.fitting == fitting:
            return state
        states = {} if state is None else state.states
        inner = states[fitting] if fitting in states else self.rule(fitting).start()
        return GrantedState(fitting[inner.variant], fitting, {**states, fitting: inner})

    def step(self, state: GrantedState, observation: Observation) -> GrantedState:
        """The state after an inference with `state.variant`."""
        local_observation = replace(observation, variant=state.fitting.index(observation.variant))
        inner = self.rule(state.fitting).step(state.states[state.fitting], local_observation)
        return GrantedState(state.fitting[inner.variant], state.fitting, {**state.states, state.fitting: inner})
