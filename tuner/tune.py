"""`tilefarm tune`: one run, from the model file to the compiled file.  The driver's story, top to bottom."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import onnx

import simulator
from compiler.derive.gene import realise_all
from compiler.derive.plan import Infeasible, Plan
from compiler.tile.features import FEATURE_SET, FEATURES
from compiler.tile.spec import Unit
from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from simulator.npu.machine import DataType, Engine, load_machine
from simulator.session import InferenceSession
from simulator.timing import program_bound
from tuner.backend import Backend, SerialBackend
from tuner.build import Measured, Opened, container_of, measure_plans, open_source, package
from tuner.candidate import FeatureSet, digest
from tuner.check import random_feeds, relative_error
from tuner.checkpoint import load_checkpoint, save_checkpoint
from tuner.config import TuneConfig, load_config
from tuner.evaluate import Answer, Ask, EvaluatorSpec, Roofline
from tuner.host import host_lines, host_nodes, mac_share
from tuner.log import Origin, RunLog
from tuner.mirror import Mirror
from tuner.progress import Progress, Snapshot
from tuner.reference import reference
from tuner.request import Style, TuneRequest
from tuner.runfolder import RunFolder, RunIdentity, write_json
from tuner.runner import Budget, BudgetSpent, Runner
from tuner.search.champions import Champions
from tuner.search.population import Individual
from tuner.search.search import Search
from tuner.source import Source, write_source
from tuner.summary import BudgetUse, LevelSummary, Summary
from tuner.training import Trainer

_IDLE_GENERATIONS = 10
_PACKAGES = ("tilefarm", "numpy", "numba", "onnx", "onnxruntime", "ray", "pyarrow", "pandas", "xgboost", "optuna")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


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
        if request.mirror is not None:
            stack.enter_context(Mirror(folder.path, request.mirror, _say))
        origin = Origin(folder.run, opened.name, machine.name, simulator.VERSION, seed=request.seed, tag=request.tag)
        log = stack.enter_context(RunLog(folder.path, origin, (FeatureSet(FEATURE_SET, FEATURES),)))
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
        backend = stack.enter_context(_backend(light, levels, config, request, folder.run))
        budget = Budget(config.budget.candidates, None if config.budget.seconds is None else begun + config.budget.seconds)
        run = _Run(light, opened.name, levels, config, request, folder, log, backend, budget)
        run.resume()
        with run.progress():
            run.search_until_spent()
        return _finish(opened, run, folder, config, request, begun)


@contextmanager
def _backend(unit: Unit, levels: tuple[str, ...], config: TuneConfig, request: TuneRequest, run_id: str) -> Iterator[Backend[Ask, Answer]]:
    spec = EvaluatorSpec(unit, levels)
    if config.farm.backend == "serial":
        with SerialBackend(spec) as serial:
            yield serial
        return
    from tuner.farm import RayBackend  # Ray takes seconds to import, and the serial backend does without it

    workers, wait_s, timeout_s = config.farm.workers, config.farm.wait_s, config.farm.item_timeout_s
    with RayBackend(spec, workers, request.address, wait_s, run_id, item_timeout_s=timeout_s) as farm:
        yield farm


class _Run:
    """The search of one run, its log, its checkpoints and what a person sees of it."""

    def __init__(
        self,
        unit: Unit,
        name: str,
        levels: tuple[str, ...],
        config: TuneConfig,
        request: TuneRequest,
        folder: RunFolder,
        log: RunLog,
        backend: Backend[Ask, Answer],
        budget: Budget,
    ) -> None:
        self.levels, self.config, self.folder, self.log, self.quiet = levels, config, folder, log, request.quiet
        self.champions = Champions(len(levels))
        self.search = Search(unit, levels, config, request.seed, config.level_weights)
        self.trainer = Trainer(folder.models, folder.path, levels, config.model, request.seed)
        self.runner = Runner(unit, name, levels, backend, log, self.champions, budget, self._show)
        self._shown: Progress | None = None
        self._saved_s = time.monotonic()

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

    def snapshot(self) -> Snapshot:
        best = {level: int(m.cycles[i]) for i, level in enumerate(self.levels) if (m := self.champions.best[i]) is not None}
        base = self.champions.baseline
        baseline = {} if base is None else {level: int(base.cycles[i]) for i, level in enumerate(self.levels)}
        note = f"generation {self.search.generation}, {self.runner.seq} tasks"
        return Snapshot(self.champions.programs, best, baseline, dict(self.runner.failures), note)

    def resume(self) -> None:
        """Go on from the last checkpoint: what was measured after it is measured again, and not logged twice."""
        state = load_checkpoint(self.folder.checkpoint, self.log) if self.folder.resumed else None
        if state is None:
            return
        self.search.restore(state["search"])
        self.champions.restore(state["champions"])
        self.trainer.restore(state["trainer"], self.search)
        self.runner.seq = int(state["seq"])
        self.runner.failures.update(state["failures"])
        self.runner.tasks = dict.fromkeys(state["tasks"])
        self._models_changed()

    def search_until_spent(self) -> None:
        """Until the budget is spent, or for so many generations nothing new came up that nothing will."""
        idle = 0
        try:
            while idle < _IDLE_GENERATIONS:
                before = self.runner.seq
                for _ in self.search.step(self.runner):
                    self._show()
                if self.config.use.cost_model and self.trainer.due(self.search):
                    lines = self.trainer.train(self.search, self.log, self.runner.seq)
                    self._models_changed()
                    if self._shown is not None:
                        for line in lines:
                            self._shown.say(line)
                self._checkpoint()
                idle = idle + 1 if self.runner.seq == before else 0
        except BudgetSpent:
            pass
        self.log.flush()

    def _models_changed(self) -> None:
        self.runner.model_versions = [None if model is None else model.version for model in self.search.models]

    def _checkpoint(self) -> None:
        """Between generations, not more often than the configuration says; the first one at once."""
        now = time.monotonic()
        if self.search.generation > 1 and now - self._saved_s < self.config.farm.checkpoint_every_s:
            return
        self._saved_s = now
        state = {
            "search": self.search.state(),
            "champions": self.champions.state(),
            "trainer": self.trainer.state(),
            "seq": self.runner.seq,
            "failures": dict(self.runner.failures),
            "tasks": list(self.runner.tasks),
        }
        save_checkpoint(self.folder.checkpoint, state, self.log)


def _plan(unit: Unit, individual: Individual) -> Plan:
    plan = realise_all(unit, individual.genome)
    if isinstance(plan, Infeasible):
        raise RuntimeError(f"a measured genome has no plan: {plan}")
    return plan


def _finish(opened: Opened, run: _Run, folder: RunFolder, config: TuneConfig, request: TuneRequest, begun: float) -> Summary:
    """Champions become plans, programs, one container and one file; every number of the summary is taken from those."""
    unit, levels, champions = opened.unit, run.levels, run.champions
    if champions.baseline is None:
        raise RuntimeError(f"no program of single operators could be measured; failures: {dict(run.runner.failures)}")
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
        tasks=run.runner.seq,
        failures=dict(run.runner.failures),
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
    for level, model in zip(run.levels, run.search.models, strict=True):
        if model is not None:
            out[f"{level}.pair_accuracy"] = round(model.metrics.pair_accuracy, 4)
            out[f"{level}.rms_octaves"] = round(model.metrics.log2_error, 4)
    return out


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "source tree"
