"""What this process measures at the moment, where the next one finds it if this one dies.

The serial backend has nobody to see it die.  Every line of the file is an ask in the midst of which a session ended; that of the session
that runs is the last one, and there only while it measures.  No fsync: what was handed to the kernel outlives the process, and a computer
that goes down says nothing of the ask.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self

from compiler.space.gene import Gene, gene_values
from simulator.npu.errors import BadInputError
from tuner.evaluate import Ask
from tuner.farm.backend import DEATHS_ALONE, DIED
from tuner.search.jobs import Culprit

FILE = "attempts.jsonl"
INTERRUPTED = "gave no answer until it was interrupted"
Status = Literal["crash", "timeout"]


class Attempts:
    """folder: of the search's checkpoints.  timeout_s: an ask that the user interrupts after so long hangs.

    culprits: asks in the midst of which `DEATHS_ALONE` sessions ended: the first may have been ended by somebody else.
    """

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self.path, self._timeout_s = folder / FILE, timeout_s
        with self._written():
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            earlier = self.path.read_bytes()
        self._end = earlier.rfind(b"\n") + 1  # what is behind it was not written whole
        self.culprits = tuple(_culprits(earlier[: self._end].splitlines()))
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    @contextmanager
    def at(self, ask: Ask) -> Iterator[None]:
        """While it is measured."""
        begun = time.monotonic()
        self._note("crash", ask)
        try:
            yield
        except KeyboardInterrupt:
            if time.monotonic() - begun < self._timeout_s:
                self._leave()
            else:
                self._note("timeout", ask)
            raise
        self._leave()

    def _note(self, status: Status, ask: Ask) -> None:
        with self._written():
            os.pwrite(self._file, json.dumps([status, *ask]).encode() + b"\n", self._end)

    def _leave(self) -> None:
        with self._written():
            os.ftruncate(self._file, self._end)

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BadInputError(f"{self.path}: cannot be written: {error.strerror or error}") from None


def _culprits(lines: Iterable[bytes]) -> Iterator[tuple[Ask, Culprit]]:
    ends: dict[Ask, list[Status]] = {}
    for line in lines:
        try:
            status, kind, genome, measure = json.loads(line)
            ends.setdefault(Ask(kind, tuple(Gene._make(gene_values(gene)) for gene in genome), measure), []).append(status)
        except (ValueError, TypeError):  # of a version whose genes were others: it names nothing that could be asked
            continue
    for ask, found in ends.items():
        if len(found) >= DEATHS_ALONE:
            timeout = found[-1] == "timeout"
            yield ask, Culprit("timeout" if timeout else "crash", INTERRUPTED if timeout else DIED, len(found) - 1)
