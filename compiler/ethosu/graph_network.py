"""A network of the frontend's graph of integers, for a model that is no `.tflite` file.

Operators have the same scales, and TFLite's arithmetic.  Tensors of uint8 are int8 with another zero point; inputs and outputs of the model
keep their type, and an operator changes it.  Images are [1, rows, columns, channels], also where the model has channels in front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ethosu.plan_mapping import PlanNames
from compiler.frontend.tflite.network import TfliteNetwork, TfliteOperator, TfliteTensor
from compiler.ir.graph import Graph
from compiler.ir.operators import Concat, LookUp, Operator, Pool, QuantisedAverage, QuantisedConv, QuantisedPair, QuantisedSoftmax, Shape
from compiler.ir.quantised.parameters import Quantisation
from simulator.npu.errors import UnsupportedError

_MIDDLE = 128
_VALID = 1


@dataclass(eq=False)
class _Translation:
    """Tensors and operators as they grow.  numbers: of tensors by name.  names: of operators of the graph."""

    graph: Graph
    tensors: list[TfliteTensor] = field(default_factory=list)
    operators: list[TfliteOperator] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    results: dict[str, int] = field(default_factory=dict)

    def add_tensor(self, name: str, shape: Shape, quantisation: Quantisation, dtype: Any = np.int8) -> int:
        """A tensor of int8, or of the type that is given."""
        scale, zero = quantisation.single(name)
        shift = _MIDDLE * (int(quantisation.dtype == np.uint8) - int(np.dtype(dtype) == np.uint8))
        n, channels, rows, columns = shape
        ends = np.array([scale], np.float32), np.array([zero - shift], np.int64)
        self.tensors.append(TfliteTensor(name, (n, rows, columns, channels), np.dtype(dtype), *ends, 0, None))
        return len(self.tensors) - 1

    def constant(self, name: str, data: NDArray[Any], scales: NDArray[np.float32]) -> int:
        zeros = np.zeros(len(scales), np.int64)
        self.tensors.append(TfliteTensor(name, data.shape, data.dtype, scales, zeros, 0, data))
        return len(self.tensors) - 1

    def result(self, operator: Operator) -> int:
        """The tensor of an operator's result."""
        if operator.y not in self.numbers:
            self.numbers[operator.y] = self.add_tensor(operator.y, self.graph.shapes[operator.y], self.quantisation(operator.y, operator))
        return self.numbers[operator.y]

    def quantisation(self, tensor: str, operator: Operator) -> Quantisation:
        if tensor not in self.graph.types:
            raise self.refuse(operator, f"tensor {tensor!r} of floats: expected integers of 8 bits")
        return self.graph.types[tensor]

    def read(self, tensor: str, operator: Operator) -> int:
        if tensor not in self.numbers:
            raise self.refuse(operator, f"constant {tensor!r}: expected a tensor that is computed")
        return self.numbers[tensor]

    def add(self, kind: str, inputs: list[int], output: int, **options: Any) -> int:
        self.operators.append(TfliteOperator(kind, tuple(inputs), (output,), options))
        return output

    def refuse(self, operator: Operator, why: str) -> UnsupportedError:
        return UnsupportedError(f"operator {operator.name!r}: {why}")


def network_of_graph(graph: Graph) -> tuple[TfliteNetwork, PlanNames]:
    """The network, and names of its operators and tensors in plans.  Raises `UnsupportedError` with the operator."""
    state = _Translation(graph)
    inputs = []
    for port in graph.inputs:
        if port.tensor not in graph.types:
            raise UnsupportedError(f"input {port.onnx_name!r} of floats: expected integers of 8 bits")
        inputs.append(_add_input(state, port.tensor))
    for operator in graph.operators:
        rule = _RULES.get(type(operator))
        if rule is None:
            kinds = ", ".join(sorted(kind.__name__ for kind in _RULES))
            raise state.refuse(operator, f"{type(operator).__name__}: expected one of {kinds}")
        rule(state, operator)
        state.results[operator.name] = state.numbers[operator.y]
        state.names[operator.name] = len(state.operators) - 1
    outputs = [_add_output(state, port.tensor) for port in graph.outputs]
    network = TfliteNetwork(tuple(state.tensors), tuple(state.operators), tuple(inputs), tuple(outputs))
    return network, PlanNames(state.names, state.results, state.numbers)


def _add_input(state: _Translation, name: str) -> int:
    """An input in its own type, behind which there is int8."""
    quantisation, shape = state.graph.types[name], state.graph.shapes[name]
    if quantisation.dtype == np.int8:
        state.numbers[name] = state.add_tensor(name, shape, quantisation)
        return state.numbers[name]
    source = state.add_tensor(name, shape, quantisation, quantisation.dtype)
    state.numbers[name] = state.add("QUANTIZE", [source], state.add_tensor(f"{name}.int8", shape, quantisation))
    return source


def _add_output(state: _Translation, name: str) -> int:
    if name not in state.numbers:
        raise UnsupportedError(f"output {name!r} of floats: expected integers of 8 bits")
    quantisation = state.graph.types[name]
    if quantisation.dtype == np.int8:
        return state.numbers[name]
    return state.add("QUANTIZE", [state.numbers[name]], state.add_tensor(name, state.graph.shapes[name], quantisation, quantisation.dtype))


