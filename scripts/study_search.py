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
and seed) included.  The CSV has every curve, a row per improvement and one for the end.

    python scripts/study_search.py --out search
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import optuna
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tuner
from compiler.unit.unit import Unit
from scripts.operators import Operator, operators_of, saved
from scripts.search_spaces import PlanSpace, TilingSpace
from scripts.search_strategies import STRATEGIES, Meter, run
from scripts.studies import (
    Arm,
    Json,
    Networks,
    Out,
    Pair,
    Processes,
    Row,
    Seeds,
    Set,
    Study,
    Table,
    conduct,
    geometric,
    goal,
    groups,
    interval,
    network,
    show,
)  # fmt: skip
from tuner.measure.evaluate import Evaluator
from tuner.measure.measurement import Request
from tuner.measure.npu import Npu

OURS, LEVEL = "ours", "none"
GOAL = 0.20
Oracle = Callable[[Any], float | None]


def ours(result: tuner.SearchResult, budget: int, whole: bool) -> Meter:
    """The search itself, from its log.  whole: only programs count as results, and segments cost their share of the operators."""
    log, tasks = result.log, result.task_rows.to_pandas()
    log = log[log["status"] == "ok"].sort_values("seq")
    sizes = {task: operators_in(payload) for task, payload in zip(tasks["task"], tasks["payload"], strict=True)}
    meter, lowest = Meter(lambda _: None, budget), np.inf
    for task, kind, cycles in zip(log["task"], log["kind"], log["cycles"], strict=True):
        if not whole or kind == "program":
            lowest = min(lowest, float(np.log2(cycles)))
        meter.note(sizes[task] / len(result.unit.kernels) if whole else 1.0, lowest)
        if meter.spent[-1] >= budget:
            break
    return meter


def operators_in(payload: str) -> int:
    """How many operators a task runs."""
    content = json.loads(payload)
    if "stage" in content:
        return sum(len(segment["operators"]) for segment in content["stage"])
    plan = content["plan"]
    return sum(len(segment["operators"]) for segment in plan["segments"]) if "segments" in plan else len(plan["tilings"])


@lru_cache(maxsize=1)  # seeds of a unit look through one space, and ask the same
def tilings(unit: Unit) -> tuple[TilingSpace, Oracle]:
    operator, known = Operator(unit), dict[int, float | None]()
    space, evaluator = TilingSpace(unit, operator.space), Evaluator(unit, (LEVEL,), Npu(unit, (LEVEL,), cache_bytes=1))

    def oracle(point: int) -> float | None:
        if point not in known:
            cycles = evaluator.cycles_alone(space.plan(point), 0)
            known[point] = None if cycles is None else float(np.log2(cycles[0]))
        return known[point]

    return space, oracle


@lru_cache(maxsize=1)
def plans(unit: Unit) -> tuple[PlanSpace, Oracle]:
    evaluator = Evaluator(unit, (LEVEL,))

    def oracle(point: Any) -> float | None:
        cycles = evaluator.measure(Request("program", point)).cycles
        return None if cycles is None else float(np.log2(cycles[0]))

    return PlanSpace(unit), oracle


def curves(pair: Pair, part: str, meters: Mapping[str, Meter]) -> Iterator[Row]:
    for strategy, meter in meters.items():
        best = np.array(meter.best)
        better = np.flatnonzero(np.diff(best, prepend=np.inf) < 0)
        for at in dict.fromkeys([*better.tolist(), len(best) - 1]):
            if np.isfinite(best[at]):
                head = {"part": part, "strategy": strategy, "budget": pair.candidates}
                yield {**head, "spent": round(meter.spent[at], 3), "cycles": round(2.0 ** float(best[at]))}


def rows_of_tilings(pair: Pair) -> Iterator[Row]:
    meters = {name: run(name, *tilings(pair.unit), pair.seed, pair.candidates) for name in STRATEGIES}
    yield from curves(pair, "tilings", {OURS: ours(pair.found[OURS], pair.candidates, False), **meters})


def rows_of_plans(pair: Pair) -> Iterator[Row]:
    meters = {name: run(name, *plans(pair.unit), pair.seed, pair.candidates) for name in STRATEGIES}
    yield from curves(pair, "plans", {OURS: ours(pair.found[OURS], pair.candidates, True), **meters})


