"""Which ways to come upon segments have paid: those that gained more are drawn more often, and none is given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FLOOR = 0.3  # share of the draws that all ways have in equal parts
KEPT = 0.9  # of what is remembered, from one look to the next
_DOUBT = 16.0  # looks after which what a way gained counts half, what the ways gained on average the other half


@dataclass
class Credit:
    """gains, looks: by the name of a way; older ones count less."""

    gains: dict[str, float] = field(default_factory=dict)
    looks: dict[str, float] = field(default_factory=dict)

    def shares(self, names: Sequence[str]) -> NDArray[np.float64]:
        """How often each is to be drawn, float64 [names], in all 1."""
        gains = np.array([self.gains.get(name, 0.0) for name in names])
        looks = np.array([self.looks.get(name, 0.0) for name in names])
        mean = gains.sum() / looks.sum() if looks.sum() else 0.0
        rates = (gains + _DOUBT * mean) / (looks + _DOUBT)
        rates = rates / rates.sum() if rates.sum() else np.full(len(names), 1 / len(names))
        return FLOOR / len(names) + (1 - FLOOR) * rates

    def note(self, looked: Sequence[str], gained: Mapping[str, float]) -> None:
        """One look: the ways of everything looked at, and what was gained by some."""
        for values in (self.gains, self.looks):
            for name in values:
                values[name] *= KEPT
        for name in looked:
            self.looks[name] = self.looks.get(name, 0.0) + 1.0
        for name, gain in gained.items():
            self.gains[name] = self.gains.get(name, 0.0) + gain
