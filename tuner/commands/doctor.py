"""`doctor`: is everything here that a run needs?"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save_model

from simulator.npu.errors import TilefarmError
from simulator.npu.machine import load_machine, preset_names
from tuner.build import build_variants, default_plan, open_source, package
from tuner.check import check_file
from tuner.commands.text import print_json, print_table
from tuner.source import Source

_LIBRARIES = ("numpy", "numba", "onnx", "onnxruntime", "onnxslim", "optuna", "pandas", "pyarrow", "pydantic", "ray", "typer", "xgboost")


def doctor(as_json: bool) -> int:
    """Every check on its own; 1 where one fails."""
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("python", lambda: f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} CPUs"),
        ("libraries", _libraries),
        ("machines", _machines),
        ("temporary folder", _disk),
        ("compile, run, check", _whole_way),
    )
    rows = []
    for name, check in checks:
        try:
            rows.append((name, "ok", check()))
        except (TilefarmError, OSError, ImportError) as error:
            rows.append((name, "FAILED", " ".join(str(error).split())))
    failed = any(state != "ok" for _, state, _ in rows)
    if as_json:
        print_json({"ok": not failed, "checks": [dict(zip(("name", "state", "detail"), row, strict=True)) for row in rows]})
    else:
        print_table(("<what", "<state", "<detail"), rows)
    return int(failed)


def _libraries() -> str:
    found, missing = [], []
    for name in _LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        raise TilefarmError(f"not installed: {', '.join(missing)} (python {sys.executable})")
    return ", ".join(found)


def _machines() -> str:
    return ", ".join(load_machine(name).name for name in preset_names())


def _disk() -> str:
    folder = tempfile.gettempdir()
    return f"{folder}, {shutil.disk_usage(folder).free / 1e9:,.1f} GB free"


def _whole_way() -> str:
    """A convolution, compiled for `tiny`, from a file again, executed, compared with onnxruntime."""
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((8, 3, 3, 3), dtype=np.float32), "w")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [1, 3, 8, 8]), ("y", [1, 8, 6, 6]))]
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"], name="conv")], "doctor", ports[:1], ports[1:], [weights])
    with tempfile.TemporaryDirectory(prefix="tilefarm-") as folder:
        model, out = Path(folder) / "conv.onnx", Path(folder) / "out.onnx"
        save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
        opened = open_source(Source(model, load_machine("tiny")))
        plan = default_plan(opened.unit)
        package(opened, [build_variants(opened.compiler, dict.fromkeys(opened.machine.contention, plan))], out)
        checked = check_file(out)
    faults = [fault for level in checked for fault in level.faults]
    if faults:
        raise TilefarmError(faults[0])
    return f"{len(checked)} levels, largest error {max(level.max_rel_error for level in checked):.1e}"
