"""Harness of the studies: networks x machines x seeds x arms, each a `tuner.Search`; pairs, progress, CSV, tables, --json.

A study (`study_*.py`) consists of a table of arms, a function for the rows of a pair of network and seed, and a function for the printed
tables.  All else is here; `study.py` is the command.  Results of a pair are cached in OUT/NAME/ under a digest of all their inputs:
network, machine, seed, budget, settings, arms, simulator, and the source of the study.
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import typer
from numpy.typing import NDArray

import simulator
import tuner
from compiler.build import MeasuredPiece, measure_plans
from compiler.frontend import lower
from compiler.frontend.lower import lower_partition
from compiler.model import LoweredModel, ModelSpec
from compiler.ops.lower_graph import make_unit, pack_unit
from compiler.pipeline import Compiler
from compiler.space.operator_order import Order, ordered
from compiler.target.capabilities import no_floats
from compiler.target.target_graph import TargetGraph
from scripts.traffic import moved_bytes, stream_bytes
from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tuner.cli.text import print_table
from tuner.config import load_config
from tuner.log.digests import digest
from tuner.measure.evaluator import Evaluator
from tuner.measure.npu_target import Npu
from tuner.search.strategy import SearchStrategy
from tuner.zoo.load import load_network, open_network
from tuner.zoo.names import MADE, PREFIX, is_made, is_quantised, resolve_model, shipped_networks

Row = dict[str, Any]
Key = tuple[str, str, int]  # network, machine, seed
T = TypeVar("T")
R = TypeVar("R")
DEFAULT_ORDER: Order = load_config().search.order
SHIPPED = ",".join(name.removeprefix(PREFIX) for name in shipped_networks())
PAIR = ("network", "machine", "seed")
CELL = ("network", "machine", "level")  # medians over seeds
MEAN = "geometric mean"
BUDGETS = ("budget.candidates=", "budget.measurements=", "budget.seconds=")
ALL_PROGRAMS = "budget.least_gain=null"  # a search that ends early is not at equal budget


class Arm(NamedTuple):
    """One side of a comparison.

    settings: `a.b=c` texts over the default.  times: factor of the study's budget.  levels: None for all.  strategy: None for that of the
    settings.  machine: changes of the pair's machine, as after a preset's colon.  network: suffix of the pair's network, such as
    `,quantised=qdq`.
    """

    settings: tuple[str, ...] = ()
    times: float = 1
    levels: tuple[str, ...] | None = None
    strategy: type[SearchStrategy] | None = None
    machine: str = ""
    network: str = ""


class Pair(NamedTuple):
    """A network, a machine and a seed, searched in every arm.  name: given name of the network.  cpu_s: CPU seconds of each search."""

    name: str
    target_graph: TargetGraph
    seed: int
    candidates: int
    results: Mapping[str, tuner.SearchResult]
    cpu_s: Mapping[str, float]

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.target_graph.machine.contention)


class Figures(NamedTuple):
    """Figures of a level's champion at that level.  bytes: DDR traffic.  stream: bytes of its instructions."""

    cycles: int
    bytes: int
    stream: int
    baseline: int

    @property
    def gain(self) -> float:
        return self.baseline / self.cycles


