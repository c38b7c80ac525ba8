"""What the studies of the search share: networks by name, searches without packaging, tables."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

import simulator
from compiler.frontend import load_model, lower
from compiler.frontend.made import understood
from compiler.frontend.zoo import MADE, PREFIX, is_made, resolve
from compiler.kinds.build import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.decode import realise_all
from compiler.space.order import ordered
from compiler.unit.unit import Unit
from simulator.npu.errors import BadInputError
from simulator.npu.machine import DataType, load_machine
from tuner.build import Opened, measure_plans, open_source
from tuner.conduct import Conductor, SerialJobs
from tuner.config import load_config
from tuner.evaluate import Evaluator, EvaluatorSpec
from tuner.layerwise import faster_in_file_order
from tuner.ledger import Budget, Ledger
from tuner.log.recorder import FEATURE_SETS, Facts
from tuner.log.run_log import Origin, RunLog
from tuner.model.training import Trainer
from tuner.search.champions import Champions
from tuner.search.islands import first_states
from tuner.search.jobs import WorkshopSpec
from tuner.search.knowledge import Knowledge
from tuner.search.rules import Rules
from tuner.search.schedule import Schedule
from tuner.source import Source


def network(name: str, machine: str) -> Unit:
    """A shipped network (its name, or `light:...`), a built one (`made:...`) or a file, without weights' values, in a search's order."""
    path, seed = resolve(_model(name), None)
    return in_search_order(make_unit(lower(load_model(path, random_weights=seed)), load_machine(machine), DataType.float16))


def opened(name: str, machine: str, dtype: str) -> Opened:
    """The same as it is compiled: with weights, in the file's order."""
    path, seed = resolve(_model(name), None)
    return open_source(Source(path, load_machine(machine), DataType[dtype], {}, seed))


def in_search_order(unit: Unit) -> Unit:
    """Its operators in the order that a search has them in."""
    return ordered(unit, load_config().search.order)


def named(networks: str) -> list[str]:
    """Those of a comma-separated list, as `network` takes them; one that does not exist ends a study before it begins, not hours later."""
    names = [name for name in re.split(r",(?!\w+=)", networks) if name]  # not between the options of a made one
    for name in names:
        try:
            path, _ = resolve(_model(name), None)
            if is_made(path):
                understood(str(path).removeprefix(MADE))
        except BadInputError as error:
            raise typer.BadParameter(str(error)) from error
        if not is_made(path) and not path.is_file():
            raise typer.BadParameter(f"{path}: no such file")
    return names


def _model(name: str) -> Path:
    return Path(name if ":" in name or name.endswith(".onnx") else PREFIX + name)


def short(name: str) -> str:
    """The name as tables have it."""
    return Path(name.removeprefix(PREFIX).removeprefix(MADE)).name.removesuffix(".onnx")


class Searched(NamedTuple):
    """What a search came to: its champions, what it knows, and how many tasks it measured."""

    champions: Champions
    known: Knowledge
    tasks: int


def baseline_cycles(unit: Unit, champions: Champions) -> dict[str, int]:
    """Level -> cycles of a search's best program of single operators, in its order or the file's, as a summary has them.

    unit: as the search had it.
    """
    assert champions.baseline is not None
    compiler, levels = Compiler(unit), tuple(unit.machine.contention)
    plan = realise_all(unit, champions.baseline.genome)
    assert not isinstance(plan, Infeasible)
    plan = faster_in_file_order(compiler, plan, levels)
    timings = measure_plans(compiler, dict.fromkeys(levels, plan))[levels[0]].timings
    return {level: timings[level].cycles for level in levels}


def searched(
    unit: Unit,
    overrides: Sequence[str],
    seed: int,
    candidates: int,
    make_evaluator: Callable[[], Evaluator] | None = None,
    rules: type[Rules] = Rules,
    log_to: Path | None = None,
) -> Searched:
    """A search of `candidates` measured programs in this process, as `tilefarm tune` does it; overrides: `a.b=c` texts.

    make_evaluator: one of this unit, at the levels that it knows; rules: what may be proposed.  log_to: a folder for `log/` and
    `tasks/`, new or empty.
    """
    config = load_config(None, overrides)
    evaluator = (make_evaluator or EvaluatorSpec(ordered(unit, config.search.order), tuple(unit.machine.contention)))()
    unit, levels = evaluator.unit, evaluator.levels
    with TemporaryDirectory() as name:
        folder = log_to or Path(name)
        for each in (".tmp", "models"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        origin = Origin("study", unit.graph.name, unit.machine.name, simulator.VERSION, seed=seed)
        facts = Facts(origin, unit, levels)
        champions, trainer = Champions(len(levels)), Trainer(folder / "models", levels, config.model)
        spec = WorkshopSpec(lambda: evaluator, facts, config, config.level_weights, seed, rules)
        schedule = Schedule(first_states(len(levels), config, seed))
        with RunLog(folder, origin, FEATURE_SETS) as log, SerialJobs(spec) as jobs:
            ledger = Ledger(levels, log, champions, Budget(candidates))
            conductor = Conductor(jobs, schedule, ledger, trainer if config.learns else None)
            conductor.begin(())
            conductor.run()
            return Searched(champions, jobs.known(), ledger.seq)


def interval(values: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], Any], samples: int = 2000) -> tuple[float, float]:
    """95% of the statistic over samples drawn from `values` with replacement (bootstrap)."""
    rng = np.random.default_rng(0)
    found = [float(statistic(values[rng.integers(len(values), size=len(values))])) for _ in range(samples)]
    low, high = np.quantile(found, (0.025, 0.975), method="nearest")
    return float(low), float(high)


def medians(runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Row by row over runs that only differ in their seed: the median of every number, and what is no number as the first run has it."""

    def middle(values: Sequence[Any]) -> Any:
        if isinstance(values[0], str):
            return values[0]
        found = median(values)
        return type(values[0])(round(found) if isinstance(values[0], int) else found)

    return [{key: middle([row[key] for row in rows]) for key in rows[0]} | {"seeds": len(runs)} for rows in zip(*runs, strict=True)]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """CSV; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
