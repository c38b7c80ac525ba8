"""Runners by name: built in, a command, a function, or what an installed package offers as entry point `tilefarm.runners`."""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from simulator.npu.errors import BadInputError
from tuner.config import BUILT_IN, TuneConfig
from tuner.measure.command import CommandRunner
from tuner.measure.reading import Bench, Measure
from tuner.world.module_path import folders, search_here

GROUP = "tilefarm.runners"
COMMAND = "command:"


@dataclass(frozen=True)
class RunnerSpec:
    """name: see `find_runner`.  repeats: readings per program and level.  tries: of each.  timeout_s: for a command, one try."""

    name: str
    repeats: int = 1
    tries: int = 1
    timeout_s: float = 10.0

    def __call__(self) -> Bench | None:
        """In the process that measures.  None: the simulator.  Raises `BadInputError`."""
        measure = find_runner(self.name, self.timeout_s)
        return None if measure is None else Bench(measure, self.repeats, self.tries)


def runner_spec(config: TuneConfig) -> RunnerSpec | None:
    """None where the simulator measures."""
    runner = config.runner
    return None if runner.name == BUILT_IN else RunnerSpec(runner.name, runner.repeats, runner.tries, runner.timeout_s)


def runner_name(config: TuneConfig) -> str:
    """What the log's column `runner` says."""
    runner = config.runner
    return runner.name if runner.name == BUILT_IN or runner.repeats == 1 else f"{runner.name} (median of {runner.repeats})"


def find_runner(name: str, timeout_s: float = 10.0) -> Measure | None:
    """`simulator` (None), `command:WORDS...`, `module:function`, or the name of an entry point.  Raises `BadInputError`."""
    if name == BUILT_IN:
        return None
    if name.startswith(COMMAND):
        return _command(name, timeout_s)
    offered = {point.name: point for point in entry_points(group=GROUP)}
    if ":" not in name and name not in offered:
        known = ", ".join((BUILT_IN, *sorted(offered)))
        raise BadInputError(f"--runner {name}: unknown; known: {known}; or module:function, or 'command:WORDS'")
    target = offered[name].value if name in offered else name
    module, _, function = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  somebody else's code; whatever it is, it is in what was named
        raise BadInputError(f"--runner {name}: {_why(module, error)}") from None
    where = getattr(found, "__file__", None) or "built in"
    for part in function.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise BadInputError(f"--runner {name}: {module} has no function {function} ({where})")
    return found


def _why(module: str, error: Exception) -> str:
    """A module was not imported; one that it imports in turn may be what is missing."""
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return f"no module {error.name}; looked for in {', '.join(folders())} and in what is installed in {sys.prefix}"
    return f"{module}: {type(error).__name__}: {' '.join(str(error).split())}"


def check_runner(spec: RunnerSpec | None, serial: bool, address: str | None) -> None:
    """Before any worker: the current folder is searched for modules, as `python -m` searches it.

    Raises `BadInputError` at once where the workers are on this computer and the runner is not; elsewhere they say so themselves.
    """
    if spec is not None:
        search_here()  # workers are told (`tuner.world.ray_cluster.worker_environment`), wherever they are started
    here = serial or (address or os.environ.get("RAY_ADDRESS") or "local") == "local"
    if spec is not None and here:
        find_runner(spec.name, spec.timeout_s)


def _command(name: str, timeout_s: float) -> Measure:
    try:
        words = shlex.split(name.removeprefix(COMMAND))
    except ValueError as error:
        raise BadInputError(f"--runner {name}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise BadInputError(f"--runner {name}: {words[0] if words else 'nothing'}: no such command here")
    return CommandRunner(tuple(words), timeout_s)
