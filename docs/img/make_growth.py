"""The plot and the table of docs/scaling.md: speed-ups by number of workers, from what `scripts/bench_growth.py --json` printed.

    python scripts/bench_growth.py --set search.lag=16 --json > 16.json && python docs/img/make_growth.py 16=16.json 64=64.json

Keeps the figures by lag as docs/img/growth.json, draws growth.svg, and writes the block `<!-- growth -->` anew.  Without files: again from
growth.json.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

from speedup_plot import plot_speedups  # noqa: E402

PAGE = FOLDER.parent / "scaling.md"
KEYS = ("speedup", "cold", "s_inf", "driver_us", "jobs", "tasks", "work_s", "chain", "same_champions")
BLOCK = re.compile(r"(<!-- growth -->\n).*?(<!-- end of growth -->)", re.DOTALL)


def speedups(figures: dict[str, Any]) -> dict[int, float]:
    """Workers -> speed-up."""
    ((_, by_count),) = figures["speedup"].items()
    return {int(count): value for count, value in by_count.items()}


def cold(figures: dict[str, Any], workers: int) -> float:
    """CPU time of a job on so many workers over that on one: of the largest number that was measured up to there."""
    return max(((int(count), ratio) for count, ratio in figures["cold"].items() if int(count) <= workers), default=(1, 1.0))[1]


def plot(growth: dict[str, dict[str, Any]]) -> str:
    """A line for each lag."""
    lines = {f"search.lag={lag}": speedups(figures) for lag, figures in growth.items()}
    return plot_speedups("speed-up of a search by number of workers", lines)


def table(growth: dict[str, dict[str, Any]]) -> str:
    """Rows by number of workers, and the limit of any number."""
    cells = [f"speed-up at lag {lag} | CPU time of a job, over that on one worker" for lag in growth]
    lines = [f"| workers | {' | '.join(cells)} |", "|---:" * (1 + 2 * len(growth)) + "|"]
    for count in speedups(next(iter(growth.values()))):
        cells = [f"{speedups(figures)[count]:.1f} | {cold(figures, count):.2f}" for figures in growth.values()]
        lines.append(f"| {count:,} | {' | '.join(cells)} |")
    limits = [f"{next(iter(figures['s_inf'].values())):.1f} | " for figures in growth.values()]
    lines.append(f"| any number | {' | '.join(limits)} |")
    for lag, figures in growth.items():
        lines += ["", f"The chain at lag {lag}:", "", *(f"- {part}" for part in figures["chain"])]
        lines += [
            "",
            "Driver's time for a task: " + ", ".join(f"{us:.0f} us with {n} workers" for n, us in figures["driver_us"].items()) + ".",
        ]
    return "\n".join(lines) + "\n"


def main(files: Annotated[list[str] | None, typer.Argument(metavar="LAG=FILE...", help="JSON of bench_growth, by lag.")] = None) -> None:
    """Plot and table of docs/scaling.md from what the growth benchmark printed."""
    kept = FOLDER / "growth.json"
    if files:
        pairs = (text.partition("=") for text in files)
        growth = {lag: {key: value for key, value in json.loads(Path(path).read_text()).items() if key in KEYS} for lag, _, path in pairs}
        kept.write_text(json.dumps(growth, indent=1) + "\n")
    growth = json.loads(kept.read_text())
    (FOLDER / "growth.svg").write_text(plot(growth))
    PAGE.write_text(BLOCK.sub(lambda block: f"{block[1]}{table(growth)}{block[2]}", PAGE.read_text()))
    sys.stdout.write(table(growth))


if __name__ == "__main__":
    typer.run(main)
