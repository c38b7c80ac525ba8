"""The robust program of each search, from all that its log holds: also of earlier sessions of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from compiler.plan.plan import Plan, validate_plan
from tuner.farm.subgraph_searches import SearchedSubgraph
from tuner.log.read import read_log, read_table
from tuner.platform.files import AnyPath
from tuner.runs.dataframes import program_cycles
from tuner.selection.robust import most_robust


def robust_plans(folder: AnyPath, searches: Sequence[SearchedSubgraph], levels: Sequence[str]) -> list[Plan] | None:
    """Robust program of every search, by its own cycles; None if a search has no program that fits every level.

    For a model with several subgraphs these are robust together: the loss of a sum is at most the largest loss of its parts.  folder:
    folder of the run, whose log is closed.
    """
    log = read_log(folder, ("run", "seq", "task", "level", "kind", "status", "cycles"))
    tasks = read_table(folder, "tasks", ("task", "payload")).table
    plans = [robust_plan(log[log["run"].astype("str") == search.run], tasks, levels) for search in searches]
    return None if None in plans else [plan for plan in plans if plan is not None]


def robust_plan(log: pd.DataFrame, tasks: pa.Table, levels: Sequence[str]) -> Plan | None:
    """Robust program of one search.  log, tasks: its rows, with the columns that are read above."""
    programs = program_cycles(log, levels)
    index = most_robust(programs.cycles)
    if index is None:
        return None
    task = programs.tasks[index]
    (payload,) = tasks.filter(pc.equal(pc.cast(tasks["task"], "string"), task))["payload"].to_pylist()
    return validate_plan(json.loads(payload)["plan"], f"task {task}")
