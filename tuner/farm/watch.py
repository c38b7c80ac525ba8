"""Ends the driver when its cluster is gone, with a line that says so.

Ray ends it too: without a word at the next call that needs the node's raylet, or with its own words when the head does not come back, both
times with the exit code of a check that failed.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from simulator.npu.errors import TilefarmError

WATCH_S = 1.0
CONNECT_S = 3.0
SOONER_S = 1.5  # than Ray, whose patience begins when it next calls the head
MISSES = 2


class FarmError(TilefarmError):
    """The cluster, not the input: it is gone, or workers cannot be kept alive."""

    exit_code = 4


class Watch:
    """head: host:port.  raylet: the Unix socket of this computer's.  patience_s: for a head that is gone, Ray's own.

    A thread of its own: the driver's waits inside Ray.
    """

    def __init__(self, head: str, raylet: str, patience_s: float, say: Callable[[str], None]) -> None:
        host, _, port = head.rpartition(":")
        self._at, self._head, self._patience_s, self._say = (host.strip("[]"), int(port)), head, patience_s, say
        self._raylet = socket.socket(socket.AF_UNIX)
        self._raylet.connect(raylet)  # says nothing, and is closed when the raylet dies
        self._closed = threading.Event()
        self._ending = threading.Lock()
        atexit.register(self.close)  # before Ray's own, which ends the raylet of a local cluster
        threading.Thread(target=self._watch, name="cluster-watch", daemon=True).start()

    def close(self) -> None:
        atexit.unregister(self.close)
        self._closed.set()

    def check(self) -> None:
        """Before a call that Ray does not survive without a raylet; does not return where it is gone."""
        self._look(0.0)

    def _watch(self) -> None:
        misses, gone_s = 0, 0.0
        while not self._closed.is_set():
            self._look(WATCH_S)
            try:
                socket.create_connection(self._at, timeout=CONNECT_S).close()
            except OSError:
                misses += 1
                gone_s = gone_s if misses > 1 else time.monotonic()
                if misses == MISSES:
                    self._say(f"the Ray head at {self._head} is gone; waiting {self._patience_s:g} s for it")
                if misses >= MISSES and time.monotonic() - gone_s >= self._patience_s - SOONER_S:
                    self._end(f"the Ray head at {self._head} did not come back")
            else:
                if misses >= MISSES:
                    self._say(f"the Ray head at {self._head} is back")
                misses = 0
        self._raylet.close()

    def _look(self, patience_s: float) -> None:
        raylet = select.poll()  # one for each call: two threads look, and `select` knows no file beyond the 1024th
        raylet.register(self._raylet, select.POLLIN)
        if raylet.poll(1000 * patience_s):
            self._end("Ray's process on this computer (its raylet) is gone")

    def _end(self, what: str) -> None:
        with self._ending:  # for good: two threads may have seen it
            if self._closed.is_set():
                return
            self._say(f"tilefarm: {what}; --resume continues the run")
            os._exit(FarmError.exit_code)  # Ray's clients hang or end the process where an exception would be cleaned up after
