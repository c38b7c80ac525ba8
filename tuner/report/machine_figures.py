"""Figures of the best plans on the machine: latency by level, pipeline, buffers, roofline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.level import SHARE_UNIT
from simulator.npu.parts import BLOCK_BYTES, DataType, Engine, Memory
from simulator.occupancy import bytes_in_use, ddr_use, limit_points, shared_in_use
from simulator.timeline import Cause, Timeline, merge_intervals
from simulator.timing_state import ENGINES
from tuner.report.html import cell_text
from tuner.report.style import CAUSES, INK, MUTED, color, figure, log_axis
from tuner.report.view import RunView

_PIXELS = 2000  # bars closer than one pixel of this width are drawn as one
_STEPS = 1500  # points of a curve


class Crossing(NamedTuple):
    """Share with two equally fast variants: above `share` of the bandwidth `lighter` wins, below it `heavier`."""

    share: float
    cycles: float
    lighter: str
    heavier: str


def crossings(run: RunView) -> list[Crossing]:
    """Crossings of all pairs: each sign change between two shares of the grid, linear in 1 / share as in `simulator.response`."""
    points = []
    response = run.response
    x = response.slowness
    for a, b in combinations(range(len(response.variants)), 2):
        gap = response.cycles[a] - response.cycles[b]
        for i, j in pairwise(range(len(x))):
            if gap[i] * gap[j] < 0:
                part = gap[i] / (gap[i] - gap[j])
                slow = x[i] + part * (x[j] - x[i])
                first, second = (a, b) if gap[i] < 0 else (b, a)
                points.append(
                    Crossing(1 / slow, float(np.interp(slow, x, response.cycles[a])), response.variants[first], response.variants[second])
                )
    return sorted(points, reverse=True)


def latency(run: RunView) -> go.Figure:
    """Latency in microseconds of every variant over the available share of the bandwidth, with crossings and levels marked."""
    chart = figure("share of the DDR bandwidth that is left", "latency, µs", 440)
    response, us_per_cycle = run.response, 1e6 / run.machine.clock_hz
    share = np.array(response.grid) / SHARE_UNIT
    for i, name in enumerate(response.variants):
        served_levels = [level for level in run.levels if run.compiled.same_as(level) == name]
        chart.add_scatter(
            x=share, y=response.cycles[i] * us_per_cycle, name=" = ".join([name, *served_levels]), line={"color": color(i)},
            hovertemplate="%{x:.3f} of the bandwidth<br>%{y:,.1f} µs<extra>variant " + name + "</extra>",
        )  # fmt: skip
    if points := crossings(run):
        chart.add_scatter(
            x=[c.share for c in points], y=[c.cycles * us_per_cycle for c in points], mode="markers", name="crossing",
            marker={"symbol": "circle-open", "size": 11, "color": INK, "line": {"width": 2}},
            text=[f"below {c.share:.3f}: {c.heavier} rather than {c.lighter}" for c in points], hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    _shares(run, chart)
    return chart


def excess_latency(run: RunView) -> go.Figure:
    """Excess latency of every variant over the fastest at the same share: the cost of a wrong variant."""
    chart = figure("share of the DDR bandwidth that is left", "over the fastest variant", 320)
    response = run.response
    fastest = response.cycles.min(0)
    for i, name in enumerate(response.variants):
        chart.add_scatter(
            x=np.array(response.grid) / SHARE_UNIT, y=response.cycles[i] / fastest - 1, name=name, line={"color": color(i)},
            hovertemplate="%{x:.3f} of the bandwidth<br>%{y:.2%} over the fastest<extra>variant " + name + "</extra>",
        )  # fmt: skip
    _shares(run, chart)
    chart.update_yaxes(tickformat=".1%", rangemode="tozero")
    return chart


def _shares(run: RunView, chart: go.Figure) -> None:
    """Set a falling axis of shares, with the levels marked."""
    share = np.array(run.response.grid) / SHARE_UNIT
    for level in run.levels:
        level_share = run.compiled.level(level).share
        chart.add_vline(x=level_share, line={"color": MUTED, "dash": "dot", "width": 1})
        # on a logarithmic axis an annotation wants the logarithm, a line the value
        chart.add_annotation(
            x=math.log10(level_share), y=1, yref="paper", yanchor="top", xanchor="left", text=level, showarrow=False, font_color=MUTED
        )
    ticks = [tick for tick in (1, 0.75, 0.5, 0.35, 0.25, 0.18, 0.125, 0.09, 0.06, 0.04, 0.02, 0.01) if tick >= share.min()]
    chart.update_xaxes(type="log", range=[0.01, math.log10(share.min())], tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])


def pipeline(run: RunView, timeline: Timeline) -> go.Figure:
    """Pipeline: a lane per engine and core, coloured by segment."""
    lanes = [(core, engine) for core in range(timeline.cores) for engine in list(Engine)[: Engine.SCALAR] if _works(timeline, core, engine)]
    chart = figure("cycles", "", 90 + 34 * max(4, len(lanes)))
    gap = max(1, timeline.cycles // _PIXELS)
    parts: dict[int, tuple[list[float | None], list[str | None], list[str | None]]] = {}
    names = [engine.name if timeline.cores == 1 else f"{core}: {engine.name}" for core, engine in lanes]
    # one scatter per colour, with gaps: few traces for any number of bars
    for (core, engine), lane in zip(lanes, names, strict=True):
        rows = timeline.queues[core * ENGINES + engine]
        rows = rows[timeline.work[rows]]
        for start, end, segment, first, last in _bars(timeline, rows[np.argsort(timeline.start[rows], kind="stable")], gap):
            x, y, text = parts.setdefault(segment % 8, ([], [], []))
            x += [start, end, None]
            y += [lane, lane, None]
            text += [f"segment {segment}: {cell_text(run.operators(first, last))}"] * 2 + [None]
    for shade, (x, y, text) in sorted(parts.items()):
        chart.add_scatter(
            x=x, y=y, text=text, mode="lines", line={"width": 18, "color": color(shade)}, showlegend=False,
            hovertemplate="%{text}<br>cycle %{x:,}<extra>%{y}</extra>",
        )  # fmt: skip
    chart.update_yaxes(categoryorder="array", categoryarray=names[::-1], showgrid=False)
    chart.update_layout(hovermode="closest")
    return chart


def _works(timeline: Timeline, core: int, engine: int) -> bool:
    return bool(timeline.work[timeline.queues[core * ENGINES + engine]].any())


def _bars(timeline: Timeline, rows: NDArray[np.int64], gap: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Bars (start, end, segment, first and last operator); close neighbours of one segment are merged."""
    start, end, segment, operator = timeline.start[rows], timeline.end[rows], timeline.segment[rows], timeline.operator[rows]
    new = np.flatnonzero(np.concatenate(([True], (segment[1:] != segment[:-1]) | (start[1:] - end[:-1] > gap))))
    first, last = np.minimum.reduceat(operator, new), np.maximum.reduceat(operator, new)
    close = np.maximum.reduceat(end, new)
    yield from zip(start[new].tolist(), close.tolist(), segment[new].tolist(), first.tolist(), last.tolist(), strict=True)


