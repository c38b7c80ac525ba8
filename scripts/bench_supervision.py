"""Driver's CPU time per job on a farm: of supervision alone, by number of slots; and of Ray's actors with empty jobs.

    python scripts/bench_supervision.py [--slots 4 --slots 64 ...] [--jobs 4000] [--actors 2] [--json]

Supervision runs in virtual time, as `SupervisorLoop` calls it: jobs of 0.05 to 2 s, twice as many outstanding as slots; slots of speeds
1 : 2 : 4.  On Ray, the CPU time is of this process with all its threads, for empty jobs, two outstanding per actor.
"""

from __future__ import annotations

import heapq
import json
import time
from random import Random
from typing import Annotated, NamedTuple

import typer

from tuner.cli.text import print_table
from tuner.farm.actions import Action, Deliver, RetryPolicy, Send, WorkItem
from tuner.farm.supervision import Supervision
from tuner.platform.actors import Built, Done, Message

SLOTS = (4, 64, 256, 1000)
OUTSTANDING = 2  # jobs per slot
SPEEDS = (1.0, 2.0, 4.0)
SHORTEST_S, LONGEST_S = 0.05, 2.0
POLICY = RetryPolicy(60.0, announces=True, pure=True, follows=True, followed=True, comparable=True)


class _End(NamedTuple):
    """Expected end of a job, as an entry of a heap."""

    time_s: float
    event: Done


class VirtualFarm:
    """Supervision with actors that exist in virtual time only."""

    def __init__(self, slots: int) -> None:
        self.supervision, self.now_s, self.jobs, self._rng = Supervision(slots, 60.0), 0.0, 0, Random(0)
        self._slots, self._free_s, self._pending = slots, [0.0] * slots, list[_End]()
        self.supervision.begin(0.0)
        for slot in range(slots):
            self.supervision.handle(Built(slot, "host:1"), 0.0)
        for _ in range(OUTSTANDING * slots):
            self._submit()

    def _submit(self) -> None:
        self._perform(self.supervision.submit(WorkItem(self.jobs, POLICY, self.jobs % self._slots), self.now_s))
        self.jobs += 1

    def _perform(self, actions: list[Action]) -> int:
        """Perform actions; returns the number of delivered jobs."""
        for action in actions:
            if isinstance(action, Send):
                seconds = self._rng.uniform(SHORTEST_S, LONGEST_S) / SPEEDS[action.actor % len(SPEEDS)]
                self._free_s[action.actor] = end_s = max(self.now_s, self._free_s[action.actor]) + seconds
                heapq.heappush(self._pending, _End(end_s, Done(action.actor, action.number, b"")))
        return sum(isinstance(action, Deliver) for action in actions)

    def run(self, jobs: int) -> None:
        """Finish so many jobs; each is followed by a new one."""
        end = self.jobs + jobs
        while self.jobs < end:
            self.now_s, event = heapq.heappop(self._pending)
            self.supervision.due_s(self.now_s)
            for _ in range(self._perform(self.supervision.handle(event, self.now_s))):
                self._submit()
            self._perform(self.supervision.tick(self.now_s))


def supervision_us(slots: int, jobs: int) -> float:
    """CPU time per job of supervision and of the heap that stands for the actors, after every slot has done a few jobs."""
    farm = VirtualFarm(slots)
    farm.run(4 * slots)
    begin_s = time.process_time()
    farm.run(jobs)
    return (time.process_time() - begin_s) / jobs * 1e6


class EmptyWorker:
    """`Worker` whose jobs do nothing."""

    done = 0

    def work(self, packed: bytes, shared: object, announce: object) -> bytes:
        del shared, announce
        return packed


def actors_us(count: int, jobs: int) -> float:
    """CPU time per job of a driver of Ray's actors."""
    from tuner.platform.ray_actors import RayActors

    with RayActors(EmptyWorker, count) as actors:
        for slot in range(count):
            actors.start(slot, slot)
        built = 0
        while built < count:
            built += len(actors.events(1.0))
        begin_s, sent, done = time.process_time(), 0, 0
        while done < jobs:
            while sent < min(jobs, done + OUTSTANDING * count):
                actors.send(sent % count, Message(sent, b"job", (), False))
                sent += 1
            done += sum(isinstance(event, Done) for event in actors.events(1.0))
        return (time.process_time() - begin_s) / jobs * 1e6


def main(
    slots: Annotated[list[int] | None, typer.Option(min=1, help=f"Numbers of slots [default: {SLOTS}].")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Jobs per number.")] = 4000,
    actors: Annotated[int, typer.Option(min=0, help="Actors on Ray; 0: none.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Driver's CPU time per job on a farm."""
    result = {f"supervision of {count} slots": supervision_us(count, jobs) for count in slots or SLOTS}
    if actors:
        result[f"{actors} actors on Ray"] = actors_us(actors, jobs)
    if as_json:
        print(json.dumps(result))
    else:
        print_table(["<driver", "us per job"], [[name, f"{us:.1f}"] for name, us in result.items()])


if __name__ == "__main__":
    typer.run(main)
