"""How operators on integers are drawn: those of QOperator models, and integers of sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.fuzz.builder import MS, SIZES
from tests.fuzz.quantised import QuantisedBuilder

DrawIntegers = Callable[[QuantisedBuilder, str], object]


def draw_pair(b: QuantisedBuilder, op: str) -> None:
    """Integers and floats again."""
    b.dequantize(b.quantize(b.pick()))


def draw_qlinear_conv(b: QuantisedBuilder, op: str) -> None:
    q = b.quantize(b.pick_rank(3, 4))
    _, c, *spatial = b.values[q].shape
    kernel, out = [b.integer(1, min(3, size)) for size in spatial], int(b.choose(SIZES))
    groups = c if b.chance(0.2) else 1
    weights = b.rng.standard_normal((groups if groups > 1 else out, c // groups, *kernel)).astype(np.float32)
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    attributes |= b.draw_some(pads=([b.integer(0, k - 1) for k in kernel * 2],), strides=([2] * len(kernel),))
    b.dequantize(b.product(op, q, weights, "Conv", **attributes, **({"group": groups} if groups > 1 else {})))


def draw_qlinear_matmul(b: QuantisedBuilder, op: str) -> None:
    q = b.quantize(b.pick_rank(2, 3, 4))
    k = b.values[q].shape[-1]
    b.dequantize(b.product(op, q, b.rng.standard_normal((k, int(b.choose(SIZES)))).astype(np.float32), "MatMul"))


def draw_qgemm(b: QuantisedBuilder, op: str) -> None:
    q = b.quantize(b.pick_rank(2))
    k, n = b.values[q].shape[-1], int(b.choose(SIZES))
    turned = b.chance(0.5)
    weights = b.rng.standard_normal((n, k) if turned else (k, n)).astype(np.float32)
    b.dequantize(b.product("QGemm", q, weights, "Gemm", MS, alpha=1.0, **({"transB": 1} if turned else {})))


def draw_integer_product(b: QuantisedBuilder, op: str) -> None:
    """Sums of integers, as floats in a scale; the integers' own is a constant, or computed at run time."""
    x = b.pick_rank(3, 4) if op == "ConvInteger" else b.pick_rank(2, 3)
    shape, dynamic = b.shape(x), b.chance(0.5)
    if dynamic:
        q, scale, zero = b.add("DynamicQuantizeLinear", [x], 3, most=np.inf)
        b.pool.remove(scale)
    else:
        q = b.quantize(x)
        scale, zero = b.scales[q].scale, b.scales[q].zero
    dtype, out = np.int8 if b.chance(0.6) else np.uint8, int(b.choose(SIZES))
    kernel = [b.integer(1, min(3, size)) for size in shape[2:]]
    of_weights = (out, shape[1], *kernel) if op == "ConvInteger" else (shape[-1], out)
    limits = np.iinfo(dtype)
    weights = b.constant(b.rng.integers(limits.min, limits.max + 1, of_weights).astype(dtype))
    zeros = [zero, *([b.constant(np.array(0 if dtype is np.int8 else 128, dtype))] if b.chance(0.7) else [])]
    (sums,) = b.add(op, [q, weights, *zeros], **({"kernel_shape": kernel} if op == "ConvInteger" else {}))
    (floats,) = b.add("Cast", [sums], most=np.inf, to=TensorProto.FLOAT)
    b.pool.remove(floats)
    most = float(np.abs(b.values[floats]).max(initial=1.0)) * float(b.values[scale])
    (factor,) = b.add("Mul", [scale, b.constant(np.array(np.float16(2 / max(most, 0.1)), np.float32))], most=np.inf)
    b.pool.remove(factor)
    b.add("Mul", [floats, factor])


def linear(floats: str, count: int = 1, ranks: tuple[int, ...] = (1, 2, 3, 4, 5), **attributes: Any) -> DrawIntegers:
    """An operator of `MS` that does to integers what `floats` does to floats."""

    def draw(b: QuantisedBuilder, op: str) -> None:
        x = b.pick_rank(*ranks)
        shape = b.shape(x)
        others = [b.pick(lambda name: b.shape(name) == shape) for _ in range(count - 1)]
        inputs = [b.quantize(name) for name in (x, *others)]
        more = dict(attributes)
        if floats == "Softmax":
            more |= {"axis": -1, "opset": b.opset}
        if floats == "Concat":
            more |= {"axis": 1}
        if floats == "AveragePool":
            more |= {"kernel_shape": [b.integer(1, min(3, size)) for size in shape[2:]]}
        b.dequantize(b.linear(op.removeprefix(f"{MS}."), inputs, floats, **more))

    return draw


INTEGER_OPERATORS: dict[str, DrawIntegers] = {
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), draw_pair),
    "QLinearConv": draw_qlinear_conv,
    "QLinearMatMul": draw_qlinear_matmul,
    "com.microsoft.QGemm": draw_qgemm,
    **dict.fromkeys(("ConvInteger", "MatMulInteger"), draw_integer_product),
    "com.microsoft.QLinearAdd": linear("Add", 2),
    "com.microsoft.QLinearMul": linear("Mul", 2),
    "com.microsoft.QLinearConcat": linear("Concat", 2, (2, 3, 4)),
    "com.microsoft.QLinearSigmoid": linear("Sigmoid"),
    "com.microsoft.QLinearLeakyRelu": linear("LeakyRelu", alpha=0.1),
    "com.microsoft.QLinearSoftmax": linear("Softmax", 1, (2, 3, 4)),
    "com.microsoft.QLinearAveragePool": linear("AveragePool", 1, (4,)),
    "com.microsoft.QLinearGlobalAveragePool": linear("GlobalAveragePool", 1, (4,)),
}
