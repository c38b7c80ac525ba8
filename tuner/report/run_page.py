"""Report page of a run: result, search, pipelines, predictions, workers, settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compiler.diagnostics.grouped_convs import GroupStructure
from simulator.npu.level import Level
from tuner.cost_model.messages import describe_proposers
from tuner.measure.bound_lines import BOUND_COLUMNS, bound_rows
from tuner.measure.gain_line import describe_gain
from tuner.measure.host_lines import host_groups
from tuner.measure.merit import speedup
from tuner.measure.robust_lines import robust_columns, robust_lines, robust_rows
from tuner.report import machine_figures as machine
from tuner.report import search_figures as search
from tuner.report.html import Figures, cell_text, count_text, error_text, html_document, html_section, html_table, html_tabs, preformatted
from tuner.report.view import RunView
from tuner.summary import HostNodeSummary


def run_page(run: RunView) -> str:
    """Complete page of a finished run."""
    figures, summary = Figures(), run.summary
    sections = [
        html_section("result", "Result", _RESULT, _unconfirmed(summary), _result(summary), _robust(summary), _pieces(summary)),
        html_section("latency", "Latency against contention", _LATENCY, figures.place(machine.latency(run)), _crossings(run, figures)),
        html_section(
            "search",
            "Best so far",
            "Every line starts at the first program of the run, layer by layer before any tuning; at 1 it is as fast as the baseline. "
            + describe_gain(summary),
            "<h3>Against measured programs</h3>",
            figures.place(search.best_so_far(run, by_time=False)),
            "<h3>Against time</h3>",
            figures.place(search.best_so_far(run, by_time=True)),
            f"<h3>By what proposed the programs</h3><p>{_PROPOSED}</p>",
            figures.place(search.proposer_gains(run)),
        ),
        html_section(
            "plans",
            "Where the time goes",
            _PLANS,
            _grouped(summary),
            html_tabs({name: _plan(run, name, figures) for name in _distinct(run)}),
        ),
        html_section(
            "model",
            "Predictions",
            f"{_PREDICTED} {describe_proposers(summary)}",
            figures.place(search.predicted_against_measured(run)),
            _frame(search.prediction_quality(run), 2),
            _TRAININGS + _history(run.history) if run.history else "",
        ),
        html_section("farm", "Workers and failures", _FARM, figures.place(search.worker_use(run)), _failures(run), _boards(run)),
        html_section("settings", "Settings and versions", "What a repetition needs.", _settings(run)),
    ]
    # the heading counts all readings, also those outside the search
    title = f"{summary['model']} on {summary['machine']}"
    use = summary["measurements"]
    readings = sum(use[name] for name in ("search", "canary", "finals"))
    measured = f"{summary['candidates']:,} programs and {summary['tasks']:,} tasks measured by {readings:,} readings"
    loss_note = f" · {run.lost:,} rows of its log were lost" if run.lost else ""
    subtitle = f"{summary['run']} · {run.compiled.types} · seed {summary['seed']} · {measured}{loss_note}"
    return html_document(title, subtitle, sections)


_RESULT = (
    "The best program of each contention level, measured from the instruction streams in best.onnx. The baseline runs every fused operator "
    "on its own, tuned by the same search; no schedule beats the roofline. ρ: cycles in which CUBE or VECTOR works per cycle in which DDR "
    "moves. Max error: of what the NPU makes, relative to onnxruntime's largest; at most four times what rounding alone does, and never "
    "more than the limit."
)
_BOUND = (
    "No program is faster than the bound, and none moves fewer DDR bytes than it counts; docs/bounds.md proves it. Its terms are over the "
    "roofline, DDR is bytes over those that every program moves."
)
_ROBUST = (
    "In cycles: the champion of the lightest level, which the same search found; the robust program, which loses least at the level where "
    "it loses most; and each level's own."
)
_LATENCY = (
    "Every variant at every share of the bandwidth that others leave. Where two lines cross, the run-time controller should change over; "
    "dotted lines are the levels that the variants were searched for."
)
_PLANS = (
    "The pipeline of each distinct variant at its own level. Drag to zoom in, double-click to zoom out; colours tell neighbouring segments "
    "apart."
)
_TRAININGS = (
    "<h3>Trainings</h3><p>Judged on workloads that were held out: rank correlation, share of pairs in the right order, how much slower the "
    "fastest of the first 1, 8 or 32 picks is than the fastest of all, root mean square error in octaves. Promoted: it did better than the "
    "one before and the built-in estimate.</p>"
)
_PROPOSED = (
    "An octave is twice as fast. The gain of a program that several moves made is shared between them; what was measured first, layer by "
    "layer, has none."
)
_PREDICTED = "Every point was predicted before it was measured, by the built-in estimate or a cost model."
_SEGMENTS = (
    "<p>Busy: of the engine that bounds the segment. Ops/load: operators and blocks for each that loads from DDR, 1 where all do. Halo: "
    "work because rows are made twice; padding: multiply-adds because channels and pixels are rounded up; 1 is none.</p>"
)
_GRANTS = (
    "<p>Some levels grant less of the machine's memory or cores: of the variants that fit what is granted, the controller runs the "
    "fastest at its share.</p>"
)
_MOST = 40  # rows of a table that a model can make as long as it is
_FARM = "Share of the time in which a worker was measuring; the rest is choosing what to measure, training, and the start."


def _result(summary: dict[str, Any]) -> str:
    levels: dict[str, Any] = summary["levels"]
    columns = ("<level", "DDR share", "cycles", "latency µs", "baseline cycles", "speed-up", "roofline cycles", "of roofline", "DDR bytes",
               "ρ", "<plan")  # fmt: skip
    has_shared = any(row.get("shared_moved_bytes") for row in levels.values())
    rows, errors = [], []
    for name, row in levels.items():
        plan = f"as {row['same_as']}" if row["same_as"] else row["plan"][:12]
        rows.append((
            name, str(Level.model_validate(row["ddr"])), row["cycles"], f"{row['latency_us']:,.1f}", row["baseline_layerwise_cycles"],
            speedup(row["speedup"]), row["roofline_cycles"], f"{row['roofline_cycles'] / row['cycles']:.0%}", row["ddr_bytes"],
            f"{row['balance']:.2f}", plan, *([row["shared_moved_bytes"]] if has_shared else []),
        ))  # fmt: skip
        rounding = "" if row["rounding_rel_error"] is None else error_text(row["rounding_rel_error"])
        compared = row["limit_rel_error"] is not None
        errors.append(
            (name, *((error_text(row["max_rel_error"]), rounding, error_text(row["limit_rel_error"])) if compared else ("", "", "")))
        )
    cycle_rows = [(name, *(_fitting(row["variant_cycles"].get(variant, "")) for variant in levels)) for name, row in levels.items()]
    matrix = html_table(("<at level", *(f"variant {name}" for name in levels)), cycle_rows)
    values = html_table(("<level", "max error", "of rounding", "limit"), errors)
    bound = _pace(summary.get("frames", 1), levels) + f"<h3>Bound</h3><p>{_BOUND}</p>" + html_table(BOUND_COLUMNS, bound_rows(levels))
    variants = bound + "<h3>Every variant at every level, cycles</h3>" + matrix
    return (
        html_table((*columns, *(["shared memory bytes"] if has_shared else [])), rows)
        + variants
        + "<h3>Values against onnxruntime</h3>"
        + values
    )


def _pace(frames: int, levels: dict[str, Any]) -> str:
    """Table of latency and throughput, if a run takes several frames."""
    if frames == 1:
        return ""
    columns = ("<level", "frames of a run", "latency µs", "cycles per frame", "frames per second")
    rows = [
        (name, frames, f"{row['latency_us']:,.1f}", f"{row['cycles_per_frame']:,.1f}", f"{row['frames_per_s']:,.1f}")
        for name, row in levels.items()
    ]
    return "<h3>Throughput</h3>" + html_table(columns, rows)


def _fitting(cycles: int | str | None) -> int | str:
    return "does not fit" if cycles is None else cycles


def _robust(summary: dict[str, Any]) -> str:
    """Comparison of one program for all levels with each level's own."""
    first, *remarks = robust_lines(summary)
    text = f"<h3>One program or one for each level</h3><p>{cell_text(first)} {_ROBUST}</p>"
    if summary["robust"] is not None:
        text += html_table(robust_columns(summary["robust"]), robust_rows(summary))
    return text + ("<ul>" + "".join(f"<li>{cell_text(line)}</li>" for line in remarks) + "</ul>" if remarks else "")


