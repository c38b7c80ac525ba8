"""Packagers: plans written as the files that a part's own stack loads, beside `best.onnx`.  The machine chooses one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import cast

from compiler.model import LoweredModel
from compiler.package.stack_files import PackagedFiles
from compiler.plan.plan import Plan
from simulator.build_controller_table import table_of_rows
from simulator.bundle.c_table import table_header
from simulator.npu.errors import BadInputError
from tuner.measure.target import Packager

PACKAGERS: Mapping[str, str] = MappingProxyType({"ethos-u65-256": "compiler.ethosu.package:package_streams"})
"""Machine -> `module:name` of its packager, imported once it is asked for."""
STACK_SUFFIX, TABLE_SUFFIX = ".tflite", ".h"
"""Of files that such a stack loads, and `compile` writes where `--out` has it; of the controller's table beside them."""


def packager_of(machine: str) -> str | None:
    """The packager of a machine, or of a preset with other values (`PRESET:key=value`); None without one."""
    return next((packager for name, packager in PACKAGERS.items() if machine == name or machine.startswith(f"{name}-")), None)


def is_packaged(model: LoweredModel) -> bool:
    """Whether a run of the model writes such files."""
    return packager_of(model.machine.name) is not None


def package_plans(model: LoweredModel, plans: Mapping[str, Plan]) -> PackagedFiles:
    """Files of plans, with the controller's table of their variants in C.

    Raises `BadInputError` for a machine that has no packager, and what the packager raises.
    """
    packager = packager_of(model.machine.name)
    if packager is None:
        raise BadInputError(f"--out FILE{STACK_SUFFIX}: machine {model.machine.name} has no such files; expected {', '.join(PACKAGERS)}")
    module, _, name = packager.partition(":")
    packaged = cast(Packager, getattr(importlib.import_module(module), name))(model, plans)
    header = table_header(table_of_rows(*packaged.variants, model.machine), model.digest, model.machine.digest)
    return packaged._replace(files={**packaged.files, TABLE_SUFFIX: header})


def is_stack_file(path: Path | None) -> bool:
    """Whether a file is one of a part's own stack, not an ONNX file."""
    return path is not None and path.suffix == STACK_SUFFIX
