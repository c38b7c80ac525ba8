"""What became of an ask, whoever was asked: an answer, or what went wrong instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

R = TypeVar("R")

DIED = "the worker process died"
DEATHS_ALONE = 2  # of workers that had the item alone, which make it a crash: the first may have been ended by somebody else


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """value: what was answered when `status` is ok, else None and `error` says why.

    worker: who answered.  wall_s: how long that took.  attempt: how many workers died of it before.
    """

    status: Literal["ok", "crash", "timeout"]
    value: R | None
    error: str | None
    worker: str
    wall_s: float
    attempt: int = 0
