"""Command `tilefarm disasm`: print the instructions of a variant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_text
from tuner.cli.group import FILE
from tuner.cli.options import Compiled, OneLevel

app = new_app()


@app.command()
def disasm(
    compiled: Compiled,
    level: OneLevel = None,
    core: Annotated[int | None, typer.Option(metavar="N", help="One core; all unless given.")] = None,
    out: Annotated[Path | None, FILE, typer.Option(metavar="F", help="Write the text there; stdout unless given.")] = None,
) -> None:
    from simulator.bundle.read import read_model
    from simulator.npu.asm import print_core
    from simulator.npu.files import atomic_write

    file = read_model(compiled)
    level = level if level is not None else file.levels[0]
    machine = file.machine
    if core is not None and not 0 <= core < machine.cores:
        raise BadInputError(f"--core {core}: {machine.name} has cores 0..{machine.cores - 1}")
    parts = []
    for piece, variant in zip(file.pieces, file.variants(level), strict=True):
        prefix = f"{piece.name} " if len(file.pieces) > 1 else ""
        for index, code in enumerate(variant.streams):
            if core in (None, index):
                parts.append(print_core(code, index, f"{machine.name} {file.dtype.name} level {level} {prefix}"))
    if out is not None:
        atomic_write(out, [part.encode() for part in parts])
    else:
        for part in parts:
            print_text(part)
