"""ONNX models and plans to programs for an NPU.

compiled = compiler.compile("model.onnx", machine="edge", plan=compiler.Plan.load("plan.json"))
compiled.save("out.onnx")
"""

from typing import TYPE_CHECKING

from simulator.npu.lazily import lazy_attributes

if TYPE_CHECKING:
    from compiler.api import CompiledModel, compile, load
    from compiler.plan.plan import Plan

__all__ = ["CompiledModel", "Plan", "compile", "load"]

if not TYPE_CHECKING:  # hidden from type checkers, for which any name would then exist
    __getattr__ = lazy_attributes(
        __name__,
        {"CompiledModel": "compiler.api", "Plan": "compiler.plan.plan", "compile": "compiler.api", "load": "compiler.api"},
    )
