"""Repetition of a run's search elsewhere: shorter with other seeds, or longer with its own seed.  The run's folder is read only."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import simulator
from compiler.model import LoweredModel
from compiler.space.operator_order import ordered
from simulator.npu.errors import BadInputError
from simulator.npu.parts import DataType
from tuner.audit.report_types import LongerSearch, SeedSearches
from tuner.config import BUILT_IN, TuneConfig
from tuner.cost_model.trainer import PRIOR
from tuner.driver import searched
from tuner.farm.search_spec import SearchSpec
from tuner.farm.store_client import StoreClient
from tuner.farm.subgraph_searches import SearchedSubgraph
from tuner.log.read import read_log
from tuner.log.writer import Origin
from tuner.measure.grants import same_grants
from tuner.measure.reading_cost import repeat_count
from tuner.measure.runners import runner_name
from tuner.measure.store_lookup import WORKER, is_always_measured
from tuner.platform.local_files import LocalPath
from tuner.runs.anytime_curve import COLUMNS, best_after, needed_readings
from tuner.runs.folder import SETTINGS
from tuner.runs.model_source import MACHINE, SavedSource
from tuner.runs.subgraph_runs import subgraph_copies
from tuner.tune_request import STORE, Backend, TuneRequest


@dataclass(frozen=True)
class Rerun:
    """Source run of the repetition, and backend for its searches.  identity: content of run.json."""

    run: Path
    saved: SavedSource
    identity: Mapping[str, Any]
    config: TuneConfig
    backend: Backend | None = None
    address: str | None = None
    workers: int | Mapping[str, int] | None = None
    quiet: bool = True

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.identity["levels"])

    @property
    def clock(self) -> str:
        """Name of the clock of tasks: simulator or runner."""
        return runner_name(self.config)

    @cached_property
    def beginning(self) -> int:
        """Readings before the first program other than single operators: the same for every seed."""
        grants = len(same_grants(self.saved.source.machine, self.levels))
        return needed_readings(read_log(self.run, COLUMNS), subgraph_copies(LocalPath(self.run)), grants + 1)

    @property
    def answered(self) -> int:
        """Readings of that beginning that a store filled from this log answers."""
        log = read_log(self.run, ("seq", "task", "kind", "readings")).sort_values("seq", kind="stable")
        in_beginning = log["readings"].cumsum() <= self.beginning
        trusted = (log["kind"].astype("str") != "program") & ~log["task"].astype("str").map(is_always_measured)
        return int(log["readings"][in_beginning & trusted].sum())

    @property
    def an_epoch(self) -> int:
        """Approximate readings of a later epoch."""
        search, measured = self.config.search, self.config.segments.measured
        tasks = search.shards * (round(search.proposed * measured) + search.generation)
        return tasks * len(self.levels) * repeat_count(self.config)

    def request(self, out: Path, measurements: int, seed: int, **options: Any) -> TuneRequest:
        source = self.saved.source
        return TuneRequest(
            source.model, str(self.run / MACHINE), out, measurements=measurements, seed=seed, config=str(self.run / SETTINGS),
            backend=self.backend, address=self.address, workers=self.workers, style=self.saved.style, tag=str(self.identity["tag"]),
            dtype="float16" if source.dtype is DataType.float16 else "float32", shapes=source.shapes,
            random_weights=source.random_weights, objective="latency" if source.frames == 1 else "throughput",
            frames=None if source.frames == 1 else source.frames, **options,
        )  # fmt: skip

    def best(self, folder: Path, count: int | None = None) -> list[int | None]:
        """Best cycles of the model by level after `count` readings of the search, by its log; None without a program."""
        log = read_log(folder, COLUMNS)
        count = int(log["readings"].sum()) if count is None else count
        best_cycles = best_after(log, subgraph_copies(LocalPath(folder)), self.levels, [count])[:, 0]
        return [None if np.isnan(cycles) else int(cycles) for cycles in best_cycles]


def search_other_seeds(
    rerun: Rerun, lowered: LoweredModel, remaining: int, limit: int, searches: Sequence[SearchedSubgraph], say: Callable[[str], None]
) -> SeedSearches | None:
    """Searches with the next seeds, at most `limit`, with `remaining` readings in total; None if these are too few for one search.

    searches: searches of the run, whose log answers known tasks; () for another simulator.  Raises as `tuner.driver.tune` does.
    """
    beginning, simulated = rerun.beginning, rerun.clock == BUILT_IN
    free = rerun.answered if searches and simulated else 0
    count = min(limit, remaining // (beginning - free + rerun.an_epoch))
    if not count:
        return None
    readings = free + remaining // count
    first = int(rerun.identity["seed"]) + 1
    seeds = tuple(range(first, first + count))
    prior = rerun.run / "models" / PRIOR
    best_cycles: list[list[int | None]] = []
    spent = 0
    with TemporaryDirectory(prefix="tilefarm-audit-") as folder:
        store = Path(folder) / STORE
        if free:
            _store_log(rerun, lowered, searches, store)
        for index, seed in enumerate(seeds, 1):
            say(f"seed {seed}, {index} of {count}: {readings:,} readings" + (f", of which the log has {free:,}" if free else ""))
            request = rerun.request(Path(folder) / str(seed), readings, seed, prior=prior if searches and prior.is_file() else None)
            if simulated:  # faster than the start of actors
                request = replace(request, backend="serial", store=str(store), champions=False)
            with searched(request):
                pass
            log = read_log(request.out, ("worker", "readings"))
            spent += int(log["readings"][~log["worker"].astype("str").str.startswith(WORKER)].sum())
            best_cycles.append(rerun.best(request.out))
            shutil.rmtree(request.out)
    run_cycles: Sequence[int | None] = rerun.best(rerun.run, readings) if searches else [None] * len(rerun.levels)
    seed_cycles = zip(rerun.levels, zip(*best_cycles, strict=True), strict=True)
    return SeedSearches(readings, spent, seeds, dict(zip(rerun.levels, run_cycles, strict=True)), dict(seed_cycles))


def _store_log(rerun: Rerun, lowered: LoweredModel, searches: Sequence[SearchedSubgraph], store: Path) -> None:
    """Fill a store with the run's measurements, for the searches to read."""
    store.mkdir()
    for search in searches:
        target_graph = ordered(lowered.packed[search.pieces[0]].target_graph, rerun.config.search.order)
        machine, seed, tag = lowered.machine.name, int(rerun.identity["seed"]), str(rerun.identity["tag"])
        origin = Origin(search.run, lowered.name, machine, simulator.VERSION, rerun.clock, seed, tag)
        spec = SearchSpec(origin, target_graph, rerun.levels, rerun.config)
        StoreClient(LocalPath(store), LocalPath(rerun.run), spec, lambda _: None).close()


def search_longer(rerun: Rerun, readings: int, say: Callable[[str], None]) -> LongerSearch:
    """Resume the run in a copy of its folder.  readings: total.  Raises as `tuner.driver.tune` does."""
    with TemporaryDirectory(prefix="tilefarm-audit-") as folder:
        copy = Path(folder) / "RUN"
        say(f"the run goes on in a copy, to {readings:,} readings")
        try:
            shutil.copytree(rerun.run, copy, ignore=shutil.ignore_patterns(".lock", ".tmp", "*.onnx", "*.html"))
        except (OSError, shutil.Error) as error:
            raise BadInputError(f"{rerun.run}: cannot be copied to {copy}: {error}") from None
        with searched(rerun.request(copy, readings, int(rerun.identity["seed"]), resume=True, quiet=rerun.quiet)):
            pass
        longer_best, first_best = rerun.best(copy), rerun.best(rerun.run)
    cycles, regret = {}, {}
    for level, first, longer in zip(rerun.levels, first_best, longer_best, strict=True):
        assert first is not None, "a run that has ended has measured a program at every level"
        assert longer is not None, "its log goes on from there"
        cycles[level], regret[level] = longer, first / longer - 1
    return LongerSearch(readings, cycles, regret)
