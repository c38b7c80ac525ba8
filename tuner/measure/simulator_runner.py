"""Simulator as a runner: decodes the container and times its program.

For trying the runner interface without a board (`--runner tuner.measure.simulator_runner:measure`), and as the shortest example of a
runner.  The built-in simulator, used by default, does not go through bytes.

`SimulatedBoard` is a board that differs from its description: another machine, with a noisy clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from simulator.npu.container import Container, program
from simulator.npu.container_file import decode
from simulator.npu.machine import Machine
from simulator.npu.program import Program
from simulator.timing import simulate_levels
from tuner.measure.runner_api import Encoded, Reading


@lru_cache(maxsize=4)  # the same program is read again, and at other levels
def _decoded(data: bytes) -> Container:
    """Decoded container.  Refuses a program that needs more than its level grants."""
    return decode(data)


def measure(encoded: Encoded, level: str) -> Reading:
    """Reading of the simulator for the bytes."""
    container = _decoded(encoded.container)
    return Reading(simulate_levels(program(container, level), container.machine, [level])[level].cycles)


measure.grants = True  # type: ignore[attr-defined]


@dataclass
class SimulatedBoard:
    """Machine behind a runner: programs are compiled for the described machine, and timed on `machine`.

    noise: relative standard deviation of a reading; normal, of its logarithm.  The noise of a reading depends only on the seed, the
    program, the level and the number of earlier readings of it.
    """

    machine: Machine
    noise: float = 0.03
    seed: int = 0
    _times: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict, repr=False)
    _reading_counts: Counter[tuple[int, str]] = field(default_factory=Counter, repr=False)

    def __call__(self, encoded: Encoded, level: str) -> Reading:
        key = (hash(encoded.container), level)
        if key not in self._times:
            streams = program(_decoded(encoded.container), level)
            timing = simulate_levels(Program(self.machine.digest, streams.streams, streams.memory), self.machine, [level])[level]
            self._times[key] = timing.cycles, int(streams.digest[:16], 16)
        cycles, digest = self._times[key]
        self._reading_counts[key] += 1
        places = (self.seed, digest, list(self.machine.contention).index(level), self._reading_counts[key])
        return Reading(max(1, round(cycles * float(np.exp(self.noise * np.random.default_rng(places).standard_normal())))))
