"""Early stopping: end a search after a number of epochs without a significant gain at any level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Plateau:
    """Plateau of a search.  epochs: limit of epochs without a gain above `gain`; None: no limit.  since: epochs since the last gain.

    Gains count from the best at the last gain, so many small gains add up to one.
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
        """State as JSON."""
        return {"since": self.since, "reference": self._reference}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.since, self._reference = int(state["since"]), [int(cycles) for cycles in state["reference"]]