def _unconfirmed(summary: dict[str, Any]) -> str:
    """Warning about unconfirmed values, above all figures; empty for confirmed runs."""
    lines = "".join(f"<li>{cell_text(line)}</li>" for line in summary["unconfirmed"])
    text = f"<p><strong>The values of this run are not confirmed.</strong></p><ul>{lines}</ul>" if lines else ""
    weights = [
        (w["tensor"], "infinite" if w["largest"] is None else f"{w['largest']:.6g}", f"{w['held']:.6g}") for w in summary["weights_beyond"]
    ]
    if weights:
        note = f" The first {_MOST} of {len(weights)}:" if len(weights) > _MOST else ""
        text += f"<h3>Weights that {cell_text(summary['dtype'])} does not hold</h3><p>Infinite in the file, or all 0.{note}</p>"
        text += html_table(("<weight", "largest in float32", "held"), weights[:_MOST])
    return text


def _pieces(summary: dict[str, Any]) -> str:
    """Subgraphs of the model and nodes on the host; empty if one program is the entire model."""
    pieces, host, text = summary["pieces"], summary["host"], ""
    if pieces:
        levels = list(pieces[0]["cycles"])
        rows = [(p["piece"], p["operators"], p["first_operator"], p["last_operator"], *p["cycles"].values()) for p in pieces]
        columns = ("<piece", "operators", "<first", "<last", *(f"cycles {level}" for level in levels))
        text += "<h3>Pieces</h3><p>One after the other; their cycles add up.</p>" + html_table(columns, rows)
    if host:
        share = summary["npu_mac_share"]
        work = f"{1 - share:.1%} of its multiply-adds" if share is not None else "with multiply-adds that cannot be counted"
        groups = host_groups([HostNodeSummary.model_validate(node) for node in host])
        limit_note = f" The {_MOST} reasons with the most work:" if len(groups) > _MOST else ""
        rows = [
            (len(g.nodes), g.kinds, "n/a" if g.macs is None else g.macs, g.least_us, g.nodes[0].node, g.nodes[0].why)
            for g in groups[:_MOST]
        ]
        nodes = f"{count_text(len(host), 'node')} of the model, {work}"
        text += f"<h3>With the host</h3><p>{nodes}; no other figure has their time.{limit_note}</p>"
        text += html_table(("nodes", "<operators", "MACs", "least us", "<the first", "<why"), rows)
    return text


