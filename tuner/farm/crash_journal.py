"""Journal of the request that is being measured, for the next process if this one crashes.

In the serial backend no other process sees a crash.  Every line of the file is a request during which a session ended.  The last line is
the request of the running session, and is there only while it measures.  No fsync: data passed to the kernel outlive the process, and a
crash of the computer is not the request's fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from compiler.space.gene import Gene, gene_values
from simulator.npu.errors import BadInputError
from tuner.farm.actions import DEATHS_ALONE, DIED
from tuner.farm.jobs import FailingItem
from tuner.measure.request import Request
from tuner.platform.files import AnyPath
from tuner.platform.interfaces import Clock

FILE = "attempts.jsonl"
INTERRUPTED = "gave no answer until it was interrupted"
Status = Literal["crash", "timeout"]


class Attempts:
    """Journal.  folder: folder of the search's checkpoints.  timeout_s: age from which an interrupted request counts as hanging.

    failing: requests during which `DEATHS_ALONE` sessions ended: the first one may have been killed from outside.
    """

    def __init__(self, folder: AnyPath, clock: Clock, timeout_s: float) -> None:
        self.path, self._clock, self._timeout_s = folder / FILE, clock, timeout_s
        with self._write_entry():
            earlier = self.path.read_bytes() if self.path.is_file() else b""
        self._end = earlier.rfind(b"\n") + 1  # bytes behind it are an incomplete line
        self.failing = tuple(failing_items(earlier[: self._end].splitlines()))
        self._leave()

    @contextmanager
    def at(self, request: Request) -> Iterator[None]:
        """While it is measured."""
        begin_s = self._clock.monotonic_s()
        self._note("crash", request)
        try:
            yield
        except KeyboardInterrupt:
            if self._clock.monotonic_s() - begin_s < self._timeout_s:
                self._leave()
            else:
                self._note("timeout", request)
            raise
        self._leave()

    def _note(self, status: Status, request: Request) -> None:
        with self._write_entry():
            self.path.put([json.dumps([status, request.kind, request.genome, request.measure]).encode(), b"\n"], self._end)

    def _leave(self) -> None:
        with self._write_entry():
            self.path.put([], self._end)

    @contextmanager
    def _write_entry(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BadInputError(f"{self.path}: cannot be written: {error.strerror or error}") from None


def failing_items(lines: Iterable[bytes]) -> Iterator[tuple[Request, FailingItem]]:
    outcomes: dict[Request, list[Status]] = {}
    for line in lines:
        try:
            status, kind, genome, measure = json.loads(line)
            outcomes.setdefault(Request(kind, tuple(Gene._make(gene_values(gene)) for gene in genome), measure), []).append(status)
        except (ValueError, TypeError):  # from a version with other genes: it matches no request of this version
            continue
    for request, statuses in outcomes.items():
        if len(statuses) >= DEATHS_ALONE:
            timeout = statuses[-1] == "timeout"
            yield request, FailingItem("timeout" if timeout else "crash", INTERRUPTED if timeout else DIED, len(statuses) - 1)
