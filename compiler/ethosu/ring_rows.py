"""Rows of rings: as many as are written or needed still at any time of a cascade."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from compiler.ethosu.cascade import Action, CascadePlan, RunRows, SaveRows
from compiler.ethosu.step import BlockStep, Store, StoreView


def count_ring_rows(plan: CascadePlan, actions: Iterable[Action], steps: Sequence[BlockStep], stores: Sequence[Store]) -> Mapping[int, int]:
    """Rows of the ring of each store, for actions in an order."""
    rings = _Rings(plan, steps, stores)
    for action in actions:
        rings.step(action)
    return rings.rows


class _Rings:
    """State between actions.  made: rows of results so far.  saved: rows in DRAM so far.  top: row behind the last that is written."""

    def __init__(self, plan: CascadePlan, steps: Sequence[BlockStep], stores: Sequence[Store]) -> None:
        self.stores, self.rows, self.top = stores, dict.fromkeys(plan.rings, 0), dict.fromkeys(plan.rings, 0)
        self.steps = {number: steps[number] for number in range(plan.first, plan.last)}
        self.made, self.saved = dict.fromkeys(self.steps, 0), dict.fromkeys(plan.saved, 0)
        self.readers = dict[int, list[tuple[int, StoreView]]]()
        for number, step in self.steps.items():
            for view in step.reads:
                self.readers.setdefault(view.store, []).append((number, view))
        self.at_once = {step.result.store for step in self.steps.values() if step.result.flat or step.whole}

    def step(self, action: Action) -> None:
        """Count the rows that an action needs."""
        if isinstance(action, RunRows):
            result = self.steps[action.step].result
            if result.store in self.rows:
                self._keep(result.store, result.store_row(action.first), result.store_row(action.last - 1) + 1)
            self.made[action.step] = action.last
        elif isinstance(action, SaveRows):
            self.saved[action.store] = action.last
        else:
            self._keep(action.store, action.first, action.last)

    def _keep(self, store: int, first: int, last: int) -> None:
        """Give a ring room for rows [first, last) that are written now, and for others that are needed still."""
        self.top[store] = self.stores[store].rows if store in self.at_once else max(self.top[store], last)
        needed = [self._first_needed(number, view) for number, view in self.readers[store]]
        low = min([first, *(row for row in needed if row is not None), self.saved.get(store, first)])
        rows = self.stores[store].rows if store in self.at_once else self.top[store] - low
        self.rows[store] = min(self.stores[store].rows, max(self.rows[store], rows))

    def _first_needed(self, number: int, view: StoreView) -> int | None:
        """The first row of a store that a step needs still; None where it has made all of its result."""
        step, row = self.steps[number], self.made[number]
        if row >= step.result.rows:
            return None
        if view.flat or step.whole:
            return 0
        if view is step.reads[0]:
            row = step.input_rows(row, row + 1)[0]
        return view.store_row(row if view.rows > 1 else 0)
