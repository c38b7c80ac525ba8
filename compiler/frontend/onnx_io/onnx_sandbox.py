"""Sandbox for passes of onnx and onnxruntime: they run in a child process that a model may crash.

The libraries trust their model, and folding may produce tensors of any size.  So every process of this project has one child
(`compiler.frontend.onnx_io.onnx_sandbox_child`) with limits of memory and CPU time per request.  It starts before it is needed, restarts
after a crash, and ends when its pipe is closed.

A crash is an error, never a reason to continue with the unchanged model: results would depend on a computer's memory and speed.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from onnx import ModelProto

from compiler.frontend.onnx_io.memory_budget import memory_limit
from simulator.npu.errors import BadInputError

CPU_LIMIT_S = 600  # a second suffices for thousands of nodes
ANSWER_TIMES = 8  # a parsed shape takes that many times its serialised bytes
_DOING = {
    "check": "checking it",
    "convert": "converting its opset",
    "infer": "inferring its shapes",
    "inline": "taking its functions in",
    "evaluate": "folding its constants",
    "create_session": "loading it into onnxruntime",
}
_MAIN = Path(__file__).with_name("onnx_sandbox_child.py")
# one thread each: stacks and arenas of more would count as memory
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


class LibraryError(Exception):
    """Error of a library about a model."""


def check(model: ModelProto, model_bytes: int, where: str) -> None:
    """Run onnx's checker.  model_bytes: size with constants, for the memory limit; here and below.

    Raises `LibraryError` with the library's message, `BadInputError` for a crash or exceeded limits; here and below.
    """
    _PROCESS.ask("check", model, model_bytes, where)


def convert(model: ModelProto, model_bytes: int, where: str, opset: int) -> ModelProto:
    """Run onnx's version converter."""
    return _PROCESS.ask("convert", model, model_bytes, where, opset=opset)


def infer(model: ModelProto, model_bytes: int, where: str, values: bool) -> ModelProto:
    """Run onnx's strict shape inference.  values: also propagate values of vectors (see `memory_budget.can_follow`)."""
    return _PROCESS.ask("infer", model, model_bytes, where, values=values)


def inline(model: ModelProto, model_bytes: int, where: str, operators: Sequence[str]) -> ModelProto:
    """Run onnx's inliner, for functions of the model and some operators of onnx."""
    return _PROCESS.ask("inline", model, model_bytes, where, operators=list(operators))


def evaluate(model: ModelProto, model_bytes: int) -> ModelProto:
    """Run onnx's reference evaluator: outputs of a model without inputs, as initialisers."""
    return _PROCESS.ask("evaluate", model, model_bytes)


def create_session(model: ModelProto, model_bytes: int, where: str) -> None:
    """Create a session of onnxruntime, without optimisations."""
    _PROCESS.ask("create_session", model, model_bytes, where)


def start() -> None:
    """Start the process ahead of the first request."""
    _PROCESS.start()


class _Process:
    """Child process with one request at a time; a forked parent starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.stop)

    def _forget(self) -> None:
        """Drop the parent's child process and lock after a fork: the lock may be held, and answers belong to the parent."""
        self._lock, self._child = threading.Lock(), None

    def start(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self.stop()
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(_MAIN)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT},
            )
        return self._child

    def stop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        child.wait()

    def ask(self, command: str, model: ModelProto, model_bytes: int, where: str = "model", **options: Any) -> ModelProto:
        body = model.SerializeToString()
        limit_bytes = memory_limit(max(model_bytes, len(body)))
        limits = {"limit_bytes": limit_bytes, "cpu_s": CPU_LIMIT_S, "answer_bytes": len(body) + limit_bytes // ANSWER_TIMES}
        head = {"what": command, "size_bytes": len(body), "options": options, **limits}
        with self._lock:
            child = self.start()
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                reply, answer = _exchanged(child.stdin, child.stdout, head, body)
            except (OSError, EOFError):
                code = child.wait()
                self.stop()
                raise BadInputError(f"{where}: {_death(command, code, limit_bytes)}") from None
            except BaseException:
                self.stop()  # half a request, or half an answer
                raise
        if reply["exhausted"]:
            raise BadInputError(f"{where}: {_DOING[command]} takes more than {limit_bytes:,} bytes of memory")
        if reply["error"]:
            raise LibraryError(reply["error"].partition(": ")[2])
        return ModelProto.FromString(answer)


def _exchanged(requests: IO[bytes], answers: IO[bytes], head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    requests.write(json.dumps(head).encode() + b"\n")
    requests.write(body)
    requests.flush()
    line = answers.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    reply: dict[str, Any] = json.loads(line)
    answer = answers.read(reply["size_bytes"])
    if len(answer) != reply["size_bytes"]:
        raise EOFError
    return reply, answer


def _death(command: str, code: int, limit_bytes: int) -> str:
    if code == -signal.SIGXCPU:
        return f"{_DOING[command]} takes longer than {CPU_LIMIT_S} s"
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"{_DOING[command]} killed the process that does it ({how}, {limit_bytes:,} bytes of memory at most)"


_PROCESS = _Process()
