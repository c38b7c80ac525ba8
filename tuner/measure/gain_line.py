"""Line on the gain of a search, for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SATURATED = "saturated"


def describe_gain(summary: Mapping[str, Any]) -> str:
    """Sentence on what the search brought, whether it is saturated, and what more would bring; '' in summaries of earlier programs."""
    search = summary.get("search_gain")
    if search is None:
        return ""
    brought = f"Search: {summary['candidates']:,} programs saved {search['gain']:.1%} of the cycles of the first ones"
    if search["expected"] is None:
        return f"{brought}; too few to say what twice as many would save."
    state = SATURATED if search["saturated"] else f"not {SATURATED}"
    return f"{brought}; {state}: twice as many are expected to save another {search['expected']:.2%}."
