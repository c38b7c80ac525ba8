"""One search in this process, for research: no run folder remains, no file is compiled, measurements are in memory.

It is the driver's own search (`tuner.farm.search_run`) with one worker; rules and evaluator may be replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pyarrow as pa

import simulator
from compiler.build import measure_plans
from compiler.model import ModelSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import Plan
from compiler.space.operator_order import ordered
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from tuner.config import BUILT_IN, NPU, TuneConfig, load_config
from tuner.farm.coordinator import Jobs, SerialJobs
from tuner.farm.initial_model import read_prior
from tuner.farm.initial_plans import compiled_genomes
from tuner.farm.measurement_budget import Spending
from tuner.farm.plugin_identity import external_plugins
from tuner.farm.recorder import FEATURE_SETS
from tuner.farm.robust_program import robust_plan
from tuner.farm.search_run import SearchRun
from tuner.farm.search_spec import SearchSpec
from tuner.farm.warm_start import sources
from tuner.log.read import read_table
from tuner.log.writer import Origin, RunLog
from tuner.measure.baseline import faster_in_file_order
from tuner.measure.evaluator import Evaluator
from tuner.measure.grants import check_grants, same_grants
from tuner.measure.runners import check_runner, runner_name
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.run_session import budgets
from tuner.runs.dataframes import champions, over_time, whole_programs
from tuner.runs.folder import SearchFolder
from tuner.search.limits import SearchLimits
from tuner.search.population import Individual
from tuner.search.strategy import SearchStrategy
from tuner.tune_request import TuneRequest
from tuner.zoo.load import open_network


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Result of a search.  target_graph: in the search's order.  best, baselines: see `SearchEnd`.

    log_rows, task_rows: same rows as in `RUN/log` and `RUN/tasks`.
    timed: whether a target other than the NPU timed.
    """

    target_graph: TargetGraph
    levels: tuple[str, ...]
    best: tuple[Individual, ...]
    baselines: tuple[Individual, ...]
    log_rows: pa.Table
    task_rows: pa.Table
    timed: bool = False

    @property
    def tasks(self) -> int:
        """Number of measured tasks."""
        return self.task_rows.num_rows

    @property
    def cycles(self) -> dict[str, int]:
        """Level -> cycles of the best program."""
        return {level: int(champion.cycles[i]) for i, (level, champion) in enumerate(zip(self.levels, self.best, strict=True))}

    @cached_property
    def baseline_cycles(self) -> dict[str, int]:
        """Level -> cycles of the best program of single operators, in the search's order or the file's, as a summary has them.

        If another target timed, its cycles of the first of both.
        """
        if self.timed:
            return {level: int(baseline.cycles[i]) for i, (level, baseline) in enumerate(zip(self.levels, self.baselines, strict=True))}
        compiler, cycles = Compiler(self.target_graph), dict[str, int]()
        for group in same_grants(self.target_graph.machine, self.levels):
            levels = [self.levels[index] for index in group]
            plan = faster_in_file_order(compiler, self.baselines[group[0]].plan(self.target_graph), levels)
            cycles |= {
                level: baseline.timings[level].cycles for level, baseline in measure_plans(compiler, dict.fromkeys(levels, plan)).items()
            }
        return {level: cycles[level] for level in self.levels}

    def plan(self, level: str) -> Plan:
        """Plan of the best program.  Raises `BadInputError` for a level that was not searched for."""
        if level not in self.levels:
            raise BadInputError(f"level {level!r}: unknown; levels of this search: {', '.join(self.levels)}")
        return self.best[self.levels.index(level)].plan(self.target_graph)

    @cached_property
    def robust(self) -> Plan | None:
        """Plan of the program with the smallest largest loss over the levels; None if no program fits every level."""
        return robust_plan(self.log, self.task_rows, self.levels)

    @property
    def log(self) -> pd.DataFrame:
        """A row per measured task and level (docs/log-columns.md)."""
        frame: pd.DataFrame = self.log_rows.to_pandas()
        return frame

    @property
    def champions(self) -> pd.DataFrame:
        """A row per level: level, cycles, baseline_cycles, plan, speedup."""
        return champions((level, cycles, self.baseline_cycles[level], self.plan(level).digest) for level, cycles in self.cycles.items())

    def over_time(self, by_time: bool = False) -> pd.DataFrame:
        """See `tuner.runs.dataframes.over_time`."""
        return over_time(whole_programs(self.log).sort_values("seq", kind="stable"), {}, self.baseline_cycles, by_time)


