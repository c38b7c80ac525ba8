"""Dumps of compiler stages (graph, target graph, plan, ...) of a model with given plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from compiler.build import check_plan, compile_plan, plans_of_pieces
from compiler.compiler_stages import STAGES, CompilerStage
from compiler.frontend.lower import lower
from compiler.model import LoweredModel
from compiler.plan.plan import Plan


class StageText(NamedTuple):
    """Text of a stage.  piece: its subgraph, '' if the model is one.  levels: its levels, () if all levels have it."""

    stage: str
    piece: str
    levels: tuple[str, ...]
    lines: Iterable[str]


def texts_of(model: LoweredModel, plans: Mapping[str, Plan], names: Mapping[str, str], stages: Sequence[str]) -> Iterator[StageText]:
    """Texts of the stages in order.  Each is made when it is requested, so a plan that does not fit is shown up to the failing stage.

    plans: level -> plan.  names: level -> name of the plan's file, for errors.  Raises `BadInputError`, `InfeasibleError`.
    """
    levels_by_plan: dict[str, tuple[str, ...]] = {}
    for level, plan in plans.items():
        levels_by_plan[plan.digest] = (*levels_by_plan.get(plan.digest, ()), level)
    pieces = model.names if len(model.names) > 1 else ("",)
    for stage in STAGES:
        if stage.name not in stages:
            continue
        if stage.name in ("graph", "unit"):
            for index, piece in enumerate(pieces):
                yield StageText(stage.name, piece, (), stage.dump(_of_piece(model, stage, index)))
            continue
        for levels in levels_by_plan.values():
            plan, where, shown_levels = plans[levels[0]], names.get(levels[0], "plan"), levels if len(levels_by_plan) > 1 else ()
            parts = plans_of_pieces(model, plan, where)
            if stage.name == "plan":
                yield StageText(stage.name, "", shown_levels, stage.dump(plan))
                continue
            for index, (piece, part) in enumerate(zip(pieces, parts, strict=True)):
                yield StageText(stage.name, piece, shown_levels, stage.dump(*_of_plan(model, stage, index, part, where)))


def _of_piece(model: LoweredModel, stage: CompilerStage, index: int) -> Any:
    if stage.name == "unit":
        return model.target_graphs[index]
    # one frame, lowered again: weights are released after lowering, and the text has their digests
    return lower(model.part.pieces[index].npu, model.digest, model.part.data)


def _of_plan(model: LoweredModel, stage: CompilerStage, index: int, plan: Plan, where: str) -> tuple[Any, ...]:
    compiler = model.compilers[index]
    if stage.name == "records":
        return (compile_plan(compiler, plan, where),)
    check_plan(compiler.target_graph, plan, where)
    return compiler, plan
