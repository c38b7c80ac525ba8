"""Writing of a compiled model as a bundle."""

from __future__ import annotations

import os
from pathlib import Path

from simulator.bundle.bundle_files import C_SOURCES, CONTROLLER, MANIFEST, README, TABLE_H, Manifest, PartEntry, package_file, pretty_json
from simulator.bundle.c_table import table_header
from simulator.bundle.memory import memory_parts
from simulator.bundle.readme import readme
from simulator.compiled import Compiled
from simulator.npu.controller_table import ControllerTable
from simulator.npu.errors import BadInputError
from simulator.npu.files import DurablePath, atomic_write, make_folder


def check_bundle_folder(folder: Path) -> None:
    """Check before the work that the folder can be written.  Raises `BadInputError` unless it is new or empty."""
    try:
        empty = not os.listdir(folder) if os.path.isdir(folder) else None
    except OSError as error:
        raise BadInputError(f"--bundle {folder}: cannot be read: {error.strerror or error}") from None
    if empty is False:
        raise BadInputError(f"--bundle {folder}: is not empty; expected a new folder, or an empty one")
    if empty is None and os.path.lexists(folder):
        raise BadInputError(f"--bundle {folder}: is a file; expected a new folder, or an empty one")
    if empty is None and not os.path.isdir(folder.absolute().parent):
        raise BadInputError(f"--bundle {folder}: folder {folder.parent} does not exist")


def data_parts(compiled: Compiled, table: ControllerTable) -> dict[str, bytes]:
    """Parts that depend on the compiled model only, not on the version of this package."""
    header = table_header(table, compiled.model_digest, compiled.machine.digest)
    return {**memory_parts(compiled), CONTROLLER: pretty_json(table.dump()), TABLE_H: header}


def write_bundle(compiled: Compiled, folder: Path, where: str) -> Manifest:
    """Write the parts, then the manifest; a folder without a manifest is no bundle.

    compiled: model as read from a file.  where: name of that file in errors.  Raises `BadInputError` for a folder that is not empty or not
    writable, and for a model without a controller table.
    """
    check_bundle_folder(folder)
    table = compiled.controller
    if table is None:
        raise BadInputError(f"{where}: has no controller's table, so it cannot be switched at run time; compile it again")
    parts = {**data_parts(compiled, table), **{name: package_file(name) for name in C_SOURCES}}
    parts[README] = readme(compiled, table, [PartEntry.of(path, content) for path, content in parts.items()])
    manifest = Manifest.of(parts)
    try:
        for path in dict.fromkeys((folder / part).parent for part in parts):
            if not os.path.isdir(path):
                make_folder(DurablePath(path.absolute()))
    except OSError as error:
        raise BadInputError(f"--bundle {folder}: cannot be written: {error.strerror or error}") from None
    for part, content in parts.items():
        atomic_write(folder / part, [content])
    atomic_write(folder / MANIFEST, [pretty_json(manifest.model_dump(mode="json"))])
    return manifest
