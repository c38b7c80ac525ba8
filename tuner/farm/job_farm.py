"""Ray actors that run jobs whole: an epoch of an island each, with no round trip inside.

An actor keeps what it has heard; a job brings what it has not.  While a job runs, the actor says now and then how many items it has
finished, which tells one that hangs from one that is long.  A job whose actor dies or says nothing is run again carefully: its island's
code runs in the driver, what it asks goes through the farm's batches (`tuner.farm.actors`), which find the item at fault; nobody asks for
that item again.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.exceptions import RayError, RayTaskError

from tuner.conduct import Key
from tuner.evaluate import Answer, Ask
from tuner.farm.actors import POLL_S, RayBackend, Shell, Slot, of_worker
from tuner.farm.backend import DIED, Outcome, one_line
from tuner.farm.cluster import FarmError
from tuner.search.jobs import Bulletin, Culprit, Culprits, Job, Models, News, Result, Trained, Training, Workshop, WorkshopSpec

SILENCE_S = 60.0  # a job in which nothing is finished for so long is run carefully; to compile a kernel takes half a minute, once
PULSE_S = 10.0  # a word costs the driver as much as a job does, and most jobs are done before
TRAINING_SILENCE_S = 600.0
RAY_STEP_S = 1e-3  # it waits whole ones, so it is back a part of one early
TRAINING_TRIES = 3


class JobShell(Shell):
    """The shell around a Workshop.  A job has a thread of its own, so that Ray's can say that it goes on.

    Not a method of a second concurrency group that is asked: with groups, Ray's thread looks for signals a hundred times a second, each
    time in turn with Python's lock, which took 3% of the actor's time.

    Messages are bytes: Ray takes every argument apart on its own, in Python, to look for functions and classes that nobody could import.
    """

    _worker: Workshop

    def __init__(self, make_worker: Callable[[], Workshop]) -> None:
        super().__init__(make_worker)
        self._thread = ThreadPoolExecutor(1)

    @ray.method(num_returns="streaming")
    def work(self, message: bytes, models: Models | None, *epochs: Sequence[bytes]) -> Iterator[int | bytes]:
        """Items finished so far, every so many seconds; at last the result."""
        self._worker.worker, job, first, pulse_s = pickle.loads(message)
        working = self._thread.submit(self._worker.work, job, News(first, epochs, models))
        while not wait([working], pulse_s).done:
            yield self._worker.done
        yield pickle.dumps(working.result())


@dataclass
class _Task:
    """What a slot does.  done: items that were finished when it last said so."""

    key: Key
    job: Job | Training
    done: int = -1


class JobFarm(RayBackend[Ask, Answer]):
    """`Jobs` on `workers` actors with one CPU each; the parameters are those of `RayBackend`."""

    shell = JobShell

    def __init__(
        self,
        spec: WorkshopSpec,
        workers: int | None = None,
        address: str | None = None,
        wait_s: float = 300.0,
        run_id: str = "run",
        **options: Any,
    ) -> None:
        self._spec = spec
        self._bulletin = Bulletin()
        self._heard: dict[int, tuple[int, int]] = {}
        self._tasks: dict[int, _Task] = {}
        self._done: list[tuple[Key, Result | Trained]] = []
        self._careful: deque[tuple[Key, Job]] = deque()
        self._again: deque[tuple[Key, Training]] = deque()
        self._trainings_lost = 0
        self._here: Workshop | None = None
        self._found: dict[Ask, Culprit] = {}
        super().__init__(spec, workers, address, wait_s, run_id, **options)

    # the side of the conductor

    @property
    def free(self) -> int:
        return max(0, sum(slot.idle for slot in self._slots) - len(self._again))

    @property
    def culprits(self) -> Culprits:
        return tuple(self._found.items())

    def at_home(self, island: int) -> bool:
        return any(slot.idle for slot in self._slots if slot.index == self._home(island))

    def _home(self, island: int) -> int:
        """Index of an island's slot: its actor's caches hold the segments of the island's programs, compiled.

        By rule, not by who ran it last: islands that move to whoever is idle end up with one actor, and all of them run somewhere else.
        """
        return island % self.workers

    def tell_epoch(self, findings: Sequence[bytes]) -> None:
        self._bulletin.epochs.append(ray.put(list(findings)))

    def tell_models(self, models: Models) -> None:
        self._bulletin.models.append(ray.put(models))

    def start(self, key: Key, job: Job | Training) -> None:
        """On an actor that has nothing to do, that of the island if it is one of those."""
        home = self._home(job.island) if isinstance(job, Job) else -1
        slot = min((slot for slot in self._slots if slot.idle), key=lambda slot: slot.index != home)
        news = self._bulletin.news(job, self._heard[slot.index])
        self._heard[slot.index] = (job.version, job.models or self._heard[slot.index][1])
        self._tasks[slot.index] = _Task(key, job)
        slot.since = time.monotonic()
        message = pickle.dumps((slot.name, job, news.first, PULSE_S))
        slot.alone = slot.actor.work.remote(message, news.models, *news.epochs)

    def finished(self, patience_s: float) -> list[tuple[Key, Result | Trained]]:
        end_s = time.monotonic() + patience_s
        while not self._done:
            while self._again and any(slot.idle for slot in self._slots):
                self.start(*self._again.popleft())
            if self._careful:
                key, job = self._careful.popleft()
                self._done.append((key, self._carefully(job)))
                break
            self._poll(max(0.0, min(POLL_S, end_s - time.monotonic())))
            if end_s - time.monotonic() < RAY_STEP_S or not any(slot.awaited for slot in self._slots):
                break
        done, self._done = self._done, []
        return done

    # jobs on slots

    def _start(self, slot: Slot) -> None:
        self._heard[slot.index] = (0, 0)
        slot.alone = None
        super()._start(slot)

    def _allowed_s(self, slot: Slot) -> float | None:
        if slot.alone is None or slot.building is not None or self._item_timeout_s is None:
            return super()._allowed_s(slot)
        if isinstance(self._tasks[slot.index].job, Training):
            return TRAINING_SILENCE_S
        return SILENCE_S

    def _arrived(self, slot: Slot) -> None:
        if slot.alone is None:
            super()._arrived(slot)
            return
        try:
            said = ray.get(next(slot.alone))
        except RayTaskError as error:  # an island's code, not an item: `Workshop` sees to those
            raise of_worker(error) from None
        except RayError as error:
            self._lost(slot, "crash", one_line(error))
            return
        if isinstance(said, bytes):
            slot.alone, slot.since = None, time.monotonic()
            self._done.append((self._tasks.pop(slot.index).key, pickle.loads(said)))
        elif said != self._tasks[slot.index].done:
            self._tasks[slot.index].done, slot.since = said, time.monotonic()

    def _lost(self, slot: Slot, status: Literal["crash", "timeout"], why: str) -> None:
        if slot.alone is None:
            super()._lost(slot, status, why)
            return
        task = self._tasks.pop(slot.index)
        if isinstance(task.job, Job):
            how = "gave no sign of life" if status == "timeout" else "died"
            self._say(f"{slot.name} {how}; what it did is done again item by item")
            self._careful.append((task.key, task.job))
            self._replace(slot)
            return
        self._trainings_lost += 1
        if self._trainings_lost >= TRAINING_TRIES:
            raise FarmError(f"the cost model could not be trained: {TRAINING_TRIES} workers were lost: {why}")
        self._again.append((task.key, task.job))
        self._replace(slot)

    # careful mode

    def _carefully(self, job: Job) -> Result:
        """The same job, its code here and its asks in batches."""
        if self._here is None:
            self._here, self._heard[-1] = self._spec.without_worker(), (0, 0)
        news = self._bulletin.news(job, self._heard[-1])
        self._heard[-1] = (job.version, job.models or self._heard[-1][1])
        models = None if news.models is None else ray.get(news.models)
        result = self._here.work(job._replace(culprits=self.culprits), News(news.first, ray.get(list(news.epochs)), models), self._asked)
        assert isinstance(result, Result)
        return result

    def _asked(self, asks: Sequence[Ask]) -> Iterator[Outcome[Answer]]:
        self.submit(asks)
        outcomes = self.collect(len(asks))
        for ask, outcome in zip(asks, outcomes, strict=True):
            if outcome.status == "timeout" or (outcome.status == "crash" and outcome.error == DIED):
                self._found[ask] = Culprit(outcome.status, outcome.error or "", outcome.attempt)
        yield from outcomes
