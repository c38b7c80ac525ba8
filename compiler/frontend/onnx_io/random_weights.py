"""Seeded random weights for models without trained weights.

The light networks that ship with onnx have constant weights: every channel computes the same.  `seed_weights` draws new ones
such that values stay near 1 through the whole network in float16: moments (mean, variance) of each tensor are followed analytically, and
each weight's variance is 1 / (fan-in x second moment of its input).  For zero-mean weights that is exact in expectation,
whatever the input's mean (He et al. 2015, eq. 9), and residual sums need no further damping: the next layer divides by what they grew to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from compiler.frontend.onnx_io.attributes import attributes
from compiler.frontend.onnx_io.large_constants import LARGE, NO_DATA, ModelWithoutWeights
from compiler.frontend.onnx_io.memory_budget import ByteBudget
from compiler.frontend.onnx_io.protobuf_wire import Data
from simulator.onnx_kinds import ON_NPU
from simulator.onnx_names import refill

LOGITS_STD = 2.0  # standard deviation of the last product: softmax then covers tens of classes without saturating
BIAS_STD = 0.05  # standard deviation of biases
_IN_CACHE = 1 << 15  # values that are drawn, scaled and shifted while in the cache


@dataclass(frozen=True)
class _Moments:
    mean: float
    variance: float

    @property
    def second(self) -> float:
        return self.mean**2 + self.variance


_UNIT = _Moments(0.0, 1.0)


def seed_weights(model: ModelProto, seed: int) -> ModelProto:
    """Model from `draw_weights`, with all weights inside."""
    return draw_weights(ModelWithoutWeights(model, NO_DATA), seed).filled()


def draw_weights(original: ModelWithoutWeights, seed: int) -> ModelWithoutWeights:
    """Copy whose float weights (initialisers and ConstantOfShape outputs that feed an operator with weights) are drawn from `seed`.

    Names, shapes and nodes stay, except ConstantOfShape nodes that become initialisers.  The same model and seed give the same bytes.
    Raises `BadInputError` where the weights exceed the model's budget.
    """
    copy = deepcopy(original.model)
    constants = {tensor.name: tuple(int(d) for d in tensor.dims) for tensor in copy.graph.initializer if tensor.data_type in ON_NPU}
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in copy.graph.initializer if tensor.data_type == onnx.TensorProto.INT64}
    fillers: dict[str, int] = {}  # their types
    budget = ByteBudget.of(copy)
    for node in copy.graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            value = attributes(node).get("value")
            if value is None or value.data_type in ON_NPU:
                constants[node.output[0]] = tuple(int(d) for d in shapes[node.input[0]])
                fillers[node.output[0]] = onnx.TensorProto.FLOAT if value is None else value.data_type
                budget.spend(4 * math.prod(constants[node.output[0]]), node)
    items = (*copy.graph.input, *copy.graph.value_info, *copy.graph.output)
    sizes = {tensor.name: tuple(int(d.dim_value) for d in tensor.type.tensor_type.shape.dim) for tensor in items}
    logits = next((node.output[0] for node in reversed(copy.graph.node) if node.op_type in ("Conv", "Gemm", "MatMul")), "")
    replacing = _Replacing(copy, fillers)
    drawer = _Drawer(np.random.default_rng(seed), constants, shapes, logits, sizes, replacing)
    for node in copy.graph.node:
        drawer.visit(node)
    replacing.finish()
    return ModelWithoutWeights(copy, {**original.data, **replacing.data})


class _Replacing:
    """Replacement of weights by drawn ones.  fillers: ConstantOfShape output -> type.  data: raw data of large weights."""

    def __init__(self, model: ModelProto, fillers: dict[str, int]) -> None:
        self.graph, self.fillers = model.graph, fillers
        self.model = model
        self.given = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name not in fillers}
        self.names: set[str] = set()
        self.data: dict[str, Data] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def add(self, name: str, values: NDArray[np.float32]) -> None:
        self.names.add(name)
        tensor = self.graph.initializer.add() if name in self.fillers else self.given[name]
        kind = self.fillers.get(name, tensor.data_type)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)).newbyteorder("<")
        data = values.astype(dtype, copy=False).reshape(-1).view(np.uint8).data
        # as numpy_helper.from_array, without a copy of the message
        tensor.Clear()
        tensor.name = name
        tensor.data_type = kind
        tensor.dims.extend(values.shape)
        if values.size < LARGE:
            tensor.raw_data = data.tobytes()
        else:
            self.data[name] = data.toreadonly()

    def finish(self) -> None:
        """Turn drawn fillers from nodes into initialisers, after the others, in the order of their names."""
        names = self.fillers.keys() & self.names
        self.graph.initializer.sort(key=lambda tensor: tensor.name if tensor.name in names else "")
        refill(self.graph.node, (node for node in self.graph.node if node.op_type != "ConstantOfShape" or node.output[0] not in names))
        self.model.ir_version = max(self.model.ir_version, 4)  # initialisers that are no inputs


class _Drawer:
    """Walk over the nodes in order, with the `moments` of visited tensors; `drawn` collects the new weights."""

    def __init__(
        self,
        rng: np.random.Generator,
        constants: dict[str, tuple[int, ...]],
        targets: dict[str, NDArray[np.int64]],
        logits: str,
        sizes: dict[str, tuple[int, ...]],
        drawn: _Replacing,
    ) -> None:
        self.rng = rng
        self.sizes = sizes  # shapes of computed tensors
        self.numbers: dict[str, float] = {}  # values of Constant nodes: they belong to the architecture and stay
        self.targets = targets  # constant shapes that Reshape takes
        self.reshaped: dict[str, tuple[int, ...]] = {}
        self.constants = constants
        self.logits = logits
        self.drawn = drawn
        self.alias: dict[str, str] = {}  # a relabelled constant -> the constant
        self.moments: dict[str, _Moments] = {}
        self.sigmoid_of: dict[str, str] = {}

    def constant(self, name: str) -> str | None:
        name = self.alias.get(name, name)
        return name if name in self.constants else None

    def draw(self, name: str, mean: float, std: float, least: float = -math.inf) -> None:
        if name not in self.drawn:
            # uniform in [-sqrt 3, sqrt 3) has variance 1, and is drawn several times faster than normal values: VGG has 144 million
            values = np.empty(self.constants[name], np.float32)
            width = std * math.sqrt(12)
            for part in np.split(flat := values.reshape(-1), range(_IN_CACHE, flat.size, _IN_CACHE)):
                self.rng.random(out=part, dtype=np.float32)
                part *= np.float32(width)
                part += np.float32(mean - width / 2)
                if mean - width / 2 < least:
                    np.maximum(part, np.float32(least), out=part)
            self.drawn.add(name, values)

    def of(self, name: str) -> _Moments:
        return self.moments.get(name, _UNIT)

    def visit(self, node: NodeProto) -> None:
        op = node.op_type
        out = node.output[0] if node.output else ""
        inputs = list(node.input)
        if op in ("Conv", "Gemm", "MatMul"):
            self.moments[out] = self._product(node)
        elif op == "BatchNormalization":
            self.moments[out] = self._batch_norm(node)
        elif op in ("GroupNormalization", "InstanceNormalization", "LayerNormalization"):
            for name, mean in zip(inputs[1:], (1.0, 0.0), strict=False):
                if self.constant(name) is not None:
                    self.draw(name, mean, 0.1)
            self.moments[out] = _UNIT
        elif op == "Gather" and self.constant(inputs[0]) is not None:
            self.draw(inputs[0], 0.0, 1.0)
            self.moments[out] = _UNIT
        elif op == "Constant":
            value = attributes(node).get("value")
            if value is not None and math.prod(value.dims) == 1:
                self.numbers[out] = float(numpy_helper.to_array(value).reshape(()))
        elif op == "Softmax":
            length = max(1, self.sizes.get(out, (1,))[int(attributes(node).get("axis", -1))])
            # E[exp(x)^2] / E[exp(x)]^2 of a normal x is exp(variance), and at most one value is 1
            spread = math.exp(min(self.of(inputs[0]).variance, math.log(length)))
            self.moments[out] = _Moments(1 / length, max((spread - 1) / length**2, 1e-12))
        elif op in _CURVES:
            low, high = (self.numbers.get(name, bound) for name, bound in zip([*inputs[1:3], "", ""], (-math.inf, math.inf), strict=False))
            self.moments[out] = _moments_of_function(op, self.of(inputs[0]), low, high)
            if op == "Sigmoid":
                self.sigmoid_of[out] = inputs[0]
        elif op in ("Mul", "Add", "Sub", "Div", "Sum"):
            self.moments[out] = self._arithmetic(op, inputs)
        elif op in ("Reshape", "Unsqueeze", "Squeeze", "Identity", "Flatten", "Dropout", "Transpose") and inputs:
            source = self.constant(inputs[0])
            if source is not None:
                self.alias[out] = source
                if op == "Reshape" and inputs[1] in self.targets:
                    self.reshaped[out] = np.empty(self.constants[source], np.bool_).reshape(self.targets[inputs[1]]).shape
            self.moments[out] = self.of(inputs[0])
        elif inputs and op != "ConstantOfShape":
            for name in inputs if op == "Concat" else ():
                if self.constant(name) is not None:
                    self.draw(name, 0.0, 0.1)
            self.moments[out] = _pointwise(op, [self.of(name) for name in inputs])

    def _product(self, node: NodeProto) -> _Moments:
        std = LOGITS_STD if node.output[0] == self.logits else 1.0
        values = attributes(node)
        weight = self.constant(node.input[1])
        if weight is None:
            # two computed tensors: a sum of products of independent values
            a, b = self.of(node.input[0]), self.of(node.input[1])
            terms = self.sizes.get(node.input[0], (1,))[-1]
            return _Moments(terms * a.mean * b.mean, max(terms * (a.second * b.second - (a.mean * b.mean) ** 2), 1e-12))
        shape = self.reshaped.get(node.input[1], self.constants[weight])
        transposed = node.op_type == "MatMul" or not values.get("transB", 0)
        fan_in = shape[0] if node.op_type != "Conv" and transposed else math.prod(shape[1:])
        scale = abs(float(values.get("alpha", 1.0))) or 1.0
        self.draw(weight, 0.0, std / (scale * math.sqrt(max(1, fan_in) * max(self.of(node.input[0]).second, 1e-6))))
        bias = self.constant(node.input[2]) if len(node.input) > 2 else None
        if bias is not None:
            self.draw(bias, 0.0, BIAS_STD)
        return _Moments(0.0, std**2)

    def _batch_norm(self, node: NodeProto) -> _Moments:
        x = self.of(node.input[0])
        scale, bias, mean, variance = (self.constant(name) for name in node.input[1:5])
        # statistics that fit the input, as training would leave them: the output is near (0, 1)
        plan = ((scale, 1.0, 0.1, 0.5), (bias, 0.0, 0.1, -math.inf), (mean, x.mean, 0.1, -math.inf))
        for name, centre, std, least in plan:
            if name is not None:
                self.draw(name, centre, std, least)
        if variance is not None:
            self.draw(variance, x.variance, 0.1 * x.variance, 0.5 * x.variance)
        return _UNIT

    def _arithmetic(self, op: str, inputs: list[str]) -> _Moments:
        tensors = [name for name in inputs if self.constant(name) is None]
        for name in inputs:
            source = self.constant(name)
            if source is not None and tensors:
                self.draw(source, *((1.0, 0.1, 0.5) if op in ("Mul", "Div") else (0.0, 0.1)))
        if op == "Mul" and any(self.sigmoid_of.get(a) == b for a, b in (inputs, inputs[::-1])):
            return _moments_of_function("Silu", self.of(next(name for name in inputs if name not in self.sigmoid_of)), -math.inf, math.inf)
        numbers = [self.numbers[name] for name in inputs if name in self.numbers]
        if numbers and len(inputs) == 2 and len(tensors) == 2:
            return _with_number(op, self.of(next((name for name in inputs if name not in self.numbers), inputs[0])), numbers[0])
        moments = [self.of(name) for name in tensors]
        if not moments or len(moments) == 1:
            return moments[0] if moments else _UNIT
        if op in ("Add", "Sum", "Sub"):
            return _Moments(sum(m.mean for m in moments), sum(m.variance for m in moments))
        return _Moments(math.prod(m.mean for m in moments), math.prod(m.second for m in moments))


def _with_number(op: str, moments: _Moments, number: float) -> _Moments:
    """Moments of a tensor op number; the sign does not matter."""
    if op in ("Mul", "Div"):
        factor = number if op == "Mul" else 1 / number
        return _Moments(moments.mean * factor, moments.variance * factor**2)
    return _Moments(moments.mean + (number if op == "Add" else -number), moments.variance)


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_CURVES: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Silu": lambda x: x / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Erf": np.vectorize(math.erf),
    "Gelu": lambda x: x * np.vectorize(math.erf)(x / math.sqrt(2)) / 2 + x / 2,
    "Elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "LeakyRelu": lambda x: np.maximum(x, 0.01 * x),
    "Softplus": lambda x: np.logaddexp(x, 0),
    "Clip": lambda x: x,
}


def _moments_of_function(op: str, moments: _Moments, low: float, high: float) -> _Moments:
    """Moments of a function of one variable, clipped to [low, high], by quadrature; the input is assumed to be normal."""
    with np.errstate(over="ignore"):  # exp may overflow; its reciprocal is then 0
        values = np.clip(_CURVES[op](moments.mean + math.sqrt(moments.variance) * _NODES), low, high)
    mean = float(values @ _WEIGHTS)
    return _Moments(mean, max(float(values**2 @ _WEIGHTS) - mean**2, 1e-6))


def _pointwise(op: str, inputs: list[_Moments]) -> _Moments:
    """Moments after an operator without weights, its input taken as normal."""
    x = inputs[0]
    if op == "Concat":
        mean = sum(m.mean for m in inputs) / len(inputs)
        return _Moments(mean, sum(m.second for m in inputs) / len(inputs) - mean**2)
    if op == "Relu":
        std = math.sqrt(x.variance) or 1e-3
        z = x.mean / std
        density, cumulative = math.exp(-z * z / 2) / math.sqrt(2 * math.pi), 0.5 * (1 + math.erf(z / math.sqrt(2)))
        mean = x.mean * cumulative + std * density
        return _Moments(mean, max((x.mean**2 + x.variance) * cumulative + x.mean * std * density - mean**2, 1e-6))
    if op == "MaxPool":
        # expected maximum of a handful of correlated values: one standard deviation up
        return _Moments(x.mean + math.sqrt(x.variance), x.variance)
    if op == "GlobalAveragePool":
        return _Moments(x.mean, x.variance / 4)
    return x
