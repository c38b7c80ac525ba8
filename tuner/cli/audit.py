"""`tilefarm audit`: may the results of a finished run be trusted?"""

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
    seeds: Annotated[int, typer.Option(metavar="K", min=0, help="Short searches with other seeds, at most; 0: none.")] = 3,
    races: Annotated[
        int, typer.Option(metavar="N", min=1, help="Where a runner measures: races of champions against runners-up, at most.")
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
    """Takes a tenth of the run's readings, without --longer.  Exit code 1 for a fault: a champion that is slower than the run said or than
    the untuned plan, or a file that is another one."""
    from tuner.audit.run import AuditRequest
    from tuner.audit.run import audit as ask

    found = ask(AuditRequest(run, seeds, races, longer, backend, address, workers, quiet), common.quiet if quiet else say)
    if as_json:
        print_json(found.values())
        return int(not found.sound)
    print_table(_columns(found), [_row(found, level, each) for level, each in found.levels.items()])
    for line in (*found.faults, *found.notes):
        print_line(line)
    print_line(found.verdict)
    return int(not found.sound)


def _columns(found: Audit) -> tuple[str, ...]:
    columns = ["<level", "champion then", "now", "moved", "untuned now", "speed-up", "winner flips"]
    if found.seeds is not None:
        columns.append(f"{len(found.seeds.seeds)} seeds at {found.seeds.readings:,}")
    return (*columns, *(["regret"] if found.longer is not None else []))


def _row(found: Audit, level: str, each: LevelAudit) -> tuple[object, ...]:
    champion, untuned = each.champion, each.untuned
    gain = speedup(untuned.now / champion.now) if untuned.now and champion.now else None
    row: list[object] = [level, champion.then, champion.now, _percent(champion.moved), untuned.now, gain, _flips(each)]
    if found.seeds is not None:
        spread = found.seeds.spread(level)
        row.append(None if spread is None else f"{spread[0]:+.1%} to {spread[1]:+.1%}")
    if found.longer is not None:
        row.append(_percent(found.longer.regret[level]))
    return tuple(row)


def _flips(each: LevelAudit) -> str:
    if each.raced is not None:
        return f"{each.raced.flips} of {each.raced.races}"
    if each.rival is not None:
        return f"by {-each.rival.behind:.1%}" if each.rival.behind < 0 else "none"
    return "exact"


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:+.1%}"
