"""onnxslim behind one function: constants folded, dead nodes and BatchNormalization after Conv gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from onnx import ModelProto, TensorProto

from compiler.frontend import libraries
from compiler.frontend.aside import put_back, set_aside
from compiler.frontend.budget import ByteBudget, constant_bytes
from compiler.frontend.handlers import HANDLERS
from compiler.frontend.libraries import LibraryError
from compiler.frontend.skeleton import detach, still_read

# onnxslim folds constants with onnxruntime, which some operators kill with odd attributes: only what has a handler, and what shapes are
# computed with, is let near it; all others are for the translation to refuse by name
KNOWN = frozenset(HANDLERS) | {"Constant", "ConstantOfShape", "Equal", "Expand", "Range", "Shape", "Where"}
LARGE = 1 << 16  # values: nothing is folded into constants this large here, the rewrites do that without copies


class Cleaned(NamedTuple):
    """model: a cleaned copy, or the model itself.  beside: large initialisers, which a copy lacks: those of the model, not copied."""

    model: ModelProto
    beside: Mapping[str, TensorProto]


def clean(model: ModelProto, budget: ByteBudget) -> Cleaned:
    """The model itself where it has operators that are not KNOWN, or onnxslim fails on it.

    What does not fit the budget, or is of unknown size, is not folded.  Raises `BadInputError` where onnxslim dies of the model.
    """
    if any(node.op_type not in KNOWN or node.domain not in ("", "ai.onnx") for node in model.graph.node):
        return Cleaned(model, {})
    skeleton, large = detach(model, LARGE)
    aside = set_aside(skeleton, set(large), budget)
    inputs = [item.name for item in skeleton.graph.input]
    names = [item.name for item in model.graph.output]
    if not aside.names.isdisjoint(names):
        return Cleaned(model, {})
    try:
        if aside.before.graph.output:
            aside.constants.extend(libraries.evaluate(aside.before, constant_bytes(model)).graph.initializer)
        slim = libraries.slim(skeleton, constant_bytes(model))
    except LibraryError:
        # a third-party pass on a model that it was not tried on; the translation says better what is wrong with it
        return Cleaned(model, {})
    if [item.name for item in slim.graph.output] != names or [item.name for item in slim.graph.input] != inputs:
        return Cleaned(model, {})
    put_back(slim, aside)
    return Cleaned(slim, still_read(slim, large))
