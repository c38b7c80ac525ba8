"""`tilefarm tune`: one run, from the model file to the compiled file.  The driver's story, top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple, NoReturn

from compiler.model import LoweredModel, ModelSpec
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.terminal import say
from tuner.config import Farm, TuneConfig, load_config
from tuner.farm.initial_model import NONE, read_prior
from tuner.farm.plugin_identity import external_plugins
from tuner.finalize.summary import finalize
from tuner.measure.grants import check_grants
from tuner.measure.host import check_share
from tuner.measure.runners import check_runner
from tuner.platform.actors import Actors, Worker
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.platform.remote_files import store_place
from tuner.run_session import MakeActors, SessionEnd, Surroundings, session
from tuner.runs.farm_metrics import METRICS
from tuner.runs.farm_state import FarmState, write_farm_state
from tuner.runs.folder import IDENTITY
from tuner.runs.mirror import mirror_place
from tuner.summary import Summary
from tuner.tune_request import TuneRequest
from tuner.verify.source_run import check_model_runs
from tuner.zoo.load import open_network


def configured(request: TuneRequest) -> TuneConfig:
    """Configuration of a request: file, `--set`, then the options that set a key of their own."""
    config = load_config(request.config, request.overrides)
    options = {
        "farm.backend": request.backend,
        "farm.workers": request.workers,
        "farm.wait_s": request.wait_s,
        "farm.resource": request.resource,
        "target.name": request.target,
        "runner.name": request.runner,
        "search.strategy": request.strategy,
        "budget.core_hours": request.max_core_hours,
        "use.cost_model": False if request.prior == NONE else None,
        "level_weights": {**config.level_weights, **request.level_weights} if request.level_weights else None,
    }
    return config.given(options, request.candidates, request.seconds, request.measurements)


class SpentRun(NamedTuple):
    """Session of a run whose budget is spent.  end: end of the session, with its folder locked.  begun_s: start, on the clock."""

    opened: LoweredModel
    config: TuneConfig
    end: SessionEnd[LocalPath]
    begun_s: float


def tune(request: TuneRequest) -> Summary:
    """Search, log, and write RUN: plans, best.onnx, summary.json.

    Raises `BadInputError`, `UnsupportedError`, `InfeasibleError` (below `min_npu_share` as well); `KeyboardInterrupt` leaves a run that
    `resume` continues.
    """
    with searched(request) as (lowered, config, end, begun_s):
        return finalize(REAL.clock, lowered, end, config, request, begun_s)


@contextmanager
def searched(request: TuneRequest) -> Iterator[SpentRun]:
    """Run the searches until the budget is spent; plans and summary are not written.  Raises as `tune` does."""
    begun_s = REAL.clock.monotonic_s()
    config = configured(request)
    prior = read_prior(request.prior, config, request.out, request.resume, say)
    plugins = external_plugins(config, config.farm.backend == "serial", request.address)
    machine = load_machine(request.machine)
    unknown = sorted(set(config.level_weights) - set(machine.contention))
    if unknown:
        raise BadInputError(f"level_weights: level {unknown[0]!r} unknown; levels of {machine.name}: {', '.join(machine.contention)}")
    check_grants(machine, tuple(machine.contention), config.budget.candidates)
    check_runner(machine, tuple(machine.contention), config.runner.name)
    lowered = open_network(
        ModelSpec.named(request.model, machine, request.dtype, request.shapes, request.random_weights, request.frames_of_run)
    )
    check_share(lowered, request.min_npu_share)
    out = LocalPath(request.out)
    folder_accepted = request.resume or not (out / IDENTITY).is_file()  # else the session refuses the folder
    farm: AbstractContextManager[MakeActors] = nullcontext(_no_actors)
    if folder_accepted and config.farm.backend == "ray":
        farm = ray_farm(config.farm, request.address)
    with farm as actors:
        check_model_runs(lowered)
        around = Surroundings(REAL, out, mirror_place, store_place, actors, say, publish=partial(publish, out))
        with session(around, lowered, config, request, begun_s, plugins, prior) as end:
            yield SpentRun(lowered, config, end, begun_s)


def publish(out: LocalPath, state: FarmState) -> None:
    """Publish a state of the farm: `RUN/farm.json`, and metrics where Ray is in use."""
    write_farm_state(out, state)
    if not state.serial:
        from tuner.platform.ray_metrics import set_gauges

        set_gauges({metric.name: (metric.meaning, metric.value(state)) for metric in METRICS})


@contextmanager
def ray_farm(farm: Farm, address: str | None) -> Iterator[MakeActors]:
    """Maker of actors on Ray, which starts meanwhile; entered once nothing is refused any more without a wait."""
    from tuner.platform.ray_start import join_ray

    with join_ray(address, farm.min_workers) as connection:

        def make_actors(make_worker: Callable[[], Worker], run: str) -> AbstractContextManager[Actors]:
            from tuner.platform.ray_actors import RayActors  # slow import

            return RayActors(
                make_worker, farm.min_workers, address, farm.wait_s, run, farm.resource,
                max_count=farm.max_workers, idle_s=farm.idle_s, connection=connection(),
            )  # fmt: skip

        yield make_actors


def _no_actors(make_worker: Callable[[], Worker], run: str) -> NoReturn:
    raise AssertionError(f"{run}: no actors for {make_worker}: the backend is serial, or the folder is refused")
