"""Command `tilefarm ls`: list the runs below a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.command import new_app
from simulator.terminal import print_line
from tuner.cli.options import Json
from tuner.cli.text import path_below, print_json, print_table
from tuner.measure.merit import speedup

if TYPE_CHECKING:
    from tuner.platform.files import AnyPath
    from tuner.runs.list_runs import RunEntry

app = new_app()


@app.command()
def ls(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder with runs in it or below, or its URL.")],
    as_json: Json = False,
) -> None:
    from tuner.platform.remote_files import place
    from tuner.runs.list_runs import find_runs

    root = place(folder)
    runs = list(find_runs(root))
    if as_json:
        print_json([_json(run) for run in runs])
        return
    if not runs:
        print_line(f"{root}: no run here or below")
        return
    columns = ("<run", "<model", "<machine", "seed", "<state", "programs", "readings", "<speed-up", "<tag")
    print_table(columns, [_row(root, run) for run in runs])


def _row(folder: AnyPath, run: RunEntry) -> tuple[object, ...]:
    gains = programs = readings = None
    if run.summary is not None:
        gains = " ".join(f"{level}={speedup(row['speedup'])}" for level, row in run.summary["levels"].items())
        programs, readings = run.summary["candidates"], reading_count(run.summary)
    head = run.identity
    return path_below(folder, run.path), head["model"], head["machine"], head["seed"], run.state, programs, readings, gains, head.get("tag")


def _json(run: RunEntry) -> dict[str, object]:
    levels = None if run.summary is None else {name: row["cycles"] for name, row in run.summary["levels"].items()}
    readings = None if run.summary is None else reading_count(run.summary)
    return {"path": str(run.path), "state": run.state, **run.identity, "cycles": levels, "readings": readings}


def reading_count(summary: dict[str, Any]) -> int | None:
    """Readings of the search, the canary and the finals together; None for a summary of an earlier version."""
    use = summary.get("measurements")
    return None if use is None else int(use["search"] + use["canary"] + use["finals"])
