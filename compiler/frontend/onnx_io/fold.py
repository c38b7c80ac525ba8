"""Constant folding of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, numpy_helper

from compiler.frontend.onnx_io import onnx_sandbox
from compiler.frontend.onnx_io.attributes import label, one_line
from compiler.frontend.onnx_io.memory_budget import LIBRARY_PART, ByteBudget, constant_bytes, item_bytes
from compiler.frontend.onnx_io.onnx_sandbox import LibraryError
from compiler.ir.quantised import linear
from compiler.ir.quantised.parameters import Quantisation
from simulator.npu.errors import BadInputError

Array = NDArray[Any]
NO_ROOM = "what it makes of constants cannot be allocated here"
VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})  # views of constants take no memory
# a new value in every run, so no constant
RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})


def fold_node(node: NodeProto, values: Mapping[str, Any], constants: Mapping[str, Array], budget: ByteBudget) -> Array | None:
    """Output of a node of constants, for operators that are common between constants; None for others, and for unknown inputs.

    values: the node's attributes.  Raises BadInputError for inputs that do not fit the operator, or an output beyond the budget.
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
    inputs = [constants[name] for name in node.input if name]
    if node.op_type in _SCALED and not _is_plain(inputs, values):
        return None
    try:
        budget.spend(_folded_bytes(node.op_type, inputs, values), node)
        return np.asarray(rule(inputs, {**values, "where": label(node)} if node.op_type in _SCALED else values))
    except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadInputError(f"{label(node)}: its constant inputs do not fit it: {one_line(error)}") from None
    except MemoryError:
        raise BadInputError(f"{label(node)}: {NO_ROOM}") from None


def evaluate_node(
    node: NodeProto,
    constants: Mapping[str, Array],
    shapes: Mapping[str, tuple[int, ...]],
    opsets: Sequence[OperatorSetIdProto],
    budget: ByteBudget,
) -> dict[str, Array]:
    """Outputs of a node of constants by onnx's evaluator; {} where it fails, or the outputs, by `shapes`, exceed the budget."""
    names = [name for name in node.output if name]
    if not _known(node, constants) or node.op_type in RANDOM or any(entry.HasField("g") or entry.graphs for entry in node.attribute):
        return {}  # a loop may have no end
    if any(name not in shapes for name in names) or not budget.take(8 * sum(math.prod(shapes[name]) for name in names), LIBRARY_PART):
        return {}
    inputs = dict.fromkeys(name for name in node.input if name)
    input_tensors = [numpy_helper.from_array(np.asarray(constants[name], order="C"), name) for name in inputs]
    graph = onnx.helper.make_graph([node], "constant", [], [ValueInfoProto(name=name) for name in names], input_tensors)
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    try:
        evaluated_model = onnx_sandbox.evaluate(model, constant_bytes(model))
    except LibraryError:
        return {}
    return {entry.name: numpy_helper.to_array(entry) for entry in evaluated_model.graph.initializer}


def check_folding_budget(
    model: ModelProto, external_names: Collection[str], shapes: Mapping[str, tuple[int, ...]], budget: ByteBudget
) -> None:
    """Raise `BadInputError` before folding where the folded constants, by their shapes, exceed the budget, which is spent.

    external_names: constants beside the model's own.
    """
    kinds = {tensor.name: tensor.type.tensor_type.elem_type for tensor in (*model.graph.value_info, *model.graph.output)}
    constants = {tensor.name for tensor in model.graph.initializer} | set(external_names)
    for node in model.graph.node:
        names = [name for name in node.output if name]
        if node.op_type == "Constant" or (node.input and all(not name or name in constants for name in node.input)):
            constants.update(names)
            computed_names = [name for name in names if name in shapes and name in kinds and node.op_type not in VIEWS]
            budget.spend(sum(math.prod(shapes[name]) * item_bytes(kinds[name]) for name in computed_names), node)


def _known(node: NodeProto, constants: Mapping[str, Array]) -> bool:
    return bool(node.input) and all(not name or name in constants for name in node.input)


def _folded_bytes(op_type: str, inputs: list[Array], values: Mapping[str, Any]) -> int:
    """Bytes of the result of `_FOLDS`, before folding.  Views count where they may be copied later."""
    size = inputs[0].itemsize
    if op_type == "ConstantOfShape":
        return math.prod(int(d) for d in inputs[0]) * (item_bytes(values["value"].data_type) if "value" in values else 4)
    if op_type == "Cast":
        return inputs[0].size * item_bytes(values["to"])
    if op_type == "Gather":
        return inputs[0].size // max(1, inputs[0].shape[values.get("axis", 0)]) * inputs[1].size * size
    if op_type == "Expand":
        return math.prod(np.broadcast_shapes(inputs[0].shape, tuple(int(d) for d in inputs[1]))) * size
    if op_type in ("Mul", "Add"):
        return math.prod(np.broadcast_shapes(inputs[0].shape, inputs[1].shape)) * size
    if op_type in _SCALED:
        return inputs[0].size * 4
    if op_type == "Concat":
        return sum(array.size for array in inputs) * size
    return 0 if inputs[0].flags.c_contiguous else inputs[0].size * size


def _axes(inputs: list[Array], values: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(a) for a in (inputs[1] if len(inputs) > 1 else values.get("axes", ())))


def _filled(inputs: list[Array], values: Mapping[str, Any]) -> Array:
    fill = numpy_helper.to_array(values["value"]).reshape(-1)[0] if "value" in values else np.float32(0)
    return np.full(tuple(int(d) for d in inputs[0]), fill)


def _is_plain(inputs: list[Array], values: Mapping[str, Any]) -> bool:
    """Whether a conversion is between float32 and integers of 8 bits, or int32 of a bias, by positive scales of float32."""
    kinds = {array.dtype.name for array in (inputs[0], *inputs[2:])} - {"float32"}
    has_float_scales = inputs[1].dtype == np.float32 and not (inputs[1] <= 0).any()
    return kinds <= {"int8", "uint8", "int32"} and has_float_scales and not values.get("block_size", 0)


def _quantisation(inputs: list[Array], values: Mapping[str, Any], dtype: Any) -> Quantisation:
    axis = None if inputs[1].size == 1 and inputs[-1].size == 1 else int(values.get("axis", 1))
    return Quantisation.of(inputs[1], inputs[2] if len(inputs) > 2 else None, dtype, inputs[0].shape, axis, values["where"])


_SCALED = frozenset({"DequantizeLinear", "QuantizeLinear"})
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
    "DequantizeLinear": lambda x, v: linear.dequantize(x[0], _quantisation(x, v, x[0].dtype)),
    "QuantizeLinear": lambda x, v: linear.quantize(x[0], _quantisation(x, v, x[2].dtype if len(x) > 2 else np.uint8)),
}
