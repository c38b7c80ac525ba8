"""`tilefarm tune`: one run, from the model file to the compiled file.  The driver's story, top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import simulator
from compiler.beyond import beyond_lines
from compiler.source import Opened, Source
from compiler.space.order import ordered
from simulator.npu.errors import BadInputError
from simulator.npu.files import write_whole
from simulator.npu.machine import load_machine
from simulator.terminal import say
from tuner.config import BUILT_IN, TuneConfig, load_config
from tuner.farm.attempts import Attempts
from tuner.farm.conduct import Jobs, SerialJobs
from tuner.farm.jobs import JobRunnerSpec
from tuner.farm.ledger import Deadline, RunBudget
from tuner.farm.one_search import OneSearch
from tuner.farm.orders import DEATHS_ALONE
from tuner.farm.pieces import Searched, dealt, searches, weights_of, write_searches
from tuner.farm.plugged import plugged, replugged
from tuner.farm.pool import ActorPool
from tuner.farm.recorder import FEATURE_SETS, Facts
from tuner.farm.start import Start, read_start
from tuner.farm.warm_start import sources
from tuner.farm.workers import JobWorker
from tuner.finish import finish
from tuner.measure.evaluate import Board, EvaluatorSpec
from tuner.measure.host import check_share, mac_share, work_lines
from tuner.measure.runners import runner_name, runner_spec
from tuner.measure.shared import SharedResults
from tuner.networks.load import open_network
from tuner.request import TuneRequest
from tuner.store.digests import digest
from tuner.store.mirror import Mirror, mirror_place
from tuner.store.run_log import Origin, RunLog
from tuner.store.runfolder import SETTINGS, RunFolder, RunIdentity, SearchFolder
from tuner.store.source import write_source
from tuner.summary import Summary
from tuner.world.local import LocalPlace
from tuner.world.real import REAL
from tuner.world.world import Clock, World


def configured(request: TuneRequest) -> TuneConfig:
    """The configuration of a request: file, `--set`, then the options that stand for a key of their own."""
    config = load_config(request.config, request.overrides)
    options = {
        "farm.backend": request.backend,
        "farm.workers": request.workers,
        "farm.wait_s": request.wait_s,
        "farm.resource": request.resource,
        "target.name": request.target,
        "runner.name": request.runner,
        "search.strategy": request.strategy,
        "level_weights": {**config.level_weights, **request.level_weights} if request.level_weights else None,
    }
    return config.given(options, request.candidates, request.seconds)


def tune(request: TuneRequest) -> Summary:
    """Search, log, and write RUN: plans, best.onnx, summary.json.

    Raises `BadInputError`, `UnsupportedError`, `InfeasibleError` (below `min_npu_share` as well); `KeyboardInterrupt` leaves a run that
    `resume` continues.
    """
    world, begun_s = REAL, REAL.clock.monotonic_s()
    config = configured(request)
    plugins = plugged(config, config.farm.backend == "serial", request.address)
    machine = load_machine(request.machine)
    unknown = sorted(set(config.level_weights) - set(machine.contention))
    if unknown:
        raise BadInputError(f"level_weights: level {unknown[0]!r} unknown; levels of {machine.name}: {', '.join(machine.contention)}")
    opened = open_network(Source.named(request.model, machine, request.dtype, request.shapes, request.random_weights))
    check_share(opened, request.min_npu_share)
    levels = tuple(machine.contention)
    start = read_start(request.start, opened, config.search.order, request.out, request.resume)
    identity = RunIdentity(
        opened.name,
        opened.digest,
        machine.name,
        machine.digest,
        digest([config.digest, request.dtype]),
        simulator.VERSION,
        request.seed,
        levels,
        request.tag,
        sources(request.warm_start, request.out, request.resume),
        start.said,
        plugins,
    )
    with ExitStack() as stack:
        explain = {"config_digest": partial(_changed, config, request), "plugins": partial(replugged, request.out, plugins)}
        folder = stack.enter_context(RunFolder(LocalPlace(request.out), identity, request.resume, explain=explain))
        write_source(folder.path, opened.source, opened.digest, request.style)
        write_whole(folder.path / SETTINGS, [config.to_yaml().encode()])
        if request.mirror is not None:
            stack.enter_context(Mirror(folder.path, mirror_place(request.mirror), world, say))
        if not request.quiet:
            operators = sum(len(unit.operators) for unit in opened.units)
            say(
                f"{opened.name} on {machine.name}, {request.dtype}: {operators} operators, {mac_share(opened)}; "
                f"starting workers (the first run on a computer compiles kernels, half a minute)"
            )
            for line in (*work_lines(opened), *beyond_lines(opened.weights_beyond, opened.source.dtype), *start.lines()):
                say(line)
        found = searches(opened, folder.run)
        write_searches(folder.path, opened, found)
        runs = [
            _searched(world, opened, search, budget, beside, folder, config, request, start)
            for search, budget, beside in zip(
                found,
                _budgets(world.clock, opened, found, config, begun_s),
                ({s.run for s in found} - {search.run} for search in found),
                strict=True,
            )
        ]
        return finish(world.clock, opened, found, runs, folder, config, request, begun_s)


def _changed(config: TuneConfig, request: TuneRequest) -> list[str]:
    """What makes the digest of the settings another one than that of the run that is there."""
    path = request.out / SETTINGS
    if not path.is_file():
        return []
    return config.changed_since(path) or [f"another dtype than {request.dtype}"]


def _budgets(clock: Clock, opened: Opened, found: Sequence[Searched], config: TuneConfig, begun_s: float) -> list[RunBudget]:
    """What every search may spend: of a time its part, one after the other."""
    candidates, seconds = config.budget.candidates, config.budget.seconds
    weights = weights_of(opened, found) if len(found) > 1 else [1]
    if candidates is not None:
        return [RunBudget(count) for count in dealt(candidates, weights)]
    assert seconds is not None
    ends = (begun_s + seconds * sum(weights[: i + 1]) / sum(weights) for i in range(len(found)))
    return [RunBudget(deadline=Deadline(clock, at_s)) for at_s in ends]


def _searched(
    world: World, opened: Opened, search: Searched, budget: RunBudget, beside: set[str], folder: RunFolder[LocalPlace], config: TuneConfig,
    request: TuneRequest, start: Start,
) -> OneSearch:  # fmt: skip
    """One search, until its budget is spent; its log is closed, its champions are known."""
    (given, constants), levels = opened.packed[search.pieces[0]], tuple(opened.machine.contention)
    unit = ordered(given, config.search.order)
    piece = opened.names[search.pieces[0]] if len(opened.names) > 1 else None
    if piece is not None and not request.quiet:
        for_all = f", for {len(search.pieces)} pieces that compute the same" if len(search.pieces) > 1 else ""
        say(f"{piece}: {unit.operators[0].name}..{unit.operators[-1].name}, {len(unit.operators)} operators{for_all}")
    board = None if (runner := runner_spec(config)) is None else Board(runner, constants)
    origin = Origin(search.run, opened.name, opened.machine.name, simulator.VERSION, runner_name(config), request.seed, request.tag)
    with ExitStack() as stack:
        log = stack.enter_context(RunLog(folder.path, world, origin, FEATURE_SETS, beside))
        facts = Facts(origin, unit, levels)
        evaluator = EvaluatorSpec(unit, levels, board, config.target.name)
        shared = None
        if request.shared is not None and request.shared.is_dir() and origin.runner == BUILT_IN:
            shared = stack.enter_context(SharedResults(LocalPlace(request.shared), world.clock, unit, levels))
        place = folder.place(piece)
        made = JobRunnerSpec(evaluator, facts, config, config.level_weights, request.seed)
        jobs = stack.enter_context(_jobs(world, made, request, place, shared))
        assert isinstance(folder.identity, RunIdentity)
        run = OneSearch(world, facts, config, request, place, log, jobs, budget, folder.identity.warm_start, start.of(search.pieces[0]))
        idle = jobs.workers - run.schedule.islands
        if idle > 0 and not request.quiet:
            say(f"{idle} of {jobs.workers} workers have nothing to do: search.islands is {run.schedule.islands}, one worker for each")
        with run.progress():
            run.search_until_spent()
    return run


@contextmanager
def _jobs(world: World, spec: JobRunnerSpec, request: TuneRequest, place: SearchFolder, shared: SharedResults | None) -> Iterator[Jobs]:
    farm = spec.config.farm
    if farm.backend == "serial":
        attempts = Attempts(place.checkpoint, world.clock, farm.item_timeout_s)
        with SerialJobs(spec, shared, attempts) as serial:
            if attempts.failing and not request.quiet:
                say(f"{len(attempts.failing)} tasks each ended {DEATHS_ALONE} sessions, and are not tried again ({attempts.path})")
            yield serial
        return
    from tuner.world.ray_actors import RayActors  # Ray takes seconds to import, and the serial backend does without it

    run, made = spec.facts.origin.run, partial(JobWorker, spec)
    with RayActors(made, farm.workers, request.address, farm.wait_s, run, farm.resource) as actors:
        yield ActorPool(actors, world.clock, say, farm.item_timeout_s)
