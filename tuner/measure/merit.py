"""The figure of merit, the same in every table, line and page: how many times faster than the baseline."""

from __future__ import annotations


def speedup(times: float | None, digits: int = 2) -> str:
    """`1.98x`; empty where there is no baseline yet."""
    return "" if times is None else f"{times:.{digits}f}x"