class Table(NamedTuple):
    """Table; columns with names that start with `<` are text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    @staticmethod
    def from_rows(rows: Iterable[Row], *columns: str) -> Table:
        """Table of rows.  columns: `[<]NAME[=KEY][:FORMAT]` each.  KEY of a row is NAME by default; a row may lack it.

        After a FORMAT, `M` means millions and `x` times; `-1` before it subtracts 1.
        """
        split = [re.fullmatch(r"(<?([^=:]*))(?:=([^:]*))?(?::(.*))?", column) for column in columns]
        parts = [(match[1], match[2] if match[3] is None else match[3], match[4] or "") for match in split if match]
        return Table([name for name, _, _ in parts], [[_cell(row.get(key), form) for _, key, form in parts] for row in rows])


def _cell(value: Any, form: str) -> object:
    if value is None or not form:
        return "" if value is None else value
    number = (value - 1 if form.startswith("-1") else value) / (1e6 if form.endswith("M") else 1)
    return format(number, form.removeprefix("-1").rstrip("Mx")) + ("x" if form.endswith("x") else "")


@dataclass(frozen=True)
class Study:
    """name: of the CSV.  rows: function from a pair to its rows.  show: function from all rows to tables and lines.

    The fields from `networks` to `overrides` are defaults of options; `out` is the folder of results.

    evaluator: makes an evaluator for every search; None for the simulator.  search_fields: function from an arm's name and a pair to
    further fields of its `tuner.Search`, not timed.  float_arm: arm that is left out on an integer-only machine.  inputs: further inputs of
    a pair's rows, for their digest.  options: function from this study and its own options to the studies that are run; an option with the
    name of a field replaces it.
    """

    name: str
    arms: Mapping[str, Arm]
    rows: Callable[[Pair], Iterable[Row]]
    show: Callable[[Sequence[Row]], Iterable[Table | str]]
    networks: str = SHIPPED
    machines: Sequence[str] = ("edge",)
    candidates: int = 64
    seeds: int = 3
    overrides: Sequence[str] = ()
    out: Path = Path()
    evaluator: Callable[[TargetGraph, tuple[str, ...]], Evaluator] | None = None
    search_fields: Callable[[str, Key], Mapping[str, Any]] | None = None
    float_arm: str = ""
    inputs: tuple[object, ...] = ()
    options: Callable[..., Study | Sequence[Study]] | None = None

    def available_arms(self, machine: str) -> dict[str, Arm]:
        """Arms that can run on a machine."""
        lacking = self.float_arm if no_floats(load_machine(machine), DataType.float16) else ""
        return {name: arm for name, arm in self.arms.items() if name != lacking}


class PairRows(NamedTuple):
    """Rows of all pairs, and the CPU time of their computation."""

    rows: list[Row]
    cpu_s: float


Out = Annotated[Path, typer.Option(help="Folder of the CSV files.")]
Networks = Annotated[str, typer.Option(help="Comma-separated: shipped networks, light:NAME, made:NAME or files.")]
OneMachine = Annotated[str, typer.Option("--machine", help="A preset or a YAML file.")]
Candidates = Annotated[int, typer.Option(min=1, help="Measured programs of each search.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Of all arms, as in tilefarm tune.")]
Processes = Annotated[int, typer.Option(min=1, help="Pairs at once; changes no figure but CPU.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of tables.")]
FIELDS = {
    "networks": Networks,
    "machines": Annotated[list[str], typer.Option("--machine", help="A preset or a YAML file; repeatable.")],
    "candidates": Candidates,
    "seeds": Annotated[int, typer.Option(min=1, help="Searches of each arm: seeds 0..")],
    "overrides": Set,
}
"""Fields of a study that are options."""


def command(study: Study, about: str) -> Callable[..., None]:
    """Command line of a study: its own options, and options for the other fields.  about: help text."""
    # behind the study itself, the first parameter
    own_options = {} if study.options is None else dict([*inspect.signature(study.options, eval_str=True).parameters.items()][1:])
    fields = {name: kind for name, kind in FIELDS.items() if name not in own_options}

    def main(out: Path, processes: int, as_json: bool, **values_given: Any) -> None:
        values = {name: tuple(values_given[name] or ()) if name in ("machines", "overrides") else values_given[name] for name in fields}
        configured = replace(study, out=out, **values)
        run = configured if study.options is None else study.options(configured, **{name: values_given[name] for name in own_options})
        parts = [run] if isinstance(run, Study) else run
        results = [conduct(part, processes) for part in parts]
        rows, cpu_s = [row for result in results for row in result.rows], sum(result.cpu_s for result in results)
        begun_s = spent_s()  # some studies train models for what they show
        report = [*parts[0].show(rows)]
        name = run.name if isinstance(run, Study) else study.name
        finish(name, out, rows, report, cpu_s + spent_s() - begun_s, as_json)

    def option(name: str, kind: Any, default: Any) -> inspect.Parameter:
        default = list(default) if isinstance(default, tuple) else default
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)

    # typer reads a signature: of these options, not of `main`
    options = [
        option("out", Out, inspect.Parameter.empty),
        *(option(parameter.name, parameter.annotation, parameter.default) for parameter in own_options.values()),
    ]
    options += [option(name, kind, getattr(study, name)) for name, kind in fields.items()]
    options += [option("processes", Processes, 1), option("as_json", Json, False)]
    main.__doc__ = about
    main.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    main.__annotations__ = {parameter.name: parameter.annotation for parameter in options}
    return main


def conduct(study: Study, processes: int = 1) -> PairRows:
    """Run every pair without a cached result; writes `<name>.csv` after each."""
    pairs = [(name, machine, seed) for name in network_list(study.networks) for machine in study.machines for seed in range(study.seeds)]
    rows, cpu_s = list[Row](), 0.0
    for pair, (pair_rows, took_s) in zip(pairs, _mapped(partial(_cached_pair, study), pairs, processes), strict=True):
        rows += pair_rows
        cpu_s += took_s
        write_rows(study.out / f"{study.name}.csv", rows)  # what is done survives what stops the rest
        print(f"{short(pair[0])} on {pair[1]}, seed {pair[2]}: done", file=sys.stderr, flush=True)
    return PairRows(rows, cpu_s)


def finish(name: str, out: Path, rows: Sequence[Row], report: Iterable[Table | str], cpu_s: float, as_json: bool) -> None:
    """Print the report of a study and its CPU time, and write them to OUT/NAME.md."""
    lines = [*report, "", f"CPU: {cpu_s / 3600:.2f} hours"]
    atomic_write(out / f"{name}.md", [markdown(lines).encode()])
    show(rows, lines, as_json)


def champions(target_graph: TargetGraph, result: tuner.SearchResult) -> dict[str, MeasuredPiece]:
    """Level -> its best program of a search, timed at all levels that it fits.  target_graph: in the search's order."""
    plans = {level: best.plan(target_graph) for level, best in zip(result.levels, result.best, strict=True)}
    return measure_plans(Compiler(target_graph), plans)


