"""One HTML page of a run, with everything inside: no request leaves it, and its policy says so to the browser.

Texts from the run (names of models, operators, tags, messages) are escaped; figures are JSON with `<` escaped, so that no name can end
the script that holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from tuner.report import machine_figures as machine
from tuner.report import search_figures as search
from tuner.report.style import FONT, INK, MUTED, RULE
from tuner.report.view import RunView

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_CSS = f"""
:root {{ color-scheme: light }}
* {{ box-sizing: border-box }}
body {{ margin: 0; font: 15px/1.55 {FONT}; color: {INK}; background: #f6f7f9 }}
header {{ background: white; border-bottom: 1px solid {RULE}; padding: 28px 40px 0 }}
h1 {{ margin: 0; font-size: 24px; letter-spacing: -.01em; overflow-wrap: anywhere }}
header p {{ margin: 4px 0 0; color: {MUTED}; overflow-wrap: anywhere }}
nav {{ margin-top: 18px; display: flex; flex-wrap: wrap; gap: 4px 22px; padding-bottom: 12px }}
nav a {{ color: {INK}; text-decoration: none; font-size: 14px; border-bottom: 2px solid transparent }}
nav a:hover {{ border-color: {INK} }}
main {{ max-width: 1240px; margin: 0 auto; padding: 24px 40px 60px }}
section {{ background: white; border: 1px solid {RULE}; border-radius: 8px; padding: 20px 24px; margin-bottom: 20px }}
h2 {{ margin: 0 0 4px; font-size: 18px }}
h3 {{ margin: 18px 0 2px; font-size: 15px }}
section > p, .level > p {{ margin: 0 0 10px; color: {MUTED}; max-width: 80ch }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px }}
.wide {{ overflow-x: auto }}
th, td {{ padding: 6px 10px; border-bottom: 1px solid {RULE}; text-align: right; white-space: nowrap }}
th {{ color: {MUTED}; font-weight: 500 }}
th.text, td.text {{ text-align: left; white-space: normal; overflow-wrap: anywhere }}
pre {{ background: #f6f7f9; border-radius: 6px; padding: 12px 16px; overflow: auto; font-size: 13px; max-height: 460px; margin: 8px 0 }}
.tabs {{ display: flex; gap: 6px; margin: 6px 0 8px }}
.tabs button {{ font: inherit; font-size: 14px; padding: 4px 14px; border: 1px solid {RULE}; border-radius: 999px }}
.tabs button {{ background: white; cursor: pointer }}
.tabs button[aria-selected=true] {{ background: {INK}; color: white; border-color: {INK} }}
.level[hidden] {{ display: none }}
footer {{ color: {MUTED}; text-align: center; padding: 0 0 40px; font-size: 13px }}
"""
_SCRIPT = """
const shown = new Set();
function draw(id) {
  if (shown.has(id)) return;
  const figure = JSON.parse(document.getElementById('data-' + id).textContent);
  Plotly.newPlot(id, figure.data, figure.layout, {responsive: true, displaylogo: false, modeBarButtonsToRemove: ['select2d', 'lasso2d']});
  shown.add(id);
}
function visible(root) {
  root.querySelectorAll('.figure').forEach(node => { if (node.offsetParent !== null) draw(node.id); });
}
document.querySelectorAll('.tabs').forEach(tabs => tabs.addEventListener('click', event => {
  const level = event.target.dataset.level;
  if (level === undefined) return;
  tabs.querySelectorAll('button').forEach(b => b.setAttribute('aria-selected', b.dataset.level === level));
  const section = tabs.parentElement;
  section.querySelectorAll('.level').forEach(part => { part.hidden = part.dataset.level !== level; });
  visible(section);
}));
visible(document);
"""


class _Figures:
    """Figures of the page: a place for each, and its data as JSON that no text inside can break out of."""

    def __init__(self) -> None:
        self.count = 0

    def place(self, figure: go.Figure) -> str:
        name = f"figure-{self.count}"
        self.count += 1
        data = figure.to_json().replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
        height = int(figure.layout.height)
        return (
            f'<div class="figure" id="{name}" style="min-height:{height}px"></div>'
            f'<script type="application/json" id="data-{name}">{data}</script>'
        )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns whose name starts with `<` are text (left), the others numbers (right)."""
    kinds = [' class="text"' if name.startswith("<") else "" for name in columns]
    head = "".join(f"<th{kind}>{escape(name.removeprefix('<'))}</th>" for name, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(_text(cell))}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else "" if cell is None else str(cell)


def _section(anchor: str, title: str, lead: str, *parts: str) -> str:
    return f'<section id="{anchor}"><h2>{escape(title)}</h2><p>{escape(lead)}</p>{"".join(parts)}</section>'


def _levels(parts: dict[str, str]) -> str:
    """One tab per level; only the first is drawn at once."""
    names = list(parts)
    buttons = "".join(
        f'<button data-level="{escape(name, quote=True)}" aria-selected="{str(name == names[0]).lower()}">{escape(name)}</button>'
        for name in names
    )
    bodies = "".join(
        f'<div class="level" data-level="{escape(name, quote=True)}"{"" if name == names[0] else " hidden"}>{body}</div>'
        for name, body in parts.items()
    )
    return f'<div class="tabs">{buttons}</div>{bodies}'


def page(run: RunView) -> str:
    """The whole page."""
    figures, summary = _Figures(), run.summary
    sections = [
        _section("result", "Result", _RESULT, _result(summary["levels"])),
        _section("latency", "Latency against contention", _LATENCY, figures.place(machine.latency(run)), _crossings(run)),
        _section(
            "search",
            "Best so far",
            "Every line starts at the first program of the run, layer by layer before any tuning.",
            "<h3>Against measured programs</h3>",
            figures.place(search.best_so_far(run, by_time=False)),
            "<h3>Against time</h3>",
            figures.place(search.best_so_far(run, by_time=True)),
        ),
        _section("plans", "Where the time goes", _PLANS, _levels({level: _plan(run, level, figures) for level in _distinct(run)})),
        _section(
            "model",
            "Cost model",
            "Every point was predicted before it was measured. Until the first training a formula predicts.",
            figures.place(search.predicted_against_measured(run)),
            _frame(search.prediction_quality(run), 2),
            "<h3>Trainings</h3>" + _history(run.history) if run.history else "",
        ),
        _section("farm", "Workers and failures", _FARM, figures.place(search.worker_use(run)), _failures(run)),
        _section("settings", "Settings and versions", "What a repetition needs.", _settings(run)),
    ]
    nav = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title in _NAVIGATION)
    title = f"{summary['model']} on {summary['machine']}"
    measured = f"{summary['candidates']:,} programs and {summary['tasks']:,} tasks measured"
    about = f"{summary['run']} · {summary['dtype']} · seed {summary['seed']} · {measured}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{_CSS}</style>'
        f"<script>{get_plotlyjs()}</script></head><body><header><h1>{escape(title)}</h1><p>{escape(about)}</p><nav>{nav}</nav></header>"
        f"<main>{''.join(sections)}</main><footer>tilefarm {escape(str(summary['versions'].get('tilefarm', '')))}</footer>"
        f"<script>{_SCRIPT}</script></body></html>"
    )


_NAVIGATION = (
    ("result", "Result"), ("latency", "Latency"), ("search", "Search"), ("plans", "Where the time goes"), ("model", "Cost model"),
    ("farm", "Workers"), ("settings", "Settings"),
)  # fmt: skip
_RESULT = (
    "The best program of each contention level, measured from the instruction streams in best.onnx. The baseline runs every fused operator "
    "on its own, tuned by the same search; no schedule beats the roofline."
)
_LATENCY = (
    "Every variant at every share of the bandwidth that others leave. Where two lines cross, the run-time controller should change over; "
    "dotted lines are the levels that the variants were searched for."
)
_PLANS = (
    "The pipeline of each distinct variant at its own level. Drag to zoom in, double-click to zoom out; colours tell neighbouring segments "
    "apart."
)
_FARM = "Share of the time in which a worker was measuring; the rest is the driver's choosing, training and writing, and the start."


def _result(levels: dict[str, Any]) -> str:
    columns = ("<level", "DDR share", "cycles", "latency µs", "baseline cycles", "gain", "roofline cycles", "of roofline", "DDR bytes", "ρ",
               "max error", "<plan")  # fmt: skip
    rows = []
    for name, at in levels.items():
        plan = f"as {at['same_as']}" if at["same_as"] else at["plan"][:12]
        rows.append((
            name, f"{at['ddr_share']:g}", at["cycles"], f"{at['latency_us']:,.1f}", at["baseline_layerwise_cycles"],
            f"{at['speedup']:.2f}×", at["roofline_cycles"], f"{at['roofline_cycles'] / at['cycles']:.0%}", at["ddr_bytes"],
            f"{at['balance']:.2f}", f"{at['max_rel_error']:.1e}", plan,
        ))  # fmt: skip
    each = [(name, *(at["variant_cycles"].get(other) for other in levels)) for name, at in levels.items()]
    matrix = table(("<at level", *(f"variant {name}" for name in levels)), each)
    return table(columns, rows) + "<h3>Every variant at every level, cycles</h3>" + matrix


def _crossings(run: RunView) -> str:
    met = machine.crossings(run)
    if not met:
        return "<p>No two variants cross on this range.</p>"
    us = 1e6 / run.machine.clock_hz
    rows = [(f"{c.share:.3f}", f"{c.cycles * us:,.1f}", c.lighter, c.heavier) for c in met]
    return table(("at DDR share", "latency µs", "<faster above", "<faster below"), rows)


def _distinct(run: RunView) -> list[str]:
    return [level for level in run.levels if run.compiled.same_as(level) is None]


def _plan(run: RunView, level: str, figures: _Figures) -> str:
    t = run.timeline(level)
    found = run.segments(level, t)
    rows = [
        (
            s.segment, run.operators(s.first, s.last), s.operators, s.blocks,
            s.own_cycles, f"{s.own_cycles / t.cycles:.1%}", s.bound, f"{s.utilisation[s.bound]:.0%}" if s.bound else "",
            s.ddr_read_bytes + s.ddr_write_bytes, s.macs, "" if s.operators_per_load is None else f"{s.operators_per_load:.1f}",
            "" if s.halo is None else f"{s.halo:.2f}", "" if s.padding is None else f"{s.padding:.2f}",
        )
        for s in sorted(found, key=lambda s: -s.own_cycles)[:20]
    ]  # fmt: skip
    columns = (
        "segment",
        "<operators",
        "ops",
        "blocks",
        "own cycles",
        "of run",
        "<bound by",
        "busy",
        "DDR bytes",
        "MACs",
        "ops/load",
        "halo",
        "padding",
    )
    return "".join((
        f"<h3>Pipeline: {t.cycles:,} cycles, {len(t.code):,} instructions</h3>", figures.place(machine.pipeline(run, t)),
        "<h3>What the engines did</h3>", figures.place(machine.standing(t)),
        "<h3>Buffers</h3><p>Bytes that will still be read, of core 0.</p>", figures.place(machine.occupancy(t)),
        "<h3>DDR</h3>", figures.place(machine.bandwidth(t)),
        "<h3>Roofline by segment</h3><p>The area of a point is its share of the run.</p>", figures.place(machine.roofline(run, level, t)),
        f"<h3>{'The twenty longest segments' if len(found) > 20 else 'Segments, longest first'}</h3>", table(columns, rows),
    ))  # fmt: skip


def _frame(frame: Any, text_columns: int) -> str:
    names = [f"<{name}" if i < text_columns else str(name) for i, name in enumerate(frame.columns)]
    return table(names, frame.itertuples(index=False, name=None)) if len(frame) else "<p>No predictions.</p>"


def _history(history: list[dict[str, Any]]) -> str:
    flat = [dict(_leaves(row)) for row in history]
    metrics = [key for key in flat[0] if key not in ("file", "level", "promoted")]
    rows = [(row["file"], row["level"], "yes" if row["promoted"] else "no", *(_number(row.get(key)) for key in metrics)) for row in flat]
    return table(("<file", "<level", "<promoted", *(key.replace("_", " ") for key in metrics)), rows)


def _leaves(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{key} {name}", inner) for name, inner in _leaves(value))
        else:
            yield key, value


def _number(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def _failures(run: RunView) -> str:
    frame = search.failures(run)
    if not len(frame):
        return "<h3>Failures</h3><p>None.</p>"
    rows = frame.itertuples(index=False, name=None)
    return "<h3>Failures</h3><p>Infeasible plans are an ordinary outcome; crash and timeout are not.</p>" + table(
        ("<status", "<kind", "tasks", "<first message"), rows
    )


def _settings(run: RunView) -> str:
    summary = run.summary
    facts = [
        ("run", summary["run"]), ("model digest", summary["model_digest"]), ("machine digest", summary["machine_digest"]),
        ("settings digest", summary["config_digest"]), ("budget", f"{summary['budget']['used']:g} {summary['budget']['kind']}"),
        ("wall seconds", f"{summary['wall_s']:g}"), ("tags", ", ".join(f"{k}={v}" for k, v in summary["tags"].items())),
        *((f"version of {name}", value) for name, value in summary["versions"].items()),
    ]  # fmt: skip
    return table(("<what", "<value"), facts) + f"<h3>config.yaml</h3><pre>{escape(run.config)}</pre>"
