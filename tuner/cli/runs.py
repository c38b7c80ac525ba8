"""Run folders: ls, best, status, compare, report, log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.group import new_app
from tuner.cli.options import Json, RunFolder, RunPlace

app = new_app()
log_app = new_app(help="Look after a run's Parquet log.", no_args_is_help=True)
app.add_typer(log_app, name="log")


@app.command("ls")
def _ls(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder with runs in it or below, or its URL.")],
    as_json: Json = False,
) -> None:
    """The runs below a folder: model, machine, state, speed-up per level."""
    from tuner.commands.runs import list_runs
    from tuner.world.url import place

    list_runs(place(folder), as_json)


@app.command("best")
def _best(run: RunPlace, as_json: Json = False) -> None:
    """The champions of a finished run."""
    from tuner.commands.runs import best
    from tuner.world.url import place

    best(place(run), as_json)


@app.command("status")
def _status(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder of a run, a sweep or a study, or its URL.")],
    as_json: Json = False,
) -> None:
    """How far a run is, also while it goes on: programs, failures, best so far; of a sweep its runs, of a study its trials."""
    from tuner.commands.runs import status
    from tuner.world.url import place

    status(place(folder), as_json)


@app.command("compare")
def _compare(
    first: Annotated[str, typer.Argument(metavar="RUN_A", help="A run folder, or the URL of one.")],
    second: Annotated[str, typer.Argument(metavar="RUN_B", help="Another one.")],
    force: Annotated[bool, typer.Option("--force", help="Also where model, machine or simulator differ.")] = False,
    as_json: Json = False,
) -> None:
    """Two runs after the same number of measured programs, level by level."""
    from tuner.commands.runs import compare_runs
    from tuner.world.url import place

    compare_runs(place(first), place(second), force, as_json)


@app.command("report")
def _report(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder of a run, a study or a sweep, or its URL.")],
    out: Annotated[Path | None, typer.Option(metavar="F.html", help="Where to write the page. (default: DIR/report.html)")] = None,
    as_json: Json = False,
) -> None:
    """A finished run as one offline HTML page: variants, search, pipelines, buffers, roofline, predictions; also of a study or a sweep."""
    from tuner.commands.report import report
    from tuner.world.url import place

    report(place(folder), out, as_json)


@log_app.command("verify")
def _log_verify(run: RunFolder, as_json: Json = False) -> int:
    """Read every part of tasks/ and log/ and check what the format promises.  Exit 1 where something is wrong."""
    from tuner.commands.logs import verify_log

    return verify_log(run, as_json)


@log_app.command("repair")
def _log_repair(run: RunFolder, as_json: Json = False) -> None:
    """Move what cannot be read to RUN/aside, so that the rest can.  Nothing is deleted; the run must not be under way."""
    from tuner.commands.logs import repair_log

    repair_log(run, as_json)


@log_app.command("compact")
def _log_compact(
    run: RunFolder, out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder; RUN stays as it is.")], as_json: Json = False
) -> None:
    """Write tasks/ and log/ to a new folder in few, large parts."""
    from tuner.commands.logs import compact_log

    compact_log(run, out, as_json)


@log_app.command("migrate")
def _log_migrate(
    run: RunFolder, out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder; RUN stays as it is.")], as_json: Json = False
) -> None:
    """Write tasks/ and log/ of an older schema version to a new folder, with today's columns."""
    from tuner.commands.logs import migrate_log

    migrate_log(run, out, as_json)
