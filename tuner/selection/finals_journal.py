"""Journal of a board's readings in the finals, so that a resumed session does not repeat them.

A line per turn, in the order of the race: with equal answers the race requests the same turns again, up to the interruption.  The first
line names the finalists; for other finalists (a resumed run found better ones) the journal begins anew.  No fsync: data passed to the
kernel outlive the process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from simulator.npu.errors import BadInputError
from tuner.platform.files import AnyPath
from tuner.selection.race import Turn

FILE = "finals.jsonl"
VERSION = 2


class Readings:
    """Journal.  folder: folder of the search's checkpoints.  plans: digests of the programs, by number in a turn.  limit: readings of the
    finals."""

    def __init__(self, folder: AnyPath, plans: Sequence[str], limit: int | None = None) -> None:
        self.path = folder / FILE
        self._head = json.dumps({"version": VERSION, "plans": list(plans), "most": limit}).encode() + b"\n"
        self._end = 0  # bytes that count
        self._recorded = self._load()

    def measured(self, turns: Sequence[Turn], measure: Callable[[Sequence[Turn]], Iterator[list[int]]]) -> Iterator[list[int]]:
        """Cycles of every turn: recorded ones, then those from `measure`, each recorded before it is yielded."""
        recorded, self._recorded = self._recorded[: len(turns)], self._recorded[len(turns) :]
        yield from recorded
        unread = turns[len(recorded) :]
        for turn, cycles in zip(unread, measure(unread), strict=True):
            self._write(json.dumps([turn.level, turn.programs, cycles]).encode() + b"\n")
            yield cycles

    def forget(self) -> None:
        """Delete the readings: they decided nothing."""
        self.path.remove()

    def _load(self) -> list[list[int]]:
        data = self.path.read_bytes() if self.path.is_file() else b""
        if not data.startswith(self._head):
            self._write(self._head)
            return []
        complete = data[: data.rfind(b"\n") + 1]  # the last line may not be
        self._end = len(complete)
        self._write(b"")
        return [json.loads(line)[2] for line in complete.splitlines()[1:]]

    def _write(self, data: bytes) -> None:
        """Write behind the valid bytes, over incomplete ones."""
        try:
            self.path.put([data], self._end)
        except OSError as error:
            raise BadInputError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        self._end += len(data)
