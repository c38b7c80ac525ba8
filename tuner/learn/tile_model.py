"""Tilings by a cost model alone: every operator by itself, the way that the model of a run expects to be fastest at each level, unmeasured.

Of all legal ways to run an operator (`compiler.cost.operator_space`) those with the best estimates are put to the model: 256 of each level.
What the model has learnt on other operators of the same machine decides among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import FEATURE_SET, FEATURES, raw_features, scaled
from compiler.cost.operator_space import OperatorSpace, operator_space
from compiler.kinds.conv import ConvSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.segment.blocks import needed
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene, block_counts, choice_count
from compiler.space.stays import settled
from compiler.space.structures import Structures
from compiler.unit.unit import Unit
from simulator.npu.errors import BadInputError, InfeasibleError
from tuner.learn.cost_model import Predictor, find_cost_model
from tuner.learn.trained import KeptModel, load_trained
from tuner.plugins import COST_MODELS, offered_names
from tuner.store.runfolder import read_json
from tuner.store.source import SOURCE, read_source
from tuner.world.local import LocalPlace

SHORTLIST = 256
Models = Mapping[str, Predictor]  # by level


def load_models(path: Path, unit: Unit) -> Models:
    """The models that a run promoted last, level by level; path: the run's folder or its `models/`.

    Of a run of several pieces, which has a search and models for each, those that learnt from the most rows.

    Raises `BadInputError` where there is none, or it was trained for another machine, data type or set of features.
    """
    path = LocalPlace(path)
    run = path if (path / SOURCE).is_file() else path.resolve().parent
    source = read_source(run).source
    for what, theirs, ours in (
        ("machine", source.machine.digest, unit.machine.digest),
        ("dtype", source.dtype.name, unit.dtype.name),
    ):
        if theirs != ours:
            shown = source.machine.name if what == "machine" else theirs
            raise BadInputError(f"--tile-model {path}: trained for {what} {shown} ({theirs}), this is {ours}")
    promoted = _promoted(run / "models")
    missing = [level for level in unit.machine.contention if level not in promoted]
    if missing:
        why = "tune with --set use.cost_model=true, or longer"
        raise BadInputError(f"--tile-model {path}: no cost model of level {missing[0]} earned its place in that run; {why}")
    models = {}
    for level in unit.machine.contention:
        file, kept = max(((each, load_trained(each)) for each in promoted[level]), key=lambda pair: pair[1].model.trained_rows)
        if (width := kept.model.width) != len(FEATURES):
            raise BadInputError(f"--tile-model {path}: {file.name} takes {width} features, feature set {FEATURE_SET} has {len(FEATURES)}")
        models[level] = _loaded(path, kept)
    return models


def _loaded(path: LocalPlace, kept: KeptModel) -> Predictor:
    """A file names a class, but no file decides which module is imported: what is installed is somebody's choice."""
    if ":" in kept.kind:
        known = ", ".join((*COST_MODELS.built_in, *offered_names(COST_MODELS)))
        what = f"trained by {kept.kind}, which is not installed as an entry point of {COST_MODELS.group}"
        raise BadInputError(f"--tile-model {path}: {what}; expected one of {known}")
    return kept.model.load(find_cost_model(kept.kind))


def _promoted(models: LocalPlace) -> dict[str, list[LocalPlace]]:
    """By level the file that was promoted last, of each search of a run.  models: of the run, with a folder for each of several pieces."""
    found: dict[str, list[LocalPlace]] = {}
    for history in sorted([*models.glob("history.json"), *models.glob("*/history.json")]):
        last = {row["level"]: history.parent / row["file"] for row in read_json(history) if row["promoted"]}
        for level, file in last.items():
            found.setdefault(level, []).append(file)
    return found


def tiled_plans(compiler: Compiler, models: Models) -> dict[str, Plan]:
    """A plan for every level, each operator its own segment.  Raises `InfeasibleError` where an operator fits in no way."""
    unit = compiler.unit
    structures = Structures(unit)
    known: dict[str, dict[str, SegmentPlan]] = {}
    chosen: dict[str, list[SegmentPlan]] = {level: [] for level in models}
    for k, spec in enumerate(unit.operators):
        structure = structures.structure(k, k + 1)
        if structure not in known:
            known[structure] = pick(compiler, k, models)
        for level, plan in known[structure].items():
            chosen[level].append(plan.model_copy(update={"operators": (spec.name,)}))
    return {level: settled(unit, plan_of(unit, segments)) for level, segments in chosen.items()}


def pick(compiler: Compiler, k: int, models: Models) -> dict[str, SegmentPlan]:
    """The segment of operator k alone that each level's model expects to be fastest, of those that compile."""
    unit = compiler.unit
    plans = _conv_plans(unit, k, tuple(models)) if isinstance(unit.operators[k], ConvSpec) else _other_plans(unit, k)
    chosen: dict[str, SegmentPlan] = {}
    if plans:
        features = scaled([raw_features(unit, plan, k) for plan in plans])
        for level, model in models.items():
            order = np.argsort(model.predict(features), kind="stable").tolist()
            for i in order:
                if not isinstance(compiler.segment(plans[i], k), Infeasible):
                    chosen[level] = plans[i]
                    break
    if len(chosen) < len(models):
        sizes = ", ".join(f"{size:,} B of {name}" for name, size in unit.machine.buffers_bytes)
        raise InfeasibleError(f"{unit.machine.name}: {unit.operators[k].name}: no tiling fits {sizes}")
    return chosen


def single_block_counts(unit: Unit, k: int) -> list[int]:
    """Block counts of operator k alone: those worth trying, and one row at a time."""
    return sorted({*block_counts(unit, k, k + 1), needed(unit)[k].size})


def shortlist(unit: Unit, space: OperatorSpace, levels: Sequence[str], size: int = SHORTLIST) -> NDArray[np.int64]:
    """int64 [<= levels * size]: points with the best estimates at any of the levels, without repeats."""
    found: dict[int, None] = {}
    for level in levels:
        expected = np.maximum(space.bound(unit, level), space.estimate)
        found.update(dict.fromkeys(np.lexsort((space.estimate, expected))[:size].tolist()))
    return np.array(list(found), np.int64)


def _conv_plans(unit: Unit, k: int, levels: Sequence[str]) -> list[SegmentPlan]:
    space = operator_space(unit, k, single_block_counts(unit, k))
    return [space.plan(int(i)) for i in shortlist(unit, space, levels)]


def _other_plans(unit: Unit, k: int) -> list[SegmentPlan]:
    """Every gene of an operator that is no convolution: there are few."""
    genes = (
        Gene(k, k + 1, blocks, prefetch, choices=(choice,))
        for blocks in single_block_counts(unit, k)
        for prefetch in (2, 1)
        for choice in range(choice_count(unit, k))
    )
    return list({plan.key: plan for gene in genes if (plan := decode(unit, gene)) is not None}.values())
