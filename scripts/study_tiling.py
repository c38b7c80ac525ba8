"""Study of tilings: the default search, and the cost model without measurements, against the exhaustive optimum of the legal space.

For every distinct convolution and matrix product of the networks, alone: all legal tilings (block counts, slots, chunks of weights, tiles;
`compiler.cost.operator_space`) are measured, except those with a lower bound less than 0.2% below the best.  If more than --cap remain, the
rest is skipped, and the table says how much faster it could be at most (`unproven`).  This optimum replaces a tiling by hand.  It is
compared with a search of a model of this one operator: final distance, and the number of measurements until it was within 2%.

Then unseen shapes: models are trained on measured tilings of random shapes (--trained), and pick tilings for --held-out others without a
measurement.  The same without the features of stages, and by the analytic estimate alone, shows the benefit of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from compiler.cost.features import FEATURES, scale_features
from compiler.cost.level_conditions import condition_of
from scripts.operators import NEVER, PROVEN, Operator, Product, Shape, count_operators, exhaustive, save_model
from scripts.studies import Arm, OneMachine, Pair, Row, Study, Table, goal, network, network_list, write_rows
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tuner.config import load_config
from tuner.cost_model.boosted_trees import BoostedTrees
from tuner.cost_model.interface import AtLevel, TrainingRows
from tuner.cost_model.judge import train_with_judge
from tuner.cost_model.model_file import TrainedModel

NEAR, MODEL_NEAR = 0.02, 0.10  # the goals
STAGES = [i for i, name in enumerate(FEATURES) if name.endswith(("_bits", "_emit_num"))]
PICKS = ("estimate", "plain", "model")


def operator_rows(pair: Pair, cap: int) -> Iterator[Row]:
    """One row, of the optimum and of the search."""
    operator, log = Operator(pair.target_graph), pair.results["search"].log
    optimum = exhaustive(operator, cap)
    row: Row = {"ways": len(operator.bounds), "measured": optimum.measured, "search_measured": int(log["seq"].nunique())}
    for i, level in enumerate(operator.levels):
        cycles = log[(log["status"] == "ok") & (log["level"] == level)]["cycles"].to_numpy(np.int64)
        best = np.minimum(optimum.cycles[i], cycles.min())
        near_indices = np.flatnonzero(cycles <= best * (1 + NEAR))
        row |= {
            f"{level}_cycles": int(optimum.cycles[i]), f"{level}_unproven": float(optimum.unproven[i]),
            f"{level}_search": cycles.min() / best, f"{level}_after": int(near_indices[0]) + 1 if len(near_indices) else None,
            # above 1: the search found what the capped enumeration did not reach
            f"{level}_found": optimum.cycles[i] / best,
        }  # fmt: skip
    yield row


def show(rows: Sequence[Row], models: Callable[[], Iterator[Table | str]] | None = None) -> Iterator[Table | str]:
    """Tables of the study.  models: trains models and yields their tables."""
    yield from show_search(rows)
    yield from models() if models is not None else ()


def show_search(rows: Sequence[Row]) -> Iterator[Table | str]:
    levels = [key.removesuffix("_unproven") for key in rows[0] if key.endswith("_unproven")]

    def cells(row: Row, level: str) -> tuple[object, ...]:
        return (
            row[f"{level}_cycles"],
            f"{row[f'{level}_unproven']:.1%}",
            f"{row[f'{level}_search'] - 1:+.1%}",
            row[f"{level}_after"] or "never",
        )

    yield Table(
        ["<operator", "ways", "measured", *(f"{level} {column}" for level in levels for column in ("best", "unproven", "search", "after"))],
        [(row["network"], row["ways"], row["measured"], *(cell for level in levels for cell in cells(row, level))) for row in rows],
    )
    proven = sum(row[f"{level}_unproven"] <= PROVEN for row in rows for level in levels)
    yield f"\nthe optimum is proven to {PROVEN:.1%} for {proven} of {len(rows) * len(levels)} operators and levels"
    for level in levels:
        excess = np.array([row[f"{level}_search"] for row in rows]) - 1
        steps = [row[f"{level}_after"] for row in rows if row[f"{level}_after"]]
        near_text = f"{(excess <= NEAR).sum()} of {len(rows)} operators within {NEAR:.0%} of the optimum (goal: all)"
        soon_text = f"there after {np.median(steps or [0]):.0f} measurements (median; at most {max(steps, default=0)})"
        yield f"search, {level}: {near_text}, median {np.median(excess):+.2%}, worst {excess.max():+.2%}; {soon_text}"


def random_operators(rng: np.random.Generator, machine: str, folder: Path) -> Iterator[tuple[Shape | Product, Operator]]:
    """Random convolutions and (one in four) matrix products of usual sizes, at most 0.6 GMAC, feasible and distinct."""
    channels, features = (16, 24, 32, 48, 64, 72, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024), (256, 384, 512, 768, 1024, 2048, 3072)
    sizes, drawn = (7, 8, 13, 14, 17, 19, 26, 27, 28, 35, 38, 52, 55, 56, 75, 96, 112), set[Shape]()
    while True:
        if rng.random() < 0.25:
            rows = int(rng.choice([1, 1, 32, 64, 128, 197, 384]))
            shape = Shape(int(rng.choice(features)), int(rng.choice(features)), rows, 1)
        else:
            size, k = int(rng.choice(sizes)), int(rng.choice([1, 1, 3, 3, 5, 7]))
            s = int(rng.choice([1, 1, 1, 2])) if size > 8 else 1
            residual = k == 1 and s == 1 and bool(rng.random() < 0.2)
            c_in, c_out = int(rng.choice(channels)), int(rng.choice(channels))
            shape = Shape(c_in, c_out, size, size, (k, k), (s, s), pads=(k // 2,) * 4, residual=residual)
        if shape not in drawn and shape.c_in * shape.c_out * math.prod(shape.kernel) * math.prod(shape.out) <= 600e6:
            drawn.add(shape)
            operator = Operator(network(str(save_model(shape, folder)), machine))
            if len(operator.space.points):
                yield shape, operator


def training_rows(
    operators: Sequence[tuple[Shape | Product, Operator]], rng: np.random.Generator, each: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], list[str]]:
    """Raw features, cycles [n, levels], shapes of `each` tilings per operator: three quarters from the short list, others random."""
    raws, cycles, groups = [], [], []
    for shape, operator in operators:
        listed = operator.shortlist()
        candidates = rng.permutation(listed)[: each * 3 // 4].tolist() + rng.integers(len(operator.bounds), size=each // 4).tolist()
        row_indices = [i for i in dict.fromkeys(candidates) if operator.measure(i)[0] < NEVER]
        if row_indices:
            raws.append(operator.features(row_indices))
            cycles.append(np.stack([operator.measure(i) for i in row_indices]))
            groups += [str(shape)] * len(row_indices)
        operator.release()
    return np.concatenate(raws), np.concatenate(cycles), groups


def _hidden(features: NDArray[np.float32], stages: bool) -> NDArray[np.float32]:
    return features if stages else np.delete(features, STAGES, 1)


def compare_picks(machine: str, out: Path, cap: int, trained: int, each: int, held_out: int, seed: int) -> Iterator[Table | str]:
    """Rows of picks without measurement: slowdown against the optimum, per held-out shape; and a line for each model."""
    folder = out.resolve() / "operators"
    stream = random_operators(np.random.default_rng([seed, 2]), machine, folder)
    operators = [next(stream) for _ in range(trained + held_out)]
    raw, cycles, groups = training_rows(operators[:trained], np.random.default_rng([seed, 1]), each)
    levels, params, described = operators[0][1].levels, load_config(None).model, load_machine(machine)
    conditions = {level: condition_of(described, DataType.float16, level) for level in levels}
    models: dict[bool, TrainedModel] = {
        stages: train_with_judge(
            BoostedTrees, TrainingRows.at_levels(_hidden(scale_features(raw), stages), cycles, groups, conditions), seed, params
        )
        for stages in (True, False)
    }
    for stages, model in models.items():
        yield f"rank correlation on shapes that were kept back, {'with' if stages else 'without'} features of stages: " + ", ".join(
            f"{level} {metrics.spearman:.3f}" for level, metrics in model.metrics.items()
        )
    rows = []
    for shape, operator in operators[trained:]:
        optimum, listed = exhaustive(operator, cap), operator.shortlist()
        features = scale_features(operator.features(listed))
        row: Row = {"shape": str(shape), "ways": len(operator.bounds), "measured": optimum.measured}
        for index, level in enumerate(levels):
            # the short list's first place at this level is the analytic estimate's own pick
            expected = np.maximum(operator.bounds[listed, index], operator.space.estimate[listed])
            order = {"estimate": np.lexsort((operator.space.estimate[listed], expected))}
            for name, stages in (("plain", False), ("model", True)):
                order[name] = np.argsort(
                    AtLevel(models[stages].load(BoostedTrees), conditions[level]).predict(_hidden(features, stages)), kind="stable"
                )
            for name in PICKS:
                fits = (int(operator.measure(listed[i])[index]) for i in order[name].tolist())
                row[f"{level}_{name}"] = next(fit_cycles for fit_cycles in fits if fit_cycles < NEVER) / int(optimum.cycles[index])
            row[f"{level}_unproven"] = float(optimum.unproven[index])
        operator.release()
        rows.append(row)
    write_rows(out / "models.csv", rows)
    yield from show_models(rows, levels)


def show_models(rows: Sequence[Row], levels: Sequence[str]) -> Iterator[Table | str]:
    columns = (f"{level} {name}={level}_{name}:-1+.1%" for level in levels for name in PICKS)
    yield Table.from_rows(rows, "<held-out shape=shape", "ways", *columns)
    for level in levels:
        excess = {name: np.array([row[f"{level}_{name}"] for row in rows]) - 1 for name in PICKS}
        texts = [
            f"{name} {np.median(pick_excess):+.2%} (nine in ten within {np.quantile(pick_excess, 0.9):+.1%}, "
            f"worst {pick_excess.max():+.1%})"
            for name, pick_excess in excess.items()
        ]
        reached = goal(bool(np.median(excess["model"]) <= MODEL_NEAR))
        yield f"picked unmeasured, {level}, median over {len(rows)} shapes: {'; '.join(texts)}; goal {MODEL_NEAR:.0%}: {reached}"


def tiling_studies(
    study: Study,
    machine: OneMachine = "edge",
    cap: Annotated[int, typer.Option(help="Ways of one operator that are measured at most.")] = 2000,
    trained: Annotated[int, typer.Option(help="Random shapes that models are trained on.")] = 60,
    each: Annotated[int, typer.Option(help="Measured ways of each of them.")] = 48,
    held_out: Annotated[int, typer.Option(help="Other random shapes; 0 for none of this.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the random shapes.")] = 0,
) -> Study:
    files = [save_model(shape, study.out.resolve() / "operators") for shape in count_operators(network_list(study.networks), machine)]
    fitting = ",".join(str(path) for path in files if len(Operator(network(str(path), machine)).space.points))
    models = partial(compare_picks, machine, study.out, cap, trained, each, held_out, seed) if held_out else None
    return replace(
        study, networks=fitting, machines=(machine,), rows=partial(operator_rows, cap=cap), show=partial(show, models=models), inputs=(cap,)
    )


STUDY = Study(
    "tiling", {"search": Arm()}, partial(operator_rows, cap=0), show, "light:resnet50,light:squeezenet,made:bert_base", candidates=128,
    seeds=1,
    options=tiling_studies,
)  # fmt: skip
