"""Watch over the nodes of a Ray cluster that were told to leave: by a spot notice, an autoscaler, or `ray drain-node`."""

from __future__ import annotations

import threading
import time
from math import inf

import ray

ASK_S = 1.0


class DrainWatch:
    """Watch.  leave_times: monotonic time at which a node leaves, by its id; inf without a deadline.

    A thread asks the head, whose answer may never come.  No public function of Ray has the list; its own Train asks the same one.
    """

    def __init__(self) -> None:
        self.leave_times: dict[str, float] = {}
        self._stop = threading.Event()
        threading.Thread(target=self._watch, name="drain-watch", daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(ASK_S) and ray.is_initialized():
            try:
                deadlines = ray._private.state.state.get_draining_nodes()
            except Exception:  # noqa: BLE001  of a head that is gone: `Watch` says so, and no node leaves by its word
                continue
            # by this computer's clock: where clocks differ, a node leaves earlier or later than said, as it may in any case
            left_s = {node: inf if not end_ms else max(0.0, end_ms / 1000 - time.time()) for node, end_ms in deadlines.items()}
            now_s = time.monotonic()
            self.leave_times = {node: self.leave_times.get(node, now_s + seconds) for node, seconds in left_s.items()}
