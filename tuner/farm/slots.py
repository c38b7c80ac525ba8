"""Slots of a farm, in the orders in which supervision asks for them.  A change of a slot, and a question, costs O(log slots).

Time only goes forward, so the order by the last sign of life needs no search: a sign moves a slot to the end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, log
from typing import Any, NamedTuple

from tuner.farm.actions import WorkItem
from tuner.platform.actors import Actor

DEPTH = 2  # work items in an actor's queue
PATIENCE_S = 20.0  # an actor starts within seconds if there is room
FASTER = 0.75  # ratio of pace from which on an actor counts as faster, about
FASTER_STEPS = 3  # the same in steps of PACE_STEP
PACE_STEP = FASTER ** (1 / FASTER_STEPS)


@dataclass(eq=False)
class TrackedWork:
    """Work item without a result yet.

    announces: whether its items are announced from now on.  last_announced: last announced item of an actor that was lost.
    item: item to be run alone first.  isolated_losses: actors lost while they ran it alone.
    losses: actors lost without a blamed item.  shunned: slot of the last one.  holders: slots whose queues it is in.
    """

    work: WorkItem
    announces: bool = False
    last_announced: bytes | None = None
    item: bytes | None = None
    isolated_losses: int = 0
    losses: int = 0
    shunned: int | None = None
    holders: list[Slot] = field(default_factory=list)
    finished: bool = False

    @property
    def suspect(self) -> bool:
        return self.losses > 0 or self.announces

    @property
    def repeatable(self) -> bool:
        """Whether another actor may do it at the same time."""
        return self.work.kind.pure and len(self.holders) == 1 and not self.suspect and not self.finished


class QueuedWork(NamedTuple):
    """Work item in an actor's queue.  number: id of its message."""

    number: int
    work: TrackedWork


@dataclass(eq=False)
class Slot:
    """Place for an actor.  since_s: time when its first work item could begin or last made progress; or when its actor was started.

    begun_s: time when its first work item could begin.  pace_s: recent seconds per work item, over all actors of the slot.
    trying: last announced item.  items: finished items at the last report.  waits: whether its late start was reported.
    is_late: whether its work takes too long, see `Slots.find_late`.  extra: whether it has an actor only for work, and if there is room.
    node: number of its computer.  leaves_s: time at which that leaves; None: it stays.
    entries, paced: its places in the orders of `Slots`.
    """

    index: int
    extra: bool = False
    actor: Actor | None = None
    name: str = ""
    built: bool = False
    since_s: float = 0.0
    queue: deque[QueuedWork] = field(default_factory=deque)
    trying: bytes | None = None
    items: int = -1
    failed_builds: int = 0
    waits: bool = False
    begun_s: float = 0.0
    pace_s: float | None = None
    is_late: bool = False
    node: int = 0
    leaves_s: float | None = None
    entries: list[tuple[list[Any], tuple[float, ...]]] = field(default_factory=list)
    paced: tuple[int, int] | None = None

    def ends_s(self, pieces: int) -> float:
        """Expected time at which `pieces` of its work items are done."""
        return self.begun_s + (self.pace_s or 0.0) * pieces

    @property
    def repeatable(self) -> list[int]:
        """Places in the queue, from 1, of work that another actor may do at the same time."""
        return [place for place, queued in enumerate(self.queue, 1) if queued.work.repeatable]

    def allowed_s(self, item_timeout_s: float | None) -> float | None:
        """Longest silence of an actor at work."""
        return self.queue[0].work.work.kind.silence_s if self.trying is None else item_timeout_s

    @property
    def open(self) -> bool:
        """Whether it takes more work: nothing is queued behind a suspect, or behind late work, or where the computer leaves."""
        if not self.built or len(self.queue) == DEPTH or self.leaves_s is not None:
            return False
        last = self.queue[-1].work if self.queue else None
        return last is None or (last.work.kind.followed and not last.suspect and not self.is_late)


