"""Supervision of actors as a state machine: events in, actions out.  It has no clock, no Ray and no thread; its caller has them
(`tuner.farm.supervisor_loop`).

An actor has two work items in its queue, so that it need not wait for the driver between them.  It does them in order.  When it crashes or
falls silent, the first one is the suspect; the other one is put back without blame.  A suspect is repeated on another actor if there is
one; it has that actor to itself, and announces every item before it is tried.  If that actor is lost too, the last announced item is run
alone on another actor, and once more if that actor is lost.  If the second one is lost as well, the item is blamed, and the work item is
repeated without it.  So an item is blamed only after two actors were lost that ran it alone.  Losses of a whole computer, or of the
connection to it, are not counted.

A work item that does not announce is itself an item: it is repeated elsewhere, up to a limit.

An idle actor repeats a work item of an actor that is late; or, with no waiting work, the one that is expected to end last, if its actor is
slower and the repetition ends earlier.  The first result counts.  A slow actor does not start a waiting work item that faster actors will
have finished earlier.  So a slow actor delays neither others nor the work queued behind it.

Slots beyond the first `min_count` are extra.  Their actors are started while there are more unfinished work items than actors, wait for
room without a limit, and end when they had no work for a while.  After a loss, an extra slot waits for work again.  Work is dealt by
computer, so that others can be given back.  An actor whose computer will leave gets no more work.  What it cannot end before is dealt
again, without blame, and then it is replaced.

A work item is late after four times the usual time, and at least one second.  It is repeated, not taken back, because taking back from a
busy actor needs a message loop in each.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from operator import attrgetter
from typing import Literal

from tuner.farm.actions import DEATHS_ALONE, DIED, Action, Blame, Deliver, Failed, GiveUp, Kill, SayLine, Send, StartActor, WorkItem
from tuner.farm.slots import DEPTH, QueuedWork, Slot, Slots, TrackedWork, first
from tuner.platform.actors import Actor, Announced, Built, Done, Draining, Event, FarmError, JobProgress, Lost, Raised
from tuner.runs.farm_state import StaffCounts

BUILD_TRIES = 3  # starts of an actor that may fail
LATE_TIMES, LATE_S = 4.0, 1.0  # multiple of the usual time, and least time, after which work is late
NEWEST = 0.3  # weight of the latest work item in the usual time
HELPS = 1.5  # multiple of its own pace: an idle actor repeats work that a slower one would finish later than that
SHORTEST_S = 0.001  # shortest work item that shows a pace
LEAVES = "its node leaves"
LOST_MAX = 16  # most actors that one work item may lose without a blamed item


def _newer(usual_s: float | None, took_s: float) -> float:
    return took_s if usual_s is None else (1 - NEWEST) * usual_s + NEWEST * took_s


_order = attrgetter("work.order")


class Supervision:
    """Supervision of `slots` places for actors.  Every method returns the actions to perform now, in order.

    item_timeout_s: an announced item that takes longer hangs; None: never.  min_count: slots that are not extra; None: all.
    idle_s: time without work after which an extra actor ends.
    """

    def __init__(
        self, slots: int, item_timeout_s: float | None, build_timeout_s: float = 300.0, min_count: int | None = None, idle_s: float = inf
    ) -> None:
        self._min_count = slots if min_count is None else min_count
        self._slots = Slots(item_timeout_s, idle_s)
        self._slots.all_slots += (Slot(index, extra=index >= self._min_count) for index in range(slots))
        self._absent = list(range(self._min_count, slots))  # heap of extra slots without an actor
        self._item_timeout_s, self._build_timeout_s = item_timeout_s, build_timeout_s
        self.replaced = 0  # actors that replaced others, without extra ones
        self._slots_by_actor: dict[Actor, Slot] = {}
        self._born = self._sent_count = self._unfinished = 0
        self._waiting: list[TrackedWork] = []  # the most urgent first
        self._homes: defaultdict[int | None, list[TrackedWork]] = defaultdict(list)  # the same, by home
        self._suspects: deque[TrackedWork] = deque()
        self._blamed: set[bytes] = set()
        self._usual_s: float | None = None
        self._longest_s = 0.0
        self._actions: list[Action] = []

    # queries

    @property
    def homes(self) -> int:
        """Slots, the first ones, whose actors will do most of the next work."""
        return max(self._min_count, self._slots.built)

    @property
    def names(self) -> list[str]:
        """Names of living actors."""
        return [slot.name for slot in self._slots.all_slots if slot.built]

    def counts(self) -> StaffCounts:
        """Counts of actors and of waiting work, from sizes of orders that are kept anyway."""
        built, idle_count = self._slots.built, len(self._slots.free[0])
        return StaffCounts(built - idle_count, idle_count, len(self._slots_by_actor) - built, len(self._waiting) + len(self._suspects))

    def due_s(self, now_s: float) -> float | None:
        """Seconds until `tick` is needed, unless an event comes first."""
        instants = [time_s for time_s, _ in self._deadlines()]
        if self._slots.free[0] and self._slots.timely and self._usual_s is not None:
            instants.append(first(self._slots.timely).since_s + self._late_s)
        return min(instants) - now_s if instants else None

    # events

    def begin(self, now_s: float) -> list[Action]:
        for slot in self._slots.all_slots[: self._min_count]:
            self._start(slot, now_s)
        return self._take_actions(now_s)

    def submit(self, work: WorkItem, now_s: float) -> list[Action]:
        self._unfinished += 1
        self._wait(TrackedWork(work))
        return self._take_actions(now_s)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Handle an event; events of an actor that was replaced are ignored."""
        slot = self._slots_by_actor.get(event.actor)
        if slot is None:
            return []
        if isinstance(event, Built):
            self._is_built(slot, event, now_s)
        elif isinstance(event, Lost):
            self._lose_actor(slot, "crash", event.why, event.outside, now_s)
        elif isinstance(event, Raised):
            self._actions.append(GiveUp(event.error))
        elif isinstance(event, Done):
            self._finish_queued(slot, event, now_s)
        elif isinstance(event, Draining):
            self._drain(slot, event.seconds, now_s)
        elif slot.queue and slot.queue[0].number == event.job:
            self._note_progress(slot, event, now_s)
        if slot.leaves_s is not None and not slot.queue:
            self._lose_actor(slot, "crash", LEAVES, True, now_s)
        return self._take_actions(now_s)

    def tick(self, now_s: float) -> list[Action]:
        """Time has passed."""
        if (due_s := self.due_s(now_s)) is None or due_s > 0:
            return []
        while (deadline := min(self._deadlines(), default=None)) is not None and deadline[0] < now_s:
            slot = self._slots.all_slots[deadline[1]]
            if slot.leaves_s is not None and slot.leaves_s < now_s:
                self._lose_actor(slot, "crash", LEAVES, True, now_s)
            elif slot.built and not slot.queue:
                self._end(slot, now_s)
                heappush(self._absent, slot.index)
            elif slot.built:
                reason = f"no answer within {slot.allowed_s(self._item_timeout_s):g} s"
                self._lose_actor(slot, "timeout", reason, False, now_s)
            elif self._slots.built:
                slot.waits = True
                del self._slots.unreported[slot.index]
                self._say(f"worker {slot.index} waits for room on the cluster; the others go on")
            else:
                self._build_failed(slot, f"not ready within {self._build_timeout_s:g} s", False, now_s)
        return self._take_actions(now_s)

    def _deadlines(self) -> Iterator[tuple[float, int]]:
        """A late start is not reported at the first start, when kernels are compiled."""
        return self._slots.deadlines(self._build_timeout_s, self.replaced > 0)

    def _take_actions(self, now_s: float) -> list[Action]:
        self._assign(now_s)
        while self._absent and len(self._slots_by_actor) < self._unfinished:
            self._start(self._slots.all_slots[heappop(self._absent)], now_s)
        actions, self._actions = self._actions, []
        return actions

    def _say(self, line: str) -> None:
        self._actions.append(SayLine(line))

    # actors

    def _start(self, slot: Slot, now_s: float) -> None:
        slot.actor = self._born
        self._slots_by_actor[self._born] = slot
        self._born += 1
        self._slots.set_sign(slot, now_s)
        self._actions.append(StartActor(slot.index, slot.actor))

    def _end(self, slot: Slot, now_s: float) -> None:
        assert slot.actor is not None
        self._actions.append(Kill(slot.actor))
        del self._slots_by_actor[slot.actor]
        slot.actor = slot.leaves_s = None
        if slot.built:
            self._slots.set_built(slot, None)
        self._slots.set_sign(slot, now_s)

    def _replace(self, slot: Slot, reason: str, now_s: float) -> None:
        """Start another actor in a slot; in an extra one, when there is work for it."""
        if not slot.extra:
            self.replaced += 1
            self._start(slot, now_s)
            return
        heappush(self._absent, slot.index)
        if not (self._slots.built or self._slots.starting):  # extra actors may never come
            self._actions.append(GiveUp(FarmError(f"no worker is left: {reason}")))

    def _is_built(self, slot: Slot, event: Built, now_s: float) -> None:
        if slot.built:
            return
        slot.name, slot.failed_builds = f"w{slot.index}@{event.name}", 0
        self._slots.set_built(slot, event.node)
        self._slots.set_sign(slot, now_s)
        if slot.waits:
            self._say(f"worker {slot.index} is back")
            slot.waits = False

    def _build_failed(self, slot: Slot, reason: str, external: bool, now_s: float) -> None:
        slot.failed_builds += not external
        self._end(slot, now_s)
        if slot.failed_builds < BUILD_TRIES:
            self._replace(slot, reason, now_s)
            return
        text = f"worker {slot.index} died {BUILD_TRIES} times while it started: {reason}"
        if self._slots.built or self._slots.starting:
            self._say(f"{text}; going on with {len(self._slots_by_actor)} of {len(self._slots.all_slots)}")
        else:
            self._actions.append(GiveUp(FarmError(text)))

    # events of actors

    def _note_progress(self, slot: Slot, event: Announced | JobProgress, now_s: float) -> None:
        if isinstance(event, Announced):
            slot.trying = event.item
        elif event.items != slot.items:
            slot.items = event.items
        else:
            return
        self._slots.set_sign(slot, now_s)

    def _begin_work(self, slot: Slot, now_s: float) -> None:
        """Begin the first work item of the queue."""
        slot.begun_s, slot.trying, slot.items = now_s, slot.queue[0].work.item if slot.queue else None, -1
        self._slots.set_sign(slot, now_s)

    def _finish_queued(self, slot: Slot, event: Done, now_s: float) -> None:
        queued = next((queued for queued in slot.queue if queued.number == event.job), None)
        if queued is None:
            return
        job = queued.work
        job.holders.remove(slot)
        if queued is slot.queue[0]:
            if job.work.kind.pure and not job.suspect:
                took_s = max(SHORTEST_S, now_s - slot.begun_s)
                self._usual_s = _newer(self._usual_s, took_s)
                if job.work.kind.comparable:
                    slot.pace_s = _newer(slot.pace_s, took_s)
                self._longest_s = max(self._longest_s, took_s)
            slot.queue.popleft()
            self._begin_work(slot, now_s)
        else:
            slot.queue.remove(queued)
            self._slots.sort(slot)
        if job.finished:
            return
        if job.item is not None:  # an item that is run alone crashes no other
            job.item, job.isolated_losses = None, 0
            self._requeue(job)
            return
        self._finish(job)
        self._actions.append(Deliver(job.work.number, event.result))

    def _lose_actor(self, slot: Slot, status: Literal["crash", "timeout"], reason: str, external: bool, now_s: float) -> None:
        """An actor that is gone, or is killed for its silence."""
        if not slot.built:
            self._build_failed(slot, reason, external, now_s)
            return
        external |= slot.leaves_s is not None
        queue, trying, name = [queued.work for queued in slot.queue], slot.trying, slot.name
        slot.queue.clear()
        self._end(slot, now_s)
        self._replace(slot, reason, now_s)
        for job in queue:
            job.holders.remove(slot)
        for job in reversed(queue[1:] if not external else queue):
            self._requeue(job)
        if queue and not external and not queue[0].finished:
            self._suspect(queue[0], slot.index, name, trying, status, reason)
        for holder in [holder for job in queue for holder in job.holders]:  # what it has is suspect, or can be repeated again
            self._slots.sort(holder)

    def _drain(self, slot: Slot, seconds: float, now_s: float) -> None:
        """Take back the work that an actor cannot end before its computer leaves."""
        slot.leaves_s = now_s + seconds
        while slot.queue and slot.begun_s + len(slot.queue) * (slot.pace_s or self._usual_s or 0.0) > slot.leaves_s:
            job = slot.queue.pop().work
            job.holders.remove(slot)
            self._requeue(job)
            for holder in job.holders:  # it can be repeated again
                self._slots.sort(holder)
        self._slots.sort(slot)

    def _suspect(
        self, head: TrackedWork, slot: int, name: str, trying: bytes | None, status: Literal["crash", "timeout"], reason: str
    ) -> None:
        """Suspect the work item that an actor was lost with."""
        if trying is not None or head.last_announced is None:
            head.shunned = slot
        if not head.work.kind.announces:
            self._retry(head, reason)
            return
        if not head.announces:
            self._say(f"{name} {'died' if status == 'crash' else 'gave no sign of life'}; what it did is done again item by item")
            head.announces = True
        head.losses += 1
        if head.item is not None:
            head.isolated_losses += 1
            if head.isolated_losses >= DEATHS_ALONE:
                if head.item not in self._blamed:  # another job may have been at it
                    self._blamed.add(head.item)
                    self._actions.append(Blame(head.item, status, DIED if status == "crash" else reason, head.isolated_losses - 1))
                head.item, head.losses, head.isolated_losses = None, 0, 0
        elif trying is not None:
            head.last_announced = trying
        self._requeue(head)
        if head.losses >= LOST_MAX:
            self._actions.append(GiveUp(FarmError(f"a job was lost with {head.losses} workers, and no item of it is at fault: {reason}")))

    def _retry(self, job: TrackedWork, reason: str) -> None:
        job.losses += 1
        if job.losses < job.work.kind.tries:
            self._requeue(job)
        else:
            self._finish(job)
            self._actions.append(Failed(job.work.number, reason))

    def _finish(self, job: TrackedWork) -> None:
        job.finished = True
        self._unfinished -= 1

    def _requeue(self, job: TrackedWork) -> None:
        """Requeue a job that no actor has any more."""
        if job.finished or job.holders:
            return
        if job.suspect:
            job.item, job.last_announced = job.item or job.last_announced, None
            self._suspects.appendleft(job)
        else:
            self._wait(job)

    def _wait(self, job: TrackedWork) -> None:
        for queue in self._waiting, self._homes[job.work.home]:
            insort(queue, job, key=_order)

    # assignment

    def _assign(self, now_s: float) -> None:
        if self._usual_s is not None:
            self._slots.find_late(now_s, self._late_s)
        self._assign_suspects(now_s)
        for depth in range(1 if self._suspects else DEPTH):  # a suspect waits for an actor to itself
            free = self._slots.free[depth]
            while self._waiting and free and (assignment := self._assignment(depth, now_s)) is not None:
                slot, job = assignment
                for queue in self._waiting, self._homes[job.work.home]:
                    del queue[bisect_left(queue, job.work.order, key=_order)]
                self._send(slot, job, now_s)
        if not self._suspects:
            self._help(now_s)

    def _assign_suspects(self, now_s: float) -> None:
        """Give every suspect an idle actor, which has it to itself: in another slot than the last one, if there is one."""
        idle_slots = self._slots.free[0]
        for job in list(self._suspects) if idle_slots else ():
            home = self._slots.free_slot(0, job.work.home)
            indices = [*([home.index] if home is not None else []), *(int(entry[-1]) for entry in idle_slots[:2])]
            index = next((index for index in indices if index != job.shunned or self._slots.built == 1), None)
            if index is not None:
                self._suspects.remove(job)
                if job.item in self._blamed:
                    job.item, job.isolated_losses = None, 0
                self._send(self._slots.all_slots[index], job, now_s)

    def _assignment(self, depth: int, now_s: float) -> tuple[Slot, TrackedWork] | None:
        """Assignment to an actor with so many queued work items.

        It is the home of the most urgent job, or else the fastest actor, which takes a job whose home it is, or else the most urgent one.

        Jobs that faster actors will have finished earlier are skipped: a slow actor takes the least urgent jobs, or none, so as not to
        delay all others.
        """
        slot = self._slots.free_slot(depth, self._waiting[0].work.home)
        if slot is None or self._slots.works_of_faster(slot):
            slot = self._slots.first_free(depth)
        if (position := self._slots.works_of_faster(slot)) >= len(self._waiting):
            return None
        job = self._waiting[position]
        home = self._homes[self._slots.home_slot(slot)]
        if (position := bisect_left(home, job.work.order, key=_order)) < len(home):
            job = home[position]
        follows = job.work.kind.follows and (job.work.until_s is None or job.work.until_s - now_s > 2 * self._longest_s)
        return (slot, job) if follows or not depth else None

    def _send(self, slot: Slot, job: TrackedWork, now_s: float, late: bool = False) -> None:
        assert slot.actor is not None
        number, self._sent_count = self._sent_count, self._sent_count + 1
        slot.queue.append(QueuedWork(number, job))
        job.holders.append(slot)
        for holder in job.holders[:-1]:  # it cannot be repeated once more
            self._slots.sort(holder)
        if len(slot.queue) == 1:
            self._begin_work(slot, now_s)
        else:
            self._slots.sort(slot)
        announces = (job.announces or late) and job.item is None
        self._actions.append(Send(slot.actor, number, job.work.number, slot.name, announces, job.item))

    @property
    def _late_s(self) -> float:
        return max(LATE_S, LATE_TIMES * (self._usual_s or 0.0))

    def _help(self, now_s: float) -> None:
        """Give idle actors a job of an actor that is late or much slower.

        If it is late, it announces its items, because it may hang here too.
        """
        idle_slots = self._slots.free[0]
        while idle_slots and (job := self._slots.late_work()) is not None:
            self._send(self._slots.first_free(0), job, now_s, late=True)
        while not self._waiting and (slot := self._slots.first_paced()) is not None:
            if (job := self._slots.slow_work(slot, now_s + HELPS * (slot.pace_s or 0.0))) is None:
                break
            self._send(slot, job, now_s)
