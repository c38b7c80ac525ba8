"""Complete runs as units of work for `study` and `sweep`: workers, store, and paths valid on every worker."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from simulator.npu.errors import BadInputError
from tuner.config import TuneConfig, load_config
from tuner.farm.isolated_map import IsolatedMap, Make, R, T, each_here, each_on_ray
from tuner.farm.plugin_identity import external_plugins
from tuner.platform.remote_files import is_url
from tuner.tune_request import NO_STORE, STORE, FarmRequest
from tuner.zoo.names import is_made, resolve_model


def cells_config(request: FarmRequest, candidates: int | None = None, measurements: int | None = None) -> TuneConfig:
    """Configuration of every run: file, `--set`, then options that stand for a key.  Raises `BadInputError`."""
    options = {
        "target.name": request.target,
        "runner.name": request.runner,
        "farm.resource": request.resource,
        "farm.workers": request.workers,
    }
    config = load_config(request.config, request.overrides).given(options, candidates, measurements=measurements)
    external_plugins(config, (request.backend or config.farm.backend) == "serial", request.address)
    return config


def cells_workers(
    request: FarmRequest, config: TuneConfig, make: Make[T, R], run_id: str, cells: int
) -> AbstractContextManager[IsolatedMap[T, R]]:
    """Workers for `cells` runs, each on one CPU for minutes: one at a time, without a timeout."""
    if (request.backend or config.farm.backend) == "serial":
        return each_here(make)
    farm = config.farm
    wait_s = request.wait_s if request.wait_s is not None else farm.wait_s
    min_count, max_count = (count and min(count, cells) for count in (farm.min_workers, farm.max_workers))
    return each_on_ray(make, min_count, request.address, wait_s, run_id, farm.resource, max_count, farm.idle_s)


def cells_store(request: FarmRequest) -> str | None:
    """Store shared by all runs: the given one, else a folder in `out`."""
    if request.store == NO_STORE:
        return None
    if request.store is not None and is_url(request.store):
        return request.store
    return str((request.out / STORE if request.store is None else Path(request.store)).resolve())


def locate_model(model: Path) -> Path:
    """Model path valid on every worker: absolute, or the name of a built network.  Raises `BadInputError` for a missing file."""
    if is_made(model):
        return resolve_model(model, None)[0]
    if not model.is_file():
        raise BadInputError(f"{model}: no such file")
    return model.resolve()
