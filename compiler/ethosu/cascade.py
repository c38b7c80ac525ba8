"""Cascades: steps that run stripe by stripe, so that of tensors between them only some rows are in SRAM at once.

A stripe has as many rows of what leaves the cascade as a plan's block; steps before it make the rows that it needs and has not yet.
No row is made or loaded twice: rows stay in a ring until nobody needs them (`ring_rows`).
Rows are made in pairs, as the part computes them.
Rows are loaded during the operation in front of the one that reads them, where the rings have room for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compiler.ethosu.step import ROW_UNIT, BlockStep, Store, StoreView


class LoadRows(NamedTuple):
    """A copy of rows of a store from DRAM into its ring."""

    store: int
    first: int
    last: int


class SaveRows(NamedTuple):
    """A copy of rows of a store from its ring to DRAM."""

    store: int
    first: int
    last: int


class RunRows(NamedTuple):
    """A step for rows [first, last) of its result."""

    step: int
    first: int
    last: int


Action = LoadRows | SaveRows | RunRows


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


def schedule_cascade(
    plan: CascadePlan, steps: Sequence[BlockStep], stores: Sequence[Store], leaving: frozenset[int], ahead: bool
) -> tuple[Action, ...]:
    """Actions of a cascade in order.  leaving: stores that something behind it reads.  ahead: whether rows are loaded early."""
    progress = _Progress(plan, steps, stores, leaving)
    for stripe in range(plan.stripes):
        progress.run_stripe(stripe)
    return tuple(_load_ahead(progress.actions) if ahead else progress.actions)


def _load_ahead(actions: Sequence[Action]) -> list[Action]:
    """Loads in front of the operation that they stood behind."""
    ordered, run = list[Action](), 0
    for action in actions:
        if isinstance(action, LoadRows):
            ordered.insert(run, action)
            run += 1
        else:
            if isinstance(action, RunRows):
                run = len(ordered)
            ordered.append(action)
    return ordered


class _Progress:
    """Rows that are made, loaded and saved so far."""

    def __init__(self, plan: CascadePlan, steps: Sequence[BlockStep], stores: Sequence[Store], leaving: frozenset[int]) -> None:
        self.plan, self.stores, self.actions = plan, stores, list[Action]()
        self.steps = {number: steps[number] for number in range(plan.first, plan.last)}
        self.made = dict.fromkeys(self.steps, 0)
        self.loaded = dict.fromkeys(plan.loaded, 0)
        self.saved = dict.fromkeys(plan.saved, 0)
        read = {view.store for step in self.steps.values() for view in step.reads}
        self.driving = [number for number, step in self.steps.items() if step.result.store in leaving or step.result.store not in read]
        self.writers = dict[int, list[int]]()
        for number, step in self.steps.items():
            self.writers.setdefault(step.result.store, []).append(number)

    def run_stripe(self, stripe: int) -> None:
        """Make a stripe of everything that leaves the cascade, or that nobody reads."""
        for number in self.driving:
            rows = self.steps[number].result.rows
            self._make(number, min(rows, _rounded(rows * (stripe + 1) // self.plan.stripes)))

    def _make(self, number: int, goal: int) -> None:
        """Make rows of a step up to a goal, a stripe's share at a time, so that no step before it is further ahead than it has to be."""
        step = self.steps[number]
        share = _rounded(-(-step.result.rows // self.plan.stripes))
        while self.made[number] < goal:
            first = self.made[number]
            last = step.result.rows if step.whole else min(step.result.rows, _rounded(min(goal, first + share)))
            for place, view in enumerate(step.reads):
                low, high = step.input_rows(first, last) if place == 0 else (first, last)
                self._provide(view, self._needed(view, low, high), number)
            self.actions.append(RunRows(number, first, last))
            self.made[number] = last
            self._save(step.result.store)

    def _provide(self, view: StoreView, last: int, reader: int) -> None:
        """Have rows of a store up to `last`, for a step that comes behind its writers."""
        if view.store in self.loaded and last > self.loaded[view.store]:
            self.actions.append(LoadRows(view.store, self.loaded[view.store], last))
            self.loaded[view.store] = last
        for number in self.writers.get(view.store, ()):
            if number < reader:
                result = self.steps[number].result
                part = view.flat or result.flat
                rows = result.rows if part else min(result.rows, max(0, -(-(last - result.first_row) // result.step)))
                self._make(number, rows)

    def _needed(self, view: StoreView, first: int, last: int) -> int:
        """The row behind the last of a store for rows of a view."""
        if view.flat:
            return self.stores[view.store].rows
        return view.store_row((last if view.rows > 1 else 1) - 1) + 1

    def _save(self, store: int) -> None:
        """Copy rows that all steps have written."""
        if store not in self.saved:
            return
        done = min(self._written(self.steps[number].result, self.made[number]) for number in self.writers[store])
        if done > self.saved[store]:
            self.actions.append(SaveRows(store, self.saved[store], done))
            self.saved[store] = done

    def _written(self, view: StoreView, rows_made: int) -> int:
        """Rows of a store in front of which a writer has written all of its part."""
        rows = self.stores[view.store].rows
        if rows_made >= view.rows:
            return rows
        return 0 if view.flat or view.step > 1 else view.store_row(rows_made)


def _rounded(rows: int) -> int:
    return -(-rows // ROW_UNIT) * ROW_UNIT
