"""Report page of a sweep: speed-up by model, machine, level and seed."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from simulator.npu.errors import BadInputError
from tuner.measure.merit import speedup
from tuner.platform.files import AnyPath
from tuner.report.html import Figures, cell_text, count_text, error_text, html_document, html_section, html_table, html_tabs
from tuner.report.style import color, figure
from tuner.runs.list_runs import ENDED
from tuner.runs.sweep_progress import read_index

_GAIN = (
    "Cycles of the baseline (layer by layer, every operator tuned) over the champion's: the median over the seeds, and in brackets the "
    "least and the most."
)
_LEFT = "`tilefarm sweep` with --resume runs what is left. Unconfirmed: a run has all its files, but its values are not onnxruntime's."
_SPREAD = "One point per seed. How far seeds lie apart is how far one run may be from another with the same budget."


def sweep_page(folder: AnyPath) -> str:
    """Complete page of a sweep's folder.  Raises `BadInputError` before the first cell has ended."""
    index = read_index(folder)
    ended = index[index["state"].isin(ENDED)]
    if not len(ended):
        raise BadInputError(f"{folder}: none of {index['path'].nunique()} runs has ended; nothing to report")
    figures = Figures()
    machines = list(dict.fromkeys(ended["machine"]))
    charts = {machine: figures.place(_gain_chart(ended[ended["machine"] == machine])) for machine in machines}
    sections = [
        html_section(
            "speed-up", "Speed-up by model and level", _GAIN, html_tabs({m: _gains(ended[ended["machine"] == m]) for m in machines})
        ),
        html_section("seeds", "Speed-up by seed", _SPREAD, html_tabs(charts)),
        html_section("runs", "Runs", "`tilefarm report` of a folder shows its run.", _runs(ended)),
        html_section("left", "Failed, not confirmed, or not run yet", _LEFT, _unfinished_rows(index)),
    ]
    title = f"Sweep of {count_text(index['model'].nunique(), 'model')} on {', '.join(machines)}"
    runs = f"{ended['path'].nunique()} of {count_text(index['path'].nunique(), 'run')} done"
    subtitle = f"{folder.resolve().name} · {runs} · {count_text(index['seed'].nunique(), 'seed')}"
    return html_document(title, subtitle, sections)


def _gains(ended: pd.DataFrame) -> str:
    levels = list(dict.fromkeys(ended["level"]))
    rows = []
    for model, part in ended.groupby("model", sort=False):
        cells = []
        for level in levels:
            gain = part.loc[part["level"] == level, "speedup"]
            range_note = f" ({speedup(gain.min())} … {speedup(gain.max())})" if len(gain) > 1 else ""
            cells.append(speedup(gain.median()) + range_note)
        rows.append((model, *cells))
    return html_table(("<model", *levels), rows)


def _gain_chart(ended: pd.DataFrame) -> go.Figure:
    chart = figure("", "speed-up over the baseline", 440)
    for i, (level, part) in enumerate(ended.groupby("level", sort=False)):
        chart.add_box(
            x=part["model"].map(cell_text), y=part["speedup"], name=str(level), boxpoints="all", pointpos=0, jitter=0.4, hoveron="points",
            marker={"size": 8, "color": color(i), "opacity": 0.75}, text="seed " + part["seed"].astype("str"),
            fillcolor="rgba(0,0,0,0)", line={"color": "rgba(0,0,0,0)"},  # points side by side, without a box over them
        )  # fmt: skip
    chart.update_layout(boxmode="group")
    return chart


def _runs(ended: pd.DataFrame) -> str:
    columns = ("<run", "<level", "cycles", "latency µs", "speed-up", "roofline cycles", "of roofline", "max error", "programs", "wall s")
    rows = [
        (
            r["path"], f"{r['level']} (as {r['same_as']})" if isinstance(r["same_as"], str) else r["level"], int(r["cycles"]),
            f"{r['latency_us']:,.1f}", speedup(r["speedup"]), int(r["roofline_cycles"]), f"{r['roofline_cycles'] / r['cycles']:.0%}",
            error_text(r["max_rel_error"]), int(r["candidates"]), f"{r['wall_s']:,.0f}",
        )
        for r in ended.to_dict("records")
    ]  # fmt: skip
    return html_table(columns, rows)


def _unfinished_rows(index: pd.DataFrame) -> str:
    unfinished = index[index["state"] != "done"].drop_duplicates("path")
    if not len(unfinished):
        return "<p>None.</p>"
    return html_table(("<run", "<state", "<why"), unfinished[["path", "state", "error"]].itertuples(index=False, name=None))