def engine_shares(timeline: Timeline) -> go.Figure:
    """Time of every engine: work, waits by cause, and idle after its last work."""
    stalls = timeline.stalls
    lanes = [(core, engine) for core in range(timeline.cores) for engine in list(Engine)[: Engine.SCALAR] if _works(timeline, core, engine)]
    names = [engine.name if timeline.cores == 1 else f"{core}: {engine.name}" for core, engine in lanes]
    shares: dict[str, list[float]] = {name: [] for name in CAUSES}
    for core, engine in lanes:
        rows = timeline.queues[core * ENGINES + engine]
        rows = rows[timeline.work[rows]]
        begin, end = merge_intervals(timeline.start[rows], timeline.end[rows])
        spent_cycles = {"work": int((end - begin).sum())}
        engine_stalls = (stalls.core == core) & (stalls.engine == engine)
        for cause in Cause:
            part = engine_stalls & (stalls.cause == cause)
            spent_cycles[cause.name] = int((stalls.end[part] - stalls.start[part]).sum())
        spent_cycles["done"] = max(0, timeline.cycles - sum(spent_cycles.values()))
        for name, cycles in spent_cycles.items():
            shares[name].append(cycles / max(1, timeline.cycles))
    chart = figure("share of the run", "", 110 + 34 * max(4, len(lanes)))
    label = {
        "FLAG": "waits for another engine",
        "LATENCY": "DDR latency",
        "ISSUE": "not issued yet",
        "QUEUE": "issue stuck at a full queue",
    }
    for name, values in shares.items():
        chart.add_bar(
            y=names, x=values, name=label.get(name, name), orientation="h", marker={"color": CAUSES[name], "line": {"width": 0}},
            hovertemplate="%{x:.1%}<extra>%{y}</extra>",
        )  # fmt: skip
    chart.update_layout(barmode="stack", bargap=0.25, legend_traceorder="normal")
    chart.update_xaxes(tickformat=".0%", range=[0, 1])
    chart.update_yaxes(categoryorder="array", categoryarray=names[::-1], showgrid=False)
    return chart