def summary(found: Sequence[Row]) -> Iterator[Row]:
    """A row per part and strategy, over all networks and seeds."""
    for (part,), mine in groups(found, "part").items():
        known = {key: min(row["cycles"] for row in rows) for key, rows in groups(mine, "network").items()}
        ends = {key: rows[-1]["cycles"] for key, rows in groups(mine, "network", "seed", "strategy").items()}
        for (strategy,), rows in groups(mine, "strategy").items():
            share, over, against = [], [], []
            for (name, seed), curve in groups(rows, "network", "seed").items():
                target = ends[name, seed, "random"]
                share.append(next((row["spent"] for row in curve if row["cycles"] <= target), np.inf) / curve[0]["budget"])
                over.append(curve[-1]["cycles"] / known[name,])
                against.append(curve[-1]["cycles"] / target)
            low, high = interval(np.array(share), np.median)
            ratios = {"over_best_known": over, "against_random": against}
            yield {
                "part": part, "strategy": strategy, "pairs": len(share), "budget": rows[0]["budget"],
                "share_of_budget": float(np.median(share)), "share_low": low, "share_high": high,
                "within_goal": float((np.array(share) <= GOAL).mean()), "never": int(np.isinf(share).sum()),
                **{key: geometric(np.array(values)) for key, values in ratios.items()}, "worst_over_best_known": max(over),
            }  # fmt: skip


def compared(found: Sequence[Row]) -> Iterator[Table | str]:
    def share(value: float) -> str:
        return f"{value:.1%}" if np.isfinite(value) else "never"

    for (part,), rows in groups(summary(found), "part").items():
        yield f"\n{part}, level {LEVEL}: {rows[0]['pairs']} pairs of task and seed, {rows[0]['budget']} measured candidates each"
        yield Table(
            ("<strategy", "has random's best after", "95% interval", "within 20%", "never", "over best known", "worst", "against random"),
            [
                (
                    row["strategy"], share(row["share_of_budget"]), f"{share(row['share_low'])} .. {share(row['share_high'])}",
                    f"{row['within_goal']:.0%}", row["never"], f"{row['over_best_known'] - 1:+.2%}",
                    f"{row['worst_over_best_known'] - 1:+.2%}", f"{row['against_random']:.4f}",
                )
                for row in rows
            ],
        )  # fmt: skip
        yield f"goal, ours within {GOAL:.0%} of the budget, the interval's upper end included: {goal(rows[0]['share_high'] <= GOAL)}"


def heaviest(model: str, machine: str, folder: Path, tasks: int, ways: int) -> list[str]:
    """Files of the convolutions of a network that have so many legal ways."""
    counted = {saved(shape, folder): sum(having.values()) for shape, having in operators_of([model], machine).items()}
    weights = {}
    for path, count in counted.items():
        operator = Operator(network(str(path), machine))
        if len(operator.space.points) >= ways:
            weights[str(path)] = operator.unit.macs * count
    return sorted(weights, key=lambda path: (-weights[path], path))[:tasks]


def main(
    out: Out,
    model: Annotated[str, typer.Option(help="Network whose convolutions are tiled; '' for no tilings.")] = "light:resnet50",
    tasks: Annotated[int, typer.Option(help="The heaviest so many convolutions.")] = 20,
    ways: Annotated[int, typer.Option(help="Legal ways that a convolution must have.")] = 10_000,
    networks: Networks = "squeezenet,made:mobilenet_v1,inception_v1",
    machine: Annotated[str, typer.Option(help="A preset or a YAML file.")] = "edge",
    seeds: Seeds = 5,
    budget: Annotated[int, typer.Option(help="Measured candidates of each search of tilings.")] = 256,
    plan_budget: Annotated[int, typer.Option(help="Measured candidates of each search of plans.")] = 256,
    settings: Set = None,
    processes: Processes = 1,
    as_json: Json = False,
) -> None:
    """Best so far against measured candidates, for ours and four other searches."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    files = heaviest(model, machine, out.resolve() / "operators", tasks, ways) if model else []
    # of ours more programs than enough: an epoch measures several times as many segments
    studies = (
        (Study("tilings", {OURS: Arm(times=1 / 3, levels=(LEVEL,))}, rows_of_tilings, compared), ",".join(files), budget),
        (Study("plans", {OURS: Arm(times=1 / 2, levels=(LEVEL,))}, rows_of_plans, compared), networks, plan_budget),
    )
    found = [
        row for study, names, count in studies for row in conduct(study, out, names, (machine,), count, seeds, settings or (), processes)
    ]
    show(found, compared(found), as_json)


if __name__ == "__main__":
    typer.run(main)