class Slots:
    """Orders of slots.

    free: (level of pace, node, slot) by number of queued work items, the fastest first; those of unknown pace before all.
    packed: (node, slot) of built actors, as work is dealt: those without work share nodes.  nodes: numbers of computers, oldest first.
    expected_ends: (expected end of its last work item that can be repeated, slot).
    paces: [actors, work items in their queues] by level of pace.  Both are without late actors.
    starting: actors that are not built, without extra ones, by time of their start; unreported: those whose wait was not reported.
    slot_deadlines: (time, slot) at which an actor is too silent, or was too long without work, or its computer leaves.
    timely: actors at work by last sign of life, those that are not late; late_slots: those that are, with work that can be repeated.
    """

    def __init__(self, item_timeout_s: float | None, idle_s: float = inf) -> None:
        self._item_timeout_s, self._idle_s = item_timeout_s, idle_s
        self.all_slots: list[Slot] = []
        self.nodes: dict[str, int] = {}
        self.packed: list[tuple[int, int]] = []
        self.free: list[list[tuple[float, ...]]] = [[] for _ in range(DEPTH)]
        self.expected_ends: list[tuple[float, ...]] = []
        self.slot_deadlines: list[tuple[float, ...]] = []
        self.paces: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        self.starting, self.unreported, self.timely, self.late_slots = (OrderedDict[int, Slot]() for _ in range(4))

    # changes

    def set_sign(self, slot: Slot, now_s: float) -> None:
        """Set the time of the last sign of life, or of the start."""
        slot.since_s, slot.is_late = now_s, False
        for order in (self.starting, self.unreported, self.timely):
            order.pop(slot.index, None)
        if slot.queue:
            self.timely[slot.index] = slot
        elif slot.actor is not None and not slot.built and not slot.extra:
            self.starting[slot.index] = slot
            if not slot.waits:
                self.unreported[slot.index] = slot
        self.sort(slot)

    def sort(self, slot: Slot) -> None:
        """Enter a slot into the orders by its queue, pace and state."""
        for order, entry in slot.entries:
            del order[bisect_left(order, entry)]
        slot.entries.clear()
        if slot.paced is not None:
            counts = self.paces[slot.paced[0]]
            counts[0] -= 1
            counts[1] -= slot.paced[1]
            if not counts[0]:
                del self.paces[slot.paced[0]]
            slot.paced = None
        self.late_slots.pop(slot.index, None)
        level = -inf if slot.pace_s is None else pace_level(slot.pace_s)
        if slot.open:
            self._enter(slot, self.free[len(slot.queue)], level, slot.node)
        if (due_s := self._due_s(slot)) < inf:
            self._enter(slot, self.slot_deadlines, due_s)
        repeatable = slot.repeatable
        if slot.is_late:
            if repeatable:
                self.late_slots[slot.index] = slot
        elif slot.built and slot.pace_s is not None:
            slot.paced = int(level), len(slot.queue)
            counts = self.paces[int(level)]
            counts[0] += 1
            counts[1] += slot.paced[1]
            if repeatable:
                self._enter(slot, self.expected_ends, slot.ends_s(repeatable[-1]))

    def _due_s(self, slot: Slot) -> float:
        allowed_s = slot.allowed_s(self._item_timeout_s) if slot.queue else self._idle_s if slot.built and slot.extra else None
        leaves_s = inf if slot.leaves_s is None else slot.leaves_s
        return leaves_s if allowed_s is None else min(leaves_s, slot.since_s + allowed_s)

    def _enter(self, slot: Slot, order: list[tuple[float, ...]], *key: float) -> None:
        slot.entries.append((order, (*key, slot.index)))
        insort(order, (*key, slot.index))

    def find_late(self, now_s: float, late_s: float) -> None:
        """Mark slots as late that gave no sign of life for `late_s` seconds."""
        while self.timely and now_s - (slot := first(self.timely)).since_s >= late_s:
            del self.timely[slot.index]
            slot.is_late = True
            self.sort(slot)

    def set_built(self, slot: Slot, node: str | None) -> None:
        """Note a new actor with its computer, or that it is gone."""
        slot.built = node is not None
        if node is not None:
            slot.node = self.nodes.setdefault(node, len(self.nodes))
            insort(self.packed, (slot.node, slot.index))
        else:
            del self.packed[bisect_left(self.packed, (slot.node, slot.index))]

    # questions

    @property
    def built(self) -> int:
        return len(self.packed)

    def home_slot(self, slot: Slot) -> int:
        """Place of a built actor in the order in which work is dealt."""
        return bisect_left(self.packed, (slot.node, slot.index))

    def free_slot(self, depth: int, home: int | None) -> Slot | None:
        """Slot at this place in `packed`, if it is free and has this number of queued work items."""
        if home is None or home >= len(self.packed):
            return None
        slot = self.all_slots[self.packed[home][1]]
        return slot if len(slot.queue) == depth and slot.open else None

    def first_free(self, depth: int) -> Slot:
        """First slot in `free` with this number of queued work items."""
        return self.all_slots[int(self.free[depth][0][-1])]

    def first_paced(self) -> Slot | None:
        """Fastest slot of known pace without work."""
        idle_slots = self.free[0]
        place = bisect_left(idle_slots, (-inf, inf))
        return self.all_slots[int(idle_slots[place][-1])] if place < len(idle_slots) else None

    def works_of_faster(self, slot: Slot) -> int:
        """Number of waiting work items that faster actors will have finished before this one finishes another.

        It is what they do in that time without their queues: right on average if they are in the middle of their work.  Late actors are not
        counted: they may hang.
        """
        if slot.pace_s is None:
            return 0
        level, pieces, count = pace_level(slot.pace_s), len(slot.queue) + 1, 0
        last = level - FASTER_STEPS
        for faster_level, (actors, works) in self.paces.items():
            if faster_level <= last and (free_works := int(actors * pieces * PACE_STEP ** (faster_level - level)) - works) > 0:
                count += free_works
        return count

    def late_work(self) -> TrackedWork | None:
        """Work of a late actor that can be repeated."""
        if not self.late_slots:
            return None
        slot = first(self.late_slots)
        return slot.queue[slot.repeatable[0] - 1].work

    def slow_work(self, slot: Slot, after_s: float) -> TrackedWork | None:
        """Work that is expected to end last of all that can be repeated, if its actor is slower than this and it ends after this time."""
        assert slot.pace_s is not None
        if not self.expected_ends or self.expected_ends[-1][0] <= after_s:
            return None
        slower_slot = self.all_slots[int(self.expected_ends[-1][1])]
        assert slower_slot.pace_s is not None
        if pace_level(slot.pace_s) > pace_level(slower_slot.pace_s) - FASTER_STEPS:
            return None
        return slower_slot.queue[slower_slot.repeatable[-1] - 1].work

    def deadlines(self, build_timeout_s: float, reports: bool) -> Iterator[tuple[float, int]]:
        """Next time, with its slot, of each kind: of `slot_deadlines`, of a late start, if `reports`, and of a start beyond the timeout."""
        if self.slot_deadlines:
            yield self.slot_deadlines[0][0], int(self.slot_deadlines[0][1])
        if self.built and reports and self.unreported:
            yield (slot := first(self.unreported)).since_s + PATIENCE_S, slot.index
        if not self.built and self.starting:
            yield (slot := first(self.starting)).since_s + build_timeout_s, slot.index


def first(order: OrderedDict[int, Slot]) -> Slot:
    return next(iter(order.values()))


def pace_level(pace_s: float) -> int:
    return round(log(pace_s, 1 / PACE_STEP))
