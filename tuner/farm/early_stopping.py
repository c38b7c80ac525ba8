"""When a search has stopped finding anything: so many epochs without a gain worth the name, at any level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Plateau:
    """epochs: without a gain of more than `gain` after which a search ends; None: never.  since: how many there were.

    Counted from the best at the last gain, so that many small gains are one in the end.
    """

    def __init__(self, epochs: int | None, gain: float) -> None:
        self.epochs, self.gain = epochs, gain
        self.since = 0
        self._reference: list[int] = []

    @property
    def reached(self) -> bool:
        return self.epochs is not None and self.since >= self.epochs

    def epoch_done(self, best: Sequence[int]) -> None:
        """best: cycles by level after an epoch that measured programs."""
        if not self._reference or any(now < then * (1 - self.gain) for now, then in zip(best, self._reference, strict=True)):
            self._reference, self.since = list(best), 0
        else:
            self.since += 1

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {"since": self.since, "reference": self._reference}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.since, self._reference = int(state["since"]), [int(cycles) for cycles in state["reference"]]
