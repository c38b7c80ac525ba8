"""Figure of merit in all tables and pages: speed-up over the baseline."""

from __future__ import annotations


def speedup(times: float | None, digits: int = 2) -> str:
    """`1.98x`; empty where there is no baseline yet."""
    return "" if times is None else f"{times:.{digits}f}x"
