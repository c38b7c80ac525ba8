"""Commands `tilefarm log verify|repair|compact|migrate`: maintenance of a run's Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.command import new_app
from simulator.terminal import print_line
from tuner.cli.group import FOLDER
from tuner.cli.options import Json, RunFolder
from tuner.cli.text import print_json

if TYPE_CHECKING:
    from tuner.log.dataset import Fault

app = new_app(no_args_is_help=True)

NewFolder = Annotated[Path, FOLDER, typer.Option("--out", metavar="DIR", help="A new folder; RUN stays as it is.")]


@app.command()
def verify(run: RunFolder, as_json: Json = False) -> int:
    """Read every part of tasks/ and log/ and check the promises of the format.  Exit 1 for a fault."""
    from tuner.runs import repair

    faults = repair.verify_run(run)
    _print(run, faults, "every part can be read, every row fits", as_json)
    return int(bool(faults))


@app.command()
def repair(run: RunFolder, as_json: Json = False) -> None:
    """Move unreadable parts to RUN/aside, so that the others can be read.  Nothing is deleted; the run must not be active."""
    from tuner.runs import repair

    _print(run, repair.repair_run(run), "nothing to repair", as_json)


@app.command()
def compact(run: RunFolder, out: NewFolder, as_json: Json = False) -> None:
    """Write tasks/ and log/ to a new folder in few, large parts."""
    from tuner.runs.repair import compact_run, lost_rows

    rows = compact_run(run, out)
    if as_json:
        print_json({"out": str(out), "rows": rows, "lost_rows": lost_rows(out)})
        return
    print_line(f"{out}: " + ", ".join(f"{count:,} rows of {name}" for name, count in rows.items()))
    _print_lost(lost_rows(out))


@app.command()
def migrate(run: RunFolder, out: NewFolder, as_json: Json = False) -> None:
    """Write tasks/ and log/ of an older schema version to a new folder, with today's columns."""
    from tuner.log.record import SCHEMA_VERSION
    from tuner.runs.migrate import migrate_run
    from tuner.runs.repair import lost_rows

    report = migrate_run(run, out)
    if as_json:
        print_json({"out": str(out), "schema_version": SCHEMA_VERSION, **{name: result._asdict() for name, result in report.items()}})
        return
    for name, result in report.items():
        note = (
            f"was schema {SCHEMA_VERSION} already" if result.version == SCHEMA_VERSION else f"schema {result.version} to {SCHEMA_VERSION}"
        )
        print_line(f"{out / name}: {result.rows:,} rows, {note}")
    _print_lost(lost_rows(out))


def _print(run: Path, faults: list[Fault], sound_text: str, as_json: bool) -> None:
    from tuner.runs.repair import lost_rows

    lost_counts = lost_rows(run)
    if as_json:
        fault_rows = [{"file": fault.file, "what": fault.problem} for fault in faults]
        print_json({"run": str(run), "faults": fault_rows, "lost_rows": lost_counts})
        return
    for fault in faults:
        print_line(f"{fault.file}: {fault.problem}")
    if not faults:
        print_line(f"{run}: {sound_text}")
    _print_lost(lost_counts)


def _print_lost(lost_counts: dict[str, int]) -> None:
    for name, count in lost_counts.items():
        print_line(f"{name}: {count:,} rows were lost")