def occupancy(timeline: Timeline) -> go.Figure:
    """Bytes in use of every on-chip memory of core 0, and of the shared memory, relative to the size: a lane for each."""
    lanes = [(memory.name, steps) for memory, steps in bytes_in_use(timeline, 0).items() if len(steps.cycle)]
    shared_use = shared_in_use(timeline)
    if shared_use is not None and len(shared_use.cycle):
        lanes.append((Memory.SHARED.name, shared_use))
    chart = figure("cycles", "", 100 + 90 * len(lanes))
    axis, sizes = (
        chart.layout.yaxis.to_plotly_json() | {"title": None},
        {m.name: n * BLOCK_BYTES for m, n in timeline.machine.buffers_blocks.items()},
    )
    # plotly has no lanes: each is an axis of its own over a part of the height
    for i, (name, steps) in enumerate(lanes):
        points, limit, number = limit_points(steps, _STEPS), sizes[name], str(i + 1) if i else ""
        bottom, top = 1 - (i + 0.9) / len(lanes), 1 - (i + 0.25) / len(lanes)
        chart.layout[f"yaxis{number}"] = axis | {
            "domain": [bottom, top], "range": [0, 1.02], "tickvals": [0, 0.5, 1], "tickformat": ".0%", "fixedrange": True,
        }  # fmt: skip
        chart.add_scatter(
            x=points.cycle, y=points.value / limit, customdata=points.value, yaxis=f"y{number}", fill="tozeroy",
            line={"shape": "hv", "width": 1, "color": color(i)}, showlegend=False,
            hovertemplate="%{customdata:,} B, %{y:.0%}<extra>" + name + "</extra>",
        )  # fmt: skip
        chart.add_annotation(
            x=0, xref="paper", xanchor="left", y=top, yref="paper", yanchor="bottom", showarrow=False,
            text=f"{name}: at most {int(steps.value.max()):,} of {limit:,} B",
        )  # fmt: skip
        chart.add_shape(
            type="line", xref="paper", x0=0, x1=1, yref=f"y{number}", y0=1, y1=1, line={"color": MUTED, "dash": "dot", "width": 1}
        )
        chart.update_xaxes(anchor=f"y{number}")  # below the last lane
    return chart


