"""Cascades: steps that run stripe by stripe, so that of tensors between them only some rows are in SRAM at once.

A stripe has as many rows of what leaves the cascade as a plan's block; steps before it make the rows that it needs and has not yet.
No row is made or loaded twice: rows stay in a ring until nobody needs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compiler.ethosu.step import Step, Store, View


class Load(NamedTuple):
    """A copy of rows of a store from DRAM into its ring."""

    store: int
    first: int
    last: int


class Save(NamedTuple):
    """A copy of rows of a store from its ring to DRAM."""

    store: int
    first: int
    last: int


class Run(NamedTuple):
    """A step for rows [first, last) of its result."""

    step: int
    first: int
    last: int


Action = Load | Save | Run


@dataclass(frozen=True)
class CascadePlan:
    """Steps [first, last) in stripes.

    loaded: stores that are read from rings which loads fill.  saved: those that go from rings to DRAM.  inside: those that are in rings
    alone.  All others are read and written where they are.
    """

    first: int
    last: int
    stripes: int
    loaded: frozenset[int]
    saved: frozenset[int]
    inside: frozenset[int]

    @property
    def rings(self) -> frozenset[int]:
        """Stores that have rows in SRAM."""
        return self.loaded | self.saved | self.inside


@dataclass(frozen=True)
class CascadeSchedule:
    """Actions in order, and rows of the ring of each store."""

    actions: tuple[Action, ...]
    ring_rows: dict[int, int]


def schedule_cascade(plan: CascadePlan, steps: Sequence[Step], stores: Sequence[Store], leaving: frozenset[int]) -> CascadeSchedule:
    """The order of a cascade.  leaving: stores that something behind it reads."""
    run = _Progress(plan, steps, stores, leaving)
    actions = [action for stripe in range(plan.stripes) for action in run.stripe(stripe)]
    return CascadeSchedule(tuple(actions), run.capacity)


class _Progress:
    """Rows that are made and loaded so far."""

    def __init__(self, plan: CascadePlan, steps: Sequence[Step], stores: Sequence[Store], leaving: frozenset[int]) -> None:
        self.plan, self.stores = plan, stores
        self.steps = {number: steps[number] for number in range(plan.first, plan.last)}
        self.made = dict.fromkeys(self.steps, 0)
        self.loaded = dict.fromkeys(plan.loaded, 0)
        self.saved = dict.fromkeys(plan.saved, 0)
        self.capacity = dict.fromkeys(plan.rings, 0)
        self.top = dict.fromkeys(plan.rings, 0)
        read = {view.store for step in self.steps.values() for view in step.reads}
        self.driving = {number for number, step in self.steps.items() if step.result.store in leaving or step.result.store not in read}
        self.writers = {store: [n for n, step in self.steps.items() if step.result.store == store] for store in plan.rings}
        self.readers = {
            store: [(n, view) for n, step in self.steps.items() for view in step.reads if view.store == store] for store in plan.rings
        }

    def stripe(self, stripe: int) -> Iterator[Action]:
        """Actions of a stripe."""
        goals = self._goals(stripe)
        for store in sorted(self.plan.loaded):
            goal = max((self._needed(view, *self._rows(n, goals[n])) for n, view in self.readers[store] if goals[n] > self.made[n]), default=0)
            if goal > self.loaded[store]:
                self._keep(store, goal)
                yield Load(store, self.loaded[store], goal)
                self.loaded[store] = goal
        for number, step in self.steps.items():
            if goals[number] > self.made[number]:
                if step.result.store in self.plan.rings:
                    self._keep(step.result.store, _store_row(step.result, goals[number] - 1) + 1)
                yield Run(number, self.made[number], goals[number])
                self.made[number] = goals[number]
                yield from self._save(step.result.store)

    def _rows(self, number: int, goal: int) -> tuple[int, int]:
        return self.steps[number].input_rows(self.made[number], goal)

    def _goals(self, stripe: int) -> dict[int, int]:
        """Rows that each step has to have made behind a stripe."""
        goals = dict(self.made)
        for number in reversed(self.steps):
            step, goal = self.steps[number], goals[number]
            if number in self.driving:
                goal = max(goal, step.result.rows * (stripe + 1) // self.plan.stripes)
            goal = min(step.result.rows, -(-goal // step.row_unit) * step.row_unit)
            goals[number] = step.result.rows if step.whole and goal else goal
            if goals[number] > self.made[number]:
                self._demand(goals, number)
        return goals

    def _demand(self, goals: dict[int, int], number: int) -> None:
        """Raise goals of the steps in front that make what a step reads."""
        step = self.steps[number]
        for place, view in enumerate(step.reads):
            low, high = step.input_rows(self.made[number], goals[number]) if place == 0 else (self.made[number], goals[number])
            last = self._needed(view, low, high)
            for before in range(self.plan.first, number):
                result = self.steps[before].result
                if result.store == view.store:
                    rows = result.rows if view.flat or result.flat else min(result.rows, max(0, -(-(last - result.first_row) // result.step)))
                    goals[before] = max(goals[before], rows)

    def _needed(self, view: View, first: int, last: int) -> int:
        """The row behind the last of a store for rows of a view."""
        if view.flat:
            return self.stores[view.store].rows
        return _store_row(view, (last if view.rows > 1 else 1) - 1) + 1

    def _keep(self, store: int, top: int) -> None:
        """Give the ring room for rows up to `top`, from the first that is needed still."""
        self.top[store] = max(self.top[store], top)
        low = self.top[store]
        for number, view in self.readers[store]:
            made, step = self.made[number], self.steps[number]
            if made >= step.result.rows:
                continue
            if view.flat or step.whole:
                low = 0
            else:
                row = step.input_rows(made, made + 1)[0] if view is step.reads[0] else made
                low = min(low, _store_row(view, row if view.rows > 1 else 0))
        if store in self.saved:
            low = min(low, self.saved[store])
        if any(self.steps[number].result.flat or self.steps[number].whole for number in self.writers[store]):
            low, self.top[store] = 0, self.stores[store].rows
        self.capacity[store] = min(self.stores[store].rows, max(self.capacity[store], self.top[store] - low))

    def _save(self, store: int) -> Iterator[Save]:
        """Rows that all steps have written."""
        if store not in self.saved:
            return
        done = min(self._written(self.steps[number].result, self.made[number]) for number in self.writers[store])
        if done > self.saved[store]:
            yield Save(store, self.saved[store], done)
            self.saved[store] = done

    def _written(self, view: View, made: int) -> int:
        """Rows of a store in front of which a writer has written all of its part."""
        rows = self.stores[view.store].rows
        if made >= view.rows:
            return rows
        return 0 if view.flat or view.step > 1 else _store_row(view, made)


def _store_row(view: View, row: int) -> int:
    return view.first_row + view.step * row
