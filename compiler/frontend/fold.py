"""Nodes whose inputs are constants, computed here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, OperatorSetIdProto, ValueInfoProto, numpy_helper

from compiler.frontend.attributes import label, one_line
from simulator.npu.errors import BadInputError

Array = NDArray[Any]
MAX_VALUES = 2**30  # of one tensor: 4 GiB of float32
# another value each time, so no constant
RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
# what onnx's evaluator raises on operators and attributes that it was not tried on
_FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)


def folded(node: NodeProto, values: Mapping[str, Any], constants: Mapping[str, Array]) -> Array | None:
    """What a node's output is, by the few operators that models have between constants; None for others, and for inputs that are not known.

    values: the node's attributes.  Raises BadInputError where the inputs do not fit the operator.
    """
    if node.op_type == "Constant":
        if "value" in values:
            return numpy_helper.to_array(values["value"])
        for key, kind in (("value_float", np.float32), ("value_int", np.int64), ("value_floats", np.float32), ("value_ints", np.int64)):
            if key in values:
                return np.asarray(values[key], kind)
        return None
    rule = _FOLDS.get(node.op_type)
    if rule is None or len(node.output) != 1 or not _known(node, constants):
        return None
    try:
        value = np.asarray(rule([constants[name] for name in node.input if name], values))
    except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadInputError(f"{label(node)}: its constant inputs do not fit it: {one_line(error)}") from None
    if value.size > MAX_VALUES:
        raise BadInputError(f"{label(node)}: a constant of {value.size} values; at most {MAX_VALUES}")
    return value


def evaluated(
    node: NodeProto,
    constants: Mapping[str, Array],
    shapes: Mapping[str, tuple[int, ...]],
    opsets: Sequence[OperatorSetIdProto],
    most: int,
) -> dict[str, Array]:
    """The outputs of a node of constants by onnx's own evaluator; {} where that cannot, or one has more than `most` values by `shapes`."""
    names = [name for name in node.output if name]
    if not _known(node, constants) or node.op_type in RANDOM or any(item.HasField("g") or item.graphs for item in node.attribute):
        return {}  # a loop may have no end
    if any(name not in shapes or math.prod(shapes[name]) > most for name in names):
        return {}
    from onnx.reference import ReferenceEvaluator  # 0.4 s: only models that compute with constants pay for it

    inputs = list(dict.fromkeys(name for name in node.input if name))
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(constants[name].dtype) for name in inputs}
    ports = [onnx.helper.make_tensor_value_info(name, kinds[name], constants[name].shape) for name in inputs]
    graph = onnx.helper.make_graph([node], "constant", ports, [ValueInfoProto(name=name) for name in names])
    try:
        evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))
        with np.errstate(all="ignore"):
            found = evaluator.run(names, {name: constants[name] for name in inputs})
    except _FAILURES:
        return {}
    return {name: np.asarray(value) for name, value in zip(names, found, strict=True)}


def _known(node: NodeProto, constants: Mapping[str, Array]) -> bool:
    return bool(node.input) and all(not name or name in constants for name in node.input)


def _axes(inputs: list[Array], values: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(a) for a in (inputs[1] if len(inputs) > 1 else values.get("axes", ())))


def _filled(inputs: list[Array], values: Mapping[str, Any]) -> Array:
    fill = numpy_helper.to_array(values["value"]).reshape(-1)[0] if "value" in values else np.float32(0)
    dims = tuple(int(d) for d in inputs[0])
    if math.prod(dims) > MAX_VALUES:
        raise ValueError(f"{list(dims)} has more than {MAX_VALUES} values")
    return np.full(dims, fill)


_FOLDS: dict[str, Callable[[list[Array], Mapping[str, Any]], Array]] = {
    "ConstantOfShape": _filled,
    "Identity": lambda x, v: x[0],
    "Cast": lambda x, v: x[0].astype(onnx.helper.tensor_dtype_to_np_dtype(v["to"])),
    "Unsqueeze": lambda x, v: np.expand_dims(x[0], _axes(x, v)),
    "Squeeze": lambda x, v: np.squeeze(x[0], _axes(x, v) or None),
    "Reshape": lambda x, v: x[0].reshape([x[0].shape[i] if d == 0 else int(d) for i, d in enumerate(x[1])]),
    "Transpose": lambda x, v: np.transpose(x[0], v.get("perm")),
    "Gather": lambda x, v: np.take(x[0], x[1].astype(np.int64), axis=v.get("axis", 0)),
    "Expand": lambda x, v: np.broadcast_to(x[0], np.broadcast_shapes(x[0].shape, tuple(int(d) for d in x[1]))),
    "Concat": lambda x, v: np.concatenate(x, axis=v["axis"]),
    "Mul": lambda x, v: x[0] * x[1],
    "Add": lambda x, v: x[0] + x[1],
}