def figures(result: tuner.SearchResult) -> dict[str, Figures]:
    """Figures of the champion of every level."""
    timed = champions(result.target_graph, result)
    return {
        level: Figures(
            champion.timings[level].cycles,
            moved_bytes(champion.timings[level]),
            stream_bytes(champion.program),
            result.baseline_cycles[level],
        )
        for level, champion in timed.items()
    }


def figures_of_arms(pair: Pair) -> dict[str, Row]:
    """Level -> figures of all arms, as `ARM_cycles`."""
    figures_by_arm = {arm: figures(result) for arm, result in pair.results.items()}
    return {
        level: {f"{arm}_{key}": value for arm, arm_figures in figures_by_arm.items() for key, value in arm_figures[level]._asdict().items()}
        for level in pair.levels
    }


def spent_s() -> float:
    """CPU time of this process and of those that it waited for."""
    return sum(os.times()[:4])


def _mapped(work: Callable[[Key], PairRows], pairs: Sequence[Key], processes: int) -> Iterator[PairRows]:
    if processes == 1:
        yield from map(work, pairs)
        return
    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(partial(run_apart, work), pairs)


def run_apart(work: Callable[[T], R], task: T) -> R:
    """Run a task in a separate process: caches of a network's segments are useless for the next network, and reach gigabytes.

    `ProcessPoolExecutor(max_tasks_per_child=1)` is no alternative: in Python 3.11 it can wait for ever if all processes end at about the
    same time.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work, task).result()


def _cached_pair(study: Study, pair: Key) -> PairRows:
    """Result of `_run_pair`, cached in the folder."""
    (name, machine, seed), settings = pair, tuple(study.overrides)
    config = load_config(None, settings)
    target_graph = _first_network(study, name, machine, config.search.order)
    arms = [[name, *arm._replace(strategy=None), arm.strategy and arm.strategy.__name__] for name, arm in study.arms.items()]
    show_digest = hashlib.sha256(Path(inspect.getfile(getattr(study.show, "func", study.show))).read_bytes()).hexdigest()
    other_networks = [network(f"{name}{arm.network}", machine).digest for arm in study.available_arms(machine).values() if arm.network]
    key = [target_graph.digest, *other_networks, seed, study.candidates, settings, config.digest, simulator.VERSION, arms, show_digest]
    path = study.out / study.name / f"{short(name)}-{digest([*key, *map(str, study.inputs)])}.json"
    if path.is_file():
        stored = json.loads(path.read_text())
        return PairRows(
            [{**row, "network": short(name), "machine": machine} for row in stored["rows"]], stored["cpu_s"]
        )  # called otherwise
    begun_s = spent_s()
    rows = _run_pair(study, pair, settings)
    outcome = PairRows(json.loads(json.dumps(rows, default=float)), round(spent_s() - begun_s, 2))
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, [json.dumps(outcome._asdict(), indent=1).encode()])
    return outcome


def _run_pair(study: Study, pair: Key, settings: tuple[str, ...]) -> list[Row]:
    """Rows of one pair, with network, machine and seed."""
    (name, machine, seed), results, cpu_s = pair, dict[str, tuner.SearchResult](), dict[str, float]()
    for arm, (arm_settings, times, levels, strategy, changes, name_suffix) in study.available_arms(machine).items():
        texts = (*arm_settings, *settings)
        target_graph = network(f"{name}{name_suffix}", machine_with(machine, changes), load_config(None, texts).search.order)
        budget = None if any(text.startswith(BUDGETS) for text in texts) else max(1, round(times * study.candidates))
        evaluator = study.evaluator(target_graph, levels or tuple(target_graph.machine.contention)) if study.evaluator is not None else None
        extra_fields = study.search_fields(arm, pair) if study.search_fields is not None else {}
        search = tuner.Search(
            target_graph,
            settings=(ALL_PROGRAMS, *texts),
            candidates=budget,
            seed=seed,
            levels=levels,
            strategy=strategy,
            evaluator=evaluator,
            **extra_fields,
        )
        load_kernels()
        begin_s = time.process_time()
        results[arm] = search.run()
        cpu_s[arm] = round(time.process_time() - begin_s, 2)
    target_graph = _first_network(study, name, machine, load_config(None, settings).search.order)
    rows = study.rows(Pair(name, target_graph, seed, study.candidates, results, cpu_s))
    head = {"network": short(name), "machine": machine, "seed": seed}
    return [head | row for row in rows]


def _first_network(study: Study, name: str, machine: str, order: Order) -> TargetGraph:
    """Network of the pair in the first available arm."""
    first = next(iter(study.available_arms(machine).values()), None)
    return network(f"{name}{first.network if first else ''}", machine, order)


def machine_with(machine: str, changes: str) -> str:
    """Name of a machine with changed values."""
    return f"{machine}{',' if ':' in machine else ':'}{changes}" if changes else machine


@cache
def load_kernels() -> None:
    """Load or compile kernels, so that searches do not include it."""
    tuner.Search("made:mobilenet_v2-small", "edge", ("segments.measured=2", "segments.candidates=4"), candidates=2).run()


@lru_cache(maxsize=4)
def network(name: str, machine: str, order: Order = DEFAULT_ORDER) -> TargetGraph:
    """`in_file_order`, in a search's order."""
    return ordered(in_file_order(name, machine), order)


