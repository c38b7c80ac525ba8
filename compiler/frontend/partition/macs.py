"""Multiply-accumulates of ONNX nodes: of every matrix product and convolution, without padding or bias; nothing else counts.

How those of products are counted is data: `RULES`, by domain and operator; other operators of onnx have none.  Of an operator that is not
there, or a product whose shapes are not known, nobody knows how many (None), which is not the same as none.
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
Rule = Callable[[NodeProto, Shapes], int]  # raises LookupError where a shape is not known


def node_macs(node: NodeProto, shapes: Shapes) -> int | None:
    """None where they cannot be counted."""
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
    """Of a model whose shapes are inferred; None where some node's cannot be counted."""
    shapes = known_shapes(model.graph)
    return _total(node_macs(node, shapes) for node in model.graph.node)


def _total(macs: Iterable[int | None]) -> int | None:
    counts = list(macs)
    return None if None in counts else sum(count for count in counts if count is not None)


def _conv(weights: int) -> Rule:
    """weights: which input they are; [c_out, c_in / group, kh, kw]."""
    return lambda node, shapes: math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[weights]][1:])


def _transposed_conv(node: NodeProto, shapes: Shapes) -> int:
    """Every value goes into a window of each of its group's outputs: weights [c_in, c_out / group, kh, kw]."""
    return math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])


def _product(node: NodeProto, shapes: Shapes) -> int:
    a = shapes[node.input[0]]
    return math.prod(shapes[node.output[0]]) * a[-2 if attributes(node).get("transA") else -1]


def _recurrent(node: NodeProto, shapes: Shapes) -> int:
    """Input [steps, batch, size] or [batch, steps, size]; weights [directions, gates * hidden, size | hidden]."""
    return math.prod(shapes[node.input[0]][:2]) * sum(math.prod(shapes[node.input[i]]) for i in (1, 2))


def _attention(node: NodeProto, shapes: Shapes) -> int:
    """Queries by keys and weights by values: each value of q and of the output meets every position, those of the past as well."""
    past = node.input[4] if len(node.input) > 4 else ""
    positions = shapes[node.input[1]][-2] + (shapes[past][-2] if past else 0)
    return positions * (math.prod(shapes[node.input[0]]) + math.prod(shapes[node.output[0]]))


def _einsum(node: NodeProto, shapes: Shapes) -> int:
    """Every combination of indices, once for each product between operands."""
    terms = attributes(node)["equation"].replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    if len(terms) != len(node.input):
        raise LookupError(node.op_type)
    for term, name in zip(terms, node.input, strict=True):
        dims, (leading, _, trailing) = shapes[name], term.partition("...")
        if len(leading) + len(trailing) > len(dims):
            raise LookupError(term)
        middle = len(dims) - len(leading) - len(trailing)
        # the axes behind the dots are counted from the last one, as they are broadcast
        indices = [*leading, *(f".{k}" for k in reversed(range(middle))), *trailing]
        for index, size in zip(indices, dims, strict=True):
            sizes[index] = max(sizes.get(index, 1), size)
    return (len(terms) - 1) * math.prod(sizes.values())


def _scans(node: NodeProto, shapes: Shapes) -> int:
    """How often the body of a Scan runs."""
    values = attributes(node)
    axis = values.get("scan_input_axes", [0])[0]
    return shapes[node.input[len(node.input) - int(values["num_scan_inputs"])]][axis]


def _unknown(node: NodeProto, shapes: Shapes) -> int:
    raise LookupError(node.op_type)


# how often a body runs that has products; a Loop ends when it likes
_REPEATED: dict[str, Rule] = {"If": lambda *_: 1, "Loop": _unknown, "Scan": _scans, "SequenceMap": _unknown}


def _nothing(node: NodeProto, shapes: Shapes) -> int:
    return 0


_LOOKED_THROUGH = 28  # the last opset whose new operators are known to be no products, but for these two tables
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
