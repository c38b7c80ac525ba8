"""Objective of a study: the area under the anytime curve of a search.

A curve is log(best so far / untuned) at fixed numbers of readings, each twice the one before: the mean over them is the mean over the
logarithm of readings, and settings with an early gain count as much as settings with a good end.  Lower is better.  The curve is read from
the log of a run, so it depends only on the seed, not on the number or speed of workers.

CPU or wall time is no objective, since it differs between computers; a baseline of the search is no measure, since a bad one would look
like a gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pandas as pd

from tuner.runs.anytime_curve import best_after

RUNGS = 3  # a trial may stop at this many counts before the last; each costs every search one session


@dataclass(frozen=True)
class CellCurve:
    """Curve of one search.  levels: level -> value at every count so far, 0 before the first program.  cpu_s: CPU time of the last
    session."""

    levels: Mapping[str, list[float]]
    cpu_s: float


def reading_counts(readings: int, points: int) -> tuple[int, ...]:
    """Counts of readings at which a curve is evaluated; the last is the budget."""
    return tuple(sorted({max(1, readings >> k) for k in range(points)}))


def pruner_rungs(counts: Sequence[int]) -> tuple[int, ...]:
    """Number of counts that each session of a trial completes; the last session completes all."""
    return tuple(range(max(1, len(counts) - RUNGS), len(counts) + 1))


def levels_curve(log: pd.DataFrame, copies: dict[str, int], untuned: Mapping[str, int], counts: Sequence[int]) -> dict[str, list[float]]:
    """Curve by level: level -> value at every count.  log, copies: see `best_after`.  untuned: level -> cycles."""
    best = best_after(log, copies, tuple(untuned), counts)
    values = np.log(best) - np.log(np.array(list(untuned.values()), np.float64))[:, None]
    return {level: np.where(np.isnan(row), 0.0, row).tolist() for level, row in zip(untuned, values, strict=True)}


def mean_curve(cells: Sequence[Mapping[str, Sequence[float]]]) -> list[float]:
    """Mean over the levels of a search, then over searches, at every count."""
    rows = [[fmean(values) for values in zip(*levels.values(), strict=True)] for levels in cells]
    return [fmean(values) for values in zip(*rows, strict=True)]


def areas(curve: Sequence[float]) -> list[float]:
    """Areas up to every count; the last is the value of a finished trial."""
    return [fmean(curve[: k + 1]) for k in range(len(curve))]
