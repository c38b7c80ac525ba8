"""Copies and operations of a network in the order of its stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from compiler.ethosu.cascade import LoadRows, RunRows, SaveRows
from compiler.ethosu.segment_layout import SegmentLayout


class FetchWeights(NamedTuple):
    """A copy of a blob of a step's weights, by its number, to SRAM."""

    step: int
    blob: int


class RunBlob(NamedTuple):
    """An operation: a step for rows [first, last) of its result, with the channels of one blob of its weights."""

    step: int
    first: int
    last: int
    blob: int = 0


Event = LoadRows | SaveRows | FetchWeights | RunBlob


def segment_events(layout: SegmentLayout) -> Iterator[Event]:
    """Events of a segment.  The first weights of a step are copied in front of the operation before it, others beside its own."""
    runs = [action for action in layout.actions if isinstance(action, RunRows)]
    begun, fetched = 0, set[int]()
    for action in layout.actions:
        if not isinstance(action, RunRows):
            yield action
            continue
        for coming in runs[begun : begun + 2]:
            if coming.step not in fetched:
                fetched.add(coming.step)
                yield from _fetch(layout, coming.step, 0)
        begun += 1
        weights = layout.weights.get(action.step)
        for index in range(len(weights.blobs) if weights else 1):
            yield from _fetch(layout, action.step, index + 1)
            yield RunBlob(*action, index)


def _fetch(layout: SegmentLayout, step: int, index: int) -> Iterator[FetchWeights]:
    weights = layout.weights.get(step)
    if weights and index < len(weights.blobs) and weights.copied[index]:
        yield FetchWeights(step, index)
