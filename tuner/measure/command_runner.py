"""Runner that runs a command: the example of a runner, and sufficient for most boards.

The call is `COMMAND... CONTAINER LEVEL`, with the path of the container and the name of the level.  A command that supports grants gets one
more argument, the grant of the level as JSON: `{"l1_bytes": 524288, "shared_bytes": 0, "cores": 1}`.  The last line of its
output is a JSON object: `{"cycles": 12345}` or `{"seconds": 1.2e-5}`, optionally with `"board"` and `"firmware"`.  It runs in a process
group of its own, which is killed when its output is complete or too long, after the timeout, and when this process dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tuner.measure.runner_api import Encoded, Reading

MOST_BYTES = 1 << 16  # limit of the output
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass
class CommandRunner:
    """Runner of a command.  words: words of the command.  timeout_s: limit of one call.  grants: whether it supports grants."""

    words: tuple[str, ...]
    timeout_s: float = 10.0
    grants: bool = False
    _board: tuple[str, str] | None = field(default=None, init=False)

    def board(self) -> tuple[str, str] | None:
        """Board and firmware of the last output; `unknown` if only one of them is given."""
        return self._board

    def __call__(self, program: Encoded, level: str) -> Reading:
        with tempfile.TemporaryDirectory(prefix="tilefarm-runner-") as room:
            container = Path(room) / "program.tfnpu"
            container.write_bytes(program.container)
            try:
                granted = [json.dumps(program.granted(level)._asdict())] if self.grants else []
                process = run([*self.words, str(container), level, *granted], self.timeout_s)
            except OSError as error:
                return Reading(None, "crash", f"{self.words[0]}: cannot be started: {error.strerror or error}")
        reading = parse_reading(process, program, self.timeout_s)
        if reading.cycles is not None:
            answer = json.loads(_last_line(process.out))
            texts = [str(answer.get(key) or "") for key in ("board", "firmware")]
            self._board = (texts[0] or "unknown", texts[1] or "unknown") if any(texts) else None
        return reading


class Ended(NamedTuple):
    """End of a command.  code: exit code; None if it was killed.  too_much: whether its output was too long."""

    code: int | None
    out: str
    err: str
    too_much: bool


def run(words: Sequence[str], timeout_s: float) -> Ended:
    """Run a command to its end, to the timeout or to the limit of output, then kill its process group.  Raises OSError if it cannot be
    started."""
    end_s = time.monotonic() + timeout_s
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=_die_with_me
    )
    assert process.stdout is not None
    assert process.stderr is not None
    texts = {process.stdout: bytearray(), process.stderr: bytearray()}
    try:
        with selectors.DefaultSelector() as selector:
            for pipe in texts:
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map() and (left_s := end_s - time.monotonic()) > 0:
                has_ended = process.poll() is not None  # processes that it started may keep the pipes open
                ready = selector.select(0 if has_ended else min(left_s, 0.05))
                if has_ended and not ready:
                    break
                for key, _ in ready:
                    source: Any = key.fileobj
                    data = source.read(MOST_BYTES)
                    if not data:
                        selector.unregister(source)
                    texts[source] += data or b""
                if any(len(text) > MOST_BYTES for text in texts.values()):
                    break
        too_much = any(len(text) > MOST_BYTES for text in texts.values())
        if not too_much and (left_s := end_s - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(left_s)  # the process closed its output, but may still run
        code = process.poll()
    finally:
        _kill_group(process)
    out, err = (bytes(text).decode("utf-8", "replace") for text in texts.values())
    return Ended(code, out, err, too_much)


def parse_reading(process: Ended, program: Encoded, timeout_s: float) -> Reading:
    """Reading out of a command's end."""
    last = _last_line(process.err) or _last_line(process.out)
    if process.too_much:
        return Reading(None, "invalid", f"more than {MOST_BYTES:,} bytes of output: {_last_line(process.out)[:100] or last[:100]}")
    if process.code is None:
        return Reading(None, "timeout", f"no end within {timeout_s:g} s" + (f": {last}" if last else ""))
    if process.code:
        ending = f"killed by {signal.Signals(-process.code).name}" if process.code < 0 else f"ended with {process.code}"
        return Reading(None, "crash", ending + (f": {last}" if last else ""))
    line = _last_line(process.out)
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or len(answer.keys() & {"cycles", "seconds"}) != 1:
        return Reading(None, "invalid", f'the last line is {line[:200]!r}, expected {{"cycles": N}} or {{"seconds": S}}')
    if "cycles" in answer:
        cycles = answer["cycles"]
        if isinstance(cycles, int) and not isinstance(cycles, bool) and 0 < cycles < 1 << 62:
            return Reading(cycles)
        return Reading(None, "invalid", f"cycles {cycles!r}, expected a whole number above 0")
    seconds = answer["seconds"]
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds) and 0 < seconds < 1e6:
        return Reading.of_seconds(float(seconds), program.machine)
    return Reading(None, "invalid", f"seconds {seconds!r}, expected a number above 0")


def _last_line(text: str) -> str:
    """The last line with something in it."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _die_with_me() -> None:
    """Child only: get SIGKILL when the parent's thread ends, in any way."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
