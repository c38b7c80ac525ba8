"""CPU time of small commands (`--help`, `ls`, `status`, `plan show` ...), as multiples of the import of typer and rich.

    python scripts/bench_cli.py [--run RUN] [--rounds 7] [--out FILE.json]

A command that reads a few files should take about as long as the start of Python and the parsing of its arguments.  Seconds depend on the
computer, so each is divided by the time of `python -c "import typer, rich"`: user and system time of the child and its own children.
A round runs every command once, so that other load affects all of them alike; the medians over the rounds are compared.  The first round
only fills the caches.  Without --run a small network is tuned first (half a minute).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer

from tuner.cli.text import print_table

ROOT = Path(__file__).resolve().parents[1]
UNIT = [sys.executable, "-c", "import typer, rich"]
TUNE = ("made:mobilenet_v2-small", "--machine", "edge", "--candidates", "8", "--backend", "serial", "--quiet")


class Case(NamedTuple):
    """A command, and how many times the unit it may take."""

    words: tuple[str, ...]
    asked: float


def cases(run: Path) -> list[Case]:
    a, b = (str(run / "plans" / f"{name}.json") for name in ("severe", "baseline"))
    return [
        Case(("--help",), 1.2),
        Case(("ls", str(run)), 3.0),
        Case(("best", str(run)), 3.0),
        Case(("plan", "show", a), 3.0),
        Case(("plan", "diff", a, b), 3.0),
        Case(("status", str(run)), 6.0),
        Case(("compare", str(run), str(run)), 6.0),
        Case(("doctor",), 15.0),
    ]


def tilefarm(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "tuner", *words]


def cpu_s(command: Sequence[str]) -> float:
    """User and system time of a process and its child processes.  Raises SystemExit if it fails."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        output = child.stderr.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):  # 1 is an answer too: a check of doctor's that failed, as where somebody's Ray is just going away
        raise SystemExit(f"{' '.join(command)}: ended with {child.returncode}: {output.decode(errors='replace')[-300:]}")
    return used.ru_utime + used.ru_stime


def bench(run: Path, rounds: int) -> list[dict[str, Any]]:
    """A row per command."""
    cases_to_run = cases(run)
    units: list[float] = []
    took: list[list[float]] = [[] for _ in cases_to_run]
    for _ in range(rounds + 1):
        units.append(cpu_s(UNIT))
        for case, readings in zip(cases_to_run, took, strict=True):
            readings.append(cpu_s(tilefarm(case.words)))
    unit = median(units[1:])
    rows: list[dict[str, Any]] = [{"command": "import typer, rich", "cpu_s": unit, "ratio": 1.0, "asked": None}]
    for case, readings in zip(cases_to_run, took, strict=True):
        name = " ".join(word for word in case.words if not word.startswith(str(run)))
        middle = median(readings[1:])
        rows.append({"command": name, "cpu_s": middle, "ratio": middle / unit, "asked": case.asked})
    return rows


def report(rows: list[dict[str, Any]]) -> None:
    def cells(row: dict[str, Any]) -> tuple[object, ...]:
        asked = row["asked"]
        reached = "" if asked is None else "reached" if row["ratio"] <= asked else "not reached"
        return row["command"], f"{row['cpu_s'] * 1e3:.0f}", f"{row['ratio']:.2f}", "" if asked is None else f"<= {asked:g}", reached

    print_table(("<command", "CPU ms", "ratio", "asked", "<"), map(cells, rows))


def main(
    run: Annotated[Path | None, typer.Option(help="A finished run; a small one is made unless given.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Of all commands; medians are reported.")] = 7,
    out: Annotated[Path | None, typer.Option(help="JSON of everything.")] = None,
) -> None:
    """CPU time of small commands, as multiples of an import of typer and rich."""
    with TemporaryDirectory() as folder:
        if run is None:
            run = Path(folder) / "RUN"
            cpu_s(tilefarm(("tune", *TUNE, "--out", str(run))))
        rows = bench(run, rounds)
    report(rows)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
