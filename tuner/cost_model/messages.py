"""Messages about the proposers of measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Proposer = Literal["estimate", "prior", "older", "new"]  # prior: the run's initial model; older: in use; new: just trained
WHO: Mapping[Proposer, str] = {
    "estimate": "the built-in estimate",
    "prior": "the model that the run began with",
    "older": "this run's earlier model",
    "new": "this run's new model",
}


def judgement(segments: int, chosen: Proposer, pairs: Mapping[Proposer, float]) -> str:
    """Line about the proposer after `segments` segments, and the reason.  pairs: share of pairs in the right order, of all compared."""
    comparison = ", ".join(f"{WHO[proposer]} {right:.1%}" for proposer, right in pairs.items() if proposer != chosen)
    return f"after {segments:,} segments {WHO[chosen]} proposes: {pairs[chosen]:.1%} of unseen pairs in order; {comparison}"


def proposer_sentence(summary: Mapping[str, Any]) -> str:
    """Sentence for a run's summary: the first proposer and the last judgement; of several searches the one with the most segments."""
    searches: dict[str, list[Mapping[str, Any]]] = {}
    for row in summary.get("proposers", ()):
        searches.setdefault(row["search"], []).append(row)
    if not searches:
        return ""
    rows: Sequence[Mapping[str, Any]] = max(searches.values(), key=lambda history: history[-1]["segments"])
    first, last = rows[0], rows[-1]
    opening = f"What to measure was said by {WHO[first['chosen']]}"
    if len(rows) == 1:
        return f"{opening}."
    times = "once" if len(rows) == 2 else f"{len(rows) - 1} times"
    return f"{opening} first, and was judged {times}; {judgement(last['segments'], last['chosen'], last['pairs'])}."
