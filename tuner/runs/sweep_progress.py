"""Progress of a sweep, from its table and the folders of its runs.  Read-only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from simulator.npu.errors import BadInputError
from tuner.log.part import PartError, PartMark, read_part
from tuner.platform.files import AnyPath
from tuner.runs.folder import IDENTITY
from tuner.runs.list_runs import ENDED, INDEX, RunEntry, State, open_run, state_of
from tuner.runs.progress import RunProgress, read_progress

INDEX_MARK = PartMark("index", 0)  # mark in the table's file, as in a part of a log


@dataclass(frozen=True)
class SweepProgress:
    """Progress of a sweep.  runs: number of cells by state of the table (done, unconfirmed, failed, waiting).

    started_runs: started runs, which the table still calls waiting: running ones, or unfinished ones if it is unknown whether they run.
    left_s: seconds until all runs are done with as many at once as now; None if unknown, or if the sweep does not run.
    """

    state: State
    runs: dict[str, int]
    started_runs: tuple[tuple[RunEntry, RunProgress], ...]
    left_s: float | None

    @property
    def total(self) -> int:
        return sum(self.runs.values())

    @property
    def ended_count(self) -> int:
        """Number of complete runs."""
        return sum(self.runs[state] for state in ENDED)


def read_index(path: AnyPath, columns: list[str] | None = None) -> pd.DataFrame:
    """Read the table of a sweep's folder.  Raises `BadInputError` if it is missing or changed."""
    try:
        part = read_part(path / INDEX, columns)
        if part.mark == INDEX_MARK:
            return part.table.to_pandas()
        fault = f"is {part.mark.file}"
    except PartError as error:
        fault = str(error)
    raise BadInputError(f"{path / INDEX}: {fault}; take it away, and `tilefarm sweep --resume` writes it anew")


def read_sweep_progress(path: AnyPath) -> SweepProgress:
    """Progress of a sweep.  Raises `BadInputError` for a missing or unreadable table."""
    index = read_index(path, ["path", "state", "wall_s"]).drop_duplicates("path")
    counts = {name: int((index["state"] == name).sum()) for name in (*ENDED, "failed", "waiting")}
    # the table has a run as waiting until it ends; a started one has a folder
    folders = [path / name for name in index.loc[index["state"] == "waiting", "path"] if (path / name / IDENTITY).is_file()]
    begun = [run for run in map(open_run, folders) if run.state in ("running", "unfinished")]
    started = tuple((run, read_progress(run)) for run in begun)
    has_ended = index["state"].isin(ENDED)
    state = state_of(path, bool(has_ended.all()))
    left_s = _left_s(counts["waiting"], index.loc[has_ended, "wall_s"].tolist(), [progress for _, progress in started])
    return SweepProgress(state, counts, started, left_s if state == "running" else None)


def _left_s(unended: int, ended_s: Sequence[float], started: Sequence[RunProgress]) -> float | None:
    """Remaining seconds: a run takes the mean of the ended ones, else the projected time of the started ones.

    unended: number of runs that have not ended, started ones included.  ended_s: seconds of the ended runs.
    """
    run_s = ended_s or [progress.left_s / (1 - progress.share) for progress in started if progress.left_s is not None]
    if not run_s or not started:
        return None
    mean_s = sum(run_s) / len(run_s)
    runs_left = unended - sum(progress.share for progress in started)
    return mean_s * runs_left / len(started)
