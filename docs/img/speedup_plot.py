"""Plot of speed-ups in docs/img: a line for each name, over the line of perfect growth; both axes are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 820, 380, 70, 60, 40
COLOURS = ("#2f6fdb", "#e0a030", "#2f9e6f", "#8e44ad")


def plot_speedups(title: str, lines: Mapping[str, Mapping[int, float]]) -> str:
    """SVG.  lines: name -> number of workers or cores -> speed-up."""
    most = max(count for line in lines.values() for count in line)
    span_x, span_y = WIDTH - LEFT - 16, HEIGHT - TOP - BOTTOM

    def place(count: float, speedup: float) -> str:
        return f"{LEFT + span_x * math.log(count, most):.1f},{TOP + span_y * (1 - math.log(max(speedup, 1.0), most)):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="13"><title>{title}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{title}</text>',
        f'<polyline points="{place(1, 1)} {place(most, most)}" fill="none" stroke="#b8bec9" stroke-dasharray="4 4"/>',
    ]
    for count in sorted({count for line in lines.values() for count in line}):
        x, y = place(count, 1).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 20:.1f}" text-anchor="middle">{count}</text>')
        parts.append(f'<text x="{LEFT - 8}" y="{float(place(1, count).split(",")[1]) + 4:.1f}" text-anchor="end">{count}</text>')
    for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
        points = [place(count, speedup) for count, speedup in line.items()]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = points[-1].split(",")
        parts.append(f'<text x="{x}" y="{float(y) - 8:.1f}" text-anchor="end" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
