"""How soon is something good found?  Best so far against measured candidates: the search that users run, and four others.

  tilings  every convolution alone: all legal ways to run it (`compiler.cost.operator_space`).  The heaviest ones of ResNet-50, by
           multiply-accumulates times how often they occur, of those with 10,000 legal ways or more.
  plans    whole networks: cuts, blocks, halos, tilings.

Ours is `tilefarm tune`'s search with the default configuration, read from its log; random, evolution, simulated annealing and Optuna's TPE
(`scripts/search_strategies.py`) start where it starts, look through the same legal space and repair as it does.  Each run knows one level
of contention.  A measured candidate is one way to run the operator, or one whole program; ours measures parts of programs too, and pays
for each the share of the network's operators that it has.  What does not fit is free for all, and so is a repeat.

Per task and seed: the share of the budget after which a strategy has what random has at the end of its own, and how far its last is from
the best known.  Goal: ours within 20% in the median over tasks and seeds, the upper end of the 95% interval (bootstrap over pairs of task
and seed) included.

    python scripts/study_search.py --out search
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
import optuna
import typer
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compiler.unit.unit import Unit
from scripts.search_spaces import PlanSpace, TilingSpace
from scripts.search_strategies import STRATEGIES, Meter, run
from scripts.studies import interval, named, network, searched, short, write_rows
from scripts.study_tiling import Operator, counted_shapes
from simulator.npu.errors import BadInputError
from simulator.npu.machine import load_machine
from tuner.commands.text import print_table
from tuner.evaluate import Ask, Evaluator, EvaluatorSpec
from tuner.log.read import read_log, read_tasks
from tuner.search.question import cycles_of

OURS = "ours"
GOAL = 0.20


@dataclass(frozen=True)
class Curve:
    """One search of one task.  spent: of the budget after each measurement; best: log2 cycles so far."""

    task: str
    seed: int
    strategy: str
    spent: NDArray[np.float64]
    best: NDArray[np.float64]

    def after(self, target: float) -> float:
        """What was spent when the best so far was no worse than `target`; infinite where it never was."""
        there = np.flatnonzero(self.best <= target + 1e-9)
        return float(self.spent[there[0]]) if len(there) else np.inf


def ours(unit: Unit, level: str, seed: int, budget: int, settings: Sequence[str], whole: bool) -> Meter:
    """The search itself, from its log.  whole: only programs count as results, and segments cost their share of the operators."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        programs = max(4, budget // (2 if whole else 3))  # more than enough: an epoch measures several times as many segments
        searched(unit, settings, seed, programs, EvaluatorSpec(unit, (level,)), log_to=folder)
        log, tasks = read_log(folder), read_tasks(folder)
    log = log[log["status"] == "ok"].sort_values("seq")
    tasks = tasks[tasks["task"].isin(log["task"])]
    sizes = {task: _operators(payload) for task, payload in zip(tasks["task"], tasks["payload"], strict=True)}
    meter = Meter(lambda _: None, budget)
    lowest = np.inf
    for task, kind, cycles in zip(log["task"], log["kind"], log["cycles"], strict=True):
        cost = sizes[task] / len(unit.kernels) if whole else 1.0
        if not whole or kind == "program":
            lowest = min(lowest, float(np.log2(cycles)))
        meter.note(cost, lowest)
        if meter.spent[-1] >= budget:
            break
    return meter


def _operators(payload: str) -> int:
    """How many operators a task runs."""
    content = json.loads(payload)
    if "stage" in content:
        return sum(len(segment["operators"]) for segment in content["stage"])
    plan = content["plan"]
    return sum(len(segment["operators"]) for segment in plan["segments"]) if "segments" in plan else len(plan["tilings"])


def _curve(task: str, seed: int, strategy: str, meter: Meter) -> Curve:
    return Curve(task, seed, strategy, np.array(meter.spent), np.array(meter.best))


