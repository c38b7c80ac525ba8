"""QuantizeLinear nodes that say the type of their integers by `output_dtype`, as opset 21 and later allow."""

from __future__ import annotations

import math

from onnx import ModelProto, helper

from compiler.frontend.attributes import attributes, known_shapes
from simulator.onnx_names import fresh_name, names_read, refill


def add_zero_points(model: ModelProto) -> None:
    """Every such node without a zero point gets a constant of zeros in that type, as many as it has scales.  `model` is changed.

    So do DequantizeLinear nodes behind it.  A node says its type by its zero point then, here and in the compiled file: onnxruntime takes
    integers without one for uint8 where it groups them, and forgets the attribute where it makes int8 uint8.  A node with a scale of
    unknown shape is left alone.
    """
    shapes, taken = known_shapes(model.graph), {*names_read(model.graph.node), *(name for node in model.graph.node for name in node.output)}
    made: dict[str, str] = {}  # integers -> their zero point
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        shape, missing = shapes.get(node.input[1]), not any(node.input[2:])
        if node.op_type == "DequantizeLinear":
            if missing and node.input[0] in made and shapes[made[node.input[0]]] == shape:
                node.input[2:] = [made[node.input[0]]]
            continue
        dtype = int(attributes(node).get("output_dtype", 0))
        if not dtype or (missing and shape is None):
            continue
        refill(node.attribute, [item for item in node.attribute if item.name != "output_dtype"])
        if missing and shape is not None:
            name = fresh_name(f"{node.output[0]}.zero_point", taken)
            taken.add(name)
            model.graph.initializer.append(helper.make_tensor(name, dtype, shape, [0] * math.prod(shape)))
            made[node.output[0]], shapes[name] = name, shape
            node.input[2:] = [name]
