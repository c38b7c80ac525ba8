"""`ls`, `best`, `status`, `compare`: runs by their folders."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.commands.search import print_levels, print_unconfirmed
from tuner.commands.text import print_json, print_pairs, print_table
from tuner.folder.place import Folder
from tuner.folder.runfolder import IDENTITY, read_json
from tuner.folder.runs import Run, baseline_of, find_runs, kind_of, open_run, state_of
from tuner.folder.studies import study_summary
from tuner.merit import speedup

if TYPE_CHECKING:
    from tuner.folder.standing import Standing


def list_runs(folder: Folder, as_json: bool) -> None:
    """`tilefarm ls`."""
    runs = list(find_runs(folder))
    if as_json:
        print_json([_json(folder, run) for run in runs])
        return
    if not runs:
        print_line(f"{folder}: no run here or below")
        return
    columns = ("<run", "<model", "<machine", "seed", "<state", "programs", "<speed-up", "<tag")
    print_table(columns, [_row(folder, run) for run in runs])


def _row(folder: Folder, run: Run) -> tuple[object, ...]:
    gains = programs = None
    if run.summary is not None:
        gains = " ".join(f"{level}={speedup(row['speedup'])}" for level, row in run.summary["levels"].items())
        programs = run.summary["candidates"]
    at = run.identity
    return _place(folder, run), at["model"], at["machine"], at["seed"], run.state, programs, gains, at.get("tag")


def _place(folder: Folder, run: Run) -> str:
    shown, above = str(run.path), str(folder).rstrip("/") + "/"
    return shown.removeprefix(above)


def _json(folder: Folder, run: Run) -> dict[str, object]:
    levels = None if run.summary is None else {name: row["cycles"] for name, row in run.summary["levels"].items()}
    return {"path": str(run.path), "state": run.state, **run.identity, "cycles": levels}


def best(path: Folder, as_json: bool) -> None:
    """`tilefarm best`."""
    run = open_run(path)
    if run.summary is None:
        raise BadInputError(f"{path}: no summary.json yet, the run is {run.state}; `tilefarm status {path}` says how far it is")
    levels = run.summary["levels"]
    if as_json:
        print_json({"run": run.summary["run"], "state": run.state, "file": str(path / "best.onnx"), "levels": levels})
        return
    print_levels(levels)
    print_unconfirmed(run.summary)
    print_line(f"{path / 'best.onnx'}; plans in {path / 'plans'}")


def status(path: Folder, as_json: bool) -> None:
    """`tilefarm status`."""
    kind = kind_of(path)
    if kind == "run":
        _run_status(open_run(path), as_json)
    elif kind == "sweep":
        _sweep_status(path, as_json)
    else:
        _study_status(path, as_json)


def _run_status(run: Run, as_json: bool) -> None:
    _without_threads()
    from tuner.folder.standing import standing

    now, base = standing(run), baseline_of(run)
    age_s = None if now.last_row is None else max(0.0, (datetime.now(UTC) - now.last_row).total_seconds())
    left_s = now.left_s if run.state == "running" else None
    if as_json:
        print_json(
            {
                "run": run.identity["run"], "state": run.state, "programs": now.programs, "of": now.of, "tasks": now.tasks,
                "failures": now.failures, "best_cycles": now.best, "first_cycles": now.first, "baseline_cycles": base,
                "last_row_age_s": age_s, "left_s": left_s, "lost_rows": now.lost,
            }
        )  # fmt: skip
        return
    pairs: dict[str, object] = {"run": run.identity["run"], "state": run.state, "programs measured": _of(now), "tasks measured": now.tasks}
    pairs |= {f"tasks {name}": count for name, count in now.failures.items()}
    if now.lost:
        pairs["rows lost"] = f"{now.lost:,}; the rest is what is shown here"
    if left_s is not None:
        pairs["time left"] = f"about {_time(left_s)}"
    if age_s is not None:
        pairs["newest row"] = f"{_time(age_s)} ago"
    if run.state == "unconfirmed" and run.summary is not None:
        pairs["values"] = run.summary["unconfirmed"][0]
    if run.state == "stopped":
        pairs["to go on"] = "tilefarm tune with --resume and the same model, machine and settings"
    print_pairs(pairs)
    if now.best:
        print_line()
        print_table(
            ("<level", "best cycles", "baseline", "speed-up"),
            [(level, cycles, base.get(level), speedup(base[level] / cycles if base else None)) for level, cycles in now.best.items()],
        )


def _sweep_status(path: Folder, as_json: bool) -> None:
    from tuner.folder.sweeps import sweep_standing

    now = sweep_standing(path)
    if as_json:
        begun = [
            {"path": str(run.path), "state": run.state, "programs": s.programs, "of": s.of, "left_s": s.left_s} for run, s in now.begun
        ]
        print_json({"sweep": read_json(path / IDENTITY)["run"], "state": now.state, "runs": now.runs, "begun": begun, "left_s": now.left_s})
        return
    pairs: dict[str, object] = {
        "sweep": read_json(path / IDENTITY)["run"],
        "state": now.state,
        "runs done": f"{now.ended:,} of {now.total:,}",
    }
    if now.runs["unconfirmed"]:
        pairs["runs unconfirmed"] = now.runs["unconfirmed"]
    if now.runs["failed"]:
        pairs["runs failed"] = now.runs["failed"]
    if now.left_s is not None:
        pairs["time left"] = f"about {_time(now.left_s)}"
    if now.state == "stopped":
        pairs["to go on"] = "tilefarm sweep with --resume and the same models, machines and settings"
    print_pairs(pairs)
    if now.begun:
        print_line()
        print_table(("<run", "<state", "<programs"), [(_place(path, run), run.state, _of(standing)) for run, standing in now.begun])


def _study_status(path: Folder, as_json: bool) -> None:
    summary = study_summary(path)
    done, asked, best = summary["trials_done"], summary["trials_asked"], summary["best"]
    state = state_of(path, done == asked)
    if as_json:
        print_json({"study": summary["study"], "state": state, "trials": done, "of": asked, "best": best})
        return
    pairs: dict[str, object] = {"study": summary["study"], "state": state, "trials done": f"{done:,} of {asked:,}"}
    if best is not None:
        pairs["best so far"] = f"trial {best['trial']}, {speedup(1 / best['ratio_to_baseline'])} the untuned plan"
    if state == "stopped":
        pairs["to go on"] = "tilefarm study with --resume and the same networks, machine and settings"
    print_pairs(pairs)


def _without_threads() -> None:
    """Before numpy is imported: its BLAS starts a thread for every core then, which takes longer than to read a log, for nothing."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _of(now: Standing) -> str:
    return f"{now.programs:,}" if now.of is None else f"{now.programs:,} of {now.of:,}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def compare_runs(first: Folder, second: Folder, force: bool, as_json: bool) -> None:
    """`tilefarm compare`."""
    _without_threads()
    from tuner.folder.standing import compare

    found = compare(open_run(first), open_run(second), force)
    ratios = {level: found.ratio(level) for level in found.cycles}
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    if as_json:
        levels = {level: {"first": a, "second": b, "ratio": ratios[level]} for level, (a, b) in found.cycles.items()}
        counts = {"candidates": found.candidates, "lost_rows": found.lost}
        print_json({"first": str(first), "second": str(second), **counts, "levels": levels, "mean_ratio": mean})
        return
    print_line(f"best after {found.candidates:,} measured programs of each")
    for folder, lost in zip((first, second), found.lost, strict=True):
        if lost:
            print_line(f"{folder}: {lost:,} rows of its log were lost, its best may be among them")
    columns = ("<level", f"{first}", f"{second}", "second / first")
    print_table(
        columns, [(level, a, b, f"{ratios[level]:.4f}") for level, (a, b) in found.cycles.items()] + [("mean", None, None, f"{mean:.4f}")]
    )
