"""Multiply-accumulates of ONNX nodes: of every matrix product and convolution, without padding or bias; nothing else counts.

Which operators are products and how theirs are counted is data: `RULES`, by domain and operator.  An operator that is not there, or a
product whose shapes are not known, has nobody knows how many (None), which is not the same as none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from onnx import ModelProto, NodeProto

from compiler.frontend.attributes import attributes
from compiler.frontend.settle import known_shapes

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
    bodies = [item.g for item in node.attribute if item.HasField("g")]
    if domain or node.op_type not in _REPEATED or not bodies:
        return None
    inside = [_total(node_macs(item, {**shapes, **known_shapes(ModelProto(graph=g))}) for item in g.node) for g in bodies]
    if len(set(inside)) > 1 or inside[0] is None:  # an If decides at run time
        return None
    try:
        return inside[0] * _REPEATED[node.op_type](node, shapes) if inside[0] else 0
    except LookupError:
        return None


def model_macs(model: ModelProto) -> int | None:
    """Of a model whose shapes are inferred; None where some node's cannot be counted."""
    shapes = known_shapes(model)
    return _total(node_macs(node, shapes) for node in model.graph.node)


def _total(macs: Iterable[int | None]) -> int | None:
    found = list(macs)
    return None if None in found else sum(count for count in found if count is not None)


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
        dims, (before, _, behind) = shapes[name], term.partition("...")
        if len(before) + len(behind) > len(dims):
            raise LookupError(term)
        middle = len(dims) - len(before) - len(behind)
        # the axes behind the dots are counted from the last one, as they are broadcast
        indices = [*before, *(f".{k}" for k in reversed(range(middle))), *behind]
        for index, size in zip(indices, dims, strict=True):
            sizes[index] = max(sizes.get(index, 1), size)
    return (len(terms) - 1) * math.prod(sizes.values())


def _affine_grid(node: NodeProto, shapes: Shapes) -> int:
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]


def _scans(node: NodeProto, shapes: Shapes) -> int:
    """How often the body of a Scan runs."""
    values = attributes(node)
    axis = values.get("scan_input_axes", [0])[0]
    return shapes[node.input[len(node.input) - int(values["num_scan_inputs"])]][axis]


def _once(node: NodeProto, shapes: Shapes) -> int:
    return 1


def _unknown(node: NodeProto, shapes: Shapes) -> int:
    raise LookupError(node.op_type)


# how often a body runs that has products; a Loop ends when it likes
_REPEATED: dict[str, Rule] = {"If": _once, "Loop": _unknown, "Scan": _scans, "SequenceMap": _unknown}

_PRODUCTS: dict[tuple[str, str], Rule] = {
    ("", "AffineGrid"): _affine_grid,
    ("", "Attention"): _attention,
    ("", "CausalConvWithState"): _conv(1),
    ("", "Conv"): _conv(1),
    ("", "ConvInteger"): _conv(1),
    ("", "ConvTranspose"): _transposed_conv,
    ("", "DeformConv"): _conv(1),
    ("", "Einsum"): _einsum,
    ("", "GRU"): _recurrent,
    ("", "Gemm"): _product,
    ("", "LSTM"): _recurrent,
    ("", "MatMul"): _product,
    ("", "MatMulInteger"): _product,
    ("", "QLinearConv"): _conv(3),
    ("", "QLinearMatMul"): _product,
    ("", "RNN"): _recurrent,
    ("com.microsoft", "DynamicQuantizeMatMul"): _product,
    ("com.microsoft", "FusedConv"): _conv(1),
    ("com.microsoft", "FusedGemm"): _product,
    ("com.microsoft", "FusedMatMul"): _product,
    ("com.microsoft", "MatMulIntegerToFloat"): _product,
    ("com.microsoft", "MatMulNBits"): _product,
    ("com.microsoft", "QGemm"): _product,
}
# element by element, reductions, windows without weights, what moves values and what makes them
_NO_PRODUCTS = {
    "": """
        Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Bernoulli BitCast BitShift BitwiseAnd
        BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Cast CastLike Ceil Celu CenterCropPad Clip Col2Im Compress Concat
        ConcatFromSequence Constant ConstantOfShape Cos Cosh CumProd CumSum DepthToSpace DequantizeLinear Div Dropout
        DynamicQuantizeLinear Elu Equal Erf Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Gelu GlobalAveragePool
        GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish
        Hardmax Identity ImageDecoder InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax
        LpNormalization LpPool Max MaxPool MaxRoiPool MaxUnpool Mean MeanVarianceNormalization MelWeightMatrix Min Mish Mod Mul
        Multinomial Neg NegativeLogLikelihoodLoss NonMaxSuppression NonZero Not OneHot Optional OptionalGetElement OptionalHasElement Or
        PRelu Pad Pow QuantizeLinear RMSNormalization RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal
        ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
        RegexFullMatch Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding Round Scatter ScatterElements ScatterND Selu
        SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Shrink Sigmoid Sign Sin Sinh Size
        Slice Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split SplitToSequence Sqrt Squeeze StringConcat
        StringNormalizer StringSplit Sub Sum Swish Tan Tanh TensorScatter TfIdfVectorizer ThresholdedRelu Tile TopK Transpose Trilu
        Unique Unsqueeze Upsample Where Xor
    """,
    "com.microsoft": """
        BiasGelu BiasSplitGelu DequantizeLinear FastGelu Gelu GroupNorm QLinearAdd QLinearAveragePool QLinearConcat
        QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere QuantizeLinear
        QuickGelu SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization
    """,
}


def _nothing(node: NodeProto, shapes: Shapes) -> int:
    return 0


RULES: dict[tuple[str, str], Rule] = _PRODUCTS | {
    (domain, name): _nothing for domain, names in _NO_PRODUCTS.items() for name in names.split()
}
