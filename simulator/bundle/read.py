"""Reading of a bundle as a compiled model.  Nothing in it is trusted: the parts must equal the parts that the read model would be written
as."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from simulator.bundle.bundle_files import C_SOURCES, CONTROLLER, MANIFEST, MEMORY, README, Parts, read_parts
from simulator.bundle.memory import BundleMemory, build_container
from simulator.bundle.write import data_parts
from simulator.compiled import Compiled, CompiledPiece, read_compiled
from simulator.npu.container import ContainerError, check_controller
from simulator.npu.container_file import ISA_DIGEST, decode, encode
from simulator.npu.controller_table import ControllerTable
from simulator.npu.errors import BadInputError
from simulator.npu.validation import validation_line


def read_model(path: str | os.PathLike[str]) -> Compiled:
    """The compiled model in an ONNX file, or in the folder of a bundle.  Raises `BadInputError`."""
    return read_bundle(Path(path)) if os.path.isdir(path) else read_compiled(path)


def read_bundle(folder: Path) -> Compiled:
    """The compiled model in a bundle, equal to `read_compiled` of its file.

    Raises `BadInputError`, one line that names the part: missing, damaged, malformed, or from another bundle.
    """
    parts = read_parts(folder)

    def refuse(part: str, reason: str) -> BadInputError:
        return BadInputError(f"{folder / part}: {reason}")

    for name in (MEMORY, CONTROLLER, README, *C_SOURCES):
        if name not in parts:
            raise refuse(MANIFEST, f"has no part {name}")
    memory, table = _parsed(BundleMemory, MEMORY, folder, parts), _parsed(ControllerTable, CONTROLLER, folder, parts)
    if memory.isa != ISA_DIGEST:
        raise refuse(MEMORY, f"instruction set {memory.isa}, this program has {ISA_DIGEST}; export the model again")
    pieces = []
    for piece in memory.pieces:
        container = build_container(memory, piece, parts, table, refuse)
        try:
            check_controller(container, table)
        except ContainerError as error:
            raise refuse(CONTROLLER, str(error).removeprefix("container: ")) from None
        try:
            pieces.append(CompiledPiece(piece.name, decode(encode(container))))
        except ContainerError as error:
            raise refuse(MEMORY, f"piece {piece.name!r}: {str(error).removeprefix('container: ')}") from None
    try:
        compiled = Compiled(tuple(pieces))
    except BadInputError as error:
        raise refuse(MEMORY, str(error)) from None
    # the model must give every part again, byte for byte
    expected = data_parts(compiled, table)
    for name, content in expected.items():
        if parts.get(name) != content:
            raise refuse(name, f"is not what the others give: {MEMORY} and {CONTROLLER} are of another bundle, or it was changed")
    if more := set(parts) - {*expected, README, *C_SOURCES}:
        raise refuse(MANIFEST, f"lists {min(more)}, which {MEMORY} does not name")
    return compiled


T = TypeVar("T", bound=BaseModel)


def _parsed(kind: type[T], name: str, folder: Path, parts: Parts) -> T:
    try:
        return kind.model_validate_json(parts[name])
    except ValidationError as error:
        raise BadInputError(f"{folder / name}: {validation_line(error)}") from None
