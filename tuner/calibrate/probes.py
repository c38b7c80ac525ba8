"""What is measured: pairs of programs that differ in how often they repeat a body, so that launch, latency and filling cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.npu.machine import Machine
from simulator.npu.program import Program
from simulator.timing import simulate_levels
from tuner.calibrate.programs import Body, program, spare

FEW = 4  # repeats of the shorter program: enough to fill queues and pipelines that are not deep
MOST = 4096  # instructions of a core in the longer one
_AT_LEAST = 32


@dataclass(frozen=True)
class Probe:
    """The time of `more` less that of `less`, divided by `per`.

    grows: whether more work must take longer; False where a free value may be 0.
    """

    name: str
    level: str
    more: Program
    less: Program | None
    per: float
    grows: bool = True

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.more,) if self.less is None else (self.more, self.less)

    def of(self, times: Sequence[float]) -> float:
        """times: of `programs`."""
        return times[0] / self.per if self.less is None else (times[0] - times[1]) / self.per


def predicted(probe: Probe, machine: Machine) -> list[int]:
    """Cycles of the probe's programs on a machine."""
    return [timed(found, machine, probe.level) for found in probe.programs]


def timed(found: Program, machine: Machine, level: str) -> int:
    """Cycles of a program of another machine, as this one runs it."""
    return simulate_levels(Program(machine.digest, found.streams, found.memory), machine, [level])[level].cycles


def repeated(
    name: str,
    machine: Machine,
    bodies: Sequence[Body],
    load: int,
    *,
    level: str = "",
    per: int = 1,
    grows: bool = True,
) -> Probe:
    """A probe of the time of a body; each core has its own.

    load: cycles that the longer program takes at least, as far as the machine's description goes: the less of it is launch and latency,
    the fewer readings do.  per: parts of a body that are counted.  A vector instruction stands at the end: no program takes no time.
    """
    level = level or next(iter(machine.contention))

    def of(repeats: int) -> Program:
        first, *others = (list(body) * repeats for body in bodies)
        return program(machine, [[*first, spare(machine)], *others])

    less = of(FEW)
    step = max(1.0, (timed(of(FEW + 16), machine, level) - timed(less, machine, level)) / 16)
    repeats = FEW + max(_AT_LEAST, min(MOST // max(map(len, bodies)), round(load / step)))
    return Probe(name, level, of(repeats), less, (repeats - FEW) * per, grows)