def _convolution(state: _Translation, conv: QuantisedConv) -> None:
    if conv.y_q is None or conv.of_columns or conv.y_q.dtype.itemsize > 1:
        raise state.refuse(conv, "sums that become floats: expected integers of 8 bits")
    if np.any(conv.w_q.zero_point):
        raise state.refuse(conv, "weights with a zero point: expected 0")
    channels, inputs = len(conv.bias), conv.weights.shape[1] * conv.groups
    scales = (np.float32(conv.alpha) * conv.w_q.scale).astype(np.float32)
    weights, depthwise = conv.weights.astype(np.int8), conv.groups == inputs > 1
    if depthwise:
        stored = weights.transpose(1, 2, 3, 0)
    else:
        stored = _dense(weights, conv.groups).transpose(0, 2, 3, 1)
    x = state.read(conv.x, conv)
    read = [x, state.constant(f"{conv.name}.weights", np.ascontiguousarray(stored), scales)]
    read.append(state.constant(f"{conv.name}.bias", conv.bias.astype(np.int32), state.tensors[x].scale * scales))
    options = {
        "padding": _VALID, "pads": conv.pads, "stride_y": conv.stride[0], "stride_x": conv.stride[1], "dilation_y": conv.dilation[0],
        "dilation_x": conv.dilation[1], "activation": 0, "multiplier": channels // inputs,
    }  # fmt: skip
    kind = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    if conv.added is None:
        state.add(kind, read, state.result(conv), **options)
        return
    products = state.add(kind, read, state.add_tensor(f"{conv.name}.products", state.graph.shapes[conv.y], conv.y_q), **options)
    state.add("ADD", [products, state.read(conv.added.tensor, conv)], state.result(conv), activation=0)


def _dense(weights: NDArray[np.int8], groups: int) -> NDArray[np.int8]:
    """Weights of groups as those of one group, with zeros between."""
    outputs, inputs = len(weights) // groups, weights.shape[1]
    dense = np.zeros((len(weights), inputs * groups, *weights.shape[2:]), np.int8)
    for group in range(groups):
        rows = slice(group * outputs, (group + 1) * outputs)
        dense[rows, group * inputs : (group + 1) * inputs] = weights[rows]
    return dense


def _window(pool: Pool | QuantisedAverage) -> dict[str, Any]:
    return {
        "padding": _VALID, "pads": pool.pads, "stride_y": pool.stride[0], "stride_x": pool.stride[1], "rows": pool.kernel[0],
        "columns": pool.kernel[1], "activation": 0,
    }  # fmt: skip


def _greatest(state: _Translation, pool: Pool) -> None:
    if pool.mode != "max":
        raise state.refuse(pool, f"mode {pool.mode}: expected max")
    state.add("MAX_POOL_2D", [state.read(pool.x, pool)], state.result(pool), **_window(pool))


def _average(state: _Translation, pool: QuantisedAverage) -> None:
    if pool.count_include_pad and any(pool.pads):
        raise state.refuse(pool, "padding that counts: expected count_include_pad 0")
    x = state.read(pool.x, pool)
    if pool.kernel == state.graph.shapes[pool.x][2:] and not any(pool.pads):
        axes = state.constant(f"{pool.name}.axes", np.array([1, 2], np.int32), np.zeros(0, np.float32))
        state.add("MEAN", [x, axes], state.result(pool), keep_axes=True)
        return
    shape = state.graph.shapes[pool.y]
    means = state.add("AVERAGE_POOL_2D", [x], state.add_tensor(f"{pool.name}.means", shape, pool.x_q), **_window(pool))
    state.add("QUANTIZE", [means], state.result(pool))


def _pair(state: _Translation, pair: QuantisedPair) -> None:
    kind = "MUL" if pair.mode == "mul" else "ADD"
    state.add(kind, [state.read(pair.a, pair), state.read(pair.b, pair)], state.result(pair), activation=0)


def _table(state: _Translation, table: LookUp) -> None:
    """Entries by integers of int8, the least first; those of uint8 are in the same order."""
    entries = table.entries.astype(np.int64) - (_MIDDLE if table.y_q.dtype == np.uint8 else 0)
    state.add("TABLE", [state.read(table.x, table)], state.result(table), entries=tuple(entries.tolist()))


def _concatenate(state: _Translation, concat: Concat) -> None:
    state.add("CONCATENATION", [state.read(name, concat) for name in concat.inputs], state.result(concat), axis=3, activation=0)


def _softmax(state: _Translation, softmax: QuantisedSoftmax) -> None:
    if softmax.groups > 1:
        raise state.refuse(softmax, f"{softmax.groups} groups: expected one")
    unit = Quantisation.of(np.float32(1 / 256), np.int8(-128), np.int8)  # the one scale that TFLite's kernel makes
    shares = state.add_tensor(f"{softmax.name}.shares", state.graph.shapes[softmax.y], unit)
    state.add("QUANTIZE", [state.add("SOFTMAX", [state.read(softmax.x, softmax)], shares, beta=1.0)], state.result(softmax))


_RULES: Mapping[type[Operator], Callable[[_Translation, Any], None]] = {
    QuantisedConv: _convolution,
    Pool: _greatest,
    QuantisedAverage: _average,
    QuantisedPair: _pair,
    LookUp: _table,
    Concat: _concatenate,
    QuantisedSoftmax: _softmax,
}
