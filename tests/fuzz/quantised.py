"""A random graph whose nodes read floats behind QuantizeLinear and DequantizeLinear, with the scales that the values have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.fuzz.builder import MS, Array, GraphBuilder

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_OF_TWO = ("Add", "Mul", "Sub", "Div", "Max", "Min")
_KEEPS_SCALE = ("Concat", "Flatten", "Gather", "MaxPool", "Relu", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")


class Scale(NamedTuple):
    """Names of the constants of integers of 8 bits, and their values."""

    scale: str
    zero: str
    factor: float
    point: int
    dtype: type


class QuantisedBuilder(GraphBuilder):
    """Most floats are read behind integers of one type; constants of products and of sums are integers."""

    def __init__(self, rng: np.random.Generator, opset: int) -> None:
        super().__init__(rng, opset)
        self.activation: type = np.uint8 if rng.integers(2) else np.int8
        self.scales: dict[str, Scale] = {}  # of integers
        self.integers: dict[str, str] = {}  # float tensor -> its integers
        self.pairs: dict[str, str] = {}  # float tensor -> its value behind both
        self.factors: dict[str, Array] = {}  # what is behind integers -> their scales
        self.sources: dict[str, str] = {}  # result of a view -> what it was made of

    def draw_scale(self, values: Array, dtype: type | None = None, symmetric: bool = False) -> Scale:
        """Of integers that hold values."""
        dtype = self.activation if dtype is None else dtype
        limits = np.iinfo(dtype)
        low, high = min(0.0, float(values.min(initial=0.0))), max(0.0, float(values.max(initial=0.0)))
        if symmetric or (dtype is np.int8 and self.chance(0.3)):
            factor, middle = max(-low, high) / 127, 0.0 if dtype is np.int8 else 128.0
        else:
            factor = (high - low) / 255
            middle = limits.min - low / factor if factor else 0.0
        factor = float(np.float16(max(factor, 1e-3)))  # of few bits: another CPU's last bits give no other graph
        point = int(np.clip(round(middle), limits.min, limits.max))
        return self.scale_of(factor, point, dtype)

    def scale_of(self, factor: float, point: int, dtype: type) -> Scale:
        return Scale(self.constant(np.array(factor, np.float32)), self.constant(np.array(point, dtype)), factor, point, dtype)

    def quantize(self, x: str) -> str:
        """Integers of a float tensor of the pool; behind a view mostly with the scale that is in front of it."""
        if x not in self.integers:
            source = self.integers.get(self.sources.get(x, ""))
            scale = self.scales[source] if source and self.chance(0.9) else self.draw_scale(self.values[x])
            (q,) = self.add("QuantizeLinear", [x, scale.scale, scale.zero])
            self.integers[x], self.scales[q] = q, scale
        return self.integers[x]

    def dequantize(self, q: str) -> str:
        scale = self.scales[q]
        (found,) = self.add("DequantizeLinear", [q, scale.scale, scale.zero])
        self.factors[found] = np.array(scale.factor)
        return found

    def split(self, op: str, inputs: Sequence[str], count: int, domain: str = "", **attributes: Any) -> list[str]:
        names = super().split(op, inputs, count, domain, **attributes)
        if op in _KEEPS_SCALE:
            self.sources |= dict.fromkeys(names, inputs[0])
        return names

    def read(self, op: str, inputs: Sequence[str]) -> list[str]:
        if op in ("QuantizeLinear", "DequantizeLinear"):
            return list(inputs)
        found = [self._behind(op, name) for name in inputs]
        if op in WEIGHTED and len(found) > 2 and found[0] in self.factors and found[1] in self.factors:
            found[2] = self._bias(inputs[2], self.factors[found[0]] * self.factors[found[1]].reshape(-1))
        return found

    def _behind(self, op: str, name: str) -> str:
        """A float tensor behind integers, or as it is: a tenth of the time, and of constants that quantisers leave as they are."""
        if name in self.pairs:
            return self.pairs[name]
        if name in self.pool and not self.chance(0.1):
            found = self.dequantize(self.quantize(name))
            self.pool.remove(found)
        elif name in self.constants and op in WEIGHTED and self.values[name].ndim > 1:
            found = self._weights(name, per_channel=op == "Conv" and self.chance(0.5))
        elif name in self.constants and op in _OF_TWO and self.chance(0.8):
            scale = self.draw_scale(self.values[name])
            found = self._constant(name, np.array(scale.factor), scale)
        else:
            return name
        self.pairs[name] = found
        return found

    def _weights(self, name: str, per_channel: bool) -> str:
        array = self.values[name]
        if not per_channel:
            scale = self.draw_scale(array, np.int8, symmetric=True)
            return self._constant(name, np.array(scale.factor), scale)
        most = np.maximum(np.abs(array.reshape(len(array), -1)).max(1), 0.1)
        factors = (most / 127).astype(np.float16).astype(np.float32)
        scale = Scale(self.constant(factors), self.constant(np.zeros(len(array), np.int8)), 0.0, 0, np.int8)
        return self._constant(name, factors.reshape(-1, *[1] * (array.ndim - 1)), scale, axis=0)

    def _constant(self, name: str, factors: Array, scale: Scale, **attributes: Any) -> str:
        limits = np.iinfo(scale.dtype)
        integers = np.clip(np.round(self.values[name] / factors) + scale.point, limits.min, limits.max).astype(scale.dtype)
        (found,) = self.add("DequantizeLinear", [self.constant(integers), scale.scale, scale.zero], **attributes)
        self.pool.remove(found)
        self.factors[found] = factors
        return found

    def _bias(self, name: str, factors: Array) -> str:
        """int32 in steps of its product's sums."""
        array = self.values[name]
        if array.ndim != 1 or factors.size not in (1, array.size):
            return name
        integers, scales = self.constant(np.round(array / factors).astype(np.int32)), self.constant(factors.astype(np.float32).squeeze())
        (found,) = self.add("DequantizeLinear", [integers, scales], **({"axis": 0} if factors.size > 1 else {}))
        self.pool.remove(found)
        return found

    # --- operators on integers -------------------------------------------------------------------------------------

    def product(self, op: str, x: str, weights: Array, floats: str, domain: str = "", **attributes: Any) -> str:
        """A node on integers x, scale, zero, weights, scale, zero, scale, zero of what `floats` makes of the values of both."""
        w = self.draw_scale(weights, np.int8 if self.chance(0.7) else np.uint8, symmetric=True)
        limits = np.iinfo(w.dtype)
        integers = self.constant(np.clip(np.round(weights / w.factor) + w.point, limits.min, limits.max).astype(w.dtype))
        made = self.probe(floats, [self.floats_of(x), weights], **{k: v for k, v in attributes.items() if k != "alpha"})
        scale, x_scale = self.draw_scale(made), self.scales[x]
        bias = [""] if op == "QGemm" else []
        given = [x, x_scale.scale, x_scale.zero, integers, w.scale, w.zero, *bias, scale.scale, scale.zero]
        (q,) = self.add(op, given, domain=domain, **attributes)
        self.scales[q] = scale
        return q

    def floats_of(self, q: str) -> Array:
        scale = self.scales[q]
        return ((self.values[q].astype(np.float32) - scale.point) * np.float32(scale.factor)).astype(np.float32)

    def probe(self, op: str, arrays: Sequence[Array], **attributes: Any) -> Array:
        """What a node would make of arrays; it is not added."""
        other = GraphBuilder(self.rng, self.opset)
        names = [other.constant(array) for array in arrays]
        return other.values[other.node(op, names, **attributes)]

    def linear(self, op: str, inputs: Sequence[str], floats: str, **attributes: Any) -> str:
        """A node of `MS` with x, scale, zero for each input, then scale and zero of the result, which `QLinearConcat` has first."""
        of_floats = {k: v for k, v in attributes.items() if k not in ("opset", "channels_last")}
        made = self.probe(floats, [self.floats_of(q) for q in inputs], **of_floats)
        scale = self.draw_scale(made)
        if op == "QLinearSoftmax":
            scale = self.scale_of(1 / 256, np.iinfo(self.activation).min, self.activation)
        parts = [name for q in inputs for name in (q, self.scales[q].scale, self.scales[q].zero)]
        ends = [scale.scale, scale.zero]
        (q,) = self.add(op, [*ends, *parts] if op == "QLinearConcat" else [*parts, *ends], domain=MS, **attributes)
        self.scales[q] = scale
        return q
