"""What a person is told of who said what to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Proposer = Literal["estimate", "prior", "older", "new"]  # the model that a run began with, the one in use, the one just trained
WHO: Mapping[Proposer, str] = {
    "estimate": "the built-in estimate",
    "prior": "the model that the run began with",
    "older": "this run's earlier model",
    "new": "this run's new model",
}


def judgement(segments: int, chosen: Proposer, pairs: Mapping[Proposer, float]) -> str:
    """Who proposes after so many segments, and why.  pairs: of those that were compared, the share in the right order."""
    others = ", ".join(f"{WHO[who]} {right:.1%}" for who, right in pairs.items() if who != chosen)
    return f"after {segments:,} segments {WHO[chosen]} proposes: {pairs[chosen]:.1%} of unseen pairs in order; {others}"


def proposer_sentence(summary: Mapping[str, Any]) -> str:
    """Of a run's summary: who began, and who came out first in the last judgement; of several searches the one with most segments."""
    searches: dict[str, list[Mapping[str, Any]]] = {}
    for each in summary.get("proposers", ()):
        searches.setdefault(each["search"], []).append(each)
    if not searches:
        return ""
    rows: Sequence[Mapping[str, Any]] = max(searches.values(), key=lambda mine: mine[-1]["segments"])
    first, last = rows[0], rows[-1]
    began = f"What to measure was said by {WHO[first['chosen']]}"
    if len(rows) == 1:
        return f"{began}."
    times = "once" if len(rows) == 2 else f"{len(rows) - 1} times"
    return f"{began} first, and was judged {times}; {judgement(last['segments'], last['chosen'], last['pairs'])}."
