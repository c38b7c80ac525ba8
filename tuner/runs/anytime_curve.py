"""The anytime curve of a search: the best model that it knew after so many readings, by its log.

Readings are counted in the order in which tasks have their place, so the curve is the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tuner.runs.dataframes import whole_programs
from tuner.runs.subgraph_runs import best_so_far

COLUMNS = ("run", "seq", "level", "kind", "status", "cycles", "readings")


def best_after(log: pd.DataFrame, served: dict[str, int], levels: Sequence[str], counts: Sequence[int]) -> NDArray[np.float64]:
    """float64 [levels, counts]: cycles of the best model after each number of readings, NaN where none was measured by then.

    log: rows of a run, with `COLUMNS`.  served: see `tuner.runs.subgraph_runs.copies`.
    """
    programs, found = whole_programs(_spent(log, served)), np.full((len(levels), len(counts)), np.nan)
    for i, level in enumerate(levels):
        best = best_so_far(programs[programs["level"] == level], served)
        at = np.searchsorted(best["spent"].to_numpy(np.int64), np.asarray(counts), side="right") - 1
        known = at >= 0
        found[i, known] = best["cycles"].to_numpy(np.float64)[at[known]]
    return found


def readings_for(log: pd.DataFrame, served: dict[str, int], programs: int) -> int:
    """After how many readings the first so many programs were measured; those of all, where there are no more.  As `best_after`."""
    spent = whole_programs(_spent(log, served)).drop_duplicates(["search", "seq"])["spent"].to_numpy(np.int64)
    return int(spent[min(programs, len(spent)) - 1]) if len(spent) else 0


def _spent(log: pd.DataFrame, served: dict[str, int]) -> pd.DataFrame:
    """Rows in the order of tasks, with `spent`: readings until their task was known, which is at all levels or at none."""
    order = {run: at for at, run in enumerate(served)}  # searches of pieces come one after the other
    rows = log.assign(search=log["run"].astype("str").map(lambda run: order.get(run, 0)).astype("int64"), level=log["level"].astype("str"))
    rows = rows.sort_values(["search", "seq"], kind="stable")
    rows = rows.assign(spent=rows["readings"].cumsum())
    return rows.assign(spent=rows.groupby(["search", "seq"])["spent"].transform("max"))
