"""The pictures and the tables of results in README.md, from a run's own files.

    tilefarm tune light:squeezenet --machine edge-shared --out RUN && python docs/img/make_result.py RUN

Keeps `RUN/summary.json` as docs/img/result.json, and in docs/img/switching.json what `tilefarm simulate RUN/best.onnx` with the options
`LOAD` printed and served.  Draws result.svg and switching.svg from these two, and writes README's blocks `<!-- result -->` and
`<!-- switching -->` anew.  Without RUN: again from the two files.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any
from xml.sax.saxutils import escape

import numpy as np
import typer

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(ROOT))

from simulator.bundle.read import read_model  # noqa: E402
from simulator.contended_runs import ContendedRuns, Contention  # noqa: E402
from simulator.npu.level import SHARE_UNIT  # noqa: E402
from simulator.runtime import ServedRun  # noqa: E402
from tuner.cli.contention import simulate_contended  # noqa: E402
from tuner.cli.options import LoadOptions  # noqa: E402
from tuner.cli.text import print_levels, print_robust, print_search  # noqa: E402

LOAD = ("periodic", 19, 540)  # --trace periodic:19 --inferences 540
WIDTH, LEFT, RIGHT, BAR, GAP, GROUP = 820, 190, 210, 20, 3, 88
PANEL = {"load": (74, 90), "latency": (206, 190)}  # top and height
COLOURS = {"layer by layer": "#b8bec9", "one program for all levels": "#e0a030", "the level's own program": "#2f6fdb"}
VARIANTS = ("#2f9e6f", "#2f6fdb", "#8e44ad", "#c0392b")
ONE = COLOURS["one program for all levels"]


def printed(show: Any, *arguments: Any) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show(*arguments)
    return out.getvalue()


# what is kept of a run -----------------------------------------------------------------------------------------------


def switching(run: Path) -> dict[str, Any]:
    """What `simulate` prints first; the load; and of the controller and the best variant alone, where latency or variant change."""
    kind, seed, inferences = LOAD
    path = run / "best.onnx"
    runs = ContendedRuns(read_model(path), Contention((kind, seed), inferences=inferences))
    assert runs.grants is not None, "levels that grant less"
    assert runs.best is not None, "a variant that fits them all"
    text = printed(simulate_contended, path, LoadOptions(trace=f"{kind}:{seed}", inferences=inferences), None, False)
    chosen = runs.chosen()
    met = [
        (cycle, share / SHARE_UNIT) for cycle, share in zip(runs.trace.cycles, runs.trace.share_units, strict=True) if cycle < chosen.cycles
    ]
    return {
        "text": text.split("\n\n")[0].replace(str(path), "RUN/best.onnx") + "\n",
        "clock_hz": runs.compiled.machine.clock_hz,
        "cycles": chosen.cycles,
        "load": [[cycle, share, runs.grants.at(cycle).l1_bytes] for cycle, share in met],
        "l1_bytes": runs.compiled.machine.full_grant.l1_bytes,
        "controller": stretches(chosen),
        "alone": [step for step in stretches(runs.static[runs.best]) if step[0] < chosen.cycles],
        "best": runs.best,
    }


def stretches(served: ServedRun) -> list[list[Any]]:
    """[start, latency, variant] of inferences in a row that are alike."""
    each = zip(served.start.tolist(), served.latency.tolist(), served.variant.tolist(), strict=True)
    return [[next(alike)[0], latency, served.variants[v]] for (latency, v), alike in groupby(each, key=lambda step: step[1:])]


# pictures ------------------------------------------------------------------------------------------------------------


def opening(height: int, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'font-family="sans-serif" font-size="13"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{escape(title)}</text>',
    ]


def legend(entries: dict[str, str], x: int = 16) -> tuple[list[str], int]:
    """And where it ends."""
    parts = []
    for name, colour in entries.items():
        parts.append(f'<rect x="{x}" y="40" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="51">{escape(name)}</text>')
        x += 40 + 7 * len(name)
    return parts, x


def bars(summary: dict[str, Any]) -> str:
    """Three bars per level: layer by layer, the robust program, the level's own; the roofline as a tick."""
    levels, robust = summary["levels"], summary["robust"]
    clock = next(row["cycles"] / row["latency_us"] for row in levels.values())
    longest = max(row["baseline_layerwise_cycles"] for row in levels.values()) / clock
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts = opening(
        76 + GROUP * len(levels), f"{summary['model'].removeprefix('light_')} on {summary['machine']}: latency by contention level"
    )
    entries, x = legend(COLOURS)
    parts += entries
    parts.append(f'<line x1="{x}" x2="{x}" y1="38" y2="54" stroke="#c0392b" stroke-width="2"/><text x="{x + 8}" y="51">roofline</text>')
    for i, (level, row) in enumerate(levels.items()):
        top, ddr = 72 + i * GROUP, row["ddr"]
        base, one, own = (
            cycles / clock for cycles in (row["baseline_layerwise_cycles"], robust["cycles"][level], robust["own_cycles"][level])
        )
        parts.append(f'<text x="16" y="{top + 20}" font-weight="bold">{escape(level)}</text>')
        parts.append(f'<text x="16" y="{top + 37}" fill="#555">{ddr["share"]:.0%} of the DDR rate</text>')
        parts.append(f'<text x="16" y="{top + 54}" fill="#555">{granted(ddr)}</text>')
        texts = (f"{base:,.0f} us", f"{one:,.0f} us, {base / one:.2f} times faster", f"{own:,.0f} us, {base / own:.2f} times faster")
        for k, (value, text, colour) in enumerate(zip((base, one, own), texts, COLOURS.values(), strict=True)):
            y = top + k * (BAR + GAP)
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{value * scale:.1f}" height="{BAR}" fill="{colour}"/>')
            parts.append(f'<text x="{LEFT + value * scale + 6:.1f}" y="{y + 15}">{text}</text>')
        roof = LEFT + row["roofline_cycles"] / clock * scale
        low = top + 3 * BAR + 2 * GAP + 3
        parts.append(f'<line x1="{roof:.1f}" x2="{roof:.1f}" y1="{top - 3}" y2="{low}" stroke="#c0392b" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def granted(ddr: dict[str, Any]) -> str:
    return f"{ddr['l1_bytes'] // 1024} KiB of L1" if ddr.get("l1_bytes") else "all of L1"


def steps(kept: dict[str, Any]) -> str:
    """The load above; below it the latency of the controller, coloured by variant, and of the best variant alone."""
    right, clock = WIDTH - 16, kept["clock_hz"] / 1e3
    parts = opening(440, "latency while the load of others rises and falls")
    names = list(dict.fromkeys(variant for _, _, variant in kept["controller"]))
    colour = dict(zip(names, VARIANTS, strict=False))
    ordered = {f"variant for {name}": colour[name] for name in names} | {f"one program: variant for {kept['best']} alone": ONE}
    parts += legend(ordered)[0]

    def x(cycle: int) -> float:
        return 70 + (right - 70) * min(cycle, kept["cycles"]) / kept["cycles"]

    ends = [*(cycle for cycle, _, _ in kept["load"][1:]), kept["cycles"]]
    top, height = PANEL["load"]
    parts.append(f'<text x="16" y="{top + 14}" fill="#555">DDR</text><text x="16" y="{top + 30}" fill="#555">left</text>')
    for (cycle, share, l1_bytes), end in zip(kept["load"], ends, strict=True):
        tall = height * share
        parts.append(
            f'<rect x="{x(cycle):.1f}" y="{top + height - tall:.1f}" width="{x(end) - x(cycle):.1f}" height="{tall:.1f}" fill="#dfe7f3"/>'
        )
        if x(end) - x(cycle) > 100:
            middle = (x(cycle) + x(end)) / 2
            for line, text in enumerate((f"{share:.0%} of DDR", f"{l1_bytes // 1024} KiB of L1")):
                parts.append(f'<text x="{middle:.1f}" y="{top + height + 16 * (line + 1)}" text-anchor="middle" fill="#555">{text}</text>')
    top, height = PANEL["latency"]
    longest = max(latency for _, latency, _ in kept["controller"] + kept["alone"]) * 1.05
    for tick in np.arange(0, longest / kept["clock_hz"] * 1e6, 100).tolist():
        y = top + height * (1 - tick * kept["clock_hz"] / 1e6 / longest)
        parts.append(f'<line x1="70" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="62" y="{y + 4:.1f}" text-anchor="end">{tick:.0f} us</text>')
    for rows, of in ((kept["alone"], lambda _: ONE), (kept["controller"], colour.__getitem__)):
        for (cycle, latency, variant), end in zip(rows, [*(row[0] for row in rows[1:]), kept["cycles"]], strict=True):
            left, wide, y = x(cycle), max(1.0, x(end) - x(cycle)), top + height * (1 - latency / longest)
            parts.append(f'<rect x="{left:.1f}" y="{y - 2:.1f}" width="{wide:.1f}" height="4" fill="{of(variant)}"/>')
    below = top + height + 20
    parts += [
        f'<text x="{x(round(ms * clock)):.1f}" y="{below}" text-anchor="middle">{ms} ms</text>'
        for ms in range(0, int(kept["cycles"] / clock) + 1, 10)
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


# README --------------------------------------------------------------------------------------------------------------


def readme(text: str, summary: dict[str, Any], kept: dict[str, Any]) -> str:
    """With the tables of this run."""
    for name, table in (("result", tables(summary)), ("switching", kept["text"])):
        block = f"<!-- {name} -->\n```text\n{table}```\n<!-- /{name} -->"
        text, count = re.subn(rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, block=block: block, text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"README.md: expected one pair of <!-- {name} --> and <!-- /{name} -->")
    return text


def tables(summary: dict[str, Any]) -> str:
    """What `tilefarm tune` prints at its end."""
    return printed(print_levels, summary) + printed(print_robust, summary) + printed(print_search, summary)


def main(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder; what was kept of the last one unless given.")] = None,
) -> None:
    """Draw README's pictures and write its tables of results from a run."""
    files = {name: FOLDER / f"{name}.json" for name in ("result", "switching")}
    if run is not None:
        files["result"].write_text((run / "summary.json").read_text(encoding="utf-8"), encoding="utf-8")
        files["switching"].write_text(json.dumps(switching(run), indent=1) + "\n", encoding="utf-8")
    summary, kept = (json.loads(path.read_text(encoding="utf-8")) for path in files.values())
    (FOLDER / "result.svg").write_text(bars(summary), encoding="utf-8")
    (FOLDER / "switching.svg").write_text(steps(kept), encoding="utf-8")
    path = ROOT / "README.md"
    path.write_text(readme(path.read_text(encoding="utf-8"), summary, kept), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
