"""Actors that are events: they take time, die at any moment with what was on its way, fall silent, answer late and twice.

An actor's worker runs a job in no time when the job begins; what it announced and returned is then said bit by bit, as it would have been.
A worker that raises `Dies` takes its actor with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any, NamedTuple

from tests.simulated.faults import CALM, ActorFaults
from tests.simulated.kernel import US, Kernel, Process, SimulationError
from tuner.platform.actors import (
    BUILDING,
    Actor,
    Announced,
    Built,
    ClusterGoneError,
    Done,
    Draining,
    Event,
    JobProgress,
    Lost,
    Message,
    Raised,
    Worker,
)

NODE_SLOTS = 4  # actors of one computer
HEAD_S = 18.0  # without a head the cluster is gone
KEPT_S = 5.0  # that an actor without work may stay longer than it should, as its driver looks at it
LOOKS_S = 2.0  # the most of that in one look: a driver that is busy elsewhere lets nobody go
ROOM_S, STAY_S = 4.0, 12.0  # mean times until there is room for an extra actor, and until its computer is taken away


class Dies(BaseException):
    """Raised by a worker: the item that it is at kills its process."""


class _Step(NamedTuple):
    """Of a job: after so long, this is said; waits: for being heard."""

    after_us: int
    event: Event | None  # None: the actor dies
    waits: bool = False


class _Actor:
    def __init__(self, number: Actor, slot: int, rng: Random, speed: float) -> None:
        self.number, self.slot, self.rng, self.speed = number, slot, rng, speed
        self.worker: Worker | None = None
        self.alive = True
        self.silent = False
        self.lone: bytes | None = None  # item that it has, or had last, alone
        self.lones: deque[bytes | None] = deque(maxlen=3)  # of the last messages to it: the next one may lie with it, or be on its way
        self.inbox: deque[Message] = deque()
        self.steps: deque[_Step] = deque()
        self.busy = False
        self.heard_us = 0  # when the last message to it arrives, in order, too
        self.last_us = 0  # when the last thing that it said arrives: its events come in order
        self.leaves = False  # and its driver knows
        self.works = set[int]()  # numbers of messages without a result that its driver has heard
        self.sent: list[list[Any]] = []  # [event], None in its place where it is lost


class SimActors:
    """`Actors` of one process of the driver, with its faults.

    seconds: that a message takes an actor of usual speed.  lone: the item that a message says is to be tried alone, None for any other.
    struck: lone items that the world has killed an actor at, or silenced one: who sees two such losses cannot know better than to blame
    the item, so there is one.
    min_count: slots whose room is reserved; None: all.
    """

    def __init__(
        self, kernel: Kernel, process: Process, count: int, make_worker: Callable[[], Worker], seconds: Callable[[Message], float],
        lone: Callable[[Message], bytes | None], struck: set[bytes], pulse_s: float = 10.0, min_count: int | None = None,
        idle_s: float = inf,
    ) -> None:  # fmt: skip
        self.count, self.min_count, self.idle_s = count, count if min_count is None else min_count, idle_s
        self._kernel, self._process, self._make_worker, self._seconds, self._lone = kernel, process, make_worker, seconds, lone
        self._pulse_us = round(pulse_s * US)
        self._rng = kernel.stream(f"actors {kernel.now_us}")
        self._slowness = [self._rng.random() for _ in range(count)]
        self._actors: dict[Actor, _Actor] = {}
        self._of_slot: dict[int, _Actor] = {}
        self._arrived: list[Event] = []
        self._heard: list[Event] = []  # at the last look
        self._looked_us = kernel.now_us
        self._looks_us = 0  # time with a driver that looks
        self._idle: dict[Actor, int] = {}  # of those that should be let go, since when, of that time
        self._head_us = 0  # when the head is back
        self._back_us = [0] * (count // NODE_SLOTS + 1)
        self._gone = False
        self._closed = False
        self._struck = struck
        self._elapsed_us = 0
        self._at: Worker | None = None  # which works
        self._samples: list[tuple[int, int]] = []  # items that it had finished from some moment of its work on
        self._calm_us = kernel.now_us + round(process.faults.actors.until_s * US)

    @property
    def _faults(self) -> ActorFaults:
        return self._process.faults.actors if self._kernel.now_us < self._calm_us else CALM

    def elapse(self, seconds: float) -> None:
        """For workers: what they do takes so long."""
        assert self._at is not None
        self._samples.append((self._elapsed_us, self._at.done))
        self._elapsed_us += round(seconds * US)

    # the farm's side

    def start(self, slot: int, actor: Actor) -> None:
        """Built when its node is there."""
        self._kernel.call("start of an actor")
        assert 0 <= slot < self.count
        assert actor not in self._actors
        assert (other := self._of_slot.get(slot)) is None or not other.alive, "one actor at most in a place"
        rng = Random(self._rng.random())
        found = self._actors[actor] = self._of_slot[slot] = _Actor(actor, slot, rng, self._faults.slow ** self._slowness[slot])
        wait_us = max(0, max(self._back_us[slot // NODE_SLOTS], self._head_us) - self._kernel.now_us)
        if slot >= self.min_count:
            wait_us += round(rng.expovariate(1 / ROOM_S) * US)
            self._kernel.at(wait_us + round(rng.expovariate(1 / STAY_S) * US), lambda: self._die(found, "its node was taken away", True))
        self._kernel.at(wait_us + round(self._faults.build_s * found.speed * rng.uniform(0.5, 2) * US), lambda: self._build(found))

    def kill(self, actor: Actor) -> None:
        """Some of what is on its way still comes."""
        self._kernel.call("kill")
        found = self._actors[actor]
        self._idle.pop(actor, None)
        if found.alive:
            self._end(found)

    def send(self, actor: Actor, message: Message) -> None:
        """Arrives some time, if the actor lives then."""
        self._kernel.call("send")
        found = self._actors[actor]
        assert not found.leaves, "no work for an actor whose node leaves"
        found.works.add(message.job)
        self._idle.pop(actor, None)
        found.lone = self._lone(message) or found.lone  # from now on, for who sends it
        found.lones.append(self._lone(message))
        if (found.silent or not found.alive) and found.lone is not None and not self._may_strike(found.lone):
            self._told_at_once(found)
        found.heard_us = max(found.heard_us, self._kernel.now_us + self._delay_us(found, found.lone))
        self._kernel.at(found.heard_us - self._kernel.now_us, lambda: self._deliver(found, message))

    def share(self, value: Any) -> Any:
        """The value."""
        self._kernel.call("share")
        return value

    def events(self, patience_s: float) -> list[Event]:
        """Waits in virtual time."""
        self._kernel.call("events")
        self._check_idle()
        if not self._arrived and not self._gone:
            self._kernel.wait(lambda: bool(self._arrived) or self._gone, max(0, round(patience_s * US)))
        if self._gone:
            raise ClusterGoneError("the cluster went away")
        # a loss by itself: what is sent on hearing of the events before it may have to turn it into another one (`_told_at_once`)
        until = next((at for at, event in enumerate(self._arrived) if at and isinstance(event, Lost)), len(self._arrived))
        self._heard, self._arrived = self._arrived[:until], self._arrived[until:]
        return self._heard

    def _check_idle(self) -> None:
        """Actors that have no work, and need not be there, are let go."""
        now_us = self._kernel.now_us
        self._looks_us += min(now_us - self._looked_us, round(LOOKS_S * US))
        self._looked_us = now_us
        for event in self._heard:  # at the last look: all is done that follows from it
            actor = self._actors[event.actor]
            if isinstance(event, Done):
                actor.works.discard(event.job)
            actor.leaves |= isinstance(event, Draining)
            if isinstance(event, Lost) or not actor.alive:
                self._idle.pop(actor.number, None)
            elif not actor.works and (actor.leaves or actor.slot >= self.min_count):
                self._idle.setdefault(actor.number, self._looks_us)
        self._heard = []
        if self._idle and (first := next(iter(self._idle.items())))[1] + round((self.idle_s + KEPT_S) * US) < self._looks_us:
            raise SimulationError(f"actor {first[0]} has had no work for {self.idle_s:g} s and more, and is kept")

    def close(self) -> None:
        """All of them end."""
        self._kernel.call("close of the actors")
        self._closed = True
        for actor in self._actors.values():
            actor.alive = False

    # the actors' side: events, which do not call the world

    def _told_at_once(self, actor: _Actor) -> None:
        """Whoever sent an item to it that is tried alone, and was lost so before, would take what it hears of the actor late, or never, for
        what the item did: so it hears now that the computer is gone."""
        actor.alive = False
        lost = Lost(actor.number, "its node went down", True)
        self._arrived = [each for each in self._arrived if not (isinstance(each, Lost) and each.actor == actor.number)]
        self._kernel.at(0, lambda: self._again(lost))

    def _delay_us(self, actor: _Actor, item: bytes | None) -> int:
        """item: that is tried alone; who waits long for an answer takes that for a loss."""
        delay_s = self._faults.delay_s * actor.rng.random()
        if actor.rng.random() < self._faults.held and self._may_strike(item):
            self._process.actor_faults += 1
            delay_s += self._faults.held_s * actor.rng.random()
        return round(delay_s * US)

    def _say(self, actor: _Actor, event: Event) -> None:
        """On its way; its events come in order."""
        actor.last_us = max(actor.last_us, self._kernel.now_us + self._delay_us(actor, actor.lone))
        entry: list[Any] = [event]
        actor.sent.append(entry)
        self._kernel.at(actor.last_us - self._kernel.now_us, lambda: self._arrive(actor, entry))
        if actor.rng.random() < self._faults.repeated:
            again = round(actor.rng.random() ** 3 * self._faults.held_s * US)
            self._kernel.at(actor.last_us - self._kernel.now_us + again, lambda: self._again(event))

    def _arrive(self, actor: _Actor, entry: list[Any]) -> None:
        if entry[0] is not None and not self._closed:
            self._kernel.say(f"arrives: {_short(entry[0])}")
            self._arrived.append(entry[0])
        actor.sent.remove(entry)

    def _again(self, event: Event) -> None:
        if not self._closed:
            self._kernel.say(f"arrives again: {_short(event)}")
            self._arrived.append(event)

    def _end(self, actor: _Actor) -> None:
        """What was on its way is lost from some moment on."""
        actor.alive = False
        actor.steps.clear()
        actor.inbox.clear()
        if actor.sent and actor.rng.random() < self._faults.lost:
            for entry in actor.sent[actor.rng.randrange(len(actor.sent)) :]:
                entry[0] = None

    def _die(self, actor: _Actor, why: str, outside: bool = False) -> None:
        if not actor.alive:
            return
        self._kernel.say(f"actor {actor.number} dies: {why}")
        self._kernel.deaths += 1
        self._end(actor)
        self._say(actor, Lost(actor.number, why, outside))

    def _build(self, actor: _Actor) -> None:
        if not actor.alive:
            return
        if actor.rng.random() < self._faults.unbuilt:
            self._process.actor_faults += 1
            self._die(actor, "killed while it started")
            return
        try:
            actor.worker = self._make_worker()
        except Exception as error:  # noqa: BLE001  an event
            self._say(actor, Raised(actor.number, BUILDING, error))
            return
        node = f"node{actor.slot // NODE_SLOTS}"
        self._say(actor, Built(actor.number, f"{node}:{actor.number}", node))
        self._next(actor)

    def _deliver(self, actor: _Actor, message: Message) -> None:
        if actor.alive:
            actor.inbox.append(message)
            self._next(actor)

    def _next(self, actor: _Actor) -> None:
        """Begin the next message, if it has one and nothing to do."""
        if actor.worker is None or actor.busy or not actor.inbox or actor.silent or not actor.alive:
            return
        message = actor.inbox.popleft()
        faults, rng = self._faults, actor.rng
        if message.shared and rng.random() < faults.unfetched:
            self._process.actor_faults += 1
            self._die(actor, "what was shared with it cannot be fetched", outside=True)
            return
        actor.busy = True
        actor.lone = self._lone(message)
        actor.steps.extend(self._work(actor, actor.worker, message))
        within_us = round(sum(step.after_us for step in actor.steps) * 1.1 * rng.random())
        if rng.random() < faults.gone:
            self._kernel.at(within_us, self._go)
        if rng.random() < faults.restarted:
            self._kernel.at(within_us, self._restart)
        if rng.random() < faults.drained:
            self._kernel.at(within_us, lambda: self._drain(actor.slot // NODE_SLOTS))
        # whatever looks for the item at fault is where the most can go wrong
        outage, death = ((p if not p or not (message.announces or actor.lone) else 0.4) for p in (faults.outage, faults.death))
        if rng.random() < outage:
            self._kernel.at(within_us, lambda: self._outage(actor.slot // NODE_SLOTS))
        elif rng.random() < faults.silent:
            self._kernel.at(within_us, lambda: self._silence(actor))
        elif rng.random() < death:
            self._kernel.at(within_us, lambda: self._struck_down(actor))
        self._go_on(actor)

    def _may_strike(self, *items: bytes | None) -> bool:
        """Once at each of them."""
        lone = {item for item in items if item is not None}
        if lone & self._struck:
            return False
        self._struck |= lone
        return True

    def _work(self, actor: _Actor, worker: Worker, message: Message) -> Sequence[_Step]:
        """The worker runs here and now; its time is given to what it says."""
        self._at, self._elapsed_us, self._samples = worker, 0, []
        announced, before = list[tuple[int, bytes]](), worker.done

        def announce(item: bytes) -> None:
            announced.append((self._elapsed_us, item))

        end: Event | None
        try:
            end = Done(actor.number, message.job, worker.work(message.packed, message.shared, announce if message.announces else None))
        except Dies:
            end = None
        except Exception as error:  # noqa: BLE001  what the code of a job raises is an event
            end = Raised(actor.number, message.job, error)
        factor = actor.speed * actor.rng.uniform(0.8, 1.3)
        spread_us = round(self._seconds(message) * factor * US)
        steps, at_us, parts = list[_Step](), 0, len(announced) + 1
        for number, (elapsed_us, item) in enumerate(announced):
            next_us = round(elapsed_us * factor) + spread_us * (number + 1) // parts
            steps.append(_Step(next_us - at_us, Announced(actor.number, message.job, item), waits=True))
            at_us = next_us
        total_us = round(self._elapsed_us * factor) + spread_us
        while not announced and at_us + self._pulse_us < total_us:
            at_us += self._pulse_us
            items = [done for since_us, done in self._samples if since_us * factor <= at_us]
            done = items[-1] if items else before + (worker.done - before) * at_us // total_us
            steps.append(_Step(self._pulse_us, JobProgress(actor.number, message.job, done)))
        return [*steps, _Step(max(0, total_us - at_us), end)]

    def _go_on(self, actor: _Actor) -> None:
        if not actor.alive or actor.silent:
            return
        if not actor.steps:
            actor.busy = False
            self._next(actor)
            return
        step = actor.steps.popleft()
        self._kernel.at(step.after_us, lambda: self._step(actor, step))

    def _step(self, actor: _Actor, step: _Step) -> None:
        if not actor.alive or actor.silent:
            return
        if step.event is None:
            self._die(actor, "segmentation fault")
            return
        self._say(actor, step.event)
        if step.waits:  # until it was heard: the answer has its time, too
            self._kernel.at(actor.last_us - self._kernel.now_us + self._delay_us(actor, actor.lone), lambda: self._go_on(actor))
        else:
            self._go_on(actor)

    def _struck_down(self, actor: _Actor) -> None:
        if actor.alive and self._may_strike(*actor.lones):
            self._process.actor_faults += 1
            self._die(actor, "killed by the system")

    def _silence(self, actor: _Actor) -> None:
        if actor.alive and self._may_strike(*actor.lones):
            self._kernel.say(f"actor {actor.number} falls silent")
            self._process.actor_faults += 1
            actor.silent = True

    def _outage(self, node: int) -> None:
        self._kernel.say(f"node {node} goes down")
        self._process.actor_faults += 1
        self._back_us[node] = self._kernel.now_us + round(self._faults.outage_s * US)
        for actor in self._of_node(node):
            self._die(actor, "its node went down", outside=True)

    def _of_node(self, node: int) -> list[_Actor]:
        """Those that live."""
        slots = range(node * NODE_SLOTS, (node + 1) * NODE_SLOTS)
        return [actor for slot in slots if (actor := self._of_slot.get(slot)) is not None and actor.alive]

    def _drain(self, node: int) -> None:
        """It is told when it has to go; then it goes."""
        left_s = self._faults.notice_s
        self._kernel.say(f"node {node} will go in {left_s:.1f} s")
        self._process.actor_faults += 1
        self._back_us[node] = self._kernel.now_us + round((left_s + self._faults.outage_s) * US)
        for actor in self._of_node(node):
            self._say(actor, Draining(actor.number, left_s))
            self._kernel.at(round(left_s * US), partial(self._die, actor, "its node has left", True))

    def _restart(self) -> None:
        away_s = self._rng.random() * self._faults.away_s
        self._kernel.say(f"the head is away for {away_s:.1f} s")
        self._process.actor_faults += 1
        self._head_us = self._kernel.now_us + round(away_s * US)
        if away_s > HEAD_S:
            self._kernel.at(round(HEAD_S * US), self._go)

    def _go(self) -> None:
        if not self._closed:
            self._kernel.say("the cluster goes away")
            self._process.actor_faults += 1
            self._gone = True


def _short(event: Event) -> str:
    match event:
        case Done():
            return f"Done(actor={event.actor}, job={event.job}, {len(event.result)} bytes)"
        case Announced():
            return f"Announced(actor={event.actor}, job={event.job}, {event.item[:8].hex()})"
        case _:
            return repr(event)
