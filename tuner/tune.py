"""`tilefarm tune`: one run, from the model file to the compiled file.  The driver's story, top to bottom."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import onnx
import pandas as pd

import simulator
from compiler.derive.gene import realise_all
from compiler.derive.plan import Infeasible, Plan
from compiler.tile.spec import Unit
from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from simulator.npu.machine import DataType, Engine, load_machine
from simulator.session import InferenceSession
from simulator.timing import program_bound
from tuner.build import Measured, Opened, container_of, measure_plans, open_source, package
from tuner.candidate import digest
from tuner.check import random_feeds, relative_error
from tuner.checkpoint import Checkpoint
from tuner.conduct import Conductor, Jobs, SerialJobs
from tuner.config import TuneConfig, load_config
from tuner.evaluate import EvaluatorSpec, Roofline
from tuner.host import host_lines, host_nodes, mac_share
from tuner.ledger import Budget, Ledger
from tuner.log import Origin, RunLog
from tuner.progress import Progress, Snapshot
from tuner.recorder import FEATURE_SETS, Facts
from tuner.reference import reference
from tuner.request import Style, TuneRequest
from tuner.runfolder import RunFolder, RunIdentity, write_json
from tuner.search.champions import Champions
from tuner.search.islands import first_states
from tuner.search.jobs import WorkshopSpec
from tuner.search.population import Individual
from tuner.search.schedule import Schedule
from tuner.source import Source, write_source
from tuner.summary import BudgetUse, LevelSummary, Summary
from tuner.training import Trainer

_PACKAGES = ("tilefarm", "numpy", "numba", "onnx", "onnxruntime", "ray", "pyarrow", "pandas", "xgboost", "optuna")


def configured(request: TuneRequest) -> TuneConfig:
    """The configuration of a request: file, `--set`, then the options that stand for a key of their own."""
    config = load_config(request.config, request.overrides)
    values: dict[str, object] = {}
    if request.candidates is not None or request.seconds is not None:
        values |= {"budget.candidates": request.candidates, "budget.seconds": request.seconds}
    for path, value in (("farm.backend", request.backend), ("farm.workers", request.workers), ("farm.wait_s", request.wait_s)):
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
        opened.unit.graph.digest,
        machine.name,
        machine.digest,
        digest([config.digest, request.dtype]),
        simulator.VERSION,
        request.seed,
        levels,
        request.tag,
    )
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(request.out, identity, request.resume))
        write_source(folder.path, opened.source, opened.unit.graph.digest, request.style)
        atomic_write(folder.path / "config.yaml", [config.to_yaml().encode()])
        origin = Origin(folder.run, opened.name, machine.name, simulator.VERSION, seed=request.seed, tag=request.tag)
        log = stack.enter_context(RunLog(folder.path, origin, FEATURE_SETS))
        light = opened.unit.without_values()
        if not request.quiet:
            unit = opened.unit
            print(
                f"{opened.name}: {len(unit.kernels)} operators, {unit.macs / 1e9:.2f} GMAC, {request.dtype} on {machine.name}; "
                f"starting workers (the first run on a computer compiles kernels, half a minute)",
                file=sys.stderr,
                flush=True,
            )
            for line in host_lines(host_nodes(opened)):
                print(line, file=sys.stderr)
        facts = Facts(origin, light, levels)
        spec = WorkshopSpec(EvaluatorSpec(light, levels), facts, config, config.level_weights, request.seed)
        jobs = stack.enter_context(_jobs(spec, config, request))
        islands = config.search.islands if config.use.islands else 1
        if jobs.workers > islands and not request.quiet:
            idle = f"{jobs.workers - islands} of {jobs.workers} workers have nothing to do"
            print(f"{idle}: search.islands is {islands}, and an island works on one worker at a time", file=sys.stderr)
        budget = Budget(config.budget.candidates, None if config.budget.seconds is None else begun + config.budget.seconds)
        run = _Run(facts, config, request, folder, log, jobs, budget)
        with run.progress():
            run.search_until_spent()
        return _finish(opened, run, folder, config, request, begun)


@contextmanager
def _jobs(spec: WorkshopSpec, config: TuneConfig, request: TuneRequest) -> Iterator[Jobs]:
    if config.farm.backend == "serial":
        with SerialJobs(spec) as serial:
            yield serial
        return
    from tuner.job_farm import JobFarm  # Ray takes seconds to import, and the serial backend does without it

    workers, wait_s, timeout_s = config.farm.workers, config.farm.wait_s, config.farm.item_timeout_s
    with JobFarm(spec, workers, request.address, wait_s, spec.facts.origin.run, item_timeout_s=timeout_s) as farm:
        yield farm


class _Run:
    """The search of one run, its log, its checkpoints and what a person sees of it.

    began: findings that it begins with, from elsewhere (`tuner.search.knowledge.Findings`).
    """

    def __init__(
        self, facts: Facts, config: TuneConfig, request: TuneRequest, folder: RunFolder, log: RunLog, jobs: Jobs, budget: Budget,
        began: Sequence[bytes] = (),
    ) -> None:  # fmt: skip
        self.levels, self.config, self.folder, self.quiet = facts.levels, config, folder, request.quiet
        self.champions = Champions(len(facts.levels))
        self.ledger = Ledger(facts.levels, log, self.champions, budget)
        self.schedule = Schedule(first_states(len(facts.levels), config, request.seed))
        self.trainer = Trainer(folder.models, facts.levels, config.model)
        trainer = self.trainer if config.use.cost_model else None
        self.conductor = Conductor(jobs, self.schedule, self.ledger, trainer, self._committed, self._show, self._say)
        self.checkpoint = Checkpoint(folder.checkpoint, log)
        self._unsaved: list[bytes] = list(began)
        self._began = len(began)
        self._shown: Progress | None = None
        self._saved_s = time.monotonic()
        self._resume()

    @contextmanager
    def progress(self) -> Iterator[None]:
        budget = self.config.budget
        with Progress(budget.candidates, budget.seconds, self.champions.programs, self.quiet) as shown:
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

    def _resume(self) -> None:
        """Go on from the last checkpoint: what was measured after it is measured again, and not logged twice."""
        found = self.checkpoint.load() if self.folder.resumed else None
        if found is None:
            self.conductor.begin(self._unsaved)
            return
        state, findings = found
        self._began, self._unsaved = int(state["began"]), []
        self.champions.restore(state["champions"])
        self.trainer.restore(state["trainer"])
        self.ledger.seq = int(state["seq"])
        self.ledger.failures.update(state["failures"])
        rows = pd.read_parquet(self.folder.path / "log", columns=["seq", "task"], filters=[("seq", "<", self.ledger.seq)])
        self.ledger.tasks = set(rows["task"])
        epochs = self.schedule.restore(state["schedule"], findings[self._began :], len(self.trainer.models))
        self.conductor.begin(findings[: self._began], epochs)

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
        }
        self.checkpoint.save(state, self._unsaved)
        self._unsaved = []


def _plan(unit: Unit, individual: Individual) -> Plan:
    plan = realise_all(unit, individual.genome)
    if isinstance(plan, Infeasible):
        raise RuntimeError(f"a measured genome has no plan: {plan}")
    return plan


def _finish(opened: Opened, run: _Run, folder: RunFolder, config: TuneConfig, request: TuneRequest, begun: float) -> Summary:
    """Champions become plans, programs, one container and one file; every number of the summary is taken from those."""
    unit, levels, champions = opened.unit, run.levels, run.champions
    if champions.baseline is None:
        raise RuntimeError(f"no program of single operators could be measured; failures: {dict(run.ledger.failures)}")
    best = {level: champion for level, champion in zip(levels, champions.best, strict=True) if champion is not None}
    plans = {level: _plan(unit, champion) for level, champion in best.items()}
    baseline = _plan(unit, champions.baseline)
    for name, plan in {**plans, "baseline": baseline}.items():
        atomic_write(folder.plans / f"{name}.json", [plan.to_json().encode()])
    measured = measure_plans(opened.compiler, plans)
    for i, level in enumerate(levels):
        found, expected = measured[level].timings[level].cycles, int(best[level].cycles[i])
        if found != expected:
            raise RuntimeError(f"level {level}: the champion took {expected} cycles when it was measured, {found} when it was compiled")
    base = measure_plans(opened.compiler, dict.fromkeys(levels, baseline))
    container = container_of(unit, measured)
    package(opened.part, container, folder.best, request.style)
    errors = _errors(opened, folder, levels, container.same_as, request.style)
    wall_s = time.monotonic() - begun
    searched = champions.programs
    summary = Summary(
        status="done",
        run=folder.run,
        model=opened.name,
        model_digest=unit.graph.digest,
        machine=unit.machine.name,
        machine_digest=unit.machine.digest,
        dtype=request.dtype,
        seed=request.seed,
        tags=dict(tag.split("=", 1) for tag in request.tag.split(",") if "=" in tag),
        versions={name: _version(name) for name in _PACKAGES} | {"simulator": simulator.VERSION},
        config_digest=config.digest,
        budget=_budget(config, searched, wall_s),
        wall_s=round(wall_s, 3),
        candidates=searched,
        candidates_per_s=round(searched / wall_s, 3),
        tasks=run.ledger.seq,
        failures=dict(run.ledger.failures),
        instructions={level: measured[level].program.instructions for level in levels},
        variants=len({m.program.digest for m in measured.values()}),
        cost_model=_model_metrics(run),
        npu_mac_share=mac_share(opened),
        host=host_nodes(opened),
        levels={level: _level(unit, level, measured, base, errors[level]) for level in levels},
    )
    write_json(folder.summary, json.loads(summary.model_dump_json()))
    return summary


def _level(unit: Unit, level: str, measured: dict[str, Measured], base: dict[str, Measured], error: float) -> LevelSummary:
    mine = measured[level]
    timing = mine.timings[level]
    machine = unit.machine
    busy = timing.busy_cycles.sum(0) / (timing.cycles * machine.cores)
    same = next((other for other in measured if measured[other].program.digest == mine.program.digest), level)
    baseline = base[level].timings[level].cycles
    return LevelSummary(
        ddr_share=machine.contention[level],
        cycles=timing.cycles,
        latency_us=round(timing.cycles / machine.clock_hz * 1e6, 3),
        plan=mine.plan.digest,
        same_as=None if same == level else same,
        roofline_cycles=Roofline(unit).cycles(0, len(unit.kernels), level),
        program_bound_cycles=program_bound(mine.program, machine, machine.share_units(level)),
        ddr_bytes=timing.ddr_read_bytes + timing.ddr_write_bytes,
        engine_utilisation={engine.name.lower(): round(float(busy[engine]), 4) for engine in Engine},
        balance=round(timing.balance, 4),
        baseline_layerwise_cycles=baseline,
        speedup=round(baseline / timing.cycles, 4),
        variant_cycles={other: m.timings[level].cycles for other, m in measured.items()},
        max_rel_error=error,
    )


def _errors(
    opened: Opened, folder: RunFolder, levels: tuple[str, ...], same_as: Callable[[str], str | None], style: Style
) -> dict[str, float]:
    """Values of every distinct variant, executed from the file that was written, against onnxruntime on its body."""
    session = InferenceSession(folder.best)
    feeds = random_feeds(session, 0)
    if style == "epcontext":  # that file has no body
        with tempfile.TemporaryDirectory(dir=folder.path / ".tmp") as room:
            body = Path(room) / "body.onnx"
            onnx.save(opened.model, body)
            expected = reference(body, feeds)
    else:
        expected = reference(folder.best, feeds)
    names = [port.name for port in session.get_outputs()]
    errors: dict[str, float] = {}
    for level in levels:
        twin = same_as(level)
        if twin is not None and twin in errors:
            errors[level] = errors[twin]
            continue
        outputs = session.run(names, feeds, level)
        dtype = session.container.dtype
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


def _model_metrics(run: _Run) -> dict[str, float]:
    out = {}
    number = run.conductor.models_used
    for level, packed in zip(run.levels, run.trainer.models[number - 1] if number else (), strict=False):
        if packed is not None:
            metrics = packed.load().metrics
            out[f"{level}.pair_accuracy"] = round(metrics.pair_accuracy, 4)
            out[f"{level}.rms_octaves"] = round(metrics.log2_error, 4)
    return out


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "source tree"