def in_file_order(name: str, machine: str, dtype: DataType = DataType.float16) -> TargetGraph:
    """Target graph of a shipped network (its name, or `light:...`), a built one (`made:...`) or a file, without weights.

    For a quantised network that the NPU cannot run as one subgraph, it is the heaviest subgraph.
    """
    model, described = load_network(model_named(name)), load_machine(machine)
    if not is_quantised(model_named(name)):
        return make_unit(lower(model), described, dtype)
    able = partial(pack_unit, machine=described, dtype=dtype)
    (graph, *_), _ = lower_partition(model, able=able, no_floats=no_floats(described, dtype))
    return make_unit(graph, described, dtype)


def opened(name: str, machine: str | Machine, dtype: str, frames: int = 1) -> LoweredModel:
    """Lowered model with weights, operators in the file's order."""
    return open_network(ModelSpec.named(model_named(name), machine, dtype, {}, None, frames))


def in_search_order(target_graph: TargetGraph) -> TargetGraph:
    """Target graph with operators in the order of a search."""
    return ordered(target_graph, DEFAULT_ORDER)


def network_list(networks: str) -> list[str]:
    """Names in a comma-separated list, for `network`.  Raises BadParameter for an unknown one, before a study begins."""
    names = [name for name in re.split(r",(?!\w+=)", networks) if name]  # not between the options of a made one
    for name in names:
        try:
            path, _ = resolve_model(model_named(name), None)
        except BadInputError as error:
            raise typer.BadParameter(str(error)) from error
        if not is_made(path) and not path.is_file():
            raise typer.BadParameter(f"{path}: no such file")
    return names


