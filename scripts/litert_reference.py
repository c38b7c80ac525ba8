"""LiteRT's reference kernels: outputs of a .tflite file.  Needs the extra `litert`."""

from __future__ import annotations

import math

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from numpy.typing import NDArray


class Reference:
    """A model in LiteRT, with `BUILTIN_REF` kernels and no delegate."""

    def __init__(self, model: bytes) -> None:
        self._interpreter = Interpreter(model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
        self._interpreter.allocate_tensors()
        self._inputs, self._outputs = self._interpreter.get_input_details(), self._interpreter.get_output_details()

    def draw(self, rng: np.random.Generator) -> list[NDArray[np.generic]]:
        """Inputs over the whole range of their types; some with a narrow one, some at its ends."""
        return [_random_array(rng, tuple(detail["shape"]), np.dtype(detail["dtype"])) for detail in self._inputs]

    def run(self, values: list[NDArray[np.generic]]) -> list[NDArray[np.generic]]:
        """Outputs for inputs."""
        for detail, value in zip(self._inputs, values, strict=True):
            self._interpreter.set_tensor(detail["index"], value)
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(detail["index"]) for detail in self._outputs]


def _random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    kind = rng.integers(4)
    if kind == 0:
        middle, deviation = (low + high) / 2, (high - low) / 12
        return np.clip(np.rint(rng.normal(middle, deviation, shape)), low, high).astype(dtype)
    if kind == 1:
        return np.where(rng.random(shape) < 0.3, rng.choice([low, high], shape), rng.integers(low, high, shape, endpoint=True)).astype(
            dtype
        )
    return rng.integers(low, high, shape, endpoint=True).astype(dtype)


def dense_twice_rounded(model: bytes, values: NDArray[np.generic]) -> NDArray[np.int64]:
    """The result of a fully connected layer of 8 bits as LiteRT 1.0 has it: rounded twice, with a factor from a product in float32."""
    parsed = schema.ModelT.InitFromPackedBuf(model)
    (graph,) = parsed.subgraphs
    codes = [code.builtinCode for code in parsed.operatorCodes]
    operator = next(item for item in graph.operators if codes[item.opcodeIndex] == schema.BuiltinOperator.FULLY_CONNECTED)
    tensors = [graph.tensors[index] for index in (*operator.inputs, *operator.outputs)]
    (scale, weight_scale, _, result_scale) = (np.float32(tensor.quantization.scale[0]) for tensor in tensors)
    zero, weight_zero, _, result_zero = (int(tensor.quantization.zeroPoint[0]) for tensor in tensors)
    kinds = (np.dtype(values.dtype), np.dtype(np.int32))
    weights, bias = (
        np.frombuffer(np.asarray(parsed.buffers[tensor.buffer].data, np.uint8).tobytes(), kind).astype(np.int64)
        for tensor, kind in zip(tensors[1:3], kinds, strict=True)
    )
    sums = (values.reshape(1, -1).astype(np.int64) - zero) @ (weights.reshape(len(bias), -1) - weight_zero).T + bias
    fraction, power = math.frexp(float(scale * weight_scale) / float(result_scale))
    high = (sums * (1 << max(power, 0)) * math.floor(fraction * (1 << 31) + 0.5) + (1 << 30)) >> 31
    shift = max(-power, 0)
    rounded = np.sign(high) * ((np.abs(high) + ((1 << shift) >> 1)) >> shift) + result_zero
    limits = np.iinfo(kinds[0])
    lowest, highest = (
        end if bound is None else result_zero + int(math.copysign(math.floor(float(np.float32(abs(bound)) / result_scale) + 0.5), bound))
        for bound, end in zip(_ACTIVATIONS[operator.builtinOptions.fusedActivationFunction], (limits.min, limits.max), strict=True)
    )
    return np.clip(rounded, max(limits.min, lowest), min(limits.max, highest))


_ACTIVATIONS: dict[int, tuple[float | None, float | None]] = {0: (None, None), 1: (0, None), 2: (-1, 1), 3: (0, 6)}
"""Least and greatest value by the number of an activation in the file."""
