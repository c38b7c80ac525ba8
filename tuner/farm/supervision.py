"""Supervision of actors as a state machine: events in, actions out.  It has no clock, no Ray and no thread; its caller has them
(`tuner.farm.supervisor_loop`).

An actor has two work items in its queue, so that it need not wait for the driver between them.  It does them in order.  When it crashes or
falls silent, the first one is the suspect; the other one is put back without blame.  A suspect is repeated on another actor if there is
one; it has that actor to itself, and announces every item before it is tried.  If that actor is lost too, the last announced item is run
alone on another actor, and once more if that actor is lost.  If the second one is lost as well, the item is blamed, and the work item is
repeated without it.  So an item is blamed only after two actors were lost that ran it alone.  Losses of a whole computer, or of the
connection to it, are not counted.

A work item that does not announce is itself an item: it is repeated elsewhere, up to a limit.

An idle actor, with no waiting work, repeats a work item of another actor that is late, or so slow that the repetition ends earlier; the
first result counts.  A slow actor does not start a waiting work item that faster actors will have finished earlier.  So a slow actor delays
neither others nor the work queued behind it.

A work item is late after four times the usual time, and at least one second.  It is repeated, not taken back, because taking back from a
busy actor needs a message loop in each.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from tuner.farm.actions import DEATHS_ALONE, DIED, Action, Blame, Deliver, Failed, GiveUp, Kill, SayLine, Send, StartActor, WorkItem
from tuner.platform.actors import Actor, Announced, Built, Done, Event, FarmError, JobProgress, Lost, Raised

DEPTH = 2  # work items in an actor's queue
BUILD_TRIES = 3  # starts of an actor that may fail
PATIENCE_S = 20.0  # an actor starts within seconds if there is room
LATE_TIMES, LATE_S = 4.0, 1.0  # multiple of the usual time, and least time, after which work is late
NEWEST = 0.3  # weight of the latest work item in the usual time
FASTER = 0.75  # ratio of pace below which an actor counts as faster
HELPS = 1.5  # multiple of its own pace: an idle actor repeats work that a slower one would finish later than that
SHORTEST_S = 0.001  # shortest work item that shows a pace
LOST_MAX = 16  # most actors that one work item may lose without a blamed item


@dataclass(eq=False)
class _TrackedWork:
    """Work item without a result yet.

    announces: whether its items are announced from now on.  tried: last announced item of an actor that was lost.
    item: item to be run alone first.  isolated_losses: actors lost while they ran it alone.
    lost: actors lost without a blamed item.  shunned: slot of the last one.  copies: actors that have it.
    """

    work: WorkItem
    announces: bool = False
    tried: bytes | None = None
    item: bytes | None = None
    isolated_losses: int = 0
    lost: int = 0
    shunned: int | None = None
    copies: int = 0
    over: bool = False

    @property
    def suspect(self) -> bool:
        return self.lost > 0 or self.announces


def _newer(usual_s: float | None, took_s: float) -> float:
    return took_s if usual_s is None else (1 - NEWEST) * usual_s + NEWEST * took_s


class _QueuedWork(NamedTuple):
    """Work item in an actor's queue.  number: id of its message."""

    number: int
    work: _TrackedWork


@dataclass
class _Slot:
    """Place for an actor.  since_s: time when its first work item could begin or last made progress; or when its actor was started.

    begun_s: time when its first work item could begin.  pace_s: recent seconds per work item, over all actors of the slot.
    trying: last announced item.  items: finished items at the last report.  waits: whether its late start was reported.
    """

    index: int
    actor: Actor | None = None
    name: str = ""
    built: bool = False
    since_s: float = 0.0
    queue: deque[_QueuedWork] = field(default_factory=deque)
    trying: bytes | None = None
    items: int = -1
    failed_builds: int = 0
    waits: bool = False
    begun_s: float = 0.0
    pace_s: float | None = None

    def begins(self, now_s: float) -> None:
        """Begin the first work item."""
        self.begun_s = now_s
        self.since_s, self.trying, self.items = now_s, self.queue[0].work.item if self.queue else None, -1

    @property
    def at_rest(self) -> bool:
        """Whether it cannot be late: it has no work, or there is no actor."""
        return not self.queue if self.built else self.actor is None

    def ends_s(self, pieces: int) -> float:
        """Expected time at which `pieces` of its work items are done."""
        return self.begun_s + (self.pace_s or 0.0) * pieces

    @property
    def head(self) -> _TrackedWork:
        """Job in front of the queue."""
        return self.queue[0].work