def model_named(name: str) -> Path:
    """A network's name as `resolve_model` takes it."""
    return Path(name if ":" in name or name.endswith(".onnx") else PREFIX + name)


def short(name: str) -> str:
    """Name in tables."""
    return Path(name.removeprefix(PREFIX).removeprefix(MADE)).name.removesuffix(".onnx")


def groups(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows with equal values under `keys`, in the order of first occurrence."""
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        members.setdefault(tuple(row[key] for key in keys), []).append(row)
    return members


def medians(rows: Iterable[Row], *keys: str) -> list[Row]:
    """Row per group: the median of every number (over seeds), and other values of its first row."""

    def middle(values: Sequence[Any]) -> Any:
        if isinstance(values[0], str) or values[0] is None:
            return values[0]
        center = median(values)
        return type(values[0])(round(center) if isinstance(values[0], int) else center)

    return [{key: middle([row[key] for row in group]) for key in group[0] if key != "seed"} for group in groups(rows, *keys).values()]


def means(rows: Iterable[Row], keys: Sequence[str]) -> list[Row]:
    """Geometric means over all rows of a level, as rows of a table."""
    return [
        {"network": MEAN, "level": level, **{key: geometric_mean(row[key] for row in group) for key in keys}}
        for (level,), group in groups(rows, "level").items()
    ]


def over_pairs(rows: Iterable[Row], key: str) -> NDArray[np.float64]:
    """Geometric mean of a key over the levels of every pair."""
    return np.array([geometric([row[key] for row in levels]) for levels in groups(rows, *PAIR).values()])


def interval(values: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], Any], samples: int = 2000) -> tuple[float, float]:
    """95% of the statistic over samples drawn from `values` with replacement (bootstrap)."""
    rng = np.random.default_rng(0)
    draws = [float(statistic(values[rng.integers(len(values), size=len(values))])) for _ in range(samples)]
    low, high = np.quantile(draws, (0.025, 0.975), method="nearest")
    return float(low), float(high)


def span(values: NDArray[np.float64], form: str) -> str:
    """`interval` of the geometric mean, as text."""
    low, high = interval(values, geometric)
    return f"{low:{form}} .. {high:{form}}"


def geometric(values: Sequence[float] | NDArray[np.float64]) -> float:
    return float(np.exp(np.log(values).mean()))


def goal(reached: bool) -> str:
    return "reached" if reached else "missed"


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """CSV with the keys of all rows; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)


def markdown(report: Iterable[Table | str]) -> str:
    """Tables and lines as Markdown."""
    parts = []
    for part in report:
        if isinstance(part, str):
            parts.append(part.strip())
            continue
        rule = ["---" if name.startswith("<") else "---:" for name in part.columns]
        rows = [[name.removeprefix("<") for name in part.columns], rule, *part.rows]
        cells = [[f"{value:,}" if isinstance(value, int) else str(value) for value in row] for row in rows]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in cells))
    return "\n\n".join(parts) + "\n"


def show(rows: Sequence[Row], report: Iterable[Table | str], as_json: bool = False) -> None:
    """Print tables and lines, or rows, tables and lines as JSON."""
    if as_json:
        print(json.dumps({"rows": rows, "shown": [part._asdict() if isinstance(part, Table) else part for part in report]}, default=float))
        return
    for part in report:
        if isinstance(part, Table):
            print_table(*part)
        else:
            print(part)


def measured_on(machine: str) -> Callable[[TargetGraph, tuple[str, ...]], Evaluator]:
    """Evaluators with another machine as the clock: a board that differs from its description."""
    return partial(_clocked, load_machine(machine))


def _clocked(clock: Machine, target_graph: TargetGraph, levels: tuple[str, ...]) -> Evaluator:
    target = Npu(target_graph, levels, clock=clock)
    return Evaluator(target_graph, levels, target)
