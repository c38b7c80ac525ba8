"""Probes: pairs of programs with different repeats of one body, so that launch, latency and pipeline filling cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.npu.machine import Machine
from simulator.npu.program import Program
from simulator.timing import simulate_levels
from tuner.calibrate.programs import Body, make_program, spare_instruction

FEW = 4  # repeats of the shorter program: enough to fill shallow queues and pipelines
MOST = 4096  # instructions of a core in the longer program
_AT_LEAST = 32  # least repeats of a body


@dataclass(frozen=True)
class Probe:
    """Time of program `long` minus time of program `short`, divided by `divisor`.

    grows: whether more work must take longer; False where a free value may be 0.
    """

    name: str
    level: str
    long: Program
    short: Program | None
    divisor: float
    grows: bool = True

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.long,) if self.short is None else (self.long, self.short)

    def body_value(self, times: Sequence[float]) -> float:
        """Observed quantity.  times: times of `programs`."""
        return times[0] / self.divisor if self.short is None else (times[0] - times[1]) / self.divisor


def predict_cycles(probe: Probe, machine: Machine) -> list[int]:
    """Predict the cycles of the probe's programs on a machine."""
    return [time_program(variant, machine, probe.level) for variant in probe.programs]


def time_program(micro_program: Program, machine: Machine, level: str) -> int:
    """Cycles of a program written for another machine, on this machine."""
    return simulate_levels(Program(machine.digest, micro_program.streams, micro_program.memory), machine, [level])[level].cycles


def repeat_body(
    name: str,
    machine: Machine,
    bodies: Sequence[Body],
    load: int,
    *,
    level: str = "",
    per: int = 1,
    grows: bool = True,
) -> Probe:
    """Probe of the time of a body; each core has its own body.

    load: least cycles of the longer program by the machine's description; the longer it is, the smaller the share of launch and latency.
    per: counted parts of a body.  A vector instruction stands at the end, so every program takes some time.
    """
    level = level or next(iter(machine.contention))

    def build(repeats: int) -> Program:
        first, *other_bodies = (list(body) * repeats for body in bodies)
        return make_program(machine, [[*first, spare_instruction(machine)], *other_bodies])

    short = build(FEW)
    step = max(1.0, (time_program(build(FEW + 16), machine, level) - time_program(short, machine, level)) / 16)
    repeats = FEW + max(_AT_LEAST, min(MOST // max(map(len, bodies)), round(load / step)))
    return Probe(name, level, build(repeats), short, (repeats - FEW) * per, grows)
