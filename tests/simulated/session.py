"""One session of the driver: `tuner.run_session` as `tilefarm tune` runs it, in surroundings that are a seed's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any
from unittest import mock

from compiler.model import LoweredModel
from compiler.space.gene import Genome
from compiler.target.target_graph import TargetGraph
from tests.simulated.actors import SimActors
from tests.simulated.disk import SimDisk, SimPlace, SimUrl
from tests.simulated.kernel import Kernel, Process
from tests.simulated.replay import Recording, lone_item
from tests.simulated.world import simulated_world
from tuner.config import TuneConfig
from tuner.farm import store_client, warm_start
from tuner.farm.initial_model import Prior
from tuner.farm.initial_plans import compiled_genomes
from tuner.farm.search_run import SearchRun
from tuner.platform.actors import Worker
from tuner.run_session import BuildJobRunner, Surroundings, session
from tuner.tune_request import TuneRequest

OUT = ("runs", "RUN")
MIRROR = ("bucket", "RUN")
STORE = ("bucket", "STORE")


@dataclass(frozen=True, eq=False)
class Search:
    """What a user asks for; `--resume` always, whatever has happened."""

    opened: LoweredModel
    config: TuneConfig
    request: TuneRequest
    prior: Prior | None = None

    @cache  # noqa: B019  of the few that there are
    def within(self, seconds: float) -> Search:
        """With another time."""
        return replace(self, config=self.config.given({}, None, seconds))

    @cached_property
    def settings(self) -> str:
        """To write them costs a tenth of a session."""
        return self.config.to_yaml()


@dataclass(frozen=True)
class Ended:
    """What a session that came to its end leaves in memory.  placed: the champions of what is in its place in the order."""

    champions: dict[str, Any]
    tasks: int
    failures: dict[str, int]
    stopped: str | None
    placed: dict[str, Any] = field(compare=False)


@dataclass
class Disks:
    """here: of the driver.  away: of what is behind a URL, which no power cut here touches."""

    here: SimDisk
    away: SimDisk


# of an earlier run, which stays as it is
_log_digest_once = cache(warm_start._log_digest)
_read_once = cache(warm_start.read_warm_start)
_compiled = dict[str, dict[Genome, str]]()


def _compiled_once(target_graph: TargetGraph, levels: Sequence[str], config: TuneConfig) -> dict[Genome, str]:
    """Of every model; all scenarios have one machine."""
    found = _compiled.get(target_graph.graph.digest)
    if found is None:
        found = _compiled[target_graph.graph.digest] = compiled_genomes(target_graph, levels, config)
    return found


def searched(
    search: Search,
    recording: Recording,
    build: BuildJobRunner,
    disks: Disks,
    kernel: Kernel,
    process: Process,
    struck: set[bytes],
    after: Callable[[SearchRun], None] = lambda run: None,
) -> Ended:
    """A new run, or one that goes on.  after: called at its end."""

    @contextmanager
    def actors(make_worker: Callable[[], Worker], run: str) -> Iterator[SimActors]:
        del run
        farm = search.config.farm
        assert farm.max_workers is not None
        found = SimActors(
            kernel, process, farm.max_workers, make_worker, recording.seconds, lone_item, struck, min_count=farm.min_workers,
            idle_s=farm.idle_s,
        )  # fmt: skip
        try:
            yield found
        finally:
            found.close()

    def mirror(url: str) -> SimPlace:
        del url
        return SimUrl(disks.away, MIRROR, kernel, process)

    def store(url: str) -> SimPlace:
        del url
        return SimUrl(disks.away, STORE, kernel, process)

    settings = search.settings
    world, out = simulated_world(kernel, process), SimPlace(disks.here, OUT, kernel, process)
    around = Surroundings(world, out, mirror, store, actors, kernel.say, build)
    with (
        mock.patch.multiple(warm_start, _log_digest=_log_digest_once, read_warm_start=_read_once),
        mock.patch("tuner.run_session.compiled_genomes", _compiled_once),
        mock.patch.object(TuneConfig, "to_yaml", return_value=settings),
        mock.patch.multiple(store_client, PACK_BYTES=5_000, _FIRST_TRY=20),
        session(around, search.opened, search.config, search.request, world.clock.monotonic_s(), (), search.prior) as ended,
    ):
        (run,) = ended.runs
        after(run)
        champions, failures, tasks, _ = run.ledger.counted
        return Ended(champions.state(), tasks, dict(failures), run.conductor.stopped, run.champions.state())
