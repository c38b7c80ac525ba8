"""Packagers: plans written as the files that a part's own stack loads, beside `best.onnx`.  The model's format chooses one."""

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

PACKAGERS: Mapping[str, str] = MappingProxyType({".tflite": "compiler.ethosu.package:package_streams"})
"""Suffix of a model -> `module:name` of its packager, imported once it is asked for."""
MACHINES: Mapping[str, str] = MappingProxyType({"ethos-u65-256": ".tflite"})
"""Machines with a stack of their own, and the suffix of the models that it loads."""


def is_packaged(opened: LoweredModel) -> bool:
    """Whether a run of the model writes such files."""
    return MACHINES.get(opened.machine.name) == opened.source.model.suffix


def package_plans(opened: LoweredModel, plans: Mapping[str, Plan]) -> PackagedFiles:
    """Files of plans.  Raises `BadInputError` for a model or machine that has no packager, and what the packager raises."""
    suffix = opened.source.model.suffix
    if not is_packaged(opened):
        raise BadInputError(
            f"{opened.source.model} on {opened.machine.name}: "
            f"expected {', '.join(f'a {kind} model on {name}' for name, kind in MACHINES.items())}"
        )
    module, _, name = PACKAGERS[suffix].partition(":")
    return cast(Packager, getattr(importlib.import_module(module), name))(opened, plans)


def is_stack_file(path: Path | None) -> bool:
    """Whether a file is one of a part's own stack, not an ONNX file."""
    return path is not None and path.suffix in PACKAGERS
