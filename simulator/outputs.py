"""Checks of a command's output paths before its work: writable, and not one of its inputs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from simulator.npu.errors import BadInputError
from simulator.onnx_names import EP_ATTRIBUTE, EP_OP

_PAGE = ".html"  # the page of a run is in its folder; it is written from the run, and no input


def check_out(out: Path, inputs: Iterable[Path] = (), option: str = "--out") -> None:
    """Check an output file.  inputs: files, and folders with their content; missing ones are skipped.  Raises `BadInputError`."""
    folder = out.parent
    if out.is_dir():
        raise BadInputError(f"{option} {out}: is a folder; give a file")
    if not folder.is_dir():
        raise BadInputError(f"{option} {out}: folder {folder} does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInputError(f"{option} {out}: folder {folder} is not writable")
    check_distinct(out, inputs, option)


def check_distinct(out: Path, inputs: Iterable[Path], option: str = "--out") -> None:
    """Check that a file or folder is no input, also through links, and no file that an input consists of.  Raises `BadInputError`."""
    for path in inputs if os.path.exists(out) else ():  # unlike Path.exists it accepts names that no file can have
        for part in _parts(path, out.is_file()):
            with suppress(OSError, ValueError):  # no such file, or a NUL in a path of the model
                if out.samefile(part):
                    raise BadInputError(f"{option} {out}: is the input {part}{'' if part == path else f', of {path}'}; give another name")


def _parts(path: Path, files: bool) -> Iterator[Path]:
    """An input, and with `files` the files in it, or beside it for a model."""
    yield path
    if files and path.is_dir():
        yield from (part for part in path.rglob("*") if part.suffix != _PAGE and part.is_file())
    elif files and path.is_file():
        yield from files_beside(path)


def files_beside(path: Path) -> Iterator[Path]:
    """External data of a model's file, and containers of a compiled one; nothing for other files."""
    import onnx  # slow import, and most outputs are new
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx.external_data_helper import _get_all_tensors, uses_external_data

    try:
        model = onnx.load_model(path, format="protobuf", load_external_data=False)
    except (DecodeError, OSError, ValueError):
        return
    for tensor in filter(uses_external_data, _get_all_tensors(model)):
        yield from (path.parent / entry.value for entry in tensor.external_data if entry.key == "location")
    for node in model.graph.node:
        attributes = {item.name: item for item in node.attribute} if node.op_type == EP_OP else {}
        if EP_ATTRIBUTE in attributes and "embed_mode" in attributes and not attributes["embed_mode"].i:
            yield path.parent / os.fsdecode(attributes[EP_ATTRIBUTE].s)
