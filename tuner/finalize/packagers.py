"""Packagers: plans written as the files that a part's own stack loads, beside `best.onnx`.  The machine chooses one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import cast

from compiler.model import LoweredModel
from compiler.plan.plan import Plan
from simulator.npu.errors import BadInputError
from tuner.measure.target import PackagedFiles, Packager

PACKAGERS: Mapping[str, str] = MappingProxyType({"ethos-u65-256": "compiler.ethosu.package:package_streams"})
"""Machine -> `module:name` of its packager, imported once it is asked for."""
STACK_SUFFIX = ".tflite"
"""Of files that such a stack loads, and `compile` writes where `--out` has it."""


def is_packaged(opened: LoweredModel) -> bool:
    """Whether a run of the model writes such files."""
    return opened.machine.name in PACKAGERS


def package_plans(opened: LoweredModel, plans: Mapping[str, Plan]) -> PackagedFiles:
    """Files of plans.  Raises `BadInputError` for a machine that has no packager, and what the packager raises."""
    if not is_packaged(opened):
        raise BadInputError(f"--out FILE{STACK_SUFFIX}: machine {opened.machine.name} has no such files; expected {', '.join(PACKAGERS)}")
    module, _, name = PACKAGERS[opened.machine.name].partition(":")
    return cast(Packager, getattr(importlib.import_module(module), name))(opened, plans)


def is_stack_file(path: Path | None) -> bool:
    """Whether a file is one of a part's own stack, not an ONNX file."""
    return path is not None and path.suffix == STACK_SUFFIX
