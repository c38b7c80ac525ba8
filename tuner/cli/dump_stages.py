"""`tilefarm compile --dump`: texts of stages of the compiler, to stdout or into a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.compiler_stages import DUMPED
from simulator.npu.errors import BadInputError
from simulator.terminal import escape_line, print_line

if TYPE_CHECKING:
    from compiler.dump.texts import StageText

ALL = "all"


def parse_stages(texts: Sequence[str]) -> tuple[str, ...]:
    """Stages, several in a text with commas between them, `all` for all: in the compiler's order.  Raises `BadInputError`."""
    names = {word.strip() for text in texts for word in text.split(",")}
    for text in texts:
        for word in text.split(","):
            if word.strip() not in (*DUMPED, ALL):
                raise BadInputError(f"--dump {text}: no stage {word.strip()!r}; expected {', '.join(DUMPED)} or {ALL}")
    return tuple(stage for stage in DUMPED if stage in names or ALL in names)


def print_texts(texts: Iterable[StageText]) -> None:
    """Print to stdout, each text behind a comment that names it."""
    for stage, piece, levels, lines in texts:
        print_line(f"# --- {' '.join(filter(None, (stage, piece, ', '.join(levels))))} ---")
        for line in lines:
            print_line(line)


def write_texts(texts: Iterable[StageText], folder: Path) -> None:
    """Write files [PIECE.][LEVEL.]STAGE.txt, whole or not at all.  Raises `BadInputError` where the folder cannot be made."""
    from simulator.npu.files import atomic_write

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"--dump-to {folder}: cannot be made: {error.strerror or error}") from None
    for stage, piece, levels, lines in texts:
        data = "".join(f"{escape_line(line)}\n" for line in lines).encode()
        for level in levels or ("",):
            atomic_write(folder / ".".join(filter(None, (piece, level, stage, "txt"))), [data])
