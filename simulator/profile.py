"""Profile of a session as Chrome trace events: the host's nodes by the wall clock, the NPU's programs by simulated time.

Both use one clock, which starts at 0 with the first run.  A stage of the host advances it by its wall time, a program by its simulated
cycles at the level's share.  The wall time of simulation does not count."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.trace_json import CLOSING, event_line, meta, opening

_PROCESS, _RUNS, _HOST, _NPU = 1, 1, 2, 3
_LANES = {_RUNS: "runs", _HOST: "host, wall time", _NPU: "NPU, simulated time"}


@dataclass
class Profile:
    """Events of one session, from its start on.  prefix: prefix of the file's name, see onnxruntime's `profile_file_prefix`."""

    prefix: str
    about: Mapping[str, Any]
    now_ns: int = 0
    runs: int = 0
    lines: list[str] = field(default_factory=list)
    began_ns: int = field(default_factory=time.time_ns)

    def host(self, nodes: list[str], took_ns: int) -> None:
        """Add nodes that the host ran, by name."""
        name = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
        self._add(_HOST, "host", name, self.now_ns, took_ns, {"run": self.runs, "nodes": nodes})
        self.now_ns += took_ns

    def program(self, piece: str, took_ns: int, args: Mapping[str, Any]) -> None:
        """Add a program of the NPU."""
        self._add(_NPU, "npu", piece, self.now_ns, took_ns, {"run": self.runs, **args})
        self.now_ns += took_ns

    def run(self, begin_ns: int, level: str) -> None:
        """Add a run that began at `begin_ns` of this clock and has ended."""
        self._add(_RUNS, "run", f"run {self.runs}", begin_ns, self.now_ns - begin_ns, {"run": self.runs, "level": level})
        self.runs += 1

    def _add(self, lane: int, category: str, name: str, begin_ns: int, took_ns: int, args: Mapping[str, Any]) -> None:
        self.lines.append(
            event_line(ph="X", cat=category, pid=_PROCESS, tid=lane, ts=begin_ns / 1000, dur=took_ns / 1000, name=name, args=dict(args))
        )

    def write(self) -> str:
        """Write `<prefix>_<time>.json`, in the current folder unless the prefix has another, never over an old file; returns the path."""
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.gmtime(self.began_ns // 10**9))
        names = [meta("process_name", _PROCESS, 0, {"name": "session"})]
        names += [meta("thread_name", _PROCESS, lane, {"name": name}) for lane, name in _LANES.items()]
        text = opening({**self.about, "runs": self.runs}) + ",\n".join([*names, *self.lines]).encode() + CLOSING
        number = 0
        while True:
            path = f"{self.prefix}_{stamp}{f'_{number}' if number else ''}.json"
            try:
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as sink:
                    sink.write(text)
                return path
            except FileExistsError:
                number += 1
