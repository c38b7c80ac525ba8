"""Attributes, opset and shapes of a model, and checks of attribute values that the ONNX checker accepts by mistake."""

from __future__ import annotations

import math
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TypeProto

from simulator.npu.errors import BadInputError

# attribute -> least value of each of its integers
LEAST: dict[str, int] = {"strides": 1, "dilations": 1, "kernel_shape": 1, "pads": 0, "group": 1}
WINDOWED = {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"}
ONE_OF = {"auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), "ceil_mode": (0, 1), "count_include_pad": (0, 1)}
_LONG = 240  # characters of a message


Attributes = dict[str, Any]  # attributes of a node by name; absent ones are missing


def attributes(node: NodeProto) -> Attributes:
    """Attributes of a node, with strings decoded."""
    values: Attributes = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        values[attribute.name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return values


def one_line(error: BaseException | str) -> str:
    """Message without line breaks, cut to `_LONG` characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"


def opset_of(model: ModelProto) -> int:
    """Version of the default operator set."""
    return max((int(opset.version) for opset in model.opset_import if opset.domain in ("", "ai.onnx")), default=1)


def known_dims(kind: TypeProto) -> tuple[int, ...] | None:
    """Shape of a tensor; None where a dimension is unknown."""
    shape = kind.tensor_type.shape
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape") or not all(d.HasField("dim_value") for d in shape.dim):
        return None
    return tuple(int(d.dim_value) for d in shape.dim)


def known_shapes(graph: GraphProto) -> dict[str, tuple[int, ...]]:
    """Shapes of tensors by name, without those with an unknown dimension."""
    shapes = {tensor.name: tuple(int(d) for d in tensor.dims) for tensor in graph.initializer}
    typed = ((tensor.name, known_dims(tensor.type)) for tensor in (*graph.input, *graph.output, *graph.value_info))
    return shapes | {name: dims for name, dims in typed if dims is not None}


def label(node: NodeProto) -> str:
    """Label of a node in messages: operator, and its name or its first output."""
    return f"{node.op_type} {(node.name or (node.output[0] if node.output else '?'))!r}"


def check_attributes(model: ModelProto, where: str) -> None:
    """Raise BadInputError for an invalid window, group or channel count of a convolution."""
    weights = {tensor.name: tuple(int(d) for d in tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        values = attributes(node)
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value) and node.op_type not in ("Clip", "Constant"):
                raise BadInputError(f"{where}: {label(node)}: {name} {value}; a finite number is expected")
        if node.op_type in WINDOWED:
            _check_window(node, values, where)
        if node.op_type == "Conv" and len(node.input) > 1 and node.input[1] in weights:
            shape = weights[node.input[1]]
            groups = int(values.get("group", 1))
            if len(shape) < 3 or 0 in shape:
                raise BadInputError(f"{where}: {label(node)}: weights of shape {list(shape)}; expected [c_out, c_in / group, kh, kw]")
            if shape[0] % groups:
                raise BadInputError(f"{where}: {label(node)}: {shape[0]} output channels are not divisible by group {groups}")
            kernel = values.get("kernel_shape")
            if kernel is not None and tuple(kernel) != shape[2:]:
                raise BadInputError(f"{where}: {label(node)}: kernel_shape {list(kernel)} but weights of shape {list(shape)}")
        if node.op_type == "LRN" and int(values.get("size", 0)) < 1:
            raise BadInputError(f"{where}: {label(node)}: size {values.get('size')}; at least 1 is accepted")


def _check_window(node: NodeProto, values: Attributes, where: str) -> None:
    for name, least in LEAST.items():
        if name not in values:
            continue
        numbers = values[name] if isinstance(values[name], list) else [values[name]]
        for number in numbers:
            if not least <= number < 2**31:
                raise BadInputError(f"{where}: {label(node)}: {name} {values[name]}; each is at least {least} and below 2^31")
    for name, accepted in ONE_OF.items():
        if name in values and values[name] not in accepted:
            raise BadInputError(f"{where}: {label(node)}: {name} {values[name]!r}; accepted: {', '.join(map(str, accepted))}")
    lengths: dict[str, int] = {name: len(values[name]) for name in ("strides", "dilations", "kernel_shape") if name in values}
    if "pads" in values:
        if len(values["pads"]) % 2:
            raise BadInputError(f"{where}: {label(node)}: pads {values['pads']}; expected a begin and an end for each axis")
        lengths["pads"] = len(values["pads"]) // 2
    if len(set(lengths.values())) > 1:
        raise BadInputError(f"{where}: {label(node)}: {', '.join(f'{k} has {v} axes' for k, v in lengths.items())}; expected one number")
