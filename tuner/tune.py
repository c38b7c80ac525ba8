"""`tilefarm tune`: one run, from the model file to the compiled file.  The driver's story, top to bottom."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import onnx

import simulator
from compiler.derive.gene import realise_all
from compiler.derive.plan import Infeasible, Plan, joined
from compiler.tile.spec import Unit
from simulator.npu.errors import BadInputError, TilefarmError
from simulator.npu.files import atomic_write
from simulator.npu.machine import DataType, Engine, load_machine
from simulator.session import InferenceSession
from tuner.board import as_measured, pieces_as_measured, plan_for, runner_name, runner_spec, runner_summary, verdicts
from tuner.build import MeasuredModel, Opened, containers_of, measure, open_source, package
from tuner.candidate import digest
from tuner.check import random_feeds, relative_error
from tuner.checkpoint import Checkpoint
from tuner.conduct import Conductor, Jobs, SerialJobs
from tuner.config import TuneConfig, load_config
from tuner.evaluate import EvaluatorSpec, Roofline
from tuner.host import host_lines, host_nodes, mac_share
from tuner.ledger import Budget, Ledger
from tuner.log import Origin, RunLog
from tuner.mirror import Mirror
from tuner.pieces import Searched, dealt, searches, weights_of, write_searches
from tuner.plateau import Plateau
from tuner.progress import Progress, Snapshot
from tuner.recorder import FEATURE_SETS, Facts
from tuner.reference import reference
from tuner.request import Style, TuneRequest
from tuner.runfolder import RunFolder, RunIdentity, SearchFolder, write_json
from tuner.search.champions import Champions
from tuner.search.islands import first_states
from tuner.search.jobs import WorkshopSpec
from tuner.search.population import Individual
from tuner.search.schedule import Schedule
from tuner.source import Source, write_source
from tuner.summary import BudgetUse, LevelSummary, PieceSummary, Summary
from tuner.training import Trainer
from tuner.warm_start import WarmStart, lines, sources, taken

_PACKAGES = ("tilefarm", "numpy", "numba", "onnx", "onnxruntime", "ray", "pyarrow", "pandas", "xgboost", "optuna")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def configured(request: TuneRequest) -> TuneConfig:
    """The configuration of a request: file, `--set`, then the options that stand for a key of their own."""
    config = load_config(request.config, request.overrides)
    values: dict[str, object] = {}
    if request.candidates is not None or request.seconds is not None:
        values |= {"budget.candidates": request.candidates, "budget.seconds": request.seconds}
    options = {
        "farm.backend": request.backend,
        "farm.workers": request.workers,
        "farm.wait_s": request.wait_s,
        "farm.resource": request.resource,
        "runner.name": request.runner,
    }
    for path, value in options.items():
        if value is not None:
            values[path] = value
    if request.level_weights:
        values["level_weights"] = {**config.level_weights, **request.level_weights}
    return config.replaced(values) if values else config


def tune(request: TuneRequest) -> Summary:
    """Search, log, and write RUN: plans, best.onnx, summary.json.

    Raises `BadInputError`, `UnsupportedError`, `InfeasibleError`; `KeyboardInterrupt` leaves a run that `resume` continues.
    """
    begun = time.monotonic()
    config = configured(request)
    machine = load_machine(request.machine)
    unknown = sorted(set(config.level_weights) - set(machine.contention))
    if unknown:
        raise BadInputError(f"level_weights: level {unknown[0]!r} unknown; levels of {machine.name}: {', '.join(machine.contention)}")
    opened = open_source(Source(request.model, machine, DataType[request.dtype], request.shapes, request.random_weights))
    levels = tuple(machine.contention)
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
    )
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(request.out, identity, request.resume))
        write_source(folder.path, opened.source, opened.digest, request.style)
        atomic_write(folder.path / "config.yaml", [config.to_yaml().encode()])
        if request.mirror is not None:
            stack.enter_context(Mirror(folder.path, request.mirror, _say))
        if not request.quiet:
            operators, macs = sum(len(unit.kernels) for unit in opened.units), sum(unit.macs for unit in opened.units)
            print(
                f"{opened.name}: {operators} operators, {macs / 1e9:.2f} GMAC, {request.dtype} on {machine.name}; "
                f"starting workers (the first run on a computer compiles kernels, a minute)",
                file=sys.stderr,
                flush=True,
            )
            for line in host_lines(host_nodes(opened)):
                print(line, file=sys.stderr)
        found = searches(opened, folder.run)
        write_searches(folder.path, opened, found)
        runs = [
            _searched(opened, search, budget, beside, folder, config, request)
            for search, budget, beside in zip(
                found, _budgets(opened, found, config, begun), ({s.run for s in found} - {search.run} for search in found), strict=True
            )
        ]
        return _finish(opened, found, runs, folder, config, request, begun)


def _budgets(opened: Opened, found: Sequence[Searched], config: TuneConfig, begun: float) -> list[Budget]:
    """What every search may spend: of a time its part, one after the other."""
    candidates, seconds = config.budget.candidates, config.budget.seconds
    weights = weights_of(opened, found) if len(found) > 1 else [1]
    if candidates is not None:
        return [Budget(count) for count in dealt(candidates, weights)]
    assert seconds is not None
    return [Budget(deadline=begun + seconds * sum(weights[: i + 1]) / sum(weights)) for i in range(len(found))]


def _searched(
    opened: Opened, search: Searched, budget: Budget, beside: set[str], folder: RunFolder, config: TuneConfig, request: TuneRequest
) -> _Run:
    """One search, until its budget is spent; its log is closed, its champions are known."""
    light, levels = opened.units[search.pieces[0]].without_values(), tuple(opened.machine.contention)
    piece = opened.names[search.pieces[0]] if len(opened.names) > 1 else None
    if piece is not None and not request.quiet:
        for_all = f", for {len(search.pieces)} pieces that compute the same" if len(search.pieces) > 1 else ""
        print(f"{piece}: {light.kernels[0].name}..{light.kernels[-1].name}, {len(light.kernels)} operators{for_all}", file=sys.stderr)
    unit = light if runner_spec(config) is None else opened.units[search.pieces[0]]  # a board is given weights
    origin = Origin(search.run, opened.name, opened.machine.name, simulator.VERSION, runner_name(config), request.seed, request.tag)
    with ExitStack() as stack:
        log = stack.enter_context(RunLog(folder.path, origin, FEATURE_SETS, beside))
        facts = Facts(origin, light, levels)
        evaluator = EvaluatorSpec(unit, levels, runner_spec(config))
        jobs = stack.enter_context(_jobs(WorkshopSpec(evaluator, facts, config, config.level_weights, request.seed), request))
        assert isinstance(folder.identity, RunIdentity)
        run = _Run(facts, config, request, folder.place(piece), log, jobs, budget, folder.identity.warm_start)
        idle = jobs.workers - run.schedule.islands
        if idle > 0 and not request.quiet:
            _say(f"{idle} of {jobs.workers} workers have nothing to do: search.islands is {run.schedule.islands}, one worker for each")
        with run.progress():
            run.search_until_spent()
    return run


@contextmanager
def _jobs(spec: WorkshopSpec, request: TuneRequest) -> Iterator[Jobs]:
    farm = spec.config.farm
    if farm.backend == "serial":
        with SerialJobs(spec) as serial:
            yield serial
        return
    from tuner.job_farm import JobFarm  # Ray takes seconds to import, and the serial backend does without it

    run, timeout_s, resource = spec.facts.origin.run, farm.item_timeout_s, farm.resource
    with JobFarm(spec, farm.workers, request.address, farm.wait_s, run, item_timeout_s=timeout_s, resource=resource) as actors:
        yield actors


class _Run:
    """The search of one run, its log, its checkpoints and what a person sees of it.

    said: of the earlier runs that it begins with (`tuner.warm_start.sources`).
    """

    def __init__(
        self, facts: Facts, config: TuneConfig, request: TuneRequest, place: SearchFolder, log: RunLog, jobs: Jobs, budget: Budget,
        said: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.facts, self.levels, self.config, self.place, self.quiet = facts, facts.levels, config, place, request.quiet
        self.champions = Champions(len(facts.levels))
        self.ledger = Ledger(facts.levels, log, self.champions, budget)
        self.schedule = Schedule(first_states(len(facts.levels), config, request.seed))
        self.trainer = Trainer(place.models, facts.levels, config.model)
        trainer = self.trainer if config.use.cost_model else None
        plateau = Plateau(config.budget.plateau, config.budget.plateau_gain)
        self.conductor = Conductor(jobs, self.schedule, self.ledger, trainer, self._committed, self._show, self._say, plateau)
        self.checkpoint = Checkpoint(place.checkpoint, log)
        self.warm_start: list[str] = []  # lines for a person
        self._warm_tasks: list[str] = []
        self._unsaved: list[bytes] = []
        self._began = 0
        self._shown: Progress | None = None
        self._saved_s = time.monotonic()
        self._resume(request.warm_start, said)

    @contextmanager
    def progress(self) -> Iterator[None]:
        budget = self.ledger.budget
        with Progress(budget.candidates, budget.seconds(), self.champions.programs, self.quiet) as shown:
            self._shown = shown
            yield
            shown.finish(self.snapshot())
            self._shown = None

    def _show(self) -> None:
        if self._shown is not None:
            self._shown.update(self.snapshot())

    def _say(self, line: str) -> None:
        if self._shown is not None:
            self._shown.say(line)

    def snapshot(self) -> Snapshot:
        best = {level: int(m.cycles[i]) for i, level in enumerate(self.levels) if (m := self.champions.best[i]) is not None}
        base = self.champions.baseline
        baseline = {} if base is None else {level: int(base.cycles[i]) for i, level in enumerate(self.levels)}
        note = f"epoch {self.schedule.complete}, {self.ledger.seq} tasks"
        return Snapshot(self.champions.programs, best, baseline, dict(self.ledger.failures), note)

    def _resume(self, paths: Sequence[Path], said: Sequence[str]) -> None:
        """Go on from the last checkpoint: what was measured after it is measured again, and not logged twice."""
        found = self.checkpoint.load() if self.place.resumed else None
        if found is None:
            self._begin(taken(paths, said, self.facts.unit, self.levels, self.config.search.elites, self.facts.origin.runner))
            return
        state, findings = found
        self._began, self._unsaved = int(state["began"]), []
        self.champions.restore(state["champions"])
        self.trainer.restore(state["trainer"])
        self.ledger.seq = int(state["seq"])
        self.ledger.failures.update(state["failures"])
        self.warm_start, self._warm_tasks = list(state["warm_start"]), list(state["warm_tasks"])
        self.ledger.tasks = self.ledger.log.tasks(self.ledger.seq) | set(self._warm_tasks)
        self.conductor.plateau.restore(state["plateau"])
        epochs = self.schedule.restore(state["schedule"], findings[self._began :], len(self.trainer.models))
        self.conductor.begin(findings[: self._began], epochs)

    def _begin(self, warm: WarmStart | None) -> None:
        """With nothing, or with what earlier runs measured: it is known, is not measured again, and trains the first models."""
        if warm is not None:
            self.warm_start, self._warm_tasks = list(lines(warm)), list(warm.tasks)
            self._unsaved.append(warm.findings())
            self._began = 1
            self.ledger.tasks.update(warm.tasks)
            self.trainer.measured = len(warm.tasks)
            if not self.quiet:
                for line in self.warm_start:
                    _say(line)
        self.conductor.begin(self._unsaved)

    def search_until_spent(self) -> None:
        self.conductor.run()
        self.ledger.log.flush()

    def _committed(self, findings: bytes) -> None:
        """After a result, not more often than the configuration says; after the first one at once."""
        self._unsaved.append(findings)
        now = time.monotonic()
        if self.schedule.complete > 1 and now - self._saved_s < self.config.farm.checkpoint_every_s:
            return
        self._saved_s = now
        state = {
            "schedule": self.schedule.state(),
            "began": self._began,
            "champions": self.champions.state(),
            "trainer": self.trainer.state(),
            "seq": self.ledger.seq,
            "failures": dict(self.ledger.failures),
            "plateau": self.conductor.plateau.state(),
            "warm_start": self.warm_start,
            "warm_tasks": self._warm_tasks,
        }
        self.checkpoint.save(state, self._unsaved)
        self._unsaved = []


def _plan(unit: Unit, individual: Individual | None) -> Plan:
    assert individual is not None
    plan = realise_all(unit, individual.genome)
    if isinstance(plan, Infeasible):
        raise RuntimeError(f"a measured genome has no plan: {plan}")
    return plan


def _finish(
    opened: Opened,
    found: Sequence[Searched],
    runs: Sequence[_Run],
    folder: RunFolder,
    config: TuneConfig,
    request: TuneRequest,
    begun: float,
) -> Summary:
    """Champions become plans, programs, containers and one file; every number of the summary is taken from those."""
    levels = runs[0].levels
    for run in runs:
        if run.champions.baseline is None:
            counts = ", ".join(f"{count} {status}" for status, count in sorted(run.ledger.failures.items()))
            what = f"no program of single operators could be measured ({counts})"
            raise TilefarmError(f"{folder.path}: {what}; the column `error` of its log says why")
    units = [opened.units[search.pieces[0]] for search in found]
    best = {level: [_plan(unit, run.champions.best[i]) for unit, run in zip(units, runs, strict=True)] for i, level in enumerate(levels)}
    bases = [_plan(unit, run.champions.baseline) for unit, run in zip(units, runs, strict=True)]
    said = () if runner_spec(config) is None else verdicts(opened, found, folder.path, bases, config, request.address)
    if said:
        best = {level: [verdict.plans[level] for verdict in said] for level in levels}
    plans = {level: _joined(opened, found, chosen) for level, chosen in best.items()}
    baseline = _joined(opened, found, bases)
    for name, plan in {**plans, "baseline": baseline}.items():
        atomic_write(folder.plans / f"{name}.json", [plan.to_json().encode()])
    measured = measure(opened, plans)
    for i, level in enumerate(levels if not said else ()):
        for search, run in zip(found, runs, strict=True):
            champion = run.champions.best[i]
            assert champion is not None
            cycles, expected = measured[level].pieces[search.pieces[0]].timings[level].cycles, int(champion.cycles[i])
            if cycles != expected:
                raise RuntimeError(f"level {level}: the champion took {expected} cycles when measured, {cycles} when compiled")
    base = measure(opened, dict.fromkeys(levels, baseline))
    package(opened, containers_of(opened, measured), folder.best, request.style)
    first_with = {m.digest: level for level, m in reversed(measured.items())}
    same_as = {level: None if first_with[m.digest] == level else first_with[m.digest] for level, m in measured.items()}
    errors = _errors(opened, folder, same_as, request.style)
    wall_s = time.monotonic() - begun
    searched = sum(run.champions.programs for run in runs)
    failures = sum((run.ledger.failures for run in runs), Counter[str]())
    rows = {level: _level(opened, level, measured, base, same_as[level], errors[level]) for level in levels}
    pieces = _pieces(opened, found, measured)
    summary = Summary(
        status="done",
        run=folder.run,
        model=opened.name,
        model_digest=opened.digest,
        machine=opened.machine.name,
        machine_digest=opened.machine.digest,
        dtype=request.dtype,
        seed=request.seed,
        tags=dict(tag.split("=", 1) for tag in request.tag.split(",") if "=" in tag),
        versions={name: _version(name) for name in _PACKAGES} | {"simulator": simulator.VERSION},
        config_digest=config.digest,
        budget=_budget(config, searched, wall_s),
        stopped=tuple(run.conductor.stopped or "budget" for run in runs),
        warm_start=tuple(line for run in runs for line in run.warm_start),
        wall_s=round(wall_s, 3),
        candidates=searched,
        candidates_per_s=round(searched / wall_s, 3),
        tasks=sum(run.ledger.seq for run in runs),
        failures=dict(failures),
        instructions={level: m.instructions for level, m in measured.items()},
        variants=len({m.digest for m in measured.values()}),
        cost_model=dict(pair for search, run in zip(found, runs, strict=True) for pair in _model_metrics(opened, search, run).items()),
        npu_mac_share=mac_share(opened),
        host=host_nodes(opened),
        pieces=pieces_as_measured(pieces, found, said) if said else pieces,
        runner=runner_summary(config, found, said) if said else None,
        levels=as_measured(rows, found, said, opened.machine.clock_hz) if said else rows,
    )
    write_json(folder.summary, json.loads(summary.model_dump_json()))
    return summary


def _joined(opened: Opened, found: Sequence[Searched], chosen: Sequence[Plan]) -> Plan:
    """The plan of a model: of every piece what its search found, for the first of the pieces that it serves."""
    plans: dict[int, Plan] = {}
    for search, plan in zip(found, chosen, strict=True):
        plans |= {k: plan if k == search.pieces[0] else plan_for(plan, opened.units[k]) for k in search.pieces}
    return joined({name: plans[k] for k, name in enumerate(opened.names)})


def _pieces(opened: Opened, found: Sequence[Searched], measured: Mapping[str, MeasuredModel]) -> tuple[PieceSummary, ...]:
    if len(opened.names) == 1:
        return ()
    by_piece = {k: search.run for search in found for k in search.pieces}
    return tuple(
        PieceSummary(
            piece=name,
            search=by_piece[k],
            operators=len(unit.kernels),
            first_operator=unit.kernels[0].name,
            last_operator=unit.kernels[-1].name,
            cycles={level: m.pieces[k].timings[level].cycles for level, m in measured.items()},
        )
        for k, (name, unit) in enumerate(zip(opened.names, opened.units, strict=True))
    )


def _level(
    opened: Opened,
    level: str,
    measured: Mapping[str, MeasuredModel],
    base: Mapping[str, MeasuredModel],
    same_as: str | None,
    error: float,
) -> LevelSummary:
    mine = measured[level]
    timing = mine.timings[level]
    machine = opened.machine
    busy = timing.busy_cycles.sum(0) / (timing.cycles * machine.cores)
    baseline = base[level].timings[level].cycles
    return LevelSummary(
        ddr_share=machine.contention[level],
        cycles=timing.cycles,
        latency_us=round(timing.cycles / machine.clock_hz * 1e6, 3),
        plan=mine.plan.digest,
        same_as=same_as,
        roofline_cycles=sum(Roofline(unit).cycles(0, len(unit.kernels), level) for unit in opened.units),
        program_bound_cycles=mine.bound(machine, level),
        ddr_bytes=timing.ddr_read_bytes + timing.ddr_write_bytes,
        engine_utilisation={engine.name.lower(): round(float(busy[engine]), 4) for engine in Engine},
        balance=round(timing.balance, 4),
        baseline_layerwise_cycles=baseline,
        speedup=round(baseline / timing.cycles, 4),
        variant_cycles={other: m.timings[level].cycles for other, m in measured.items()},
        max_rel_error=error,
    )


def _errors(opened: Opened, folder: RunFolder, same_as: Mapping[str, str | None], style: Style) -> dict[str, float]:
    """Values of every distinct variant, executed from the file that was written, against onnxruntime on its body."""
    session = InferenceSession(folder.best)
    feeds = random_feeds(session, 0)
    if style != "function":  # that file has no body
        with tempfile.TemporaryDirectory(dir=folder.path / ".tmp") as room:
            body = Path(room) / "body.onnx"
            onnx.save(opened.model, body)
            expected = reference(body, feeds)
    else:
        expected = reference(folder.best, feeds)
    names = [port.name for port in session.get_outputs()]
    errors: dict[str, float] = {}
    for level, twin in same_as.items():
        if twin is not None:
            errors[level] = errors[twin]
            continue
        outputs = session.run(names, feeds, level=level)
        dtype = session.compiled.dtype
        found = [
            relative_error(out, expected.outputs[name], dtype, expected.logits_scale.get(name))
            for name, out in zip(names, outputs, strict=True)
        ]
        errors[level] = max(found, default=0.0)
    return errors


def _budget(config: TuneConfig, searched: int, wall_s: float) -> BudgetUse:
    if config.budget.seconds is not None:
        return BudgetUse(kind="seconds", requested=config.budget.seconds, used=round(wall_s, 3))
    assert config.budget.candidates is not None
    return BudgetUse(kind="candidates", requested=config.budget.candidates, used=searched)


def _model_metrics(opened: Opened, search: Searched, run: _Run) -> dict[str, float]:
    out = {}
    piece = f"{opened.names[search.pieces[0]]}." if len(opened.names) > 1 else ""
    number = run.conductor.models_used
    for level, packed in zip(run.levels, run.trainer.models[number - 1] if number else (), strict=False):
        if packed is not None:
            metrics = packed.load().metrics
            out[f"{piece}{level}.pair_accuracy"] = round(metrics.pair_accuracy, 4)
            out[f"{piece}{level}.rms_octaves"] = round(metrics.log2_error, 4)
    return out


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "source tree"
