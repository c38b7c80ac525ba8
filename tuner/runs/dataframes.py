"""Results of a search as data frames, for notebooks and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tuner.runs.subgraph_runs import best_model_so_far


def over_time(programs: pd.DataFrame, copies: dict[str, int], baseline: Mapping[str, int], by_time: bool = False) -> pd.DataFrame:
    """Best program so far of every level, a row per measured program: level, program, seconds, cycles, speedup.

    programs: rows of measured programs of the model, in request order.  copies: see `tuner.runs.subgraph_runs.subgraph_copies`.
    baseline: level -> cycles.  by_time: sort by time of measurement, since jobs run in parallel.  program: number, from 1.
    seconds: time since the first program.
    """
    columns = ("level", "program", "seconds", "cycles", "speedup")
    frames = []
    for level, base in baseline.items():
        rows = programs[programs["level"].astype("str") == level]
        if by_time:
            rows = rows.sort_values("time", kind="stable")
        rows = best_model_so_far(rows, copies)
        if not len(rows):
            continue
        cycles = rows["cycles"].to_numpy(np.int64)
        seconds = (rows["time"] - rows["time"].iloc[0]).dt.total_seconds().to_numpy()
        values = (level, np.arange(1, len(rows) + 1), seconds, cycles, base / cycles)
        frames.append(pd.DataFrame(dict(zip(columns, values, strict=True))))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(columns))


def champions(rows: Iterable[tuple[str, int, int, str]]) -> pd.DataFrame:
    """Frame of rows (level, cycles, baseline cycles, digest of the plan), with the speed-up over the baseline."""
    frame = pd.DataFrame(rows, columns=["level", "cycles", "baseline_cycles", "plan"])
    return frame.assign(speedup=frame["baseline_cycles"] / frame["cycles"])


def whole_programs(log: pd.DataFrame) -> pd.DataFrame:
    """Rows of successful programs."""
    rows: Any = log[(log["kind"] == "program") & (log["status"] == "ok")]
    return rows


def asked_programs(log: pd.DataFrame, copies: Mapping[str, int]) -> pd.DataFrame:
    """Rows of successful programs in request order.  copies: see `tuner.runs.subgraph_runs.subgraph_copies`."""
    rows = whole_programs(log)
    order = {run: i for i, run in enumerate(copies)}  # searches of subgraphs run in sequence
    rows = rows.assign(search=rows["run"].astype("str").map(lambda run: order.get(run, 0)))
    return rows.sort_values(["search", "seq", "level"], kind="stable")


def gains(log: pd.DataFrame) -> pd.DataFrame:
    """Gains by proposer: level, proposer, programs, gain, the largest over all levels first.

    gain: octaves by which a search's best program became faster.  The moves of one program share its gain equally.
    """
    rows = whole_programs(log).sort_values("seq", kind="stable")
    names = pd.Series(
        [proposers.split(",") if isinstance(proposers, str) else ["not said"] for proposers in rows["proposed_by"]], rows.index
    )
    count = names.map(len)
    proposers = [rows["run"].astype("str"), rows["level"].astype("str")]
    best = rows["cycles"].astype("float64").groupby(proposers).cummin()
    gain = np.log2(best.groupby(proposers).shift().fillna(best) / best)
    shares = pd.DataFrame({"level": proposers[1], "proposer": names, "programs": 1 / count, "gain": gain / count})
    totals = shares.explode("proposer").groupby(["level", "proposer"], sort=False, as_index=False).sum()
    order = totals.groupby("proposer")["gain"].transform("sum")
    return totals.assign(order=order).sort_values(["order", "proposer"], ascending=[False, True], kind="stable").drop(columns="order")


class ProgramCycles(NamedTuple):
    """Cycles of programs.  tasks: in request order.  cycles: float64 [programs, levels], NaN if not measured."""

    tasks: tuple[str, ...]
    cycles: NDArray[np.float64]


def program_cycles(log: pd.DataFrame, levels: Sequence[str]) -> ProgramCycles:
    """Cycles of every program of one search that ran at some level.  log: its rows, with seq, task, level, cycles, kind and status."""
    rows = whole_programs(log)
    table = rows.assign(level=rows["level"].astype("str"), task=rows["task"].astype("str"))
    wide = table.pivot_table(index=["seq", "task"], columns="level", values="cycles", aggfunc="first", observed=True)
    wide = wide.reindex(columns=list(levels)).sort_index()
    return ProgramCycles(tuple(wide.index.get_level_values("task")), wide.to_numpy(np.float64, na_value=np.nan))
