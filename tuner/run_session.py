"""One session of a run: searches of a lowered model until their budgets are spent.

Clocks, files and actors come in as `Surroundings`: real ones from `tuner.driver`, simulated ones from `tests.simulated` with a seed.
Both run the same composition, and undo it in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import simulator
from compiler.diagnostics.float_range import out_of_range_lines
from compiler.model import LoweredModel
from compiler.space.gene import Genome
from compiler.space.operator_order import ordered
from simulator.npu.errors import BadInputError
from simulator.npu.files import write_atomically
from tuner.config import TuneConfig
from tuner.farm.actions import DEATHS_ALONE
from tuner.farm.actor_pool import ActorPool, JobWorker
from tuner.farm.champion_cache import KnownChampions, read_known
from tuner.farm.commit_log import RunBudget
from tuner.farm.coordinator import SerialJobs
from tuner.farm.crash_journal import Attempts
from tuner.farm.farm_meter import FarmMeter
from tuner.farm.initial_model import Prior, proposer_line
from tuner.farm.initial_plans import Start, compiled_genomes, read_start
from tuner.farm.jobs import JobRunner, build_job_runner
from tuner.farm.measurement_budget import Spending
from tuner.farm.plugin_identity import plugin_changes
from tuner.farm.recorder import FEATURE_SETS
from tuner.farm.search_run import SearchRun
from tuner.farm.search_spec import SearchSpec
from tuner.farm.store_client import StoreClient
from tuner.farm.subgraph_searches import SearchedSubgraph, search_weights, searches, share_budget, write_searches
from tuner.farm.warm_start import sources
from tuner.log.digests import digest
from tuner.log.writer import Origin, RunLog
from tuner.measure.budgeted import Deadline
from tuner.measure.evaluator import Board
from tuner.measure.grants import same_grants
from tuner.measure.host import mac_share, work_lines
from tuner.measure.reading_cost import repeat_count
from tuner.measure.runners import runner_name, runner_spec
from tuner.platform.actors import Actors, Worker
from tuner.platform.files import AnyPath
from tuner.platform.interfaces import Clock, Platform
from tuner.plugins import Plugin
from tuner.runs.farm_state import FarmState
from tuner.runs.folder import IDENTITY, SETTINGS, RunFolder, RunIdentity, SearchFolder, initial_lines
from tuner.runs.mirror import Mirror
from tuner.runs.model_source import write_source
from tuner.search.replay_strategy import KnownPrograms
from tuner.store.packs import Conditions
from tuner.tune_request import TuneRequest

P = TypeVar("P", bound=AnyPath)
BuildJobRunner = Callable[[SearchSpec], JobRunner]
MakeActors = Callable[[Callable[[], Worker], str], AbstractContextManager[Actors]]


@dataclass(frozen=True)
class Surroundings(Generic[P]):
    """Surroundings of a session.  out: run folder.  mirror, store: place of a URL.  actors: (maker of a worker, run) -> actors of a
    farm.

    say: prints a line.  build: makes the job runner of a worker.  publish: gets states of the farm; None: it is not observed.
    """

    world: Platform
    out: P
    mirror: Callable[[str], AnyPath]
    store: Callable[[str], AnyPath]
    actors: MakeActors
    say: Callable[[str], None]
    build: BuildJobRunner = build_job_runner
    publish: Callable[[FarmState], None] | None = None


class SessionEnd(NamedTuple, Generic[P]):
    """End of a session.  searches: one per entry of `runs`, with spent budget and closed log."""

    folder: RunFolder[P]
    searches: Sequence[SearchedSubgraph]
    runs: Sequence[SearchRun]


@contextmanager
def session(
    surroundings: Surroundings[P], lowered: LoweredModel, config: TuneConfig, request: TuneRequest, begun_s: float,
    plugins: Sequence[Plugin] = (),
    prior: Prior | None = None,
) -> Iterator[SessionEnd[P]]:  # fmt: skip
    """Start or resume a run, until every search has spent its budget; the folder is locked and mirrored until the context ends.

    begun_s: start of a time budget, on the clock.  plugins: plug-ins in use (`tuner.farm.plugin_identity`).  prior: initial model.
    Raises as `tuner.driver.tune` does.
    """
    world, machine, out = surroundings.world, lowered.machine, surroundings.out
    start = read_start(request.start, lowered, config.search.order, out, request.resume)
    champions = _stored_champions(surroundings, lowered, config, request)
    identity = _identity(lowered, config, request, sources(request.warm_start, out, request.resume), start, prior, plugins, champions)
    with ExitStack() as stack:
        explain = {"config_digest": partial(_changed_settings, config, request), "plugins": partial(plugin_changes, request.out, plugins)}
        folder = stack.enter_context(RunFolder(out, identity, request.resume, explain=explain))
        # data that a resumed run, a report or an audit needs is written before the first measurement
        write_source(folder.path, lowered.source, lowered.digest, request.style)
        if prior is not None:
            prior.copy(folder.models)
        write_atomically(folder.path / SETTINGS, [config.to_yaml().encode()])
        if request.mirror is not None:
            stack.enter_context(Mirror(folder.path, surroundings.mirror(request.mirror), world, surroundings.say))
        if not request.quiet:
            proposer = champions.line if champions.messages else proposer_line(config, prior)
            for line in (*_model_lines(lowered), *start.lines(), proposer):
                surroundings.say(line)
        # one search per subgraph, each with its share of the budget
        subgraphs = searches(lowered, folder.run)
        write_searches(folder.path, lowered, subgraphs)
        spending = Spending.of(config, len(machine.contention), len(subgraphs))
        if spending.measurements is not None and not request.quiet:
            surroundings.say(spending.line(len(subgraphs)))
        weights = search_weights(lowered, subgraphs) if len(subgraphs) > 1 else [1]
        grants = len(same_grants(machine, tuple(machine.contention)))
        ids = {search.run for search in subgraphs}
        runs = [
            _searched(
                surroundings,
                lowered,
                search,
                budget,
                ids - {search.run},
                folder,
                config,
                request,
                start,
                prior,
                champions.start_genomes(index),
            )
            for index, (search, budget) in enumerate(
                zip(subgraphs, budgets(world.clock, config, spending, weights, grants, begun_s), strict=True)
            )
        ]
        yield SessionEnd(folder, subgraphs, runs)


def _identity(
    lowered: LoweredModel, config: TuneConfig, request: TuneRequest, warm_start: tuple[str, ...], start: Start, prior: Prior | None,
    plugins: Sequence[Plugin], champions: KnownChampions,
) -> RunIdentity:  # fmt: skip
    """Identity of the run: all that its results depend on."""
    machine = lowered.machine
    return RunIdentity(
        lowered.name,
        lowered.digest,
        machine.name,
        machine.digest,
        digest([config.digest, request.dtype]),
        simulator.VERSION,
        request.seed,
        tuple(machine.contention),
        request.tag,
        warm_start,
        start.recorded,
        "" if prior is None else prior.recorded,
        tuple(plugins),
        champions.messages,
    )


def _model_lines(lowered: LoweredModel) -> Iterator[str]:
    """Lines about the model: its operators, the work of the NPU and the host, and weights out of range."""
    operators = sum(len(target_graph.operators) for target_graph in lowered.target_graphs)
    title = f"{lowered.name} on {lowered.machine.name}, {lowered.computes}"
    yield f"{title}: {operators} operators, {mac_share(lowered.part)}; starting workers"
    yield from work_lines(lowered)
    yield from out_of_range_lines(lowered.weights_beyond, lowered.source.dtype)


def _stored_champions(surroundings: Surroundings[P], lowered: LoweredModel, config: TuneConfig, request: TuneRequest) -> KnownChampions:
    """Champions of a store, if they may replace a search."""
    if request.store is None or not request.champions:
        if request.resume and (surroundings.out / IDENTITY).is_file() and initial_lines(surroundings.out, "champions"):
            raise BadInputError(f"--store: {surroundings.out} began with champions of a store; name it again")
        return KnownChampions()
    machine, runner = lowered.machine, runner_name(config)
    levels = tuple(machine.contention)
    conditions = Conditions(machine.name, machine.digest, levels, simulator.VERSION, runner, repeat_count(config))
    return read_known(surroundings.store(request.store), lowered, config, conditions, surroundings.out, request.resume)


def _changed_settings(config: TuneConfig, request: TuneRequest) -> list[str]:
    """Settings whose values differ from those of the existing run."""
    path = request.out / SETTINGS
    if not path.is_file():
        return []
    return config.changed_since(path) or [f"another dtype than {request.dtype}"]


def budgets(clock: Clock, config: TuneConfig, spending: Spending, weights: Sequence[int], grants: int, begun_s: float) -> list[RunBudget]:
    """Budget of every search by its weight; a time is divided among searches that run one after the other.

    grants: number of groups of levels that grant the same.
    """
    candidates, seconds, core_hours = config.budget.candidates, config.budget.seconds, config.budget.core_hours
    core_s = [None if core_hours is None else core_hours * 3600 * weight / sum(weights) for weight in weights]
    if candidates is not None:
        limits = [RunBudget(count) for count in share_budget(candidates, weights, grants)]
    elif spending.measurements is not None:
        limits = [RunBudget(readings=limit) for limit in spending.limits(weights, grants)]
    else:
        assert seconds is not None
        end_times = (begun_s + seconds * sum(weights[: i + 1]) / sum(weights) for i in range(len(weights)))
        limits = [RunBudget(deadline=Deadline(clock, at_s)) for at_s in end_times]
    return [replace(limit, core_s=share) for limit, share in zip(limits, core_s, strict=True)]


def _searched(
    surroundings: Surroundings[P], lowered: LoweredModel, search: SearchedSubgraph, budget: RunBudget, known_champions: set[str],
    folder: RunFolder[P],
    config: TuneConfig, request: TuneRequest, start: Start, prior: Prior | None, champions: Sequence[Genome],
) -> SearchRun:  # fmt: skip
    """One search, until its budget is spent or the champions of a store are measured; its log is closed."""
    packed_unit, constants = lowered.packed[search.pieces[0]]
    target_graph = ordered(packed_unit, config.search.order)
    piece = lowered.names[search.pieces[0]] if len(lowered.names) > 1 else None
    if piece is not None and not request.quiet:
        for_all = f", for {len(search.pieces)} pieces that compute the same" if len(search.pieces) > 1 else ""
        surroundings.say(
            f"{piece}: {target_graph.operators[0].name}..{target_graph.operators[-1].name}, "
            f"{len(target_graph.operators)} operators{for_all}"
        )
    world, levels, runner = surroundings.world, tuple(lowered.machine.contention), runner_spec(config)
    origin = Origin(search.run, lowered.name, lowered.machine.name, simulator.VERSION, runner_name(config), request.seed, request.tag)
    spec = SearchSpec(origin, target_graph, levels, config, None if runner is None else Board(runner, constants))
    if champions:
        spec, budget = replace(spec, strategy=KnownPrograms), RunBudget(len(champions) + len(same_grants(lowered.machine, levels)))
    # the log is entered first, so that it is closed after the workers have delivered
    with ExitStack() as stack:
        log = stack.enter_context(RunLog(folder.path, world, origin, FEATURE_SETS, known_champions))
        storing = None
        if request.store is not None:
            tell = (lambda _: None) if request.quiet else surroundings.say
            storing = StoreClient(surroundings.store(request.store), folder.path, spec, tell)
        place = folder.place(piece)
        if prior is not None:
            prior.copy(place.models)
        start_genomes = start.genomes_of_piece(search.pieces[0])

        def first() -> dict[Genome, str]:
            proposed = dict.fromkeys(champions, "store") if champions else compiled_genomes(target_graph, levels, config)
            return dict.fromkeys(start_genomes or (), "start") | {
                genome: proposer for genome, proposer in proposed.items() if genome not in (start_genomes or ())
            }

        jobs = stack.enter_context(_jobs(surroundings, spec, request, place))
        assert isinstance(folder.identity, RunIdentity)
        warm_start = folder.identity.warm_start
        begin, model = None if start_genomes is None and not champions else first, None if prior is None else prior.model
        meter = (
            None if surroundings.publish is None else FarmMeter(jobs, world.clock, surroundings.publish, config.farm.backend == "serial")
        )
        run = SearchRun(world, spec, request, place, log, jobs, budget, warm_start, begin, model, storing, meter)
        spare_workers = jobs.workers - run.schedule.most_jobs
        if spare_workers > 0 and not request.quiet:
            surroundings.say(
                f"{spare_workers} of {jobs.workers} workers are idle: {run.schedule.most_jobs} jobs run at a time (search.lag)"
            )
        with run.progress():
            run.search_until_spent()
    return run


@contextmanager
def _jobs(surroundings: Surroundings[P], spec: SearchSpec, request: TuneRequest, place: SearchFolder) -> Iterator[SerialJobs | ActorPool]:
    farm, clock = spec.config.farm, surroundings.world.clock
    if farm.backend == "serial":
        attempts = Attempts(place.checkpoint, clock, farm.item_timeout_s)
        with SerialJobs(spec, attempts, surroundings.build) as serial:
            if attempts.failing and not request.quiet:
                surroundings.say(
                    f"{len(attempts.failing)} tasks each ended {DEATHS_ALONE} sessions, and are not tried again ({attempts.path})"
                )
            yield serial
        return
    with surroundings.actors(partial(JobWorker, spec, surroundings.build), spec.origin.run) as actors:
        yield ActorPool(actors, clock, surroundings.say, farm.item_timeout_s)
