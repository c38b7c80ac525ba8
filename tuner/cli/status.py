"""`tilefarm status`: how far a run, a sweep or a study is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.command import new_app
from simulator.terminal import print_line
from tuner.cli.group import without_threads
from tuner.cli.options import Json
from tuner.cli.text import path_below, print_json, print_pairs, print_table
from tuner.measure.merit import speedup

if TYPE_CHECKING:
    from tuner.store.standing import Standing
    from tuner.world.place import Place

app = new_app()


@app.command()
def status(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder of a run, a sweep or a study, or its URL.")],
    as_json: Json = False,
) -> None:
    without_threads()
    from tuner.store.runs import kind_of
    from tuner.world.url import place

    path = place(folder)
    {"run": _run, "sweep": _sweep, "study": _study}[kind_of(path)](path, as_json)


def _run(path: Place, as_json: bool) -> None:
    from tuner.store.runs import baseline_of, open_run
    from tuner.store.standing import standing

    run = open_run(path)
    now, base = standing(run), baseline_of(run)
    age_s = None if now.last_row is None else max(0.0, (datetime.now(UTC) - now.last_row).total_seconds())
    left_s = now.left_s if run.state == "running" else None
    if as_json:
        print_json(
            {
                "run": run.identity["run"], "state": run.state, "programs": now.programs, "of": now.of, "tasks": now.tasks,
                "readings": now.readings, "of_readings": now.of_readings, "boards": now.boards, "drifted_rows": now.drifted,
                "failures": now.failures, "best_cycles": now.best, "first_cycles": now.first, "baseline_cycles": base,
                "last_row_age_s": age_s, "left_s": left_s, "lost_rows": now.lost,
            }
        )  # fmt: skip
        return
    pairs: dict[str, object] = {"run": run.identity["run"], "state": run.state, "programs measured": _of(now), "tasks measured": now.tasks}
    pairs["readings"] = (
        f"{now.readings:,}" if now.of_readings is None else f"{now.readings:,} of {now.of_readings:,}, finals and canary beside"
    )
    if now.boards:
        pairs["board"] = ", ".join(now.boards)
    if now.drifted:
        pairs["drifted"] = f"{now.drifted:,} rows, measured while the board's canary was more than 3% off its first reading"
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


def _sweep(path: Place, as_json: bool) -> None:
    from tuner.store.runfolder import IDENTITY, read_json
    from tuner.store.sweeps import sweep_standing

    name, now = read_json(path / IDENTITY)["run"], sweep_standing(path)
    if as_json:
        begun = [
            {"path": str(run.path), "state": run.state, "programs": s.programs, "of": s.of, "left_s": s.left_s} for run, s in now.begun
        ]
        print_json({"sweep": name, "state": now.state, "runs": now.runs, "begun": begun, "left_s": now.left_s})
        return
    pairs: dict[str, object] = {"sweep": name, "state": now.state, "runs done": f"{now.ended:,} of {now.total:,}"}
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
        print_table(("<run", "<state", "<programs"), [(path_below(path, run.path), run.state, _of(its)) for run, its in now.begun])


def _study(path: Place, as_json: bool) -> None:
    from tuner.store.runs import state_of
    from tuner.store.studies import study_summary

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


def _of(now: Standing) -> str:
    return f"{now.programs:,}" if now.of is None else f"{now.programs:,} of {now.of:,}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
