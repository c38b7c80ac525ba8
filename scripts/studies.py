"""The harness of the studies: networks x machines x seeds x arms, each a `tuner.Search`; pairs, progress, CSV, tables, --json.

A study is a file `study_*.py` that says what differs between its arms, which rows a pair of network and seed gives, and what of the rows is
shown.  Everything else is here.

What a pair found lies in OUT/NAME/, and is not computed again as long as everything that it follows from is the same: network, machine,
seed, budget, settings, arms, simulator, and the study's own file.
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
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any, NamedTuple

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
DEFAULT_ORDER: Order = load_config().search.order
SHIPPED = ",".join(name.removeprefix(PREFIX) for name in shipped_networks())


class Arm(NamedTuple):
    """One side of a comparison.  settings: `a.b=c` texts over the default.  times: the study's budget.  levels: None for all.

    strategy: None for that of the settings.  machine: what differs from the pair's, as behind a preset's colon.  network: what follows the
    pair's network, as in `,quantised=qdq`.
    """

    settings: tuple[str, ...] = ()
    times: float = 1
    levels: tuple[str, ...] | None = None
    strategy: type[SearchStrategy] | None = None
    machine: str = ""
    network: str = ""


class Pair(NamedTuple):
    """A network, a machine and a seed, searched in every arm.  name: of the network, as it was given.  cpu_s: of each search."""

    name: str
    target_graph: TargetGraph
    seed: int
    candidates: int
    found: Mapping[str, tuner.SearchResult]
    cpu_s: Mapping[str, float]

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.target_graph.machine.contention)


class Table(NamedTuple):
    """Columns whose name starts with `<` are text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Study:
    """name: of the CSV.  rows: of a pair.  show: tables and lines, of the rows of all pairs.

    evaluator: who measures, made for every search; None for the simulator.  begins: of an arm's name and a pair, further fields of its
    `tuner.Search`, made before its time is taken.  of_floats: an arm that a machine of integers does without.  given: what else the rows of
    a pair follow from, as options that only this study has.  The others are what is run unless options say otherwise.
    """

    name: str
    arms: Mapping[str, Arm]
    rows: Callable[[Pair], Iterable[Row]]
    show: Callable[[Sequence[Row]], Iterable[Table | str]]
    networks: str = SHIPPED
    machines: Sequence[str] = ("edge",)
    candidates: int = 64
    seeds: int = 3
    evaluator: Callable[[TargetGraph, tuple[str, ...]], Evaluator] | None = None
    begins: Callable[[str, Key], Mapping[str, Any]] | None = None
    of_floats: str = ""
    given: tuple[object, ...] = ()

    def possible(self, machine: str) -> dict[str, Arm]:
        """Its arms, on a machine."""
        lacking = self.of_floats if no_floats(load_machine(machine), DataType.float16) else ""
        return {name: arm for name, arm in self.arms.items() if name != lacking}


class Found(NamedTuple):
    """Rows of all pairs, and what they took, whenever that was."""

    rows: list[Row]
    cpu_s: float


