"""Tilings by a cost model alone: every operator by itself, the way that a model expects to be fastest at each level, unmeasured.

Of all legal ways to run an operator (`compiler.cost.operator_space`) those with the best estimates are put to the model: 256 of each level.
What the model has learnt on other operators decides among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import raw_features, scaled
from compiler.cost.operator_space import OperatorSpace, operator_space
from compiler.ops.conv import ConvSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.segment.blocks import needed
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene, block_counts, choice_count
from compiler.space.shared_memory import settled
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import InfeasibleError
from tuner.cost_model.interface import AtLevel, Predictor, conditions_of
from tuner.cost_model.model_file import load_trained
from tuner.platform.local_files import LocalPath

SHORTLIST = 256
Models = Mapping[str, Predictor]  # by level


def load_models(path: Path, target_graph: TargetGraph) -> Models:
    """What a model expects at every level of the unit's machine.  path: of `tilefarm train`, or of a run's `models/`.

    Raises `BadInputError` where there is none, or it was made for other features, another simulator or another schema.
    """
    loaded = load_trained(LocalPath(path)).load(f"--model {path}")
    return {level: AtLevel(loaded, each) for level, each in conditions_of(target_graph, tuple(target_graph.machine.contention)).items()}


def tiled_plans(compiler: Compiler, models: Models) -> dict[str, Plan]:
    """A plan for every level, each operator its own segment.  Raises `InfeasibleError` where an operator fits in no way."""
    target_graph = compiler.target_graph
    structures = Structures(target_graph)
    known: dict[str, dict[str, SegmentPlan]] = {}
    chosen: dict[str, list[SegmentPlan]] = {level: [] for level in models}
    for k, spec in enumerate(target_graph.operators):
        structure = structures.structure(k, k + 1)
        if structure not in known:
            known[structure] = pick(compiler, k, models)
        for level, plan in known[structure].items():
            chosen[level].append(plan.model_copy(update={"operators": (spec.name,)}))
    return {level: settled(target_graph, plan_of(target_graph, segments)) for level, segments in chosen.items()}


def pick(compiler: Compiler, k: int, models: Models) -> dict[str, SegmentPlan]:
    """The segment of operator k alone that each level's model expects to be fastest, of those that compile."""
    target_graph = compiler.target_graph
    plans = (
        _conv_plans(target_graph, k, tuple(models)) if isinstance(target_graph.operators[k], ConvSpec) else _other_plans(target_graph, k)
    )
    chosen: dict[str, SegmentPlan] = {}
    if plans:
        features = scaled([raw_features(target_graph, plan, k) for plan in plans])
        for level, model in models.items():
            order = np.argsort(model.predict(features), kind="stable").tolist()
            for i in order:
                if not isinstance(compiler.segment(plans[i], k), Infeasible):
                    chosen[level] = plans[i]
                    break
    if len(chosen) < len(models):
        sizes = ", ".join(f"{size:,} B of {name}" for name, size in target_graph.machine.buffers_bytes.there.items())
        raise InfeasibleError(f"{target_graph.machine.name}: {target_graph.operators[k].name}: no tiling fits {sizes}")
    return chosen


def single_block_counts(target_graph: TargetGraph, k: int) -> list[int]:
    """Block counts of operator k alone: those worth trying, and one row at a time."""
    return sorted({*block_counts(target_graph, k, k + 1), needed(target_graph)[k].size})


def shortlist(target_graph: TargetGraph, space: OperatorSpace, levels: Sequence[str], size: int = SHORTLIST) -> NDArray[np.int64]:
    """int64 [<= levels * size]: points with the best estimates at any of the levels, without repeats."""
    found: dict[int, None] = {}
    for level in levels:
        expected = np.maximum(space.bound(target_graph, level), space.estimate)
        found.update(dict.fromkeys(np.lexsort((space.estimate, expected))[:size].tolist()))
    return np.array(list(found), np.int64)


def _conv_plans(target_graph: TargetGraph, k: int, levels: Sequence[str]) -> list[SegmentPlan]:
    space = operator_space(target_graph, k, single_block_counts(target_graph, k))
    return [space.plan(int(i)) for i in shortlist(target_graph, space, levels)]


def _other_plans(target_graph: TargetGraph, k: int) -> list[SegmentPlan]:
    """Every gene of an operator that is no convolution: there are few."""
    genes = (
        Gene(k, k + 1, blocks, prefetch, choices=(choice,))
        for blocks in single_block_counts(target_graph, k)
        for prefetch in (2, 1)
        for choice in range(choice_count(target_graph, k))
    )
    return list({plan.key: plan for gene in genes if (plan := decode(target_graph, gene)) is not None}.values())
