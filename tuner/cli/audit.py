"""Command `tilefarm audit`: check whether the results of a finished run can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simulator.command import new_app
from simulator.terminal import print_line, say
from tuner.cli import common, options
from tuner.cli.text import print_json, print_table
from tuner.measure.merit import speedup

if TYPE_CHECKING:
    from tuner.audit.report_types import Audit, LevelAudit

app = new_app()


@app.command()
def audit(
    run: options.RunFolder,
    seeds: Annotated[int, typer.Option(metavar="K", min=0, help="Largest number of short searches with other seeds; 0: none.")] = 3,
    races: Annotated[
        int, typer.Option(metavar="N", min=1, help="With a measuring runner: largest number of races of champions against runners-up.")
    ] = 10,
    longer: Annotated[
        bool, typer.Option("--longer", help="Resume the run in a copy to twice its readings: what is there to gain?")
    ] = False,
    backend: options.BackendName = None,
    address: options.Address = None,
    workers: options.Workers = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Uses a tenth of the run's readings, without --longer.  Exit code 1 for a fault: a champion slower than the run reported or slower
    than the untuned plan, or a file with other content."""
    from tuner.audit.audit_run import AuditRequest
    from tuner.audit.audit_run import audit as ask

    report = ask(AuditRequest(run, seeds, races, longer, backend, address, workers, quiet), common.drop_line if quiet else say)
    if as_json:
        print_json(report.values())
        return int(not report.sound)
    print_table(_columns(report), [_row(report, level, level_audit) for level, level_audit in report.levels.items()])
    for line in (*report.faults, *report.notes):
        print_line(line)
    print_line(report.verdict)
    return int(not report.sound)


def _columns(report: Audit) -> tuple[str, ...]:
    columns = ["<level", "champion then", "now", "moved", "untuned now", "speed-up", "winner flips"]
    if report.seeds is not None:
        columns.append(f"{len(report.seeds.seeds)} seeds at {report.seeds.readings:,}")
    return (*columns, *(["regret"] if report.longer is not None else []))


def _row(report: Audit, level: str, level_audit: LevelAudit) -> tuple[object, ...]:
    champion, untuned = level_audit.champion, level_audit.untuned
    gain = speedup(untuned.now / champion.now) if untuned.now and champion.now else None
    row: list[object] = [level, champion.then, champion.now, _percent(champion.moved), untuned.now, gain, _flips(level_audit)]
    if report.seeds is not None:
        spread = report.seeds.spread(level)
        row.append(None if spread is None else f"{spread[0]:+.1%} to {spread[1]:+.1%}")
    if report.longer is not None:
        row.append(_percent(report.longer.regret[level]))
    return tuple(row)


def _flips(level_audit: LevelAudit) -> str:
    if level_audit.raced is not None:
        return f"{level_audit.raced.flips} of {level_audit.raced.races}"
    if level_audit.rival is not None:
        return f"by {-level_audit.rival.behind:.1%}" if level_audit.rival.behind < 0 else "none"
    return "exact"


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:+.1%}"
