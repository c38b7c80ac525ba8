"""Lines on the model that proposes candidates: after a training, and at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Proposer = Literal["estimate", "prior", "older", "new"]
LABELS: Mapping[Proposer, str] = {
    "estimate": "estimate",  # closed form, built in
    "prior": "initial model",  # packaged, or of `--model`
    "older": "previous model",  # trained earlier in this run
    "new": "new model",
}


def describe_judgement(segments: int, winner: Proposer, pairs: Mapping[Proposer, float]) -> str:
    """Line about the chosen model after `segments` measured segments.  pairs: per model, its share of unseen pairs in the right order."""
    rivals = ", ".join(f"{LABELS[proposer]} {share:.1%}" for proposer, share in pairs.items() if proposer != winner)
    return f"after {segments:,} segments the {LABELS[winner]} proposes candidates: {pairs[winner]:.1%} of unseen pairs in order ({rivals})"


def describe_proposers(summary: Mapping[str, Any]) -> str:
    """Sentence on the cost models of a run, '' without any; for several searches, the cost model of the search with most segments."""
    searches: dict[str, list[Mapping[str, Any]]] = {}
    for judgement in summary.get("proposers", ()):
        searches.setdefault(judgement["search"], []).append(judgement)
    if not searches:
        return ""
    judgements: Sequence[Mapping[str, Any]] = max(searches.values(), key=lambda judgements: judgements[-1]["segments"])
    trainings, last = len(judgements) - 1, judgements[-1]
    if not trainings:
        return f"Cost model: the {LABELS[last['chosen']]} proposes candidates; not retrained."
    times = "once" if trainings == 1 else f"{trainings} times"
    return f"Cost model: retrained {times}; {describe_judgement(last['segments'], last['chosen'], last['pairs'])}."
