"""Study of search strategies: best so far against measured candidates, for the default search and four others.

  tilings  every convolution alone: all legal tilings (`compiler.cost.operator_space`).  The heaviest ones of ResNet-50, by
           multiply-accumulates times occurrences, of those with 10,000 legal tilings or more.
  plans    whole networks: cuts, blocks, halos, tilings.

Ours is `tilefarm tune`'s strategy with the default configuration; random, evolution, simulated annealing and Optuna's TPE are the others
(`scripts/search_strategies.py`).  They start at the same point, search the same legal space and repair candidates in the same way.  All
curves are read from logs.  Each run knows one level of contention.  A measured candidate is one tiling of the operator, or one whole
program.  Ours also measures parts of programs, each counted by its share of the network's operators.  Infeasible candidates are in no
curve, and a repeat is free.

Per task and seed: the share of the budget after which a strategy equals the final best of random, and the ratio of its own final best to
the best known.  Goal: ours within 20% in the median over tasks and seeds, including the upper end of the 95% interval (bootstrap over pairs
of task and seed).  The CSV has every curve, a row per improvement and one for the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import optuna
import typer

import tuner
from scripts.operators import Operator, count_operators, save_model
from scripts.search_strategies import STRATEGIES
from scripts.studies import Arm, OneMachine, Pair, Row, Study, Table, geometric, goal, groups, interval, network

OURS, LEVEL = "ours", "none"
GOAL = 0.20


class Curve(NamedTuple):
    """used: candidates, after each measurement; best: cycles, so far."""

    used: list[float]
    best: list[float]


def curve(result: tuner.SearchResult, budget: int, counts_operators: bool) -> Curve:
    """Curve of a search, from its log.  counts_operators: only programs are results, and segments cost their share of the operators."""
    log, tasks = result.log, result.task_rows.to_pandas()
    log = log[log["status"] == "ok"].sort_values("seq")
    sizes = {task: operator_count(payload) for task, payload in zip(tasks["task"], tasks["payload"], strict=True)}
    points, used, lowest = Curve([], []), 0.0, np.inf
    for task, kind, cycles in zip(log["task"], log["kind"], log["cycles"], strict=True):
        if not counts_operators or kind == "program":
            lowest = min(lowest, float(cycles))
        used += sizes[task] / len(result.target_graph.operators) if counts_operators else 1.0
        points.used.append(used)
        points.best.append(lowest)
        if used >= budget:
            break
    return points


def operator_count(payload: str) -> int:
    """Number of operators of a task."""
    content = json.loads(payload)
    if "stage" in content:
        return sum(len(segment["operators"]) for segment in content["stage"])
    plan = content["plan"]
    return sum(len(segment["operators"]) for segment in plan["segments"]) if "segments" in plan else len(plan["tilings"])


def curves(part: str, counts_operators: bool, pair: Pair) -> Iterator[Row]:
    for strategy, result in pair.results.items():
        used, best = curve(result, pair.candidates, counts_operators)
        improvements = np.flatnonzero(np.diff(np.array(best), prepend=np.inf) < 0)
        for index in dict.fromkeys([*improvements.tolist(), len(best) - 1]):
            if np.isfinite(best[index]):
                head = {"part": part, "strategy": strategy, "budget": pair.candidates}
                yield {**head, "spent": round(used[index], 3), "cycles": round(best[index])}


def arms(share: float) -> dict[str, Arm]:
    """share: programs of our search for each measured candidate; more than enough, an epoch measures several times as many segments."""
    other_arms = {name: Arm(("search.lag=0",), levels=(LEVEL,), strategy=strategy) for name, strategy in STRATEGIES.items()}
    return {OURS: Arm(times=share, levels=(LEVEL,)), **other_arms}


def summary(all_rows: Sequence[Row]) -> Iterator[Row]:
    """A row per part and strategy, over all networks and seeds."""
    for (part,), part_rows in groups(all_rows, "part").items():
        best_known = {key: min(row["cycles"] for row in rows) for key, rows in groups(part_rows, "network").items()}
        final = {key: rows[-1]["cycles"] for key, rows in groups(part_rows, "network", "seed", "strategy").items()}
        for (strategy,), rows in groups(part_rows, "strategy").items():
            share, ratios_to_best, random_ratios = [], [], []
            for (name, seed), curve in groups(rows, "network", "seed").items():
                target = final[name, seed, "random"]
                share.append(next((row["spent"] for row in curve if row["cycles"] <= target), np.inf) / curve[0]["budget"])
                ratios_to_best.append(curve[-1]["cycles"] / best_known[name,])
                random_ratios.append(curve[-1]["cycles"] / target)
            low, high = interval(np.array(share), np.median)
            ratios = {"over_best_known": ratios_to_best, "against_random": random_ratios}
            yield {
                "part": part, "strategy": strategy, "pairs": len(share), "budget": rows[0]["budget"],
                "share_of_budget": float(np.median(share)), "share_low": low, "share_high": high,
                "within_goal": float((np.array(share) <= GOAL).mean()), "never": int(np.isinf(share).sum()),
                **{key: geometric(values) for key, values in ratios.items()}, "worst_over_best_known": max(ratios_to_best),
            }  # fmt: skip


def compared(all_rows: Sequence[Row]) -> Iterator[Table | str]:
    def share(value: float) -> str:
        return f"{value:.1%}" if np.isfinite(value) else "never"

    for (part,), rows in groups(summary(all_rows), "part").items():
        yield f"\n{part}, level {LEVEL}: {rows[0]['pairs']} pairs of task and seed, {rows[0]['budget']} measured candidates each"
        shares = [
            {
                "after": share(row["share_of_budget"]), "interval": f"{share(row['share_low'])} .. {share(row['share_high'])}",
                "over_best": row["over_best_known"], "worst": row["worst_over_best_known"],
            }
            for row in rows
        ]  # fmt: skip
        yield Table.from_rows(
            [row | shares_row for row, shares_row in zip(rows, shares, strict=True)], "<strategy", "has random's best after=after",
            "95% interval=interval", "within 20%=within_goal:.0%", "never", "over best known=over_best:-1+.2%", "worst:-1+.2%",
            "against random=against_random:.4f",
        )  # fmt: skip
        yield f"goal, ours within {GOAL:.0%} of the budget, the interval's upper end included: {goal(rows[0]['share_high'] <= GOAL)}"


def heaviest(model: str, machine: str, folder: Path, tasks: int, ways: int) -> list[str]:
    """Files of the convolutions of a network that have so many legal ways."""
    operator_counts = {save_model(shape, folder): sum(having.values()) for shape, having in count_operators([model], machine).items()}
    weights = {}
    for path, count in operator_counts.items():
        operator = Operator(network(str(path), machine))
        if len(operator.space.points) >= ways:
            weights[str(path)] = operator.target_graph.macs * count
    return sorted(weights, key=lambda path: (-weights[path], path))[:tasks]


def two_parts(
    study: Study,
    machine: OneMachine = "edge",
    model: Annotated[str, typer.Option(help="Network whose convolutions are tiled; '' for no tilings.")] = "light:resnet50",
    tasks: Annotated[int, typer.Option(help="The heaviest so many convolutions.")] = 20,
    ways: Annotated[int, typer.Option(help="Legal ways that a convolution must have.")] = 10_000,
    budget: Annotated[int, typer.Option(help="Measured candidates of each search of tilings.")] = 256,
    plan_budget: Annotated[int, typer.Option(help="Measured candidates of each search of plans.")] = 256,
) -> Sequence[Study]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = replace(study, machines=(machine,))
    files = ",".join(heaviest(model, machine, study.out.resolve() / "operators", tasks, ways) if model else [])
    rows = partial(curves, "tilings", False)
    tilings = replace(study, name="tilings", arms=arms(1 / 3), rows=rows, networks=files, candidates=budget)
    return tilings, replace(study, name="plans", arms=arms(1 / 2), rows=partial(curves, "plans", True), candidates=plan_budget)


STUDY = Study("search", {}, partial(curves, "", True), compared, "squeezenet,made:mobilenet_v1,inception_v1", seeds=5, options=two_parts)