class Supervision:
    """Supervision of `slots` places for actors.  Every method returns the actions to perform now, in order.

    item_timeout_s: an announced item that takes longer hangs; None: never.
    """

    def __init__(self, slots: int, item_timeout_s: float | None, build_timeout_s: float = 300.0) -> None:
        self._slots = [_Slot(index) for index in range(slots)]
        self._item_timeout_s, self._build_timeout_s = item_timeout_s, build_timeout_s
        self._of: dict[Actor, _Slot] = {}
        self._born = self._sent = 0
        self._fresh: list[_TrackedWork] = []  # waiting work, the most urgent first
        self._suspects: deque[_TrackedWork] = deque()
        self._blamed: set[bytes] = set()
        self._usual_s: float | None = None
        self._longest_s = 0.0
        self._actions: list[Action] = []

    # queries

    @property
    def replaced(self) -> int:
        """Actors that replaced others."""
        return max(0, self._born - len(self._slots))

    @property
    def names(self) -> list[str]:
        """Names of living actors."""
        return [slot.name for slot in self._built]

    def due_s(self, now_s: float) -> float | None:
        """Seconds until `tick` is needed, unless an event comes first."""
        return min((at_s - now_s for at_s in self._instants(now_s)), default=None)

    # events

    def begin(self, now_s: float) -> list[Action]:
        for slot in self._slots:
            self._start(slot, now_s)
        return self._decided(now_s)

    def submit(self, work: WorkItem, now_s: float) -> list[Action]:
        self._wait(_TrackedWork(work))
        return self._decided(now_s)

    def heard(self, event: Event, now_s: float) -> list[Action]:
        """Handle an event; events of an actor that was replaced are ignored."""
        slot = self._of.get(event.actor)
        if slot is None:
            return []
        if isinstance(event, Built):
            self._is_built(slot, event, now_s)
        elif isinstance(event, Lost):
            self._lose_actor(slot, "crash", event.why, event.outside, now_s)
        elif isinstance(event, Raised):
            self._actions.append(GiveUp(event.error))
        elif isinstance(event, Done):
            self._done(slot, event, now_s)
        elif slot.queue and slot.queue[0].number == event.job:
            self._said(slot, event, now_s)
        return self._decided(now_s)

    def tick(self, now_s: float) -> list[Action]:
        """Time has passed."""
        for slot in self._slots:
            if slot.at_rest:
                continue
            allowed_s, waited_s = self._allowed_s(slot), now_s - slot.since_s
            if self._waits_long(slot) and waited_s > PATIENCE_S:
                slot.waits = True
                self._say(f"worker {slot.index} waits for room on the cluster; the others go on")
            if allowed_s is not None and waited_s > allowed_s:
                if slot.built:
                    self._lose_actor(slot, "timeout", f"no answer within {allowed_s:g} s", False, now_s)
                else:
                    self._build_failed(slot, f"not ready within {allowed_s:g} s", now_s)
        return self._decided(now_s)

    def _decided(self, now_s: float) -> list[Action]:
        self._assign(now_s)
        actions, self._actions = self._actions, []
        return actions

    def _say(self, line: str) -> None:
        self._actions.append(SayLine(line))

    # actors

    @property
    def _built(self) -> Iterator[_Slot]:
        return (slot for slot in self._slots if slot.built)

    def _start(self, slot: _Slot, now_s: float) -> None:
        slot.actor, slot.built, slot.since_s = self._born, False, now_s
        self._of[self._born] = slot
        self._born += 1
        self._actions.append(StartActor(slot.index, slot.actor))

    def _end(self, slot: _Slot) -> None:
        assert slot.actor is not None
        self._actions.append(Kill(slot.actor))
        del self._of[slot.actor]
        slot.actor, slot.built = None, False

    def _is_built(self, slot: _Slot, event: Built, now_s: float) -> None:
        if slot.built:
            return
        slot.name, slot.built, slot.failed_builds, slot.since_s = f"w{slot.index}@{event.name}", True, 0, now_s
        if slot.waits:
            self._say(f"worker {slot.index} is back")
            slot.waits = False

    def _build_failed(self, slot: _Slot, why: str, now_s: float) -> None:
        slot.failed_builds += 1
        self._end(slot)
        if slot.failed_builds < BUILD_TRIES:
            self._start(slot, now_s)
            return
        remaining = sum(worker.actor is not None for worker in self._slots)
        text = f"worker {slot.index} died {BUILD_TRIES} times while it started: {why}"
        if remaining:
            self._say(f"{text}; going on with {remaining} of {len(self._slots)}")
        else:
            self._actions.append(GiveUp(FarmError(text)))

    def _waits_long(self, slot: _Slot) -> bool:
        """Whether to report an actor that does not start in time; not at the first start, when kernels are compiled."""
        return not slot.built and not slot.waits and self.replaced > 0 and any(self._built)

    def _allowed_s(self, slot: _Slot) -> float | None:
        if not slot.built:
            return None if any(self._built) else self._build_timeout_s
        return slot.head.work.kind.silence_s if slot.trying is None else self._item_timeout_s

    def _instants(self, now_s: float) -> Iterator[float]:
        idle = any(not slot.queue for slot in self._built)
        for slot in self._slots:
            if slot.at_rest:
                continue
            if self._waits_long(slot):
                yield slot.since_s + PATIENCE_S
            if (allowed_s := self._allowed_s(slot)) is not None:
                yield slot.since_s + allowed_s
            if idle and slot.queue and self._usual_s is not None and (late_s := slot.since_s + self._late_s) > now_s:
                yield late_s

    # events of actors

    def _said(self, slot: _Slot, event: Announced | JobProgress, now_s: float) -> None:
        if isinstance(event, Announced):
            slot.trying, slot.since_s = event.item, now_s
        elif event.items != slot.items:
            slot.items, slot.since_s = event.items, now_s

    def _done(self, slot: _Slot, event: Done, now_s: float) -> None:
        lying = next((lying for lying in slot.queue if lying.number == event.job), None)
        if lying is None:
            return
        job = lying.work
        if lying is slot.queue[0]:
            if job.work.kind.pure and not job.suspect:
                took_s = max(SHORTEST_S, now_s - slot.begun_s)
                self._usual_s = _newer(self._usual_s, took_s)
                if job.work.kind.alike:
                    slot.pace_s = _newer(slot.pace_s, took_s)
                self._longest_s = max(self._longest_s, took_s)
            slot.queue.popleft()
            slot.begins(now_s)
        else:
            slot.queue.remove(lying)
        job.copies -= 1
        if job.over:
            return
        if job.item is not None:  # an item that is run alone crashes no other
            job.item, job.isolated_losses = None, 0
            self._back(job)
            return
        job.over = True
        self._actions.append(Deliver(job.work.number, event.result))

    def _lose_actor(self, slot: _Slot, status: Literal["crash", "timeout"], why: str, outside: bool, now_s: float) -> None:
        """An actor that is gone, or is killed for its silence."""
        if not slot.built:
            self._build_failed(slot, why, now_s)
            return
        queue, trying, name = [lying.work for lying in slot.queue], slot.trying, slot.name
        slot.queue.clear()
        self._end(slot)
        self._start(slot, now_s)
        for job in queue:
            job.copies -= 1
        for job in reversed(queue[1:] if not outside else queue):
            self._back(job)
        if not queue or outside or (head := queue[0]).over:
            return
        if trying is not None or head.tried is None:
            head.shunned = slot.index
        if not head.work.kind.announces:
            self._again(head, why)
            return
        if not head.announces:
            self._say(f"{name} {'died' if status == 'crash' else 'gave no sign of life'}; what it did is done again item by item")
            head.announces = True
        head.lost += 1
        if head.item is not None:
            head.isolated_losses += 1
            if head.isolated_losses >= DEATHS_ALONE:
                if head.item not in self._blamed:  # another job may have been at it
                    self._blamed.add(head.item)
                    self._actions.append(Blame(head.item, status, DIED if status == "crash" else why, head.isolated_losses - 1))
                head.item, head.lost, head.isolated_losses = None, 0, 0
        elif trying is not None:
            head.tried = trying
        self._back(head)
        if head.lost >= LOST_MAX:
            self._actions.append(GiveUp(FarmError(f"a job was lost with {head.lost} workers, and no item of it is at fault: {why}")))

    def _again(self, job: _TrackedWork, why: str) -> None:
        job.lost += 1
        if job.lost < job.work.kind.tries:
            self._back(job)
        else:
            job.over = True
            self._actions.append(Failed(job.work.number, why))

    def _back(self, job: _TrackedWork) -> None:
        """Requeue a job that no actor has any more."""
        if job.over or job.copies:
            return
        if job.suspect:
            job.item, job.tried = job.item or job.tried, None
            self._suspects.appendleft(job)
        else:
            self._wait(job)

    def _wait(self, job: _TrackedWork) -> None:
        insort(self._fresh, job, key=lambda waiting: waiting.work.order)

    # assignment

    def _assign(self, now_s: float) -> None:
        for job in list(self._suspects):
            if (slot := self._slot_for_suspect(job)) is not None:
                self._suspects.remove(job)
                if job.item in self._blamed:
                    job.item, job.isolated_losses = None, 0
                self._send(slot, job, now_s)
        while self._fresh and (assignment := self._assignment(now_s)) is not None:
            slot, job = assignment
            self._fresh.remove(job)
            self._send(slot, job, now_s)
        if not self._suspects:
            self._help(now_s)

    def _slot_for_suspect(self, job: _TrackedWork) -> _Slot | None:
        """Actor for a suspect, which has it to itself: in another slot than the last one, if possible."""
        candidates = [slot for slot in self._built if slot.index != job.shunned]
        idle = [slot for slot in candidates or self._built if not slot.queue]
        return min(idle, key=lambda slot: slot.index != job.work.home, default=None)

    def _assignment(self, now_s: float) -> tuple[_Slot, _TrackedWork] | None:
        """Assignment: the actor with the shortest queue takes a job whose home it is, else the most urgent one; the fastest of several
        actors.

        Jobs that faster actors will have finished earlier are skipped: a slow actor takes the least urgent jobs, or none, so as not to
        delay all others.
        """
        fresh, passed = self._fresh, dict[int, int]()
        paced = [slot for slot in self._built if slot.pace_s is not None]
        paces_s = np.array([slot.pace_s for slot in paced])
        frees_s = np.array([slot.ends_s(len(slot.queue)) if slot.queue else now_s for slot in paced])
        sound = frees_s > now_s - paces_s  # a later actor may hang
        frees_s = np.maximum(frees_s, now_s)

        def jobs_taken(slot: _Slot) -> int:
            """Number of the first jobs that faster actors could finish before this one would finish one."""
            if slot.pace_s is None:
                return 0
            if slot.index not in passed:
                end_s = (slot.ends_s(len(slot.queue)) if slot.queue else now_s) + slot.pace_s
                faster = sound & (paces_s < FASTER * slot.pace_s)
                passed[slot.index] = int(np.maximum((end_s - frees_s[faster]) // paces_s[faster], 0).sum())
            return passed[slot.index]

        for depth in range(DEPTH):
            open_ = {slot.index: slot for slot in self._built if len(slot.queue) == depth and (not depth or self._open(slot))}
            for position, job in enumerate(fresh):
                home = None if job.work.home is None else open_.get(job.work.home)
                if home is not None and jobs_taken(home) <= position and self._may_lie(job, depth, now_s):
                    return home, job
            for slot in sorted(open_.values(), key=lambda slot: slot.pace_s or self._usual_s or 0.0):
                match = next((job for job in fresh[jobs_taken(slot) :] if self._may_lie(job, depth, now_s)), None)
                if match is not None:
                    return slot, match
        return None

    def _may_lie(self, job: _TrackedWork, depth: int, now_s: float) -> bool:
        work = job.work
        return not depth or (work.kind.follows and (work.until_s is None or work.until_s - now_s > 2 * self._longest_s))

    def _open(self, slot: _Slot) -> bool:
        """Whether work may be queued behind its last work item.  Not while a suspect waits for an actor to itself."""
        last = slot.queue[-1].work
        return len(slot.queue) < DEPTH and not self._suspects and last.work.kind.followed and not last.suspect

    def _send(self, slot: _Slot, job: _TrackedWork, now_s: float, late: bool = False) -> None:
        assert slot.actor is not None
        number, self._sent = self._sent, self._sent + 1
        slot.queue.append(_QueuedWork(number, job))
        job.copies += 1
        if len(slot.queue) == 1:
            slot.begins(now_s)
        announces = (job.announces or late) and job.item is None
        self._actions.append(Send(slot.actor, number, job.work.number, slot.name, announces, job.item))

    @property
    def _late_s(self) -> float:
        return max(LATE_S, LATE_TIMES * (self._usual_s or 0.0))

    def _help(self, now_s: float) -> None:
        """Give idle actors a job of an actor that is late or much slower: the first one in order.

        If it is late, it announces its items, because it may hang here too.
        """
        if self._usual_s is None or not any(not slot.queue for slot in self._built):
            return
        at_work = [slot for slot in self._built if slot.queue]
        late = [slot for slot in at_work if now_s - slot.since_s >= self._late_s]
        slowest_s = max((slot.pace_s or 0.0 for slot in at_work), default=0.0)
        for slot in self._built:
            if slot.queue:
                continue
            job, is_late = self._first_of(lying.work for slow in late for lying in slow.queue), True
            if job is None and not self._fresh and slot.pace_s is not None and slot.pace_s < FASTER * slowest_s:
                job, is_late = self._first_of(self._much_later(slot, at_work, now_s)), False
            if job is not None:
                self._send(slot, job, now_s, is_late)

    @staticmethod
    def _first_of(works: Iterable[_TrackedWork]) -> _TrackedWork | None:
        may = (job for job in works if job.work.kind.pure and job.copies == 1 and not job.suspect and not job.over)
        return min(may, key=lambda job: job.work.order, default=None)

    @staticmethod
    def _much_later(slot: _Slot, at_work: Iterable[_Slot], now_s: float) -> Iterator[_TrackedWork]:
        """Jobs of slower actors that this one would finish much earlier."""
        assert slot.pace_s is not None
        for slower in at_work:
            if slower.pace_s is not None and slot.pace_s < FASTER * slower.pace_s:
                for position, lying in enumerate(slower.queue, 1):
                    if slower.ends_s(position) > now_s + HELPS * slot.pace_s:
                        yield lying.work