def tilings(
    model: str, machine: str, level: str, tasks: int, ways: int, seeds: int, budget: int, settings: Sequence[str]
) -> Iterator[Curve]:
    """Curves of single convolutions."""
    loaded = load_machine(machine)
    with TemporaryDirectory() as name:
        operators = [(Operator(shape, loaded, Path(name)), count) for shape, count in counted_shapes(model, loaded).items()]
        operators = [(op, count) for op, count in operators if len(op.space.points) >= ways]
        operators.sort(key=lambda item: (-item[0].unit.macs * item[1], str(item[0].shape)))
        for operator, _ in operators[:tasks]:
            unit = operator.unit
            space, evaluator = TilingSpace(unit, operator.space), Evaluator(unit, (level,), cache_bytes=1)
            known: dict[int, float | None] = {}

            def oracle(
                point: int, space: TilingSpace = space, evaluator: Evaluator = evaluator, known: dict[int, float | None] = known
            ) -> float | None:
                if point not in known:
                    cycles = evaluator.cycles_alone(space.plan(point), 0)
                    known[point] = None if cycles is None else float(np.log2(cycles[0]))
                return known[point]

            for seed in range(seeds):
                for strategy in STRATEGIES:
                    yield _curve(str(operator.shape), seed, strategy, run(strategy, space, oracle, seed, budget))
                yield _curve(str(operator.shape), seed, OURS, ours(unit, level, seed, budget, settings, False))


def plans(names: Sequence[str], machine: str, level: str, seeds: int, budget: int, settings: Sequence[str]) -> Iterator[Curve]:
    """Curves of whole networks."""
    for name in names:
        unit = network(name, machine)
        space, evaluator = PlanSpace(unit), Evaluator(unit, (level,))

        def oracle(point: Any, evaluator: Evaluator = evaluator) -> float | None:
            cycles = cycles_of(evaluator.answer(Ask("program", point)))
            return None if cycles is None else float(np.log2(cycles[0]))

        for seed in range(seeds):
            for strategy in STRATEGIES:
                yield _curve(short(name), seed, strategy, run(strategy, space, oracle, seed, budget))
            yield _curve(short(name), seed, OURS, ours(unit, level, seed, budget, settings, True))


def rows_of(curves: Sequence[Curve]) -> Iterator[dict[str, Any]]:
    """Every curve, a row per improvement and one for the end."""
    for curve in curves:
        better = np.flatnonzero(np.diff(curve.best, prepend=np.inf) < 0)
        for at in dict.fromkeys([*better.tolist(), len(curve.best) - 1]):
            if np.isfinite(curve.best[at]):
                yield {
                    "task": curve.task,
                    "seed": curve.seed,
                    "strategy": curve.strategy,
                    "spent": round(float(curve.spent[at]), 3),
                    "cycles": round(2.0 ** float(curve.best[at])),
                }


def summary(part: str, curves: Sequence[Curve], budget: int) -> list[dict[str, Any]]:
    """A row per strategy: over all tasks and seeds."""
    known: dict[str, float] = {}
    for curve in curves:
        known[curve.task] = min(known.get(curve.task, np.inf), curve.best[-1])
    target = {(curve.task, curve.seed): curve.best[-1] for curve in curves if curve.strategy == "random"}
    stayed = sum(bool(curve.best[-1] >= curve.best[0]) for curve in curves if curve.strategy == "random")
    out = []
    for strategy in (OURS, *STRATEGIES):
        mine = [curve for curve in curves if curve.strategy == strategy]
        share = np.array([curve.after(target[curve.task, curve.seed]) / budget for curve in mine])
        over = np.array([2.0 ** (curve.best[-1] - known[curve.task]) for curve in mine])
        against = np.array([2.0 ** (curve.best[-1] - target[curve.task, curve.seed]) for curve in mine])
        low, high = interval(share, np.median)
        out.append(
            {
                "part": part,
                "strategy": strategy,
                "pairs": len(mine),
                "budget": budget,
                "share_of_budget": float(np.median(share)),
                "share_low": low,
                "share_high": high,
                "within_goal": float((share <= GOAL).mean()),
                "random_stayed": stayed,
                "never": int(np.isinf(share).sum()),
                "over_best_known": geometric_mean(over),
                "worst_over_best_known": float(over.max()),
                "against_random": geometric_mean(against),
                **dict(zip(("against_random_low", "against_random_high"), interval(against, _geometric), strict=True)),
            }
        )
    return out


