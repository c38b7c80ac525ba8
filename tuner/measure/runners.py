"""Runners by name: built in, a command, a function or a class, by `tuner.plugins`."""

from __future__ import annotations

import inspect
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from tuner.config import BUILT_IN, NPU, TuneConfig
from tuner.measure.command_runner import CommandRunner
from tuner.measure.grants import granted_text
from tuner.measure.runner_api import Bench, Runner
from tuner.plugins import RUNNERS, Plugin, files_digest, find

COMMAND = "command:"
GRANTING = "command+grants:"  # prefix of a command that supports grants
_TARGET = "target "


@dataclass(frozen=True)
class RunnerSpec:
    """Runner by name, see `find_runner`.  repeats: readings per program and level.  tries: tries of each.  timeout_s: limit of a command,
    per try.

    canary: readings of one look at it.
    """

    name: str
    repeats: int = 1
    tries: int = 1
    timeout_s: float = 10.0
    canary: int = 5

    def __call__(self) -> Bench | None:
        """Runner in the measuring process.  None: the simulator.  Raises `BadInputError`."""
        runner = find_runner(self.name, self.timeout_s)
        return None if runner is None else Bench(runner, self.repeats, self.tries)


def runner_spec(config: TuneConfig) -> RunnerSpec | None:
    """Specification of the runner; None if the simulator measures."""
    runner = config.runner
    return None if runner.name == BUILT_IN else RunnerSpec(runner.name, runner.repeats, runner.tries, runner.timeout_s, runner.canary)


def runner_name(config: TuneConfig) -> str:
    """Text of the log's column `runner`: source of the times."""
    runner = config.runner
    if config.target.name != NPU:
        return f"{_TARGET}{config.target.name}"
    return runner.name if runner.name == BUILT_IN or runner.repeats == 1 else f"{runner.name} (median of {runner.repeats})"


def runner_origin(runner: str) -> str:
    """Option and value that `runner_name` stands for."""
    return f"--{runner}" if runner.startswith(_TARGET) else f"--runner {runner}"


def find_runner(name: str, timeout_s: float = 10.0) -> Runner | None:
    """Runner named `simulator` (None), `command:WORDS...`, `command+grants:WORDS...`, or a plug-in; a class is instantiated once.

    Raises `BadInputError`.
    """
    if name == BUILT_IN:
        return None
    if name.startswith((COMMAND, GRANTING)):
        return CommandRunner(_words(name), timeout_s, name.startswith(GRANTING))
    runner = find(RUNNERS, name).object
    return cast(Runner, runner() if inspect.isclass(runner) else runner)


def check_runner(machine: Machine, levels: Sequence[str], name: str) -> None:
    """Raise `BadInputError` for a level that grants less than all, if the runner does not support grants."""
    partial_levels = [level for level in levels if machine.granted(level) != machine.full_grant]
    if not partial_levels or name == BUILT_IN or name.startswith(GRANTING):
        return
    if name.startswith(COMMAND) or getattr(find(RUNNERS, name).object, "grants", False) is not True:
        raise BadInputError(
            f"runner {name}: level {partial_levels[0]} grants less than the machine has "
            f"({granted_text(machine, partial_levels[0])}), which this runner does"
            f" not say it sees to; accepted: levels that grant all, a runner with grants = True or {GRANTING}WORDS, or {BUILT_IN}"
        )


def runner_plugin(name: str) -> Plugin:
    """Identity of a runner that is not built in; for a command, the digest is over the files among its words.  Raises `BadInputError`."""
    if name.startswith((COMMAND, GRANTING)):
        first, *words = _words(name)
        return Plugin(RUNNERS.name, name, "", files_digest(shutil.which(first) or first, *words))
    return find(RUNNERS, name).plugin


def _words(name: str) -> tuple[str, ...]:
    try:
        words = shlex.split(name.partition(":")[2])
    except ValueError as error:
        raise BadInputError(f"--runner {name}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise BadInputError(f"--runner {name}: {words[0] if words else 'nothing'}: no such command here")
    return tuple(words)
