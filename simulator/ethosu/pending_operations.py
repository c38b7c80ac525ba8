"""Copies and operations that may still run: a stream that reads or writes bytes of other_span has to wait first.

Copies run in order among each other, and so do operations; a copy and an operation have no order without NPU_OP_DMA_WAIT or
NPU_OP_KERNEL_WAIT.  At most two of each are pending; the start of another one waits for the oldest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simulator.ethosu.memory_regions import Span
from simulator.ethosu.stream_error import StreamError

PENDING = 2
WAITS = {"copy": "NPU_OP_DMA_WAIT", "operation": "NPU_OP_KERNEL_WAIT"}


class Accesses(NamedTuple):
    """Bytes that a command of a stream reads and writes."""

    word: int
    name: str
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]


class PendingOperations:
    """Copies and operations that may still run, by kind, oldest first."""

    def __init__(self) -> None:
        self.pending: dict[str, list[Accesses]] = {"copy": [], "operation": []}

    def wait(self, kind: str, count: int) -> None:
        """Wait until at most `count` of a kind are pending."""
        queue = self.pending[kind]
        del queue[: max(0, len(queue) - count)]

    def start(self, kind: str, accesses: Accesses) -> None:
        """Begin one; an error where it shares bytes with one of the other kind that may still run, and one of them writes."""
        self.wait(kind, PENDING - 1)
        opposite = "operation" if kind == "copy" else "copy"
        for before in self.pending[opposite]:
            for span in _shared(accesses, before):
                place = f"bytes {span.low} to {span.high} of region {span.region}"
                raise StreamError(
                    f"word {accesses.word}: {accesses.name}: {place} are those of {before.name} in word {before.word}, "
                    f"which may still run: expected {WAITS[opposite]} in between"
                )
        self.pending[kind].append(accesses)


def _shared(accesses: Accesses, before: Accesses) -> Iterator[Span]:
    """Spans that share bytes with those of another one, where one of the two writes."""
    for spans, pending in ((accesses.reads, before.writes), (accesses.writes, before.reads + before.writes)):
        yield from (span for span in spans if any(span.overlaps(busy) for busy in pending))
