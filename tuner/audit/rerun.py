"""A run's search done again elsewhere: shorter with other seeds, or longer with its own.  The run's folder is only read."""

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
from tuner.audit.report_types import Longer, Seeds
from tuner.config import BUILT_IN, TuneConfig
from tuner.cost_model.trainer import PRIOR
from tuner.driver import searched
from tuner.farm.search_spec import SearchSpec
from tuner.farm.store_client import StoreClient
from tuner.farm.subgraph_searches import SearchedSubgraph
from tuner.log.read import read_log
from tuner.log.writer import Origin
from tuner.measure.grants import same_grants
from tuner.measure.reading_cost import repeats_of
from tuner.measure.runners import runner_name
from tuner.measure.store_lookup import WORKER, checked
from tuner.platform.local_files import LocalPath
from tuner.request import STORE, Backend, TuneRequest
from tuner.runs.anytime_curve import COLUMNS, best_after, readings_for
from tuner.runs.folder import SETTINGS
from tuner.runs.model_source import MACHINE, SavedSource
from tuner.runs.subgraph_runs import copies


@dataclass(frozen=True)
class Again:
    """Of which run, and where its searches run.  identity: run.json."""

    run: Path
    saved: SavedSource
    identity: Mapping[str, Any]
    config: TuneConfig
    backend: Backend | None = None
    address: str | None = None
    workers: int | None = None
    quiet: bool = True

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.identity["levels"])

    @property
    def clock(self) -> str:
        """Who says how long tasks take."""
        return runner_name(self.config)

    @cached_property
    def beginning(self) -> int:
        """Readings of what any seed measures first: until the run knew another program than those of single operators."""
        grants = len(same_grants(self.saved.source.machine, self.levels))
        return readings_for(read_log(self.run, COLUMNS), copies(LocalPath(self.run)), grants + 1)

    @property
    def answered(self) -> int:
        """Readings of that beginning that a store with this log answers, whoever asks."""
        log = read_log(self.run, ("seq", "task", "kind", "readings")).sort_values("seq", kind="stable")
        begins = log["readings"].cumsum() <= self.beginning
        trusted = (log["kind"].astype("str") != "program") & ~log["task"].astype("str").map(checked)
        return int(log["readings"][begins & trusted].sum())

    @property
    def an_epoch(self) -> int:
        """Readings of one that comes after it, about."""
        config = self.config
        return (config.segments.measured + config.islands * config.search.generation) * len(self.levels) * repeats_of(config)

    def request(self, out: Path, measurements: int, seed: int, **more: Any) -> TuneRequest:
        source = self.saved.source
        return TuneRequest(
            source.model, str(self.run / MACHINE), out, measurements=measurements, seed=seed, config=str(self.run / SETTINGS),
            backend=self.backend, address=self.address, workers=self.workers, style=self.saved.style, tag=str(self.identity["tag"]),
            dtype="float16" if source.dtype is DataType.float16 else "float32", shapes=source.shapes,
            random_weights=source.random_weights, objective="latency" if source.frames == 1 else "throughput",
            frames=None if source.frames == 1 else source.frames, **more,
        )  # fmt: skip

    def best(self, folder: Path, count: int | None = None) -> list[int | None]:
        """By level, of the best model after so many readings of the search, by its log; None where there was none.  count: all."""
        log = read_log(folder, COLUMNS)
        count = int(log["readings"].sum()) if count is None else count
        found = best_after(log, copies(LocalPath(folder)), self.levels, [count])[:, 0]
        return [None if np.isnan(cycles) else int(cycles) for cycles in found]


def seeds_spread(
    again: Again, opened: LoweredModel, left: int, most: int, known: Sequence[SearchedSubgraph], say: Callable[[str], None]
) -> Seeds | None:
    """Searches with the next seeds, `most` at most, of `left` readings together; None where these are too few for one.

    known: the run's searches, whose log answers what it has; () where that is not this simulator's.  Raises as `tuner.driver.tune`.
    """
    beginning, simulated = again.beginning, again.clock == BUILT_IN
    free = again.answered if known and simulated else 0
    count = min(most, left // (beginning - free + again.an_epoch))
    if not count:
        return None
    readings = free + left // count
    first = int(again.identity["seed"]) + 1
    seeds = tuple(range(first, first + count))
    prior = again.run / "models" / PRIOR
    found: list[list[int | None]] = []
    taken = 0
    with TemporaryDirectory(prefix="tilefarm-audit-") as folder:
        store = Path(folder) / STORE
        if free:
            _store_log(again, opened, known, store)
        for at, seed in enumerate(seeds, 1):
            say(f"seed {seed}, {at} of {count}: {readings:,} readings" + (f", of which the log has {free:,}" if free else ""))
            request = again.request(Path(folder) / str(seed), readings, seed, prior=prior if known and prior.is_file() else None)
            if simulated:  # over before actors would be there
                request = replace(request, backend="serial", store=str(store), champions=False)
            with searched(request):
                pass
            log = read_log(request.out, ("worker", "readings"))
            taken += int(log["readings"][~log["worker"].astype("str").str.startswith(WORKER)].sum())
            found.append(again.best(request.out))
            shutil.rmtree(request.out)
    own: Sequence[int | None] = again.best(again.run, readings) if known else [None] * len(again.levels)
    others = zip(again.levels, zip(*found, strict=True), strict=True)
    return Seeds(readings, taken, seeds, dict(zip(again.levels, own, strict=True)), dict(others))


def _store_log(again: Again, opened: LoweredModel, known: Sequence[SearchedSubgraph], store: Path) -> None:
    """What the run measured, where the searches look."""
    store.mkdir()
    for search in known:
        target_graph = ordered(opened.packed[search.pieces[0]].target_graph, again.config.search.order)
        machine, seed, tag = opened.machine.name, int(again.identity["seed"]), str(again.identity["tag"])
        origin = Origin(search.run, opened.name, machine, simulator.VERSION, again.clock, seed, tag)
        spec = SearchSpec(origin, target_graph, again.levels, again.config)
        StoreClient(LocalPath(store), LocalPath(again.run), spec, lambda _: None).close()


def search_longer(again: Again, readings: int, say: Callable[[str], None]) -> Longer:
    """The run resumed in a copy of its folder.  readings: in all.  Raises as `tuner.driver.tune`."""
    with TemporaryDirectory(prefix="tilefarm-audit-") as folder:
        copy = Path(folder) / "RUN"
        say(f"the run goes on in a copy, to {readings:,} readings")
        try:
            shutil.copytree(again.run, copy, ignore=shutil.ignore_patterns(".lock", ".tmp", "*.onnx", "*.html"))
        except (OSError, shutil.Error) as error:
            raise BadInputError(f"{again.run}: cannot be copied to {copy}: {error}") from None
        with searched(again.request(copy, readings, int(again.identity["seed"]), resume=True, quiet=again.quiet)):
            pass
        after, before = again.best(copy), again.best(again.run)
    cycles, regret = {}, {}
    for level, mine, longer in zip(again.levels, before, after, strict=True):
        assert mine is not None, "a run that has ended has measured a program at every level"
        assert longer is not None, "its log goes on from there"
        cycles[level], regret[level] = longer, mine / longer - 1
    return Longer(readings, cycles, regret)
