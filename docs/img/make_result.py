"""The picture and the table of results in README.md, from a run's own summary.

    tilefarm tune light:squeezenet --machine edge --out RUN && python docs/img/make_result.py RUN

Keeps `RUN/summary.json` as docs/img/result.json, draws docs/img/result.svg, and writes the table between `<!-- result -->` and
`<!-- /result -->` anew.  Without RUN: again from docs/img/result.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any
from xml.sax.saxutils import escape

import typer

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(ROOT))

from tuner.cli.text import print_levels  # noqa: E402

WIDTH, LEFT, RIGHT, BAR, GAP, GROUP = 820, 190, 210, 22, 4, 74
COLOURS = {"layer by layer": "#b8bec9", "tuned": "#2f6fdb"}


def table(summary: dict[str, Any]) -> str:
    """What `tilefarm tune` prints at its end."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print_levels(summary["levels"])
    return out.getvalue()


def svg(summary: dict[str, Any]) -> str:
    """Two bars per level: microseconds layer by layer, and of the level's champion; the roofline as a tick."""
    levels = summary["levels"]
    clock = next(row["cycles"] / row["latency_us"] for row in levels.values())
    longest = max(row["baseline_layerwise_cycles"] for row in levels.values()) / clock
    scale = (WIDTH - LEFT - RIGHT) / longest
    height = 76 + GROUP * len(levels)
    title = f"{summary['model'].removeprefix('light_')} on {summary['machine']}: latency by contention level"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'font-family="sans-serif" font-size="13"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{escape(title)}</text>',
    ]
    x = 16
    for name, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="40" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="51">{name}</text>')
        x += 130
    parts.append(f'<line x1="{x}" x2="{x}" y1="38" y2="54" stroke="#c0392b" stroke-width="2"/><text x="{x + 8}" y="51">roofline</text>')
    for i, (level, row) in enumerate(levels.items()):
        top = 72 + i * GROUP
        base = row["baseline_layerwise_cycles"] / clock
        share = f"{row['ddr']['share']:.0%} of the DDR bandwidth"
        parts.append(
            f'<text x="16" y="{top + 20}" font-weight="bold">{escape(level)}</text><text x="16" y="{top + 37}" fill="#555">{share}</text>'
        )
        for k, (value, text) in enumerate(
            ((base, f"{base:,.0f} us"), (row["latency_us"], f"{row['latency_us']:,.0f} us, {base / row['latency_us']:.2f} times faster"))
        ):
            y = top + k * (BAR + GAP)
            colour = list(COLOURS.values())[k]
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{value * scale:.1f}" height="{BAR}" fill="{colour}"/>')
            parts.append(f'<text x="{LEFT + value * scale + 6:.1f}" y="{y + 16}">{text}</text>')
        roof = LEFT + row["roofline_cycles"] / clock * scale
        low = top + 2 * BAR + GAP + 3
        parts.append(f'<line x1="{roof:.1f}" x2="{roof:.1f}" y1="{top - 3}" y2="{low}" stroke="#c0392b" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def readme(text: str, summary: dict[str, Any]) -> str:
    """README with the table of this summary."""
    block = f"<!-- result -->\n```text\n{table(summary)}```\n<!-- /result -->"
    new, count = re.subn(r"<!-- result -->.*?<!-- /result -->", lambda _: block, text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit("README.md: expected one pair of <!-- result --> and <!-- /result -->")
    return new


def main(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder; the last one's summary again unless given.")] = None,
) -> None:
    """Draw README's picture and write its table of results from a run's summary."""
    kept = FOLDER / "result.json"
    if run is not None:
        kept.write_text((run / "summary.json").read_text(encoding="utf-8"), encoding="utf-8")
    summary = json.loads(kept.read_text(encoding="utf-8"))
    (FOLDER / "result.svg").write_text(svg(summary), encoding="utf-8")
    path = ROOT / "README.md"
    path.write_text(readme(path.read_text(encoding="utf-8"), summary), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
