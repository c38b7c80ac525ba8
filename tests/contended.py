"""A small compiled file with something to switch between."""

from __future__ import annotations

from pathlib import Path

import onnx

from compiler.build import default_plan
from compiler.model import ModelSpec, lower_model
from simulator.npu.machine_file import load_machine
from tests.models import small_model
from tuner.cli import main


def two_variants(folder: Path) -> Path:
    """For edge: none and slight have a segment in two blocks, severe the default plan, which moves less and has a larger rho."""
    onnx.save(small_model("conv_chain"), folder / "model.onnx")
    plan = default_plan(lower_model(ModelSpec(folder / "model.onnx", load_machine("edge"))).target_graph)
    first = plan.segments[0].model_copy(update={"blocks": 2})
    (folder / "one.json").write_text(plan.to_json())
    (folder / "two.json").write_text(plan.model_copy(update={"segments": (first, *plan.segments[1:])}).to_json())
    words = ["compile", folder / "model.onnx", "--machine", "edge", "--out", folder / "out.onnx"]
    words += ["--plan", folder / "two.json", "--plan", f"severe={folder / 'one.json'}"]
    assert main([str(word) for word in words]) == 0
    return folder / "out.onnx"
