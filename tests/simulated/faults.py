"""What goes wrong in the world of a seed, and how often.

Every seed has some kinds of faults and not others: where everything fails all the time, nothing ever gets far enough to fail in an
interesting way.  After a number of sessions there are no more, and the run has to end.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

SESSIONS = 4  # at most that are disturbed


@dataclass(frozen=True)
class Faults:
    """Of one session of the driver.

    crash_at, interrupts_at: numbers of calls to the world.  crash_after: number of the name made or changed that it crashes behind, before
    that is durable.  power: it is the computer that goes down.  switch: probability that another thread goes on at a call.
    disk: probability of an error at a file operation.  full: calls between which the disk is.
    fsync_s: that one takes.
    """

    crash_at: int = -1
    crash_after: int = -1
    power: bool = False
    interrupts_at: frozenset[int] = frozenset()
    switch: float = 0.05
    disk: float = 0.0
    full: tuple[int, int] = (-1, -1)
    fsync_s: float = 0.004
    actors: ActorFaults = field(default_factory=lambda: CALM)


@dataclass(frozen=True)
class ActorFaults:
    """Probabilities, of a build or a job each, but for times.

    delay_s: the most that a message is on its way, usually.  slow: the factor between the fastest and the slowest actor.
    held: of a message that it takes `held_s`.  silent: that an actor says nothing any more, and works on nothing.
    repeated: of an event that it comes twice.  lost: that what was on its way from an actor that died is lost from some moment on.
    outage: of a node.  gone: of all of the cluster.  until_s: how long all this lasts.
    drained: of a node, that it is told to go within `notice_s`.  unfetched: of a message that what it shares cannot be fetched.
    restarted: of the head, which is away for up to `away_s`: nobody is built meanwhile, and the cluster is gone if that is too long.
    """

    delay_s: float = 0.002
    slow: float = 1.0
    build_s: float = 2.0
    unbuilt: float = 0.0
    death: float = 0.0
    silent: float = 0.0
    held: float = 0.0
    held_s: float = 90.0
    repeated: float = 0.0
    lost: float = 0.5
    outage: float = 0.0
    outage_s: float = 120.0
    gone: float = 0.0
    until_s: float = 1000.0
    drained: float = 0.0
    notice_s: float = 30.0
    unfetched: float = 0.0
    restarted: float = 0.0
    away_s: float = 20.0


CALM = ActorFaults()


def sessions(rng: Random, calls: int, names: int) -> list[Faults]:
    """Of the sessions that are disturbed, one after the other.  calls, names: that an undisturbed run makes."""
    kinds = {kind for kind in ("crash", "interrupt", "disk", "full", "actors") if rng.random() < 0.5}
    switch = rng.choice((0.0, 0.02, 0.1, 0.5))
    ends = [_end(rng, kinds, calls) for _ in range(rng.randint(1, SESSIONS))]
    if "crash" in kinds and rng.random() < 0.3:
        # whoever goes on finds a name that no crash of a process takes away, and one of the computer does
        ends[:1] = [{"crash_after": _some(rng, names)}, {"crash_at": _some(rng, calls), "power": True}]
    return [
        replace(
            Faults(switch=switch, fsync_s=10 ** rng.uniform(-3.5, 0.3), actors=_of_nodes(_actors(rng)) if "actors" in kinds else CALM),
            **end,
        )
        for end in ends
    ]


def _some(rng: Random, count: int) -> int:
    """Half are anywhere, half near the beginning, where folders are made and old things are read."""
    return rng.randint(1, count) if rng.random() < 0.5 else int(count ** rng.random())


def _end(rng: Random, kinds: Set[str], calls: int) -> dict[str, Any]:
    """What a session ends by, if anything."""
    end, call = rng.choice(("crash", "interrupt", "disk", "full")), _some(rng, calls)
    if end not in kinds:
        end = "crash" if "crash" in kinds else ""
    faults = dict[str, Any]()
    if end == "crash":
        faults = {"crash_at": call, "power": rng.random() < 0.6}
    elif end == "interrupt":
        again = [call + rng.randint(1, 40) for _ in range(rng.choice((0, 0, 1, 2)))]
        faults = {"interrupts_at": frozenset([call, *again])}
    elif end == "disk":
        faults = {"disk": 10 ** rng.uniform(-3.5, -1.5)}
    elif end == "full":
        faults = {"full": (call, call + rng.choice((1, 5, 50, 10_000)))}
    if rng.random() < 0.3 and end in ("disk", "full") and "crash" in kinds:
        faults |= {"crash_at": call + rng.randint(1, 200), "power": rng.random() < 0.6}
    return faults


def _actors(rng: Random) -> ActorFaults:
    def sometimes(low: float, high: float) -> float:
        return 10 ** rng.uniform(low, high) if rng.random() < 0.6 else 0.0

    return ActorFaults(
        delay_s=10 ** rng.uniform(-3, 0.5),
        slow=10 ** rng.uniform(0, 1.3),
        unbuilt=sometimes(-2, -0.7),
        death=sometimes(-2, -0.6),
        silent=sometimes(-2.5, -1),
        held=sometimes(-2, -0.7),
        held_s=10 ** rng.uniform(0, 2.5),
        repeated=sometimes(-2, -0.3),
        lost=rng.random(),
        outage=sometimes(-2.5, -1),
        outage_s=10 ** rng.uniform(0, 2.7),
        gone=sometimes(-3.5, -2),
        until_s=10 ** rng.uniform(1, 3),
    )


def _of_nodes(faults: ActorFaults) -> ActorFaults:
    """And what happens to their nodes, drawn apart: the other faults of a seed are what they were without it."""
    rng = Random(f"{faults.until_s} nodes")

    def sometimes(low: float, high: float) -> float:
        return 10 ** rng.uniform(low, high) if rng.random() < 0.6 else 0.0

    return replace(
        faults,
        drained=sometimes(-2.5, -1),
        notice_s=10 ** rng.uniform(-1, 2),
        unfetched=sometimes(-2.5, -1),
        restarted=sometimes(-3, -1.5),
    )
