"""One session of the driver: what `tilefarm tune` does between its options and its summary, in a simulated world."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import simulator
from compiler.unit.unit import Unit
from simulator.npu.files import write_whole
from tests.simulated.actors import SimActors
from tests.simulated.disk import SimDisk, SimPlace
from tests.simulated.kernel import Kernel, Process
from tests.simulated.replay import Recording, lone_item
from tests.simulated.world import simulated_world
from tuner.config import TuneConfig
from tuner.farm.ledger import RunBudget
from tuner.farm.one_search import OneSearch
from tuner.farm.pool import ActorPool
from tuner.farm.recorder import FEATURE_SETS, Facts
from tuner.request import TuneRequest
from tuner.store.run_log import Origin, RunLog
from tuner.store.runfolder import SETTINGS, RunFolder, RunIdentity
from tuner.world.actors import Worker

OUT = ("runs", "RUN")


@dataclass(frozen=True)
class Search:
    """What a user asks for.  said: of the runs that it begins with."""

    unit: Unit
    levels: tuple[str, ...]
    config: TuneConfig
    candidates: int
    workers: int
    said: tuple[str, ...] = ()

    @property
    def identity(self) -> RunIdentity:
        """Of its run."""
        machine = self.unit.machine
        return RunIdentity(
            "m", self.unit.digest, machine.name, machine.digest, self.config.digest, simulator.VERSION, 0, self.levels, "", self.said
        )

    @property
    def facts(self) -> Facts:
        """Of its rows."""
        return Facts(Origin(self.identity.run, "m", self.unit.machine.name, simulator.VERSION), self.unit, self.levels)


@dataclass(frozen=True)
class Ended:
    """What a session that came to its end leaves in memory."""

    champions: dict[str, Any]
    seq: int
    failures: dict[str, int]
    stopped: str | None


def searched(
    search: Search,
    recording: Recording,
    make_worker: Callable[[], Worker],
    disk: SimDisk,
    kernel: Kernel,
    process: Process,
    struck: set[bytes],
    after: Callable[[OneSearch, ActorPool], None] = lambda run, jobs: None,
) -> Ended:
    """A new run, or one that goes on: `--resume` is what a user says, whatever has happened.  after: called at its end."""
    world = simulated_world(kernel, process)
    out = SimPlace(disk, OUT, kernel, process)
    request = TuneRequest(Path("m"), search.unit.machine.name, Path("RUN"), quiet=True, resume=True)
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(out, search.identity, resume=True))
        write_whole(folder.path / SETTINGS, [b"settings\n"])
        log = stack.enter_context(RunLog(folder.path, world, search.facts.origin, FEATURE_SETS))
        actors = SimActors(kernel, process, search.workers, make_worker, recording.seconds, lone_item, struck)
        stack.callback(actors.close)
        jobs = ActorPool(actors, world.clock, kernel.say, search.config.farm.item_timeout_s)
        run = OneSearch(world, search.facts, search.config, request, folder.place(), log, jobs, RunBudget(search.candidates), search.said)
        with run.progress():
            run.search_until_spent()
        after(run, jobs)
    return Ended(run.champions.state(), run.ledger.seq, dict(run.ledger.failures), run.conductor.stopped)