def _grouped(summary: dict[str, Any]) -> str:
    groups = summary.get("grouped")
    return "" if groups is None else f"<p>{cell_text(GroupStructure(**groups).line())}.</p>"


def _crossings(run: RunView, figures: Figures) -> str:
    if len(run.response.variants) == 1:
        return "<p>One program is the best at every level.</p>"
    reduced = any(run.machine.granted(level) != run.machine.full_grant for level in run.levels)
    cost = "<h3>What the wrong variant costs</h3>" + figures.place(machine.excess_latency(run)) + (_GRANTS if reduced else "")
    crossings = machine.crossings(run)
    if not crossings:
        return cost + "<p>No two variants cross on this range.</p>"
    us_per_cycle = 1e6 / run.machine.clock_hz
    rows = [(f"{c.share:.3f}", f"{c.cycles * us_per_cycle:,.1f}", c.lighter, c.heavier) for c in crossings]
    return cost + "<h3>Crossings</h3>" + html_table(("at DDR share", "latency µs", "<faster above", "<faster below"), rows)


def _distinct(run: RunView) -> list[str]:
    return [level for level in run.levels if run.compiled.same_as(level) is None]


def _plan(run: RunView, level: str, figures: Figures) -> str:
    t = run.timeline(level)
    segments = run.segments(level, t)
    rows = [
        (
            s.segment, run.operators(s.first, s.last), s.operators, s.blocks,
            s.own_cycles, f"{s.own_cycles / t.cycles:.1%}", s.bound, f"{s.utilisation[s.bound]:.0%}" if s.bound else "",
            s.ddr_read_bytes + s.ddr_write_bytes, s.macs, "" if s.operators_per_load is None else f"{s.operators_per_load:.1f}",
            "" if s.halo is None else f"{s.halo:.2f}", "" if s.padding is None else f"{s.padding:.2f}",
        )
        for s in sorted(segments, key=lambda s: -s.own_cycles)[:20]
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
        "<h3>What the engines did</h3>", figures.place(machine.engine_shares(t)),
        "<h3>Buffers</h3><p>Bytes that will still be read, of core 0, against the memory's size.</p>", figures.place(machine.occupancy(t)),
        "<h3>DDR</h3>", figures.place(machine.bandwidth(t)),
        "<h3>Roofline by segment</h3><p>The area of a point is its share of the run.</p>", figures.place(machine.roofline(run, level, t)),
        f"<h3>{'The twenty longest segments' if len(segments) > 20 else 'Segments, longest first'}</h3>", _SEGMENTS, html_table(columns,
        rows),
    ))  # fmt: skip


