"""Command `tilefarm status`: progress of a run, a sweep or a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simulator.command import new_app
from simulator.terminal import print_line
from tuner.cli.group import without_threads
from tuner.cli.options import Json
from tuner.cli.text import path_below, print_json, print_pairs, print_table
from tuner.measure.merit import speedup

if TYPE_CHECKING:
    from tuner.platform.files import AnyPath

app = new_app()


@app.command()
def status(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder of a run, a sweep or a study, or its URL.")],
    as_json: Json = False,
) -> None:
    without_threads()
    from tuner.platform.remote_files import place
    from tuner.runs.list_runs import kind_of

    path = place(folder)
    {"run": _run, "sweep": _sweep, "study": _study}[kind_of(path)](path, as_json)


def _run(path: AnyPath, as_json: bool) -> None:
    from tuner.platform.real import REAL
    from tuner.report.standing_rows import BEST, best_rows, progress_json, progress_rows
    from tuner.runs.farm_progress import read_farm_progress
    from tuner.runs.list_runs import baseline_of, open_run
    from tuner.runs.progress import read_progress

    run = open_run(path)
    if as_json:
        print_json(progress_json(run))
        return
    progress, base = read_progress(run), baseline_of(run)
    print_pairs(progress_rows(run, progress, read_farm_progress(run, REAL.clock)))
    if progress.best:
        print_line()
        print_table(BEST, best_rows(progress, base))


def _sweep(path: AnyPath, as_json: bool) -> None:
    from tuner.report.standing_rows import programs_text, time_text
    from tuner.runs.folder import IDENTITY, read_json
    from tuner.runs.sweep_progress import read_sweep_progress

    name, progress = read_json(path / IDENTITY)["run"], read_sweep_progress(path)
    if as_json:
        started_runs = [
            {"path": str(run.path), "state": run.state, "programs": s.programs, "of": s.budget, "left_s": s.left_s}
            for run, s in progress.started_runs
        ]
        print_json({"sweep": name, "state": progress.state, "runs": progress.runs, "begun": started_runs, "left_s": progress.left_s})
        return
    pairs: dict[str, object] = {"sweep": name, "state": progress.state, "runs done": f"{progress.ended_count:,} of {progress.total:,}"}
    if progress.runs["unconfirmed"]:  # rows only for states that occur
        pairs["runs unconfirmed"] = progress.runs["unconfirmed"]
    if progress.runs["failed"]:
        pairs["runs failed"] = progress.runs["failed"]
    if progress.left_s is not None:
        pairs["time left"] = f"about {time_text(progress.left_s)}"
    if progress.state == "stopped":
        pairs["to go on"] = "tilefarm sweep with --resume and the same models, machines and settings"
    print_pairs(pairs)
    if progress.started_runs:
        print_line()
        print_table(
            ("<run", "<state", "<programs"),
            [(path_below(path, run.path), run.state, programs_text(entry)) for run, entry in progress.started_runs],
        )


def _study(path: AnyPath, as_json: bool) -> None:
    from tuner.runs.list_runs import state_of
    from tuner.runs.study_summary import study_summary

    summary = study_summary(path)
    finished, requested, best = summary["trials_done"], summary["trials_asked"], summary["best"]
    state = state_of(path, finished == requested)
    if as_json:
        print_json({"study": summary["study"], "state": state, "trials": finished, "of": requested, "best": best})
        return
    pairs: dict[str, object] = {"study": summary["study"], "state": state, "trials done": f"{finished:,} of {requested:,}"}
    if best is not None:
        pairs["best so far"] = f"trial {best['trial']}, {speedup(1 / best['ratio_to_baseline'])} the untuned plan"
    if state == "stopped":
        pairs["to go on"] = "tilefarm study with --resume and the same networks, machine and settings"
    print_pairs(pairs)
