"""Supervision by what happens to it: scripted, and at random with actors that die of items, of nothing, and with their computer."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.farm.actions import DIED, Action, Blame, Deliver, Failed, GiveUp, Kill, RetryPolicy, SayLine, Send, StartActor, WorkItem
from tuner.farm.slots import DEPTH, PATIENCE_S
from tuner.farm.supervision import BUILD_TRIES, LATE_S, LOST_MAX, Supervision
from tuner.platform.actors import BUILDING, Announced, Built, Done, Draining, Event, FarmError, JobProgress, Lost, Raised

JOB = RetryPolicy(60.0, announces=True, pure=True, follows=True, followed=True)
TRAINING = RetryPolicy(600.0, follows=True, tries=3)
EACH = RetryPolicy()
ITEM_S = 8.0


class Play:
    """A machine, and the time.  Messages are known by actor and work here, without their numbers."""

    def __init__(self, slots: int, built: bool = True) -> None:
        self.machine, self.now_s = Supervision(slots, ITEM_S), 0.0
        self._sent: dict[tuple[int, int], int] = {}
        assert self.machine.begin(0.0) == [StartActor(slot, slot) for slot in range(slots)]
        for slot in range(slots if built else 0):
            assert self(Built(slot, f"host:{slot}")) == []

    def __call__(self, event: Event) -> list[Action]:
        if isinstance(event, Done | Announced | JobProgress):
            event = event._replace(job=self._sent.get((event.actor, event.job), 1000))
        return self._told(self.machine.handle(event, self.now_s))

    def submit(self, *numbers: int, kind: RetryPolicy = JOB, home: int | None = None, until_s: float | None = None) -> list[Action]:
        works = [WorkItem(number, kind, home, until_s) for number in numbers]
        return [action for work in works for action in self._told(self.machine.submit(work, self.now_s))]

    def after(self, seconds: float) -> list[Action]:
        self.now_s += seconds
        return self._told(self.machine.tick(self.now_s))

    def _told(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, Send):
                assert action.number not in self._sent.values()
                self._sent[action.actor, action.work] = action.number
        return [action._replace(number=0) if isinstance(action, Send) else action for action in actions]


def send(actor: int, work: int, announces: bool = False, item: bytes | None = None, slot: int | None = None) -> Send:
    return Send(actor, 0, work, f"w{actor if slot is None else slot}@host:{actor}", announces, item)


def again(slot: int, old: int, new: int) -> list[Action]:
    return [Kill(old), StartActor(slot, new)]


def test_actor_dying_at_start_is_retried_without_delay() -> None:
    play = Play(2, built=False)
    assert play(Built(1, "host:1")) == []
    assert play(Lost(0, "why")) == again(0, 0, 2)
    assert play(Lost(0, "why")) == [], "of an actor that is there no more"
    assert play(Lost(2, "why")) == again(0, 2, 3)
    assert play(Lost(3, "why")) == [Kill(3), SayLine(f"worker 0 died {BUILD_TRIES} times while it started: why; going on with 1 of 2")]
    assert play.submit(0, 1) == [send(1, 0), send(1, 1)]
    (kill, start), (kill2, start2) = play(Lost(1, "why"))[:2], play(Lost(4, "why"))
    assert [kill, start, kill2, start2] == [*again(1, 1, 4), *again(1, 4, 5)]
    play(Lost(5, "why"))
    kill, give_up = play(Lost(6, "why"))
    assert isinstance(give_up, GiveUp)
    assert isinstance(give_up.error, FarmError)
    assert str(give_up.error) == "worker 1 died 3 times while it started: why"


def test_actors_waiting_for_room_are_reported_without_delay() -> None:
    play = Play(2)
    play(Lost(0, "why", outside=True))
    assert play.after(PATIENCE_S - 0.1) == []
    assert play.machine.due_s(play.now_s) == pytest.approx(0.1)
    assert play.after(0.2) == [SayLine("worker 0 waits for room on the cluster; the others go on")]
    assert play.after(10_000.0) == [], "said once, and as long as others are there it may take its time"
    assert play.submit(0) == [send(1, 0)]
    assert play(Built(2, "host:2")) == [SayLine("worker 0 is back")]
    only = Play(1, built=False)
    assert only.machine.due_s(0.0) == 300.0
    assert only.after(299.0) == []
    assert only.after(2.0) == again(0, 0, 1)


def test_what_raised_ends_the_run() -> None:
    error = RuntimeError("harm")
    assert Play(1)(Raised(0, 3, error)) == [GiveUp(error)]
    assert Play(1, built=False)(Raised(0, BUILDING, error)) == [GiveUp(error)]


def test_two_jobs_per_actor_idle_first_homes_preferred() -> None:
    play = Play(2)
    assert play.submit(0, home=1) == [send(1, 0)]
    assert play.submit(1, home=1) == [send(0, 1)], "who is free takes what is due"
    assert play.submit(2, 3, home=1) == [send(1, 2), send(0, 3)]
    assert play.submit(4, 5, home=1) + play.submit(6, home=0) == [], "they wait"
    assert play(Done(0, 1, b"one")) == [Deliver(1, b"one"), send(0, 6)]
    assert play(Done(0, 3, b"3")) == [Deliver(3, b"3"), send(0, 4)], "rather the first of those that have another home than nothing"
    assert play(Done(0, 1, b"one")) == [], "said twice"
    assert play(Done(0, 9, b"?")) == []
    training = Play(1)
    assert training.submit(0) == [send(0, 0)]
    assert training.submit(1, kind=TRAINING) == [send(0, 1)]
    assert training.submit(2) == [], "nothing lies behind what takes long"


def test_near_the_end_no_job_waits_behind_another() -> None:
    play = Play(1)
    play.submit(0)
    play.now_s = 3.0
    play(Done(0, 0, b""))
    assert play.submit(1, until_s=20.0) == [send(0, 1)]
    assert play.submit(2, until_s=9.1) == [send(0, 2)]
    play(Done(0, 1, b""))
    assert play.submit(3, until_s=8.9) == []
    assert play(Done(0, 2, b"")) == [Deliver(2, b""), send(0, 3)]


def test_faulty_item_is_announced_retried_alone_and_blamed() -> None:
    play = Play(3)
    assert play.submit(0, 1, 2, 3) == [send(0, 0), send(1, 1), send(2, 2), send(0, 3)]
    line = SayLine("w0@host:0 died; what it did is done again item by item")
    assert play(Lost(0, "why")) == [*again(0, 0, 3), line], "nothing is put behind others while a suspect waits"
    found = play(Done(1, 1, b""))
    assert found == [Deliver(1, b""), send(1, 0, announces=True), send(2, 3)], "the suspect first, to itself; the other as it was"
    assert play(Built(3, "host:3")) == []
    assert play(Announced(1, 0, b"a")) == []
    assert play(Announced(1, 3, b"z")) == [], "of what it is not at"
    assert play(Announced(1, 0, b"b")) == []
    assert play(Lost(1, "why")) == [*again(1, 1, 4), send(3, 0, item=b"b", slot=0)]
    assert play(Lost(3, "why")) == again(0, 3, 5), "the first may have been ended by something else"
    assert play(Built(5, "host:5")) == [], "elsewhere"
    assert play(Built(4, "host:4")) == [send(4, 0, item=b"b", slot=1)]
    assert play(Lost(4, "why"))[-2:] == [Blame(b"b", "crash", DIED, 1), send(5, 0, announces=True, slot=0)]
    assert play(Done(5, 0, b"done")) == [Deliver(0, b"done")]


def test_what_does_no_harm_alone_is_not_blamed() -> None:
    play = Play(2)
    play.submit(0)
    assert play(Lost(0, "why"))[-1] == send(1, 0, announces=True)
    play(Announced(1, 0, b"a"))
    play(Lost(1, "why"))
    assert play(Built(2, "host:2")) == [send(2, 0, item=b"a", slot=0)], "one that is elsewhere starts anew; nobody else is there"
    assert play(Done(2, 0, b"")) == [send(2, 0, announces=True, slot=0)]
    assert play(Done(2, 0, b"done")) == [Deliver(0, b"done")]


def test_repeated_message_is_not_of_a_resent_job() -> None:
    machine = Supervision(1, ITEM_S)
    machine.begin(0.0)
    machine.handle(Built(0, "host:0"), 0.0)
    machine.submit(WorkItem(7, JOB), 0.0)
    machine.handle(Lost(0, "why"), 0.0)
    (second,) = machine.handle(Built(1, "host:0"), 0.0)
    assert isinstance(second, Send)
    machine.handle(Announced(1, second.number, b"a"), 0.0)
    machine.handle(Lost(1, "why"), 0.0)
    (alone,) = machine.handle(Built(2, "host:0"), 0.0)
    assert isinstance(alone, Send)
    assert alone.item == b"a"
    done = Done(2, alone.number, b"")
    (again_,) = machine.handle(done, 0.0)
    assert isinstance(again_, Send)
    assert again_.actor == alone.actor
    assert machine.handle(done, 0.0) == []
    assert machine.handle(Done(2, again_.number, b"whole"), 0.0) == [Deliver(7, b"whole")]


def test_what_happens_to_a_computer_counts_against_nobody() -> None:
    play = Play(2)
    play.submit(0, 1, 2)
    assert play(Lost(0, "why", outside=True)) == [*again(0, 0, 2), send(1, 0)], "as it was, and before what is newer"
    assert play(Lost(1, "why"))[-1] == SayLine("w1@host:1 died; what it did is done again item by item")
    play(Built(2, "host:2"))
    play(Announced(2, 1, b"a"))
    play(Lost(2, "why"))
    assert send(3, 1, item=b"a", slot=1) in play(Built(3, "host:3"))
    for actor, slot, new in ((3, 1, 5), (4, 0, 6), (5, 1, 7)):
        assert not any(isinstance(action, Blame) for action in play(Lost(actor, "why", outside=True)))
        if actor == 3:
            assert play(Built(4, "host:4")) == [send(4, 1, item=b"a", slot=0)]
        del slot, new
    assert any(isinstance(action, Send) and action.item == b"a" for action in play(Built(6, "host:6")) + play(Built(7, "host:7")))


IDLE_S = 60.0


class Elastic(Play):
    """A machine with one slot that has its actor from the beginning, and extra ones."""

    def __init__(self, extra: int) -> None:
        super().__init__(1)
        self.machine = Supervision(1 + extra, ITEM_S, min_count=1, idle_s=IDLE_S)
        assert self.machine.begin(0.0) == [StartActor(0, 0)]
        assert self(Built(0, "host:0")) == []


def test_extra_actors_come_with_work_and_end_without() -> None:
    play = Elastic(2)
    assert play.submit(0, 1) == [send(0, 0), send(0, 1), StartActor(1, 1)], "one for each work item that has no actor of its own"
    assert play.submit(2, 3) == [StartActor(2, 2)]
    assert play.machine.due_s(play.now_s) == 60.0, "of the work"
    assert play(Built(2, "host:2")) == [send(2, 2), send(2, 3)]
    for work, actor in ((0, 0), (1, 0), (2, 2), (3, 2)):
        play(Done(actor, work, b""))
    assert play.machine.due_s(play.now_s) == IDLE_S
    assert play.after(IDLE_S - 1.0) == []
    assert play.after(2.0) == [Kill(2)]
    assert play.after(10_000.0) == [], "the first has no work either, and stays; the one that waits for room costs nothing"
    assert play.submit(4, 5, 6) == [send(0, 4), send(0, 5), StartActor(2, 3)]
    assert play(Built(1, "host:1")) == [send(1, 6)], "late"
    assert play.machine.replaced == 0


def test_lost_extra_actor_waits_for_work_and_room() -> None:
    play = Elastic(1)
    play.submit(0, 1, 2)
    assert play(Built(1, "host:1")) == [send(1, 2)]
    assert play(Lost(1, "why", outside=True)) == [Kill(1), StartActor(1, 2)], "its work waits for the other"
    for actor in range(2, 2 + 2 * BUILD_TRIES):
        assert play(Lost(actor, "why", outside=True)) == [Kill(actor), StartActor(1, actor + 1)], "while it starts, too"
    assert play.after(50.0) == [], "no word of its wait"
    assert play(Done(0, 0, b"")) == [Deliver(0, b""), send(0, 2)]
    assert play(Done(0, 1, b"")) == [Deliver(1, b"")]
    actor = 2 + 2 * BUILD_TRIES
    assert play(Lost(actor, "why", outside=True)) == [Kill(actor)], "no work for it"
    assert play.submit(3) == [send(0, 3), StartActor(1, actor + 1)]


def test_farm_ends_without_any_built_worker() -> None:
    play = Elastic(2)
    play.submit(0, 1, 2)
    play(Built(1, "host:1"))
    play(Lost(0, "why"))
    play(Lost(3, "why"))
    play(Lost(4, "why"))
    assert play(Lost(5, "why"))[-1] == SayLine(f"worker 0 died {BUILD_TRIES} times while it started: why; going on with 2 of 3")
    give_up = next(action for action in play(Lost(1, "gone", outside=True)) if isinstance(action, GiveUp))
    assert str(give_up.error) == "no worker is left: gone", "the other extra one may never come"


def test_silence() -> None:
    play = Play(2)
    play.submit(0)
    play.after(50.0)
    play(JobProgress(0, 0, 3))
    assert play.after(59.0) == []
    play(JobProgress(0, 0, 3))
    line = SayLine("w0@host:0 gave no sign of life; what it did is done again item by item")
    assert play.after(2.0) == [*again(0, 0, 2), line, send(1, 0, announces=True)]
    assert play(Done(0, 0, b"late")) == [], "it was given up"
    play(Built(2, "host:2"))
    assert play.after(59.0) == [], "before the first item it may take as long as any job"
    play(Announced(1, 0, b"a"))
    assert play.machine.due_s(play.now_s) == ITEM_S
    assert play.after(ITEM_S + 0.1) == [*again(1, 1, 3), send(2, 0, item=b"a", slot=0)]
    play(Built(3, "host:3"))
    assert play.after(ITEM_S + 0.1) == [*again(0, 2, 4), send(3, 0, item=b"a", slot=1)]
    play(Built(4, "host:4"))
    assert play.after(ITEM_S + 0.1)[-2:] == [Blame(b"a", "timeout", "no answer within 8 s", 1), send(4, 0, announces=True, slot=0)]


def test_single_item_is_retried_elsewhere_a_few_times() -> None:
    play = Play(2)
    play.submit(0, kind=TRAINING)
    assert play(Lost(0, "a"))[-1] == send(1, 0)
    assert play(Lost(1, "b")) == again(1, 1, 3)
    assert play(Built(2, "host:2")) == [send(2, 0, slot=0)]
    assert play(Lost(2, "c")) == [*again(0, 2, 4), Failed(0, "c")]
    each = Play(1)
    assert each.submit(0, 1, kind=EACH) == [send(0, 0)], "one at a time"
    each(Lost(0, "a"))
    assert each(Built(1, "host:1")) == [send(1, 0, slot=0)]
    assert each.after(1e6) == [], "as long as it takes"
    assert each(Lost(1, "b"))[-1] == Failed(0, "b")


def late(play: Play) -> None:
    """One of the actors has done a job in a tenth of a second."""
    play.submit(100)
    play.now_s += 0.1
    play(Done(0, 100, b""))


def test_idle_actor_repeats_overdue_work() -> None:
    play = Play(2)
    late(play)
    play.submit(0, 1, 2)
    play.now_s += 0.1
    play(Done(1, 1, b""))
    assert play.machine.due_s(play.now_s) == pytest.approx(LATE_S - 0.1)
    assert play.after(LATE_S - 0.11) == []
    assert play.after(0.02) == [send(1, 0, announces=True)]
    assert play.after(0.5) == [], "once"
    assert play(Done(1, 0, b"first")) == [Deliver(0, b"first"), send(1, 2, announces=True)], "what lies behind it, too"
    assert play(Done(1, 2, b"2")) == [Deliver(2, b"2")]
    assert play(Done(0, 0, b"second")) == []
    assert play(Done(0, 2, b"2")) == []


def paced(play: Play, *paces_s: float) -> None:
    """Each of the actors has done a job in so long."""
    play.submit(*range(100, 100 + len(paces_s)), kind=replace(JOB, comparable=True))
    begun_s = play.now_s
    for pace_s, slot in sorted((pace_s, slot) for slot, pace_s in enumerate(paces_s)):
        play.now_s = begun_s + pace_s
        play(Done(slot, 100 + slot, b""))


def test_slow_actor_leaves_work_that_faster_ones_finish() -> None:
    play = Play(2)
    paced(play, 0.55, 0.1)
    assert play.submit(0, 1, 2, 3, 4, home=0) == [send(1, 0), send(1, 1)]
    assert play.submit(5, home=0) == [send(0, 5)], "before it is done the fast one will have done five"
    assert play.submit(6, home=0) == [], "nothing is put behind what is slow"


def test_fast_idle_actor_repeats_much_longer_work() -> None:
    play = Play(2)
    paced(play, 0.55, 0.1)
    play.submit(0, 1, 2, 3, 4, 5, home=0)
    for work in range(4):
        play.now_s += 0.02
        play(Done(1, work, b""))
    assert play(Done(1, 4, b"")) == [Deliver(4, b""), send(1, 5)]
    assert play(Done(1, 5, b"first")) == [Deliver(5, b"first")]
    assert play(Done(0, 5, b"second")) == []


def test_hanging_job_takes_its_helper_but_shows_sooner() -> None:
    play = Play(3)
    late(play)
    play.submit(0)
    play.after(LATE_S + 0.01)
    play(Announced(1, 0, b"a"))
    lost = play.after(ITEM_S + 0.1)
    assert lost[:3] == [*again(1, 1, 3), SayLine("w1@host:1 gave no sign of life; what it did is done again item by item")]
    assert not any(isinstance(action, Send) for action in lost), "its first actor may still say something"
    play(Built(3, "host:3"))
    assert play.after(60.0) == [*again(0, 0, 4), send(2, 0, item=b"a")]


def test_leaving_actor_hands_back_what_it_cannot_end() -> None:
    play = Play(2)
    paced(play, 1.0, 1.0)
    assert play.submit(0, 1, 2, 3) == [send(0, 0), send(1, 1), send(0, 2), send(1, 3)]
    assert play(Draining(0, 1.5)) == [], "the second work would end too late; the other actor has two already"
    assert play.submit(4) == []
    play.now_s += 1.0
    assert play(Done(0, 0, b"")) == [Deliver(0, b""), *again(0, 0, 2)]
    assert play(Done(0, 2, b"late")) == []
    assert play(Done(1, 1, b"")) == [Deliver(1, b""), send(1, 2)]
    assert play(Built(2, "host:2")) == [send(2, 4, slot=0)]
    assert play(Draining(2, inf)) == []
    assert play.after(30.0)[:1] != again(0, 2, 3), "without a deadline there is none"


def test_leaving_actor_without_time_is_replaced() -> None:
    play = Play(2)
    paced(play, 10.0, 10.0)
    assert play.submit(0) == [send(0, 0)]
    assert play(Draining(0, 5.0)) == [*again(0, 0, 2), send(1, 0)]
    assert play(Draining(1, 20.0)) == []
    assert play.after(20.1)[1:] == again(1, 1, 3), "it has not ended in time"
    assert play(Built(3, "host:3")) == [send(3, 0, slot=1)]


@given(st.integers(1, 40), st.booleans())
def test_nobody_is_blamed_for_actors_that_leave(leavers: int, timeout: bool) -> None:
    play = Play(1)
    play.submit(0)
    for actor in range(leavers):
        assert play(Announced(actor, 0, b"a")) == []
        assert play(Draining(actor, inf)) == []
        lost = play.after(61.0) if timeout else play(Lost(actor, "terminated"))
        assert lost == again(0, actor, actor + 1) if timeout else [*again(0, actor, actor + 1)]
        assert play(Built(actor + 1, f"host:{actor + 1}")) == [send(actor + 1, 0, slot=0)], "not item by item"


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(2, 5), st.integers(1, 12))
def test_idle_actors_are_on_nodes_of_their_own(seed: int, nodes: int, each: int, jobs: int) -> None:
    """However actors came to their slots; of equal pace."""
    rng, count = random.Random(seed), nodes * each
    machine, now_s, number, sent = Supervision(count, None, min_count=1, idle_s=10.0), 0.0, 0, list[Send]()
    place = dict(enumerate(rng.sample([slot % nodes for slot in range(count)], count)))
    there = dict[int, int]()

    def do(actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, StartActor):
                there[action.actor] = place[action.slot]
                do(machine.handle(Built(action.actor, f"host:{action.actor}", str(place[action.slot])), now_s))
            elif isinstance(action, Kill):
                del there[action.actor]
            elif isinstance(action, Send):
                sent.append(action)

    do(machine.begin(now_s))
    kind = replace(JOB, comparable=True)
    for wave in (2 * count, *[jobs] * 40):  # a burst, then perhaps less than there are actors
        for shard in range(wave):
            do(machine.submit(WorkItem(number, kind, shard % machine.homes), now_s))
            number += 1
        now_s += 1.0
        while sent:
            send = sent.pop(0)
            do(machine.handle(Done(send.actor, send.number, b""), now_s))
        do(machine.tick(now_s))
    used = Counter(there.values())
    assert len(used) <= -(-jobs // each) + 1, "that of the first actor, which stays"


def test_job_without_survivors_or_culprit_ends_the_run() -> None:
    play = Play(1)
    play.submit(0)
    for actor in range(LOST_MAX):
        *_, last = play(Lost(actor, "why"))
        if actor + 1 < LOST_MAX:
            assert play(Built(actor + 1, "host:0")) == [Send(actor + 1, 0, 0, "w0@host:0", True, None)]
    assert isinstance(last, GiveUp)
    assert str(last.error) == f"a job was lost with {LOST_MAX} workers, and no item of it is at fault: why"


# at random

FATAL = b"fatal"


@dataclass
class Process:
    """An actor that is there: what it was sent, and at which of its items it is."""

    slot: int
    sent: deque[Send] = field(default_factory=deque)
    at: int = 0
    hangs: bool = False


@dataclass
class World:
    """Jobs of items, some of which kill or stop whoever tries them; processes that also die by themselves, alone or with their computer.

    Of processes that tried one item alone, one may die of something else beside their computer: who sees two cannot know.
    """

    rng: random.Random
    slots: int
    min_count: int
    jobs: dict[int, list[bytes]]
    chance: float
    machine: Supervision = field(init=False)
    now_s: float = 0.0
    processes: dict[int, Process] = field(default_factory=dict)
    building: dict[int, int] = field(default_factory=dict)
    delivered: Counter[int] = field(default_factory=Counter)
    blamed: set[bytes] = field(default_factory=set)
    deaths: int = 0
    unborn: set[int] = field(default_factory=set)
    struck: set[bytes] = field(default_factory=set)

    def run(self) -> None:
        self.machine = Supervision(self.slots, ITEM_S, min_count=self.min_count, idle_s=1.0)
        self.do(self.machine.begin(0.0))
        waiting = list(self.jobs)
        for _ in range(20_000):
            if waiting and self.rng.random() < 0.5:
                self.do(self.machine.submit(WorkItem(waiting.pop(0), JOB, self.rng.randrange(self.slots)), self.now_s))
            if len(self.delivered) == len(self.jobs):
                return
            self.do(self.machine.tick(self.now_s))
            able = self.able()
            if not able:
                due_s = self.machine.due_s(self.now_s)
                assert due_s is not None or waiting, "it waits for nothing"
                self.now_s += (due_s or 0.0) + 0.01
                continue
            self.now_s += 0.05 * self.rng.random()
            if (event := self.something(self.rng.choice(able))) is None:
                continue
            self.do(self.machine.handle(event, self.now_s))
            if self.rng.random() < 0.1:
                self.do(self.machine.handle(event, self.now_s))  # said twice
        raise AssertionError("it does not end")

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, StartActor):
                assert action.slot not in [process.slot for process in self.processes.values()] + list(self.building.values())
                self.building[action.actor] = action.slot
            elif isinstance(action, Kill):
                self.processes.pop(action.actor, None)
                self.building.pop(action.actor, None)
            elif isinstance(action, Send):
                sent = self.processes[action.actor].sent
                alone = [each for each in (*sent, action) if each.item is not None]
                assert not alone or not sent, "alone is alone"
                assert len(sent) < DEPTH
                sent.append(action)
            elif isinstance(action, Deliver):
                self.delivered[action.work] += 1
            elif isinstance(action, Blame):
                assert action.item.startswith(FATAL), action
                assert action.item not in self.blamed
                self.blamed.add(action.item)
            else:
                assert isinstance(action, SayLine), action

    def able(self) -> list[int]:
        """Who has something to say."""
        return [*self.building, *(actor for actor, process in self.processes.items() if process.sent and not process.hangs)]

    def something(self, actor: int) -> Event | None:
        """That it says or that happens to it."""
        if actor in self.building:
            if self.rng.random() < self.chance and self.building[actor] not in self.unborn:
                self.unborn.add(self.building.pop(actor))
                return Lost(actor, "while it starts")
            self.processes[actor] = Process(self.building.pop(actor))
            return Built(actor, f"host:{actor}")
        process = self.processes[actor]
        head = process.sent[0]
        if self.rng.random() < self.chance / 2:
            return Draining(actor, self.rng.choice([0.0, 0.2, 1000.0]))
        if self.rng.random() < self.chance:
            outside = head.item in self.struck or self.rng.random() < 0.5
            if head.item is not None and not outside:
                self.struck.add(head.item)
            if outside or self.deaths < LOST_MAX - 2:
                self.deaths += not outside
                del self.processes[actor]
                return Lost(actor, "of something else", outside)
        return self.step(actor, process, head)

    def step(self, actor: int, process: Process, head: Send) -> Event | None:
        items = [head.item] if head.item is not None else [item for item in self.jobs[head.work] if item not in self.blamed]
        while process.at < 2 * len(items):
            item, tries = items[process.at // 2], process.at % 2
            process.at += 1
            if not tries and head.announces:
                return Announced(actor, head.number, item)
            if tries and item.startswith(FATAL):
                if item.endswith(b"stops"):
                    process.hangs = True
                    return None
                del self.processes[actor]
                return Lost(actor, "of an item")
        process.sent.popleft()
        process.at = 0
        return Done(actor, head.number, b"")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(0, 3), st.integers(1, 12), st.sampled_from([0.0, 0.02, 0.1]))
def test_jobs_are_done_once_and_harmful_ones_blamed(seed: int, min_count: int, extra: int, jobs: int, chance: float) -> None:
    rng = random.Random(seed)
    harm = {item for item in range(6) if rng.random() < 0.3}
    names = [b"%s %d %s" % (FATAL if item in harm else b"good", item, b"stops" if rng.random() < 0.3 else b"kills") for item in range(6)]
    world = World(rng, min_count + extra, min_count, {job: rng.sample(names, rng.randrange(6)) for job in range(jobs)}, chance)
    world.run()
    assert world.delivered == Counter(range(jobs))
    met = {item for items in world.jobs.values() for item in items if item.startswith(FATAL)}
    assert world.blamed <= met
    if not chance:
        assert world.blamed == met