def _frame(frame: Any, text_columns: int) -> str:
    names = [f"<{name}" if i < text_columns else str(name) for i, name in enumerate(frame.columns)]
    return html_table(names, frame.itertuples(index=False, name=None)) if len(frame) else "<p>No predictions.</p>"


def _history(history: list[dict[str, Any]]) -> str:
    flat = [dict(_leaves(row)) for row in history]
    metrics = [key for key in flat[0] if key not in ("file", "level", "promoted")]
    rows = [(row["file"], row["level"], "yes" if row["promoted"] else "no", *(_number(row.get(key)) for key in metrics)) for row in flat]
    return html_table(("<file", "<level", "<promoted", *(key.replace("_", " ") for key in metrics)), rows)


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
    return "<h3>Failures</h3><p>Infeasible plans are an ordinary outcome; crash and timeout are not.</p>" + html_table(
        ("<status", "<kind", "tasks", "<first message"), rows
    )


def _boards(run: RunView) -> str:
    """Table of boards; empty if the simulator measured."""
    frame = search.boards(run)
    if not len(frame):
        return ""
    text = (
        "The canary is the untuned program, read at the start and after every 100 readings; rows are flagged while it is more than 3% off."
    )
    rows = [
        (board, firmware, rows, f"{low:+.1%} to {high:+.1%}", flagged)
        for board, firmware, rows, low, high, flagged in frame.itertuples(index=False, name=None)
    ]
    return f"<h3>Boards</h3><p>{text}</p>" + html_table(("<board", "<firmware", "rows", "canary", "flagged"), rows)


def _settings(run: RunView) -> str:
    summary = run.summary
    use = summary["measurements"]
    facts = [
        ("run", summary["run"]), ("model digest", summary["model_digest"]), ("machine digest", summary["machine_digest"]),
        *((("target", f"{target['name']}; figures are the NPU's"),) if (target := summary["target"]) else ()),
        ("settings digest", summary["config_digest"]), ("budget", f"{summary['budget']['used']:g} {summary['budget']['kind']}"),
        ("readings", ", ".join(f"{name.replace('_', ' ')} {use[name]:,}" for name in ("search", "canary", "finals", "set_aside"))),
        ("wall seconds", f"{summary['wall_s']:g}"), ("tags", ", ".join(f"{k}={v}" for k, v in summary["tags"].items())),
        *((f"version of {name}", value) for name, value in summary["versions"].items()),
    ]  # fmt: skip
    return html_table(("<what", "<value"), facts) + "<h3>config.yaml</h3>" + preformatted(run.config)
