"""Figure of merit in all tables and pages: speed-up over the baseline."""

from __future__ import annotations


def speedup(times: float | None, digits: int = 2) -> str:
    """Speed-up as text, `1.98x`; '' without a baseline."""
    return "" if times is None else f"{times:.{digits}f}x"
