"""Orders of slots are those that a scan of all slots gives, whatever happens to the actors."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.farm.actions import Action, Deliver, Failed, GiveUp, Kill, RetryPolicy, Send, StartActor, WorkItem
from tuner.farm.slots import DEPTH, FASTER_STEPS, PATIENCE_S, QueuedWork, Slot, Slots, TrackedWork, pace_level
from tuner.farm.supervision import HELPS, Supervision
from tuner.platform.actors import Announced, Built, Done, Draining, Event, JobProgress, Lost

ITEM_S, IDLE_S = 8.0, 30.0
KINDS = (
    RetryPolicy(60.0, announces=True, pure=True, follows=True, followed=True, comparable=True),
    RetryPolicy(60.0, announces=True, pure=True, follows=True, followed=True),
    RetryPolicy(600.0, follows=True, tries=1000),
)


def scan_deadline(slots: list[Slot], replaced: int) -> float | None:
    """Next time at which an actor is too silent, waits too long to be built, or is reported as waiting."""
    built = any(slot.built for slot in slots)
    times = [slot.leaves_s for slot in slots if slot.leaves_s is not None]
    for slot in slots:
        if slot.built and slot.queue:
            allowed_s = slot.queue[0].work.work.kind.silence_s if slot.trying is None else ITEM_S
            times += [slot.since_s + allowed_s] if allowed_s is not None else []
        elif slot.actor is not None and not slot.built and not slot.extra:
            if not built:
                times.append(slot.since_s + 300.0)
            elif replaced and not slot.waits:
                times.append(slot.since_s + PATIENCE_S)
        elif slot.built and slot.extra:
            times.append(slot.since_s + IDLE_S)
    return min(times, default=None)


def scan_slow_work(slots: list[Slot], slot: Slot, after_s: float) -> TrackedWork | None:
    """Work that ends last of all that can be repeated, if its actor is slower and it ends after this time."""
    assert slot.pace_s is not None
    works = [
        (other.ends_s(place), other.index, place)
        for other in slots
        if other.built and other.pace_s is not None and not other.is_late
        for place, lying in enumerate(other.queue, 1)
        if lying.work.repeatable
    ]
    end_s, index, place = max(works, default=(0.0, 0, 0))
    pace_s = slots[index].pace_s
    if end_s <= after_s or pace_s is None or pace_level(slot.pace_s) > pace_level(pace_s) - FASTER_STEPS:
        return None
    return slots[index].queue[place - 1].work


def check(slots: Slots, now_s: float, replaced: int) -> None:
    every = slots.all_slots
    assert slots.built == sum(slot.built for slot in every)
    for depth in range(DEPTH):
        free = [slot for slot in every if slot.open and len(slot.queue) == depth]
        levels = {slot.index: -inf if slot.pace_s is None else pace_level(slot.pace_s) for slot in free}
        assert slots.free[depth] == sorted((levels[slot.index], slot.node, slot.index) for slot in free)
    assert slots.packed == sorted((slot.node, slot.index) for slot in every if slot.built)
    assert [slots.free_slot(0, slots.home_slot(slot)) for slot in every if slot.built and slot.open and not slot.queue] == [
        slot for slot in every if slot.built and slot.open and not slot.queue
    ]
    paced = [slot for slot in every if slot.built and slot.pace_s is not None and not slot.is_late]
    paces = defaultdict[int, list[int]](lambda: [0, 0])
    for slot in paced:
        paces[pace_level(slot.pace_s or 0.0)][0] += 1
        paces[pace_level(slot.pace_s or 0.0)][1] += len(slot.queue)
    assert slots.paces == paces
    times = sorted((slot.since_s, slot.index) for slot in every if slot.built and slot.queue and not slot.is_late)
    assert [time_s for time_s, _ in times] == [slot.since_s for slot in slots.timely.values()]
    assert {index for _, index in times} == set(slots.timely)
    assert min((time_s for time_s, _ in slots.deadlines(300.0, replaced > 0)), default=None) == scan_deadline(every, replaced)
    repeatable = [lying.work for slot in every if slot.is_late for lying in slot.queue if lying.work.repeatable]
    late = slots.late_work()
    assert late in repeatable if repeatable else late is None
    for slot in every:
        if slot.built and slot.pace_s is not None and not slot.queue:
            after_s = now_s + HELPS * slot.pace_s
            assert slots.slow_work(slot, after_s) is scan_slow_work(every, slot, after_s)


@dataclass
class Farm:
    """Actors to which anything happens."""

    rng: random.Random
    slots: int
    min_count: int
    machine: Supervision = field(init=False)
    now_s: float = 0.0
    starting: list[int] = field(default_factory=list)
    sent: dict[int, list[Send]] = field(default_factory=dict)
    jobs: int = 0
    over: Counter[int] = field(default_factory=Counter)
    leaving: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.machine = Supervision(self.slots, ITEM_S, min_count=self.min_count, idle_s=IDLE_S)
        self.do(self.machine.begin(0.0))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, StartActor):
                self.starting.append(action.actor)
            elif isinstance(action, Kill):
                self.starting = [actor for actor in self.starting if actor != action.actor]
                self.sent.pop(action.actor, None)
            elif isinstance(action, Send):
                assert action.actor not in self.leaving, "no work for who leaves"
                self.sent[action.actor].append(action)
            elif isinstance(action, Deliver | Failed):
                self.over[action.work] += 1
            assert not isinstance(action, GiveUp)
        check(self.machine._slots, self.now_s, self.machine.replaced)
        every, counts = self.machine._slots.all_slots, self.machine.counts()
        assert counts.busy == sum(slot.built and len(slot.queue) > 0 for slot in every)
        assert counts.idle == sum(slot.built and not slot.queue for slot in every)
        assert counts.joining == sum(slot.actor is not None and not slot.built for slot in every)
        held = {id(lying.work) for slot in every for lying in slot.queue if not lying.work.finished}
        assert counts.queued == self.jobs - len(self.over) - len(held)

    def hear(self, event: Event) -> None:
        self.do(self.machine.handle(event, self.now_s))

    def build(self) -> None:
        actor = self.starting.pop(self.rng.randrange(len(self.starting)))
        self.sent[actor] = []
        self.hear(Built(actor, f"host:{actor}", f"node{self.rng.randrange(3)}"))

    def finish(self) -> None:
        actor = self.rng.choice([actor for actor, sent in self.sent.items() if sent])
        self.hear(Done(actor, self.sent[actor].pop(0).number, b""))

    def step(self) -> None:
        draw, rng = self.rng.random(), self.rng
        at_work = [actor for actor, sent in self.sent.items() if sent]
        if draw < 0.3:
            self.now_s += rng.choice([0.01, 0.1, 0.5, 5.0, 20.0])
            self.do(self.machine.tick(self.now_s))
        elif draw < 0.55:
            self.jobs += 1
            home = rng.choice([None, rng.randrange(self.slots)])
            work = WorkItem(self.jobs, rng.choice(KINDS), home, rng.choice([None, self.now_s + 3.0]), (rng.randrange(3), 0))
            self.do(self.machine.submit(work, self.now_s))
        elif draw < 0.6 and self.starting:
            self.build()
        elif draw < 0.65 and self.sent:
            actor = rng.choice(list(self.sent))
            del self.sent[actor]
            self.hear(Lost(actor, "why", outside=rng.random() < 0.9))
        elif draw < 0.67 and self.starting:
            actor = rng.choice(self.starting)
            self.starting.remove(actor)
            self.hear(Lost(actor, "why", outside=True))
        elif draw < 0.69 and (actors := [*self.sent, *self.starting]):
            actor = rng.choice(actors)
            self.leaving.add(actor)
            self.hear(Draining(actor, rng.choice([0.5, 5.0, 100.0, inf])))
        elif draw < 0.75 and at_work:
            send = self.sent[rng.choice(at_work)][0]
            progress = JobProgress(send.actor, send.number, rng.randrange(3))
            self.hear(progress if rng.random() < 0.5 else Announced(send.actor, send.number, b"item"))
        elif at_work:
            self.finish()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(0, 4))
def test_orders_are_those_of_a_scan(seed: int, min_count: int, extra: int) -> None:
    farm = Farm(random.Random(seed), min_count + extra, min_count)
    for _ in range(150):
        farm.step()
    while len(farm.over) < farm.jobs:
        if farm.starting:
            farm.build()
        else:
            farm.finish()
    assert farm.over == Counter(range(1, farm.jobs + 1))
    while any(farm.sent.values()):  # what was done twice
        farm.finish()
    farm.now_s += IDLE_S + 1.0
    farm.do(farm.machine.tick(farm.now_s))
    assert not any(slot.built for slot in farm.machine._slots.all_slots[min_count:])


@pytest.mark.parametrize("span", [1.5, 3.0, 10.0])
@pytest.mark.parametrize("queued", [1, 2])
def test_works_of_faster_actors_are_counted_well(span: float, queued: int) -> None:
    """In the middle of their work, as actors of a farm are."""
    rng, slots = random.Random(0), Slots(None)
    slots.all_slots += map(Slot, range(401))
    plain = 0
    for slot in slots.all_slots:
        slot.actor, slot.built, slot.pace_s = slot.index, True, rng.uniform(1.0, 2.0) if slot.index else 2.0 * span
        slot.queue.extend(QueuedWork(0, TrackedWork(WorkItem(0, KINDS[0]))) for _ in range(queued if slot.index else 0))
        slots.sort(slot)
        if slot.index:
            plain += max(0, int((2.0 * span - (queued - rng.random()) * slot.pace_s) // slot.pace_s))
    assert slots.works_of_faster(slots.all_slots[0]) == pytest.approx(plain, rel=0.1, abs=40)
