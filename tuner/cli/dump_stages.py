"""Option `compile --dump`: the text of each compiler stage, to stdout or into a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from compiler.dump import STAGES
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compiler.model import LoweredModel
    from compiler.plan.plan import Plan

ALL = "all"


class Text(NamedTuple):
    """Text of one stage.  piece, levels: its subgraph and levels where these differ between texts; else empty."""

    stage: str
    piece: str
    levels: tuple[str, ...]
    lines: Iterable[str]


def parse_stages(texts: Sequence[str]) -> tuple[str, ...]:
    """Parse stage names, comma-separated, `all` for all; returned in the compiler's order.  Raises `BadInputError`."""
    wanted = {word.strip() for text in texts for word in text.split(",")}
    for text in texts:
        for word in text.split(","):
            if word.strip() not in (*STAGES, ALL):
                raise BadInputError(f"--dump {text}: no stage {word.strip()!r}; expected {', '.join(STAGES)} or {ALL}")
    return tuple(stage for stage in STAGES if stage in wanted or ALL in wanted)


def texts_of(opened: LoweredModel, plans: Mapping[str, Plan], names: Mapping[str, str], stages: Sequence[str]) -> Iterator[Text]:
    """Texts in stage order, each made on demand, so that a plan that does not fit is printed up to the failing stage.

    plans: level -> its plan.  names: of the plans' files, by level, for errors.  Raises `BadInputError`, `InfeasibleError`.
    """
    from compiler.build import plans_of_pieces
    from compiler.dump.plan import plan_lines

    levels: dict[str, tuple[str, ...]] = {}
    for level, plan in plans.items():
        levels[plan.digest] = (*levels.get(plan.digest, ()), level)
    pieces = opened.names if len(opened.names) > 1 else ("",)
    for stage in stages:
        if stage in ("graph", "unit"):
            for index, piece in enumerate(pieces):
                yield Text(stage, piece, (), _of_piece(opened, stage, index))
            continue
        for plan_levels in levels.values():
            plan, where, shown_levels = plans[plan_levels[0]], names.get(plan_levels[0], "plan"), plan_levels if len(levels) > 1 else ()
            parts = plans_of_pieces(opened, plan, where)
            if stage == "plan":
                yield Text(stage, "", shown_levels, plan_lines(plan))
                continue
            for index, (piece, part) in enumerate(zip(pieces, parts, strict=True)):
                yield Text(stage, piece, shown_levels, _of_plan(opened, stage, index, part, where))


def _of_piece(opened: LoweredModel, stage: str, index: int) -> list[str]:
    from compiler.dump.graph import graph_lines
    from compiler.dump.target_graph import unit_lines
    from compiler.frontend.lower import lower

    if stage == "unit":
        return unit_lines(opened.target_graphs[index])
    # lowered again, one frame: the text has digests of the weights, whose values are not kept
    return graph_lines(lower(opened.part.pieces[index].npu, opened.digest, opened.part.data))


def _of_plan(opened: LoweredModel, stage: str, index: int, plan: Plan, where: str) -> Iterable[str]:
    from compiler.build import check_plan, compile_plan
    from compiler.dump.records import record_lines
    from compiler.dump.segments import segment_lines

    compiler = opened.compilers[index]
    if stage == "records":
        return record_lines(compile_plan(compiler, plan, where))
    check_plan(compiler.target_graph, plan, where)
    return segment_lines(compiler, plan)


def print_texts(texts: Iterable[Text]) -> None:
    """Print each text to stdout under a comment with its stage, piece and levels."""
    for stage, piece, levels, lines in texts:
        print_line(f"# --- {' '.join(filter(None, (stage, piece, ', '.join(levels))))} ---")
        for line in lines:
            print_line(line)


def write_texts(texts: Iterable[Text], folder: Path) -> None:
    """Write files [PIECE.][LEVEL.]STAGE.txt atomically.  Raises `BadInputError` where the folder cannot be made."""
    from simulator.npu.files import atomic_write

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"--dump-to {folder}: cannot be made: {error.strerror or error}") from None
    for stage, piece, levels, lines in texts:
        data = "".join(f"{shown(line)}\n" for line in lines).encode()
        for level in levels or ("",):
            atomic_write(folder / ".".join(filter(None, (piece, level, stage, "txt"))), [data])
