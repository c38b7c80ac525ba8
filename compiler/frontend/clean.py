"""onnxslim behind one function: constants folded, dead nodes and BatchNormalization after Conv gone."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from typing import Any

from onnx import ModelProto

from compiler.frontend.skeleton import attach, detach

# merging equal sub-expressions would merge real branches of models whose weights are constants
SKIPPED = ["subexpression_elimination"]


# onnxslim folds constants with onnxruntime, which some operators kill with odd attributes: only these are let near it, all others
# are for the translation to refuse by name
KNOWN = frozenset(
    {
        "Abs", "Add", "AveragePool", "BatchNormalization", "Cast", "Celu", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv",
        "ConvTranspose", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Gather", "Gemm", "GlobalAveragePool",
        "GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity", "LRN", "LayerNormalization", "LeakyRelu", "Log", "MatMul", "Max",
        "MaxPool", "Mean", "Min", "Mul", "Neg", "PRelu", "Pad", "Pow", "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceMax",
        "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Resize", "Selu", "Shape", "Sigmoid", "Slice",
        "Softmax", "Softplus", "Softsign", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Transpose", "Unsqueeze", "Where",
    }
)  # fmt: skip
LARGE = 1 << 16  # values: nothing is folded into constants this large here, the rewrites do that without copies
# what a third-party pass raises on models that it was not tried on; the translation says better what is wrong with them
_FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@contextlib.contextmanager
def _quiet() -> Any:
    """onnxslim prints, sets up loggers of its own and runs onnxruntime, which logs to the process's stderr; none of it is ours to show."""
    import onnxruntime

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    onnxruntime.set_default_logger_severity(4)  # fatal only
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
        onnxruntime.set_default_logger_severity(2)  # its default: warnings


def clean(model: ModelProto) -> ModelProto:
    """A cleaned copy; the model itself where it has operators that are not KNOWN, or onnxslim fails on it."""
    if any(node.op_type not in KNOWN or node.domain not in ("", "ai.onnx") for node in model.graph.node):
        return model
    # 0.3 s and a tree of modules: only a model that is compiled pays for it
    import onnxslim

    skeleton, large = detach(model, LARGE)
    inputs = [item.name for item in skeleton.graph.input]
    names = [item.name for item in model.graph.output]
    limit = sys.getrecursionlimit()
    with _quiet():
        try:
            slim = onnxslim.slim(skeleton, skip_optimizations=SKIPPED)
        except _FAILURES:
            return model
        finally:
            sys.setrecursionlimit(limit)
    if not isinstance(slim, ModelProto) or [item.name for item in slim.graph.output] != names:
        return model
    if [item.name for item in slim.graph.input] != inputs:
        return model
    attach(slim, large)
    return slim
