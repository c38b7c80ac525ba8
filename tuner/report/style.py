"""How figures and page look: one palette, one template."""

from __future__ import annotations

import plotly.graph_objects as go

INK, MUTED, RULE = "#1d2433", "#667085", "#e4e7ec"
# Okabe and Ito's colours, which readers with any colour vision can tell apart (https://jfly.uni-koeln.de/color/)
PALETTE = ("#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d1f", "#444b5a")
CAUSES = {"work": "#0072b2", "FLAG": "#d55e00", "LATENCY": "#e69f00", "ISSUE": "#cc79a7", "QUEUE": "#56b4e9", "done": "#eef1f5"}
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'


def figure(x: str, y: str, height: int = 400) -> go.Figure:
    """An empty figure with titled axes."""
    axis = {"gridcolor": RULE, "linecolor": MUTED, "zeroline": False, "ticks": "outside", "tickcolor": RULE}
    return go.Figure(
        layout={
            "height": height,
            "margin": {"l": 70, "r": 20, "t": 20, "b": 55},
            "font": {"family": FONT, "size": 13, "color": INK},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "colorway": list(PALETTE),
            "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
            "hoverlabel": {"font": {"family": FONT}},
            "modebar": {"orientation": "v"},
            "xaxis": {**axis, "title": {"text": x}},
            "yaxis": {**axis, "title": {"text": y}},
        }
    )


def color(i: int) -> str:
    return PALETTE[i % len(PALETTE)]
