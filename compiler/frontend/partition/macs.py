"""Multiply-accumulates (MACs) of ONNX nodes: of matrix products and convolutions, without padding and bias.

`RULES` counts them by domain and operator; other operators of onnx have 0.  The number is None (unknown) for operators that are not in
the table, and for products of unknown shapes.

An unknown operator makes the share of the NPU unknown, not 0, because a custom layer could be the heaviest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import onnx
from onnx import ModelProto, NodeProto

from compiler.frontend.onnx_io.attributes import attributes, known_shapes
from compiler.frontend.onnx_io.scales import MS
from compiler.frontend.onnx_io.shape_inference import STAND_INS

Shapes = Mapping[str, tuple[int, ...]]
Rule = Callable[[NodeProto, Shapes], int]  # raises LookupError for an unknown shape


def node_macs(node: NodeProto, shapes: Shapes) -> int | None:
    """MACs of a node; None where they are unknown."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    rule = RULES.get((domain, node.op_type))
    if rule is not None:
        try:
            return rule(node, shapes)
        except LookupError:
            return None
    bodies = [inner_node.g for inner_node in node.attribute if inner_node.HasField("g")]
    if domain or node.op_type not in _REPEATED or not bodies:
        return None
    body_macs = [_total(node_macs(inner_node, {**shapes, **known_shapes(g)}) for inner_node in g.node) for g in bodies]
    if len(set(body_macs)) > 1 or body_macs[0] is None:  # an If decides at run time
        return None
    try:
        return body_macs[0] * _REPEATED[node.op_type](node, shapes) if body_macs[0] else 0
    except LookupError:
        return None


def model_macs(model: ModelProto) -> int | None:
    """MACs of a model with inferred shapes; None where those of a node are unknown."""
    shapes = known_shapes(model.graph)
    return _total(node_macs(node, shapes) for node in model.graph.node)


def _total(macs: Iterable[int | None]) -> int | None:
    counts = list(macs)
    return None if None in counts else sum(count for count in counts if count is not None)


def _conv(weights: int) -> Rule:
    """Rule of a convolution.  weights: index of the input [c_out, c_in / group, kh, kw]."""
    return lambda node, shapes: math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[weights]][1:])


def _transposed_conv(node: NodeProto, shapes: Shapes) -> int:
    """MACs of a transposed convolution with weights [c_in, c_out / group, kh, kw]: one kernel per input value."""
    return math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])


def _product(node: NodeProto, shapes: Shapes) -> int:
    a = shapes[node.input[0]]
    return math.prod(shapes[node.output[0]]) * a[-2 if attributes(node).get("transA") else -1]


def _recurrent(node: NodeProto, shapes: Shapes) -> int:
    """MACs of an RNN: input [steps, batch, size] or [batch, steps, size]; weights [directions, gates * hidden, size | hidden]."""
    return math.prod(shapes[node.input[0]][:2]) * sum(math.prod(shapes[node.input[i]]) for i in (1, 2))


def _attention(node: NodeProto, shapes: Shapes) -> int:
    """MACs of attention: each value of q and of the output times the number of positions, past ones included."""
    past = node.input[4] if len(node.input) > 4 else ""
    positions = shapes[node.input[1]][-2] + (shapes[past][-2] if past else 0)
    return positions * (math.prod(shapes[node.input[0]]) + math.prod(shapes[node.output[0]]))


def _einsum(node: NodeProto, shapes: Shapes) -> int:
    """MACs of an Einsum: the number of index combinations, times the number of operands minus 1."""
    terms = attributes(node)["equation"].replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    if len(terms) != len(node.input):
        raise LookupError(node.op_type)
    for term, name in zip(terms, node.input, strict=True):
        dims, (leading, _, trailing) = shapes[name], term.partition("...")
        if len(leading) + len(trailing) > len(dims):
            raise LookupError(term)
        middle = len(dims) - len(leading) - len(trailing)
        # axes of the dots are numbered from the last one, as in broadcasting
        indices = [*leading, *(f".{k}" for k in reversed(range(middle))), *trailing]
        for index, size in zip(indices, dims, strict=True):
            sizes[index] = max(sizes.get(index, 1), size)
    return (len(terms) - 1) * math.prod(sizes.values())


def _scans(node: NodeProto, shapes: Shapes) -> int:
    """Number of iterations of a Scan."""
    values = attributes(node)
    axis = values.get("scan_input_axes", [0])[0]
    return shapes[node.input[len(node.input) - int(values["num_scan_inputs"])]][axis]


def _unknown(node: NodeProto, shapes: Shapes) -> int:
    raise LookupError(node.op_type)


# iterations of a body with products; those of a Loop are unknown
_REPEATED: dict[str, Rule] = {"If": lambda *_: 1, "Loop": _unknown, "Scan": _scans, "SequenceMap": _unknown}


def _nothing(node: NodeProto, shapes: Shapes) -> int:
    return 0


_LOOKED_THROUGH = 28  # last opset that was checked: its new operators are no products, except those of the tables below
_UNCOUNTED = frozenset({"DFT", "Det", "Inverse", "LinearAttention", "STFT", "SwiGLU", *_REPEATED})
_PRODUCTS: dict[str, Rule] = {
    "AffineGrid": lambda node, shapes: math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1],
    "Attention": _attention, "CausalConvWithState": _conv(1), "Conv": _conv(1), "ConvInteger": _conv(1), "ConvTranspose": _transposed_conv,
    "DeformConv": _conv(1), "Einsum": _einsum, "GRU": _recurrent, "Gemm": _product, "LSTM": _recurrent, "MatMul": _product,
    "MatMulInteger": _product, "QLinearConv": _conv(3), "QLinearMatMul": _product, "RNN": _recurrent,
}  # fmt: skip
_OF_RUNTIME: dict[str, Rule] = {"MatMulIntegerToFloat": _product, "MatMulNBits": _product} | dict.fromkeys(
    ("BiasSplitGelu", "DequantizeLinear", "QLinearReduceMean", "QLinearWhere", "QuantizeLinear", "SimplifiedLayerNormalization"), _nothing
)
_OF_ONNX = {
    schema.name: _PRODUCTS.get(schema.name, _nothing)
    for schema in onnx.defs.get_all_schemas_with_history()
    if not schema.domain and schema.since_version <= _LOOKED_THROUGH and schema.name not in _UNCOUNTED
}
RULES: dict[tuple[str, str], Rule] = {("", name): rule for name, rule in _OF_ONNX.items()} | {
    (MS, name): rule
    for name, rule in (_OF_RUNTIME | {op: _OF_ONNX[like] for (domain, op), (like, _) in STAND_INS.items() if domain}).items()
    if name not in _UNCOUNTED
}
