"""A run's search done again elsewhere: shorter with other seeds, or longer with its own.  The run's folder is only read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from simulator.npu.errors import BadInputError
from simulator.npu.machine import DataType
from tuner.audit.found import Longer, Seeds
from tuner.config import TuneConfig
from tuner.driver import searched
from tuner.learn.training import PRIOR
from tuner.measure.counted import repeats_of
from tuner.request import Backend, TuneRequest
from tuner.store.anytime import COLUMNS, best_after
from tuner.store.read import read_log
from tuner.store.runfolder import SETTINGS
from tuner.store.served import copies
from tuner.store.source import MACHINE, SavedSource
from tuner.world.local import LocalPlace


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
    def an_epoch(self) -> int:
        """Readings, about."""
        config = self.config
        return (config.segments.measured + config.islands * config.search.generation) * len(self.levels) * repeats_of(config)

    def request(self, out: Path, measurements: int, seed: int, **more: Any) -> TuneRequest:
        source = self.saved.source
        return TuneRequest(
            source.model, str(self.run / MACHINE), out, measurements=measurements, seed=seed, config=str(self.run / SETTINGS),
            backend=self.backend, address=self.address, workers=self.workers, style=self.saved.style, tag=str(self.identity["tag"]),
            dtype="float16" if source.dtype is DataType.float16 else "float32", shapes=source.shapes,
            random_weights=source.random_weights, **more,
        )  # fmt: skip

    def best(self, folder: Path, count: int | None = None) -> list[int | None]:
        """By level, of the best model after so many readings of the search, by its log; None where there was none.  count: all."""
        log = read_log(folder, COLUMNS)
        count = int(log["readings"].sum()) if count is None else count
        found = best_after(log, copies(LocalPlace(folder)), self.levels, [count])[:, 0]
        return [None if np.isnan(cycles) else int(cycles) for cycles in found]


def seeds_spread(again: Again, readings: int, count: int, same_simulator: bool, say: Callable[[str], None]) -> Seeds:
    """Searches with the next `count` seeds.  readings: of each.  Raises as `tuner.driver.tune`."""
    first = int(again.identity["seed"]) + 1
    seeds = tuple(range(first, first + count))
    prior = again.run / "models" / PRIOR
    found: list[list[int | None]] = []
    with TemporaryDirectory(prefix="tilefarm-audit-") as folder:
        for at, seed in enumerate(seeds, 1):
            say(f"seed {seed}, {at} of {count}: {readings:,} readings")
            request = again.request(Path(folder) / str(seed), readings, seed, prior=prior if same_simulator and prior.is_file() else None)
            with searched(request):
                pass
            found.append(again.best(request.out))
            shutil.rmtree(request.out)
    own: Sequence[int | None] = again.best(again.run, readings) if same_simulator else [None] * len(again.levels)
    others = zip(again.levels, zip(*found, strict=True), strict=True)
    return Seeds(readings, seeds, dict(zip(again.levels, own, strict=True)), dict(others))


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