def _geometric(values: NDArray[np.float64]) -> float:
    return float(np.exp(np.log(values).mean()))


def show(rows: Sequence[dict[str, Any]], level: str) -> None:
    first = rows[0]
    print(f"\n{first['part']}, level {level}: {first['pairs']} pairs of task and seed, {first['budget']} measured candidates each")
    columns = ("<strategy", "has random's best after", "95% interval", "within 20%", "never", "over best known", "worst", "against random")
    print_table(
        columns,
        [
            (
                row["strategy"],
                _share(row["share_of_budget"]),
                f"{_share(row['share_low'])} .. {_share(row['share_high'])}",
                f"{row['within_goal']:.0%}",
                row["never"],
                f"{row['over_best_known'] - 1:+.2%}",
                f"{row['worst_over_best_known'] - 1:+.2%}",
                f"{row['against_random']:.4f} ({row['against_random_low']:.4f} .. {row['against_random_high']:.4f})",
            )
            for row in rows
        ],
    )
    print(f"random found nothing better than the start in {first['random_stayed']} pairs")
    reached = "reached" if first["share_high"] <= GOAL else "missed"
    print(f"goal, ours within {GOAL:.0%} of the budget, the interval's upper end included: {reached}")


def _share(value: float) -> str:
    return f"{value:.1%}" if np.isfinite(value) else "never"


def main(
    out: Annotated[Path, typer.Option(help="folder for curves.csv and summary.csv")],
    part: Annotated[Literal["tilings", "plans", "both"], typer.Option()] = "both",
    model: Annotated[str, typer.Option(help="network whose convolutions are tiled")] = "light:resnet50",
    tasks: Annotated[int, typer.Option(help="the heaviest so many convolutions")] = 20,
    ways: Annotated[int, typer.Option(help="legal ways that a convolution must have")] = 10_000,
    networks: Annotated[str, typer.Option(help="comma-separated networks that are planned")] = "squeezenet,made:mobilenet_v1,inception_v1",
    machine: Annotated[str, typer.Option()] = "edge",
    level: Annotated[str, typer.Option(help="of contention")] = "none",
    seeds: Annotated[int, typer.Option(help="seeds 0..")] = 5,
    budget: Annotated[int, typer.Option(help="measured candidates of each search of tilings")] = 256,
    plan_budget: Annotated[int, typer.Option(help="measured candidates of each search of plans")] = 256,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="of ours, as in tilefarm tune")] = None,
) -> None:
    """Best so far against measured candidates, for ours and four other searches."""
    known = load_machine(machine).contention
    if level not in known:
        raise BadInputError(f"--level {level}: unknown; levels of {machine}: {', '.join(known)}")
    chosen = named(networks)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    curves, table = list[dict[str, Any]](), list[dict[str, Any]]()
    for name, amount, found in (
        ("tilings", budget, tilings(model, machine, level, tasks, ways, seeds, budget, settings or ())),
        ("plans", plan_budget, plans(chosen, machine, level, seeds, plan_budget, settings or ())),
    ):
        if part in (name, "both"):
            mine = list(found)
            curves += [{"part": name, "level": level} | row for row in rows_of(mine)]
            rows = summary(name, mine, amount)
            show(rows, level)
            table += rows
    write_rows(out / "curves.csv", curves)
    write_rows(out / "summary.csv", table)


if __name__ == "__main__":
    typer.run(main)