@dataclass(frozen=True, eq=False)
class Search:
    """A search of one target graph; the same fields give the same result.

    model: target graph, path, `light:NAME` or `made:NAME`.  machine: needed unless the model is a target graph.
    settings: `a.b=c` texts over config, a preset or a YAML file.
    candidates, measurements or seconds: budget; None: that of the configuration.  levels: levels of the machine; None: all.
    strategy: class, or its name (`search.strategy`).  warm_start, prior: see `TuneRequest`.
    evaluator: measures in place of the target; its target graph and levels are searched.
    rules: limits of proposals.  quiet: nothing on stderr.  jobs: makes the executor of jobs.
    """

    model: TargetGraph | str | os.PathLike[str]
    machine: str | Machine | None = None
    settings: Sequence[str] = ()
    config: str | None = None
    candidates: int | None = None
    measurements: int | None = None
    seconds: float | None = None
    seed: int = 0
    levels: Sequence[str] | None = None
    strategy: str | type[SearchStrategy] | None = None
    warm_start: Sequence[Path] = ()
    prior: Path | None = None
    evaluator: Evaluator | None = None
    rules: type[SearchLimits] = SearchLimits
    quiet: bool = True
    jobs: Callable[[SearchSpec], AbstractContextManager[Jobs]] = SerialJobs

    def run(self) -> SearchResult:
        """Search until the budget is spent.  Raises `BadInputError`, `UnsupportedError`, `InfeasibleError`."""
        config = load_config(self.config, self.settings).given(
            {"search.strategy": self.strategy if isinstance(self.strategy, str) else None}, self.candidates, self.seconds, self.measurements
        )
        external_plugins(config, True, None)
        target_graph, levels, name = self._searched_graph(config)
        timed = config.target.name != NPU and self.evaluator is None
        check_grants(target_graph.machine, levels, config.budget.candidates)
        check_runner(target_graph.machine, levels, config.runner.name)
        grants, clock = len(same_grants(target_graph.machine, levels)), REAL.clock
        (budget,) = budgets(clock, config, Spending.of(config, len(levels), 1), [1], grants, clock.monotonic_s())
        # without another target the simulator measures, even if the configuration names a runner
        origin = Origin("search", name, target_graph.machine.name, simulator.VERSION, runner_name(config) if timed else BUILT_IN, self.seed)
        strategy, evaluator = None if isinstance(self.strategy, str) else self.strategy, self.evaluator
        build = None if evaluator is None else lambda: evaluator
        spec = SearchSpec(origin, target_graph, levels, config, rules=self.rules, strategy=strategy, evaluator=build)
        with ExitStack() as stack:
            folder = LocalPath(stack.enter_context(TemporaryDirectory(prefix="tilefarm-search-")))
            place = SearchFolder(folder, folder / "models", folder / "checkpoint", resumed=False)
            for subfolder in (place.models, place.checkpoint):
                subfolder.mkdir()
            prior = read_prior(self.prior, config, folder, False, lambda _: None)
            earlier_runs = tuple(self.warm_start)
            request = TuneRequest(Path(name), target_graph.machine.name, folder, seed=self.seed, quiet=self.quiet, warm_start=earlier_runs)
            log = stack.enter_context(RunLog(folder, REAL, origin, FEATURE_SETS))
            jobs = stack.enter_context(self.jobs(spec))
            model = None if prior is None else prior.model
            first = partial(compiled_genomes, target_graph, levels, config)
            search = SearchRun(REAL, spec, request, place, log, jobs, budget, sources(earlier_runs, folder, False), first, model)
            with search.progress():
                search.search_until_spent()
            best, baselines = search.ended(name)
            log_rows, task_rows = (read_table(folder, dataset).table for dataset in ("log", "tasks"))
            return SearchResult(target_graph, levels, best, baselines, log_rows, task_rows, timed)

    def _searched_graph(self, config: TuneConfig) -> tuple[TargetGraph, tuple[str, ...], str]:
        """Target graph in the order of the search, levels, and name of the model; taken from the evaluator if there is one."""
        if self.evaluator is not None:
            return self.evaluator.target_graph, self.evaluator.levels, self.evaluator.target_graph.graph.name
        if isinstance(self.model, TargetGraph):
            target_graph, name = self.model, self.model.graph.name
        elif self.machine is None:
            raise BadInputError(f"{os.fspath(self.model)}: no machine given; a preset's name, a YAML file or a Machine is expected")
        else:
            lowered = open_network(ModelSpec.named(Path(self.model), self.machine, "float16", {}, None))
            target_graph, name = lowered.target_graph, lowered.name
        machine_levels = tuple(target_graph.machine.contention)
        if unknown := [level for level in self.levels or () if level not in machine_levels]:
            raise BadInputError(f"level {unknown[0]!r}: unknown; levels of {target_graph.machine.name}: {', '.join(machine_levels)}")
        return ordered(target_graph, config.search.order), tuple(self.levels or machine_levels), name