def bandwidth(timeline: Timeline) -> go.Figure:
    """DDR bytes per cycle read and written, averaged over small intervals of the run."""
    chart = figure("cycles", "bytes per cycle", 300)
    use = ddr_use(timeline)
    edges = np.linspace(0, max(1, timeline.cycles), 400)
    for i, (name, steps) in enumerate((("read", use.read), ("write", use.write))):
        if len(steps.cycle):
            total = np.concatenate(([0.0], np.cumsum(np.diff(steps.cycle) * steps.value[:-1])))
            moved = np.interp(edges, steps.cycle, total)
            chart.add_scatter(
                x=edges[1:], y=np.diff(moved) / np.diff(edges), name=name, stackgroup="ddr", line={"width": 0.5, "color": color(i)},
                hovertemplate="%{y:.1f} B/cycle<extra>" + name + "</extra>",
            )  # fmt: skip
    available = float(timeline.machine.ddr.deliverable) * timeline.level.share
    chart.add_hline(
        y=available, line={"color": MUTED, "dash": "dot", "width": 1}, annotation={"text": f"{available:g} B/cycle left at this level"}
    )
    return chart


def roofline(run: RunView, level: str, timeline: Timeline) -> go.Figure:
    """Roofline: multiply-adds per DDR byte of each segment against multiply-adds per cycle of its own time.

    Each data type of products has its own roofs.
    """
    products = np.unique(timeline.code[np.isin(timeline.code[:, isa.OP], isa.PRODUCT_OPS), isa.DTYPE]).tolist()
    peaks = {
        dtype.name: float(timeline.machine.macs_per_cycle[dtype.name]) * timeline.cores
        for dtype in {DataType(code).product for code in products}
    }
    peak = max(peaks.values(), default=0.0)
    available = float(timeline.machine.ddr.deliverable) * timeline.level.share
    points = [s for s in run.segments(level, timeline) if s.macs and s.own_cycles and s.ddr_read_bytes + s.ddr_write_bytes]
    chart = figure("multiply-adds that the model needs, per DDR byte", "multiply-adds per cycle", 460)
    if not points:
        return chart
    work = np.array([s.needed_macs if s.needed_macs is not None else s.macs for s in points], np.float64)
    per_byte = work / np.array([s.ddr_read_bytes + s.ddr_write_bytes for s in points])
    rate = work / np.array([s.own_cycles for s in points])
    names = [cell_text(run.operators(s.first, s.last)) for s in points]
    text = [f"segment {s.segment}: {name}<br>{s.own_cycles:,} cycles, bound by {s.bound}" for s, name in zip(points, names, strict=True)]
    size = 7 + 26 * np.sqrt(np.array([s.own_cycles for s in points]) / max(1, timeline.cycles))
    bounds = sorted({s.bound or "" for s in points})
    for i, bound in enumerate(bounds):
        rows = [k for k, s in enumerate(points) if (s.bound or "") == bound]
        chart.add_scatter(
            x=per_byte[rows], y=rate[rows], text=[text[k] for k in rows], name=f"bound by {bound}", mode="markers",
            marker={"size": size[rows], "color": color(i), "opacity": 0.75}, hovertemplate="%{text}<br>%{y:,.0f} MACs/cycle<extra></extra>",
        )  # fmt: skip
    # roofs: the level's bandwidth, and all of it
    low, high = min(per_byte.min(), peak / available) / 2, max(per_byte.max(), peak / available) * 2
    x = np.geomspace(low, high, 60)
    for dtype, type_peak in sorted(peaks.items(), key=lambda item: -item[1]):
        note = f", {dtype}" if len(peaks) > 1 else ""
        chart.add_scatter(
            x=x, y=np.minimum(type_peak, x * available), mode="lines", line={"color": INK, "width": 1.5}, name=f"roof at this level{note}",
            hoverinfo="skip",
        )  # fmt: skip
        full = np.minimum(type_peak, x * float(timeline.machine.ddr.deliverable))
        chart.add_scatter(
            x=x, y=full, mode="lines", line={"color": MUTED, "dash": "dot", "width": 1}, name=f"roof with all bandwidth{note}",
            hoverinfo="skip",
        )  # fmt: skip
    chart.update_xaxes(log_axis(low, high))
    chart.update_yaxes(log_axis(min(float(rate.min()), low * available) / 1.5, peak * 1.5))
    return chart
