"""Ratio of programs to the bound of docs/bounds.md, for console and report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TERMS = ("engines", "prefetch", "traffic")
BOUND_COLUMNS = ("<level", "bound", "over bound", "<by", *_TERMS, "DDR")


def bound_rows(levels: Mapping[str, Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Rows of `BOUND_COLUMNS` from a summary's levels: bound / roofline, and DDR bytes / bytes that every program moves."""
    rows = []
    for name, row in levels.items():
        bound = row["bound"]
        ratios = [f"{bound[term] / row['roofline_cycles']:.3f}" for term in _TERMS]
        moved = f"{row['ddr_bytes'] / bound['ddr_bytes']:.2f}"
        rows.append((name, bound["cycles"], f"{row['cycles'] / bound['cycles']:.3f}", max(_TERMS, key=bound.__getitem__), *ratios, moved))
    return rows
