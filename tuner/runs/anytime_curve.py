"""Anytime curve of a search: the best model after each number of readings, from its log.

Readings are counted in the committed order of tasks, so the curve is independent of the number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tuner.runs.dataframes import whole_programs
from tuner.runs.subgraph_runs import best_model_so_far

COLUMNS = ("run", "seq", "level", "kind", "status", "cycles", "readings")


def best_after(log: pd.DataFrame, copies: dict[str, int], levels: Sequence[str], counts: Sequence[int]) -> NDArray[np.float64]:
    """Cycles of the best model after each number of readings, float64 [levels, counts]; NaN before the first measurement.

    log: rows of a run, with `COLUMNS`.  copies: see `tuner.runs.subgraph_runs.subgraph_copies`.
    """
    programs, curves = whole_programs(_with_spent_readings(log, copies)), np.full((len(levels), len(counts)), np.nan)
    for i, level in enumerate(levels):
        best = best_model_so_far(programs[programs["level"] == level], copies)
        position = np.searchsorted(best["spent"].to_numpy(np.int64), np.asarray(counts), side="right") - 1
        measured = position >= 0
        curves[i, measured] = best["cycles"].to_numpy(np.float64)[position[measured]]
    return curves


def needed_readings(log: pd.DataFrame, copies: dict[str, int], programs: int) -> int:
    """Readings until the first `programs` programs were measured, or all programs if there are fewer.  Arguments as `best_after`."""
    readings = whole_programs(_with_spent_readings(log, copies)).drop_duplicates(["search", "seq"])["spent"].to_numpy(np.int64)
    return int(readings[min(programs, len(readings)) - 1]) if len(readings) else 0


def _with_spent_readings(log: pd.DataFrame, copies: dict[str, int]) -> pd.DataFrame:
    """Rows in the order of tasks, with `spent`: readings until their task was measured, at all levels or none."""
    order = {run: index for index, run in enumerate(copies)}  # searches of subgraphs run in sequence
    rows = log.assign(search=log["run"].astype("str").map(lambda run: order.get(run, 0)).astype("int64"), level=log["level"].astype("str"))
    rows = rows.sort_values(["search", "seq"], kind="stable")
    rows = rows.assign(spent=rows["readings"].cumsum())
    return rows.assign(spent=rows.groupby(["search", "seq"])["spent"].transform("max"))
