"""Texts of stages of a model that is compiled by given plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from compiler.build import check_plan, compile_plan, plans_of_pieces
from compiler.compiler_stages import STAGES, CompilerStage
from compiler.frontend.lower import lower
from compiler.model import LoweredModel
from compiler.plan.plan import Plan


class StageText(NamedTuple):
    """Text of a stage.  piece, levels: subgraph and levels of the text, if others have another text; else empty."""

    stage: str
    piece: str
    levels: tuple[str, ...]
    lines: Iterable[str]


def texts_of(opened: LoweredModel, plans: Mapping[str, Plan], names: Mapping[str, str], stages: Sequence[str]) -> Iterator[StageText]:
    """Texts of the stages in order.  Each is made when it is requested, so a plan that does not fit is shown up to the failing stage.

    plans: level -> plan.  names: level -> name of the plan's file, for errors.  Raises `BadInputError`, `InfeasibleError`.
    """
    levels: dict[str, tuple[str, ...]] = {}
    for level, plan in plans.items():
        levels[plan.digest] = (*levels.get(plan.digest, ()), level)
    pieces = opened.names if len(opened.names) > 1 else ("",)
    for stage in STAGES:
        if stage.name not in stages:
            continue
        if stage.name in ("graph", "unit"):
            for index, piece in enumerate(pieces):
                yield StageText(stage.name, piece, (), stage.dump(_of_piece(opened, stage, index)))
            continue
        for same in levels.values():
            plan, where, shown_levels = plans[same[0]], names.get(same[0], "plan"), same if len(levels) > 1 else ()
            parts = plans_of_pieces(opened, plan, where)
            if stage.name == "plan":
                yield StageText(stage.name, "", shown_levels, stage.dump(plan))
                continue
            for index, (piece, part) in enumerate(zip(pieces, parts, strict=True)):
                yield StageText(stage.name, piece, shown_levels, stage.dump(*_of_plan(opened, stage, index, part, where)))


def _of_piece(opened: LoweredModel, stage: CompilerStage, index: int) -> Any:
    if stage.name == "unit":
        return opened.target_graphs[index]
    # one frame, lowered again: weights are released after lowering, and the text has their digests
    return lower(opened.part.pieces[index].npu, opened.digest, opened.part.data)


def _of_plan(opened: LoweredModel, stage: CompilerStage, index: int, plan: Plan, where: str) -> tuple[Any, ...]:
    compiler = opened.compilers[index]
    if stage.name == "records":
        return (compile_plan(compiler, plan, where),)
    check_plan(compiler.target_graph, plan, where)
    return compiler, plan
