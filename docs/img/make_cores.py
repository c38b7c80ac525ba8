"""Plot and table of docs/studies.md from what `scripts/scale_cores.py` printed.

    python scripts/scale_cores.py --json > docs/img/cores.jsonl
    python docs/img/make_cores.py

Draws cores.svg and writes the block `<!-- cores -->` anew.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

from speedup_plot import plot_speedups  # noqa: E402

PAGE = FOLDER.parent / "studies.md"
BLOCK = re.compile(r"(<!-- cores -->\n).*?(<!-- end of cores -->)", re.DOTALL)

Row = dict[str, Any]


def runs(rows: list[Row]) -> dict[str, list[Row]]:
    """Name of a network and its frames -> rows, the one of one core first."""
    named = dict[str, list[Row]]()
    for row in rows:
        named.setdefault(f"{row['network']}, {row['frames']} frame{'s' * (row['frames'] > 1)}", []).append(row)
    return named


def plot(rows: list[Row]) -> str:
    lines = {name: {row["cores"]: run[0]["cycles"] / row["cycles"] for row in run} for name, run in runs(rows).items()}
    return plot_speedups("speed-up of networks by number of cores", lines)


def table(rows: list[Row]) -> str:
    lines = ["| network | cores | cycles | of linear | of the bound's speed | goal |", "|---|---:|---:|---:|---:|---|"]
    for name, run in runs(rows).items():
        for row in run:
            shares = f"{row['linear']:.2f} | {row['of_bound']:.2f} | {'reached' if row['reached'] else 'missed'}"
            lines.append(f"| {name} | {row['cores']} | {row['cycles']:,} | {shares} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Plot and table of networks by number of cores."""
    rows = [json.loads(line) for line in (FOLDER / "cores.jsonl").read_text().splitlines()]
    (FOLDER / "cores.svg").write_text(plot(rows))
    PAGE.write_text(BLOCK.sub(lambda block: f"{block[1]}{table(rows)}{block[2]}", PAGE.read_text()))


if __name__ == "__main__":
    main()
