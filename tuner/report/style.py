"""Look of figures and pages: one palette, one template."""

from __future__ import annotations

import math

import plotly.graph_objects as go

INK, MUTED, RULE = "#1d2433", "#667085", "#e4e7ec"
# Okabe and Ito's colours, which readers with any colour vision can tell apart (https://jfly.uni-koeln.de/color/)
PALETTE = ("#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d1f", "#444b5a")
IDLE = "#eef1f5"
CAUSES = {"work": "#0072b2", "FLAG": "#d55e00", "LATENCY": "#e69f00", "ISSUE": "#cc79a7", "QUEUE": "#56b4e9", "done": IDLE}
# colours in dark mode; no value is also a key, since the page replaces one after the other
DARK = {INK: "#e6e9ef", MUTED: "#98a2b3", RULE: "#333b4a", IDLE: "#2a303c", PALETTE[0]: "#3592d3", PALETTE[-1]: "#a9b1c0"}
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'


def figure(x_title: str, y_title: str, height: int = 400) -> go.Figure:
    """Figure without data, with titled axes."""
    axis = {"gridcolor": RULE, "linecolor": MUTED, "zeroline": False, "ticks": "outside", "tickcolor": RULE}
    return go.Figure(
        layout={
            "height": height,
            "margin": {"l": 70, "r": 48, "t": 20, "b": 55},
            "font": {"family": FONT, "size": 13, "color": INK},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(PALETTE),
            "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
            "hoverlabel": {"font": {"family": FONT}},
            "modebar": {"orientation": "v", "bgcolor": "rgba(0,0,0,0)", "color": MUTED, "activecolor": INK},
            "xaxis": {**axis, "title": {"text": x_title}},
            "yaxis": {**axis, "title": {"text": y_title}},
        }
    )


def log_axis(low: float, high: float) -> dict[str, object]:
    """Logarithmic axis over low .. high (above 0), labelled at decades, and at 2 and 5 of each if these are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    edge = 0.03 * max(math.log10(high / low), 0.1)
    return {
        "type": "log",
        "range": [math.log10(low) - edge, math.log10(high) + edge],
        "tickvals": ticks,
        "ticktext": [f"{tick / 1000:,g}k" if tick >= 10_000 else f"{tick:g}" for tick in ticks],
    }


def color(index: int) -> str:
    return PALETTE[index % len(PALETTE)]
