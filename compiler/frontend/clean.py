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


LARGE = 1 << 16  # values: nothing is folded into constants this large here, the rewrites do that without copies
# what a third-party pass raises on models that it was not tried on; the translation says better what is wrong with them
_FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@contextlib.contextmanager
def _quiet() -> Any:
    """onnxslim prints, and sets up loggers of its own; neither is ours to show."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def clean(model: ModelProto) -> ModelProto:
    """A cleaned copy; the model itself where onnxslim fails on it (the translation then says what it cannot do)."""
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