Out = Annotated[Path, typer.Option(help="Folder of the CSV files.")]
Networks = Annotated[str, typer.Option(help="Comma-separated: shipped networks, light:NAME, made:NAME or files.")]
Machines = Annotated[list[str], typer.Option("--machine", help="A preset or a YAML file; repeatable.")]
Candidates = Annotated[int, typer.Option(min=1, help="Measured programs of each search.")]
Seeds = Annotated[int, typer.Option(min=1, help="Searches of each arm: seeds 0..")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Of all arms, as in tilefarm tune.")]
Processes = Annotated[int, typer.Option(min=1, help="Pairs at once; changes no figure but CPU.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of tables.")]


def command(study: Study, about: str | None) -> None:
    """The command line of a study that has no options of its own.  about: its help."""

    def main(
        out: Out,
        networks: Networks = study.networks,
        machine: Machines = list(study.machines),  # noqa: B006  typer's own default
        candidates: Candidates = study.candidates,
        seeds: Seeds = study.seeds,
        settings: Set = None,
        processes: Processes = 1,
        as_json: Json = False,
    ) -> None:
        rows, cpu_s = conduct(study, out, networks, machine, candidates, seeds, settings or (), processes)
        finish(study.name, out, rows, study.show(rows), cpu_s, as_json)

    main.__doc__ = about
    typer.run(main)


def conduct(
    study: Study, out: Path, networks: str, machines: Sequence[str], candidates: int, seeds: int, settings: Sequence[str] = (),
    processes: int = 1,
) -> Found:  # fmt: skip
    """Run every pair that is not there, write `<name>.csv` as they come."""
    pairs = [(name, machine, seed) for name in named(networks) for machine in machines for seed in range(seeds)]
    work = partial(_kept, study, candidates=candidates, settings=tuple(settings), folder=out / study.name)
    rows, cpu_s = list[Row](), 0.0
    for pair, (found, took_s) in zip(pairs, _mapped(work, pairs, processes), strict=True):
        rows += found
        cpu_s += took_s
        write_rows(out / f"{study.name}.csv", rows)  # what is done survives what stops the rest
        print(f"{short(pair[0])} on {pair[1]}, seed {pair[2]}: done", file=sys.stderr, flush=True)
    return Found(rows, cpu_s)


def finish(name: str, out: Path, rows: Sequence[Row], shown: Iterable[Table | str], cpu_s: float, as_json: bool) -> None:
    """Print what a study shows and the CPU time that it took, and write them to OUT/NAME.md."""
    every = [*shown, "", f"CPU: {cpu_s / 3600:.2f} hours"]
    atomic_write(out / f"{name}.md", [markdown(every).encode()])
    show(rows, every, as_json)


def champions(target_graph: TargetGraph, found: tuner.SearchResult) -> dict[str, MeasuredPiece]:
    """Level -> the program that a search found for it, timed at all levels that it fits.  unit: in the search's order."""
    plans = {level: best.plan(target_graph) for level, best in zip(found.levels, found.best, strict=True)}
    return measure_plans(Compiler(target_graph), plans)


def spent_s() -> float:
    """CPU time of this process and of those that it waited for."""
    return sum(os.times()[:4])


def _mapped(work: Callable[[Key], Found], pairs: Sequence[Key], processes: int) -> Iterator[Found]:
    if processes == 1:
        yield from map(work, pairs)
        return
    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(partial(_apart, work), pairs)


def _apart(work: Callable[[Key], Found], pair: Key) -> Found:
    """In a process of its own: what it remembers of one network's segments is no use to the next one, and gigabytes after some.

    An executor whose processes end after some tasks (`max_tasks_per_child`) would do, but that of Python 3.11 waits for ever once all have
    ended at about the same time.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work, pair).result()


def _kept(study: Study, pair: Key, candidates: int, settings: tuple[str, ...], folder: Path) -> Found:
    """`_pair`, or what it left in the folder."""
    (name, machine, seed), config = pair, load_config(None, settings)
    target_graph = _own(study, name, machine, config.search.order)
    arms = [[name, *arm._replace(strategy=None), arm.strategy and arm.strategy.__name__] for name, arm in study.arms.items()]
    written = hashlib.sha256(Path(inspect.getfile(study.show)).read_bytes()).hexdigest()
    others = [network(f"{name}{arm.network}", machine).digest for arm in study.possible(machine).values() if arm.network]
    what = [
        target_graph.digest,
        *others,
        seed,
        candidates,
        settings,
        config.digest,
        simulator.VERSION,
        arms,
        written,
        *map(str, study.given),
    ]
    path = folder / f"{short(name)}-{digest(what)}.json"
    if path.is_file():
        kept = json.loads(path.read_text())
        return Found([{**row, "network": short(name), "machine": machine} for row in kept["rows"]], kept["cpu_s"])  # called otherwise
    begun_s = spent_s()
    rows = _pair(study, pair, candidates, settings)
    found = Found(json.loads(json.dumps(rows, default=float)), round(spent_s() - begun_s, 2))
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, [json.dumps(found._asdict(), indent=1).encode()])
    return found


def _pair(study: Study, pair: Key, candidates: int, settings: tuple[str, ...]) -> list[Row]:
    """The rows of one pair, each with what they are of."""
    (name, machine, seed), found, cpu_s = pair, dict[str, tuner.SearchResult](), dict[str, float]()
    for arm, (own, times, levels, strategy, changes, more_of_name) in study.possible(machine).items():
        texts = (*own, *settings)
        target_graph = network(f"{name}{more_of_name}", changed(machine, changes), load_config(None, texts).search.order)
        budget = None if any(text.startswith("budget.") for text in texts) else max(1, round(times * candidates))
        evaluator = study.evaluator(target_graph, levels or tuple(target_graph.machine.contention)) if study.evaluator is not None else None
        more = study.begins(arm, pair) if study.begins is not None else {}
        search = tuner.Search(
            target_graph, settings=texts, candidates=budget, seed=seed, levels=levels, strategy=strategy, evaluator=evaluator, **more
        )
        _warm()
        begun = time.process_time()
        found[arm] = search.run()
        cpu_s[arm] = round(time.process_time() - begun, 2)
    target_graph = _own(study, name, machine, load_config(None, settings).search.order)
    rows = study.rows(Pair(name, target_graph, seed, candidates, found, cpu_s))
    head = {"network": short(name), "machine": machine, "seed": seed}
    return [head | row for row in rows]


def _own(study: Study, name: str, machine: str, order: Order) -> TargetGraph:
    """The pair's network, or what the first arm that is possible has of it."""
    first = next(iter(study.possible(machine).values()), None)
    return network(f"{name}{first.network if first else ''}", machine, order)


def changed(machine: str, changes: str) -> str:
    """A machine by its name, with values that differ."""
    return f"{machine}{',' if ':' in machine else ':'}{changes}" if changes else machine


@cache
def _warm() -> None:
    """Load or compile kernels, so that it is no time of a search."""
    tuner.Search("made:mobilenet_v2-small", "edge", ("segments.measured=8", "segments.candidates=16"), candidates=2).run()


@lru_cache(maxsize=4)
def network(name: str, machine: str, order: Order = DEFAULT_ORDER) -> TargetGraph:
    """`in_file_order`, in a search's order."""
    return ordered(in_file_order(name, machine), order)


def in_file_order(name: str, machine: str, dtype: DataType = DataType.float16) -> TargetGraph:
    """A shipped network (its name, or `light:...`), a built one (`made:...`) or a file; no study needs weights.

    Of a quantised one that the NPU does not have whole it is the heaviest piece.
    """
    model, described = load_network(model_named(name)), load_machine(machine)
    if not is_quantised(model_named(name)):
        return make_unit(lower(model), described, dtype)
    able = partial(pack_unit, machine=described, dtype=dtype)
    (graph, *_), _ = lower_partition(model, able=able, no_floats=no_floats(described, dtype))
    return make_unit(graph, described, dtype)


def opened(name: str, machine: str, dtype: str) -> LoweredModel:
    """The same as it is compiled: with weights, in the file's order."""
    return open_network(ModelSpec.named(model_named(name), machine, dtype, {}, None))


def in_search_order(target_graph: TargetGraph) -> TargetGraph:
    """Its operators in the order that a search has them in."""
    return ordered(target_graph, DEFAULT_ORDER)


def named(networks: str) -> list[str]:
    """Those of a comma-separated list, as `network` takes them; one that does not exist ends a study before it begins, not hours later."""
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
    """The name as tables have it."""
    return Path(name.removeprefix(PREFIX).removeprefix(MADE)).name.removesuffix(".onnx")


def groups(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows with equal values under `keys`, in the order in which those come first."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def medians(rows: Iterable[Row], *keys: str) -> list[Row]:
    """A row for each group: the median of every number over it (seeds, that is), and what is no number as its first row has it."""

    def middle(values: Sequence[Any]) -> Any:
        if isinstance(values[0], str) or values[0] is None:
            return values[0]
        found = median(values)
        return type(values[0])(round(found) if isinstance(values[0], int) else found)

    return [{key: middle([row[key] for row in mine]) for key in mine[0] if key != "seed"} for mine in groups(rows, *keys).values()]


def means(rows: Iterable[Row], keys: Sequence[str], by: str = "level") -> dict[str, dict[str, float]]:
    """Geometric means over all rows of a level: level -> key -> mean."""
    return {name: {key: geometric_mean(row[key] for row in mine) for key in keys} for (name,), mine in groups(rows, by).items()}


def interval(values: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], Any], samples: int = 2000) -> tuple[float, float]:
    """95% of the statistic over samples drawn from `values` with replacement (bootstrap)."""
    rng = np.random.default_rng(0)
    found = [float(statistic(values[rng.integers(len(values), size=len(values))])) for _ in range(samples)]
    low, high = np.quantile(found, (0.025, 0.975), method="nearest")
    return float(low), float(high)


