"""Objectives of a program: the latency of a run, or the throughput of its frames."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from simulator.npu.errors import BadInputError

Objective = Literal["latency", "throughput"]
DEFAULT_FRAMES, MAX_FRAMES = 2, 256  # frames of a run for throughput: default and limit


def frames_of(objective: Objective, frames: int | None = None) -> int:
    """Frames per run for an objective.  Raises `BadInputError`."""
    if objective not in get_args(Objective):
        raise BadInputError(f"objective {objective!r}: expected one of {', '.join(get_args(Objective))}")
    if frames is not None and objective == "latency":
        raise BadInputError(f"frames {frames}: goes with objective throughput; by latency a run takes one frame")
    if frames is not None and not 1 <= frames <= MAX_FRAMES:
        raise BadInputError(f"frames {frames}: expected 1 to {MAX_FRAMES}")
    return 1 if objective == "latency" else frames or DEFAULT_FRAMES


class Pace(NamedTuple):
    """Latency and throughput.  latency_us: latency of a run, and so of each of its frames."""

    latency_us: float
    cycles_per_frame: float
    frames_per_s: float

    @classmethod
    def of(cls, cycles: int, frames: int, clock_hz: int) -> Pace:
        return cls(cycles / clock_hz * 1e6, cycles / frames, frames * clock_hz / cycles if cycles else 0.0)
