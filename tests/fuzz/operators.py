"""How each operator is drawn: a table, name -> what adds a node of it to a graph that is there already."""

from __future__ import annotations

from functools import cache

import numpy as np

from tests.fuzz import functions, products
from tests.fuzz.builder import OPSETS, GraphBuilder, schema_of
from tests.fuzz.functions import Draw, function, reduction
from tests.fuzz.views import VIEWS, draw_pad

OPERATORS: dict[str, Draw] = {
    **dict.fromkeys(("Abs", "Dropout", "Erf", "Identity", "HardSwish", "Mish", "Neg", "Relu", "Softplus", "Softsign", "Tanh"), function()),
    **dict.fromkeys(("Celu", "Elu"), function(alpha=(0.5, 2.0))),
    "Exp": function(high=4.0),
    "Gelu": function(approximate=("none", "tanh")),
    "HardSigmoid": function(alpha=(0.2, 0.5), beta=(0.5, 0.3)),
    "LeakyRelu": function(alpha=(0.1, 0.3)),
    "Log": function(0.1),
    "Reciprocal": function(0.2),
    "Selu": function(alpha=(1.5,), gamma=(1.2,)),
    "Sigmoid": function(),
    "Sqrt": function(0.05),
    "Swish": function(alpha=(0.5, 2.0)),
    **dict.fromkeys(("Add", "Sub", "Mul"), functions.draw_two),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), functions.draw_several),
    "Div": functions.draw_quotient,
    "Pow": functions.draw_power,
    "Clip": functions.draw_clip,
    "PRelu": functions.draw_prelu,
    "Cast": functions.draw_cast,
    "Where": functions.draw_where,
    **VIEWS,
    "Pad": draw_pad,
    "MatMul": products.draw_matmul,
    "Gemm": products.draw_gemm,
    **dict.fromkeys(("Conv", "ConvTranspose"), products.draw_conv),
    **dict.fromkeys(("AveragePool", "MaxPool"), products.draw_pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), products.draw_global_pool),
    **dict.fromkeys(("Resize", "Upsample"), products.draw_resize),
    "DepthToSpace": products.draw_depth_to_space,
    "SpaceToDepth": products.draw_space_to_depth,
    "Einsum": products.draw_einsum,
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare"), reduction()),
    "ReduceLogSum": reduction(0.1),
    "Softmax": functions.draw_softmax,
    "LayerNormalization": functions.draw_layer_norm,
    "RMSNormalization": functions.draw_rms_norm,
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), functions.draw_image_norm),
    "BatchNormalization": functions.draw_batch_norm,
    "LRN": functions.draw_lrn,
}
# drawn more often than others: products, sums, what is positive at 0
WEIGHTS = {
    "MatMul": 9, "Conv": 4, "Add": 2, "Mul": 2, "Sub": 2, "Sigmoid": 2, "Exp": 2, "Softplus": 2, "Clip": 2, "Softmax": 2, "Gemm": 2,
    "Expand": 0.3,
}  # fmt: skip


@cache
def _rarity(op: str) -> float:
    """So that what few opsets have is drawn as often as others."""
    return len(OPSETS) / sum(schema_of(op, opset) is not None for opset in OPSETS)


def draw_operator(b: GraphBuilder) -> None:
    """One of the table, or one of the views."""
    names = [name for name in (VIEWS if b.chance(b.views) else OPERATORS) if schema_of(name, b.opset) is not None]
    weights = np.array([WEIGHTS.get(name, 1.0) * _rarity(name) for name in names])
    op = names[int(b.rng.choice(len(names), p=weights / weights.sum()))]
    OPERATORS[op](b, op)