def geometric(values: NDArray[np.float64]) -> float:
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


def markdown(shown: Iterable[Table | str]) -> str:
    """Tables and lines, as a page has them."""
    parts = []
    for part in shown:
        if isinstance(part, str):
            parts.append(part.strip())
            continue
        rule = ["---" if name.startswith("<") else "---:" for name in part.columns]
        rows = [[name.removeprefix("<") for name in part.columns], rule, *part.rows]
        cells = [[f"{value:,}" if isinstance(value, int) else str(value) for value in row] for row in rows]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in cells))
    return "\n\n".join(parts) + "\n"


def show(rows: Sequence[Row], shown: Iterable[Table | str], as_json: bool = False) -> None:
    """Print tables and lines, or rows, tables and lines as JSON."""
    if as_json:
        print(json.dumps({"rows": rows, "shown": [part._asdict() if isinstance(part, Table) else part for part in shown]}, default=float))
        return
    for part in shown:
        if isinstance(part, Table):
            print_table(*part)
        else:
            print(part)


def measured_on(machine: str) -> Callable[[TargetGraph, tuple[str, ...]], Evaluator]:
    """Evaluators whose clock is another machine's: a board that is not as it was described."""
    return partial(_clocked, load_machine(machine))


def _clocked(clock: Machine, target_graph: TargetGraph, levels: tuple[str, ...]) -> Evaluator:
    target = Npu(target_graph, levels, clock=clock)
    return Evaluator(target_graph, levels, target)
