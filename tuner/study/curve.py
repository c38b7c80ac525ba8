"""The objective of a study: the area under the anytime curve of a search.

A curve is log(best so far ÷ untuned) at fixed numbers of readings, each twice the one before: so the mean over them is the mean over the
logarithm of readings, and settings that come down early count as much as settings that end low.  Lower is better.  It is read off the log
of a run, so it follows from the seed alone, whatever the number of workers and however long they take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pandas as pd

from tuner.runs.anytime_curve import best_after

RUNGS = 3  # counts before the last at which a trial may be stopped: each is a session of its own for every search


@dataclass(frozen=True)
class CellCurve:
    """Of one search.  levels: level -> value at every count so far, 0 before a program is known.  cpu_s: that the last session took."""

    levels: Mapping[str, list[float]]
    cpu_s: float


def counts_of(readings: int, points: int) -> tuple[int, ...]:
    """Readings at which a curve is read; the last one is the budget."""
    return tuple(sorted({max(1, readings >> k) for k in range(points)}))


def rungs_of(counts: Sequence[int]) -> tuple[int, ...]:
    """How many of the counts each session of a trial goes through; the last one through all."""
    return tuple(range(max(1, len(counts) - RUNGS), len(counts) + 1))


def levels_curve(log: pd.DataFrame, served: dict[str, int], untuned: Mapping[str, int], counts: Sequence[int]) -> dict[str, list[float]]:
    """Level -> value at every count.  log, served: see `best_after`.  untuned: level -> cycles."""
    best = best_after(log, served, tuple(untuned), counts)
    values = np.log(best) - np.log(np.array(list(untuned.values()), np.float64))[:, None]
    return {level: np.where(np.isnan(row), 0.0, row).tolist() for level, row in zip(untuned, values, strict=True)}


def mean_curve(cells: Sequence[Mapping[str, Sequence[float]]]) -> list[float]:
    """Over levels of a search, then over searches, at every count."""
    rows = [[fmean(at) for at in zip(*levels.values(), strict=True)] for levels in cells]
    return [fmean(at) for at in zip(*rows, strict=True)]


def areas(curve: Sequence[float]) -> list[float]:
    """Up to every count; the last one is the value of a trial that came to its end."""
    return [fmean(curve[: k + 1]) for k in range(len(curve))]
