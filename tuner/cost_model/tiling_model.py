"""Tilings by a cost model without measurements: for every single operator the form with the fewest predicted cycles at each level.

For each level the 256 forms with the best estimates, among all legal forms of an operator (`compiler.cost.operator_space`), are given to
the model, which picks one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import raw_features, scale_features
from compiler.cost.operator_space import OperatorSpace, operator_space
from compiler.ops.conv import ConvSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.segment.blocks import rows_needed
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene, block_counts, choice_count
from compiler.space.shared_memory import with_residents
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import InfeasibleError
from tuner.cost_model.interface import AtLevel, Predictor, conditions_of
from tuner.cost_model.model_file import load_trained
from tuner.platform.local_files import LocalPath

SHORTLIST = 256  # forms per level that the model predicts
Models = Mapping[str, Predictor]  # level -> predictor


def load_models(path: Path, target_graph: TargetGraph) -> Models:
    """Load the predictors of every level of the target graph's machine.  path: file from `tilefarm train`, or from a run's `models/`.

    Raises `BadInputError` for a missing model, or one for other features, another simulator or another schema.
    """
    loaded = load_trained(LocalPath(path)).load(f"--model {path}")
    return {
        level: AtLevel(loaded, condition)
        for level, condition in conditions_of(target_graph, tuple(target_graph.machine.contention)).items()
    }


def plan_tilings(compiler: Compiler, models: Models) -> dict[str, Plan]:
    """Plan for every level, each operator its own segment.  Raises `InfeasibleError` for an operator without a legal form."""
    target_graph = compiler.target_graph
    structures = Structures(target_graph)
    picks: dict[str, dict[str, SegmentPlan]] = {}
    plans: dict[str, list[SegmentPlan]] = {level: [] for level in models}
    for k, spec in enumerate(target_graph.operators):
        structure = structures.structure(k, k + 1)
        if structure not in picks:
            picks[structure] = pick_tilings(compiler, k, models)
        for level, plan in picks[structure].items():
            plans[level].append(plan.model_copy(update={"operators": (spec.name,)}))
    return {level: with_residents(target_graph, plan_of(target_graph, segments)) for level, segments in plans.items()}


def pick_tilings(compiler: Compiler, index: int, models: Models) -> dict[str, SegmentPlan]:
    """Segment of a single operator with the fewest predicted cycles at each level, among those that compile."""
    target_graph = compiler.target_graph
    plans = (
        _conv_plans(target_graph, index, tuple(models))
        if isinstance(target_graph.operators[index], ConvSpec)
        else _other_plans(target_graph, index)
    )
    picks: dict[str, SegmentPlan] = {}
    if plans:
        features = scale_features([raw_features(target_graph, plan, index) for plan in plans])
        for level, model in models.items():
            order = np.argsort(model.predict(features), kind="stable").tolist()
            for i in order:
                if not isinstance(compiler.segment(plans[i], index), Infeasible):
                    picks[level] = plans[i]
                    break
    if len(picks) < len(models):
        sizes = ", ".join(f"{size:,} B of {name}" for name, size in target_graph.machine.buffers_bytes.present_sizes.items())
        raise InfeasibleError(f"{target_graph.machine.name}: {target_graph.operators[index].name}: no tiling fits {sizes}")
    return picks


def single_block_counts(target_graph: TargetGraph, index: int) -> list[int]:
    """Block counts of a single operator: the useful ones, and one row at a time."""
    return sorted({*block_counts(target_graph, index, index + 1), rows_needed(target_graph)[index].size})


def shortlist(target_graph: TargetGraph, space: OperatorSpace, levels: Sequence[str], size: int = SHORTLIST) -> NDArray[np.int64]:
    """Points with the best estimates at any of the levels, without repeats: int64 [<= levels * size]."""
    points: dict[int, None] = {}
    for level in levels:
        expected = np.maximum(space.bound(target_graph, level), space.estimate)
        points.update(dict.fromkeys(np.lexsort((space.estimate, expected))[:size].tolist()))
    return np.array(list(points), np.int64)


def _conv_plans(target_graph: TargetGraph, index: int, levels: Sequence[str]) -> list[SegmentPlan]:
    space = operator_space(target_graph, index, single_block_counts(target_graph, index))
    return [space.plan(int(i)) for i in shortlist(target_graph, space, levels)]


def _other_plans(target_graph: TargetGraph, index: int) -> list[SegmentPlan]:
    """Plans of every gene of an operator other than a convolution: there are few."""
    genes = (
        Gene(index, index + 1, blocks, prefetch, choices=(choice,))
        for blocks in single_block_counts(target_graph, index)
        for prefetch in (2, 1)
        for choice in range(choice_count(target_graph, index))
    )
    return list({plan.key: plan for gene in genes if (plan := decode(target_graph, gene)) is not None}.values())
