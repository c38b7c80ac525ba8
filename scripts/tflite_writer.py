"""Writer of small integer .tflite models with random weights.

A tensor has a type, a shape and one scale with a zero point; weights have a scale per channel.  Scales of results are given, or estimated
so that values use most of the range.  Needs the extra `litert`, whose package has the flatbuffer schema.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

TYPES = {name: getattr(schema.TensorType, name.upper()) for name in ("int8", "uint8", "int16", "int32", "int64")}
ACTIVATIONS = {"none": 0, "relu": 1, "relu_n1_to_1": 2, "relu6": 3}


class Tensor(NamedTuple):
    """A tensor of the model.  index: its number there.  scale, zero: of its integers."""

    index: int
    shape: tuple[int, ...]
    scale: float
    zero: int
    dtype: str


class Writer:
    """A model that grows operator by operator; `finish` is the file."""

    def __init__(self, seed: int, dtype: str = "int8") -> None:
        self.rng, self.dtype = np.random.default_rng(seed), dtype
        self.buffers: list[Any] = [schema.BufferT()]
        self.tensors, self.operators, self.codes = list[Any](), list[Any](), list[int]()
        self.inputs = list[Tensor]()

    def input(self, *shape: int, scale: float = 1 / 32, zero: int | None = None) -> Tensor:
        """An input of the model."""
        tensor = self.tensor(shape, scale, self.middle() if zero is None else zero)
        self.inputs.append(tensor)
        return tensor

    def middle(self) -> int:
        """A zero point near the middle of the range; 0 of 16 bits, which have no other."""
        return {"int8": int(self.rng.integers(-20, 20)), "uint8": int(self.rng.integers(108, 148))}.get(self.dtype, 0)

    def lowest(self) -> int:
        """The least integer."""
        return int(np.iinfo(self.dtype).min)

    def tensor(self, shape: tuple[int, ...], scale: float, zero: int, dtype: str | None = None) -> Tensor:
        """A tensor without values."""
        return self._add(shape, dtype or self.dtype, [scale], [zero], 0, 0)

    def constant(self, values: NDArray[Any], scales: list[float] | None = None, axis: int = 0, zeros: list[int] | None = None) -> Tensor:
        """A tensor with values."""
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
        self.buffers.append(buffer)
        return self._add(values.shape, values.dtype.name, scales, zeros or [0] * len(scales or []), axis, len(self.buffers) - 1)

    def _add(self, shape: tuple[int, ...], dtype: str, scales: list[float] | None, zeros: list[int], axis: int, buffer: int) -> Tensor:
        tensor = schema.TensorT()
        tensor.shape, tensor.type, tensor.buffer, tensor.name = list(shape), TYPES[dtype], buffer, f"t{len(self.tensors)}"
        if scales:
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale, tensor.quantization.zeroPoint = np.array(scales, np.float32), np.array(zeros, np.int64)
            tensor.quantization.quantizedDimension = axis
        self.tensors.append(tensor)
        scale = float(np.float32(scales[0])) if scales else 0.0
        return Tensor(len(self.tensors) - 1, tuple(shape), scale, zeros[0] if zeros else 0, dtype)

    def operator(self, name: str, inputs: list[Tensor | None], output: Tensor, options: str = "", **fields: Any) -> Tensor:
        """An operator, with fields of its table of options."""
        code = getattr(schema.BuiltinOperator, name)
        if code not in self.codes:
            self.codes.append(code)
        operator = schema.OperatorT()
        operator.opcodeIndex = self.codes.index(code)
        operator.inputs, operator.outputs = [-1 if tensor is None else tensor.index for tensor in inputs], [output.index]
        if options:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(schema, f"{options}T")()
            for field, value in fields.items():
                setattr(operator.builtinOptions, field, value)
        self.operators.append(operator)
        return output

    def conv(
        self, x: Tensor, channels: int, kernel: tuple[int, int] = (1, 1), stride: tuple[int, int] = (1, 1), *, padding: str = "SAME",
        dilation: tuple[int, int] = (1, 1), activation: str = "relu6", scale: float | None = None, depthwise: bool = False,
    ) -> Tensor:  # fmt: skip
        """A convolution with biases; `channels` is the multiplier of a depthwise one."""
        inputs, (rows, columns) = x.shape[3], kernel
        outputs = inputs * channels if depthwise else channels
        shape = (1, rows, columns, outputs) if depthwise else (outputs, rows, columns, inputs)
        fan = rows * columns * (1 if depthwise else inputs)
        size = _sizes(x, kernel, stride, dilation, padding)
        output = self._result((x.shape[0], *size, outputs), activation, scale)
        limit = 1.2 * (2 / fan) ** 0.5
        kernel_tensor, scales = self._kernel(shape, (limit / 40 * self.rng.uniform(0.5, 1.5, outputs)).tolist(), 3 if depthwise else 0)
        bias = self._bias(outputs, x, scales)
        fields = {"strideH": stride[0], "strideW": stride[1], "padding": int(padding == "VALID")}
        fields |= {"dilationHFactor": dilation[0], "dilationWFactor": dilation[1]}
        name, options = ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions") if depthwise else ("CONV_2D", "Conv2DOptions")
        if depthwise:
            fields["depthMultiplier"] = channels
        return self.operator(name, [x, kernel_tensor, bias], output, options, fusedActivationFunction=ACTIVATIONS[activation], **fields)

    def depthwise(self, x: Tensor, kernel: tuple[int, int] = (3, 3), stride: tuple[int, int] = (1, 1), **options: Any) -> Tensor:
        """A depthwise convolution of multiplier 1."""
        return self.conv(x, options.pop("multiplier", 1), kernel, stride, depthwise=True, **options)

    def transpose_conv(self, x: Tensor, channels: int, kernel: tuple[int, int], stride: tuple[int, int], padding: str = "SAME") -> Tensor:
        """A transposed convolution with biases."""
        axes = zip(x.shape[1:3], stride, kernel, strict=True)
        size = [length * step if padding == "SAME" else (length - 1) * step + reach for length, step, reach in axes]
        weights, scales = self._kernel((channels, *kernel, x.shape[3]), (0.02 * self.rng.uniform(0.5, 1.5, channels)).tolist(), 0)
        output = self._result((1, *size, channels), "none", None)
        shape = self.constant(np.array(output.shape, np.int32))
        inputs = [shape, weights, x, self._bias(channels, x, scales)]
        fields = {"strideH": stride[0], "strideW": stride[1], "padding": int(padding == "VALID")}
        return self.operator("TRANSPOSE_CONV", inputs, output, "TransposeConvOptions", **fields)

    def dense(self, x: Tensor, channels: int, activation: str = "none", scale: float | None = None) -> Tensor:
        """A fully connected layer with biases; one scale for all weights."""
        fan = int(np.prod(x.shape[1:]))
        weights, scales = self._kernel((channels, fan), [1.2 * (2 / fan) ** 0.5 / 40], 0)
        output = self._result((x.shape[0], channels), activation, scale)
        inputs = [x, weights, self._bias(channels, x, scales * channels)]
        if len(x.shape) > 2:
            inputs[0] = self.reshape(x, (x.shape[0], fan))
        return self.operator("FULLY_CONNECTED", inputs, output, "FullyConnectedOptions", fusedActivationFunction=ACTIVATIONS[activation])

    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Reshape a tensor."""
        output = self.tensor(shape, x.scale, x.zero)
        return self.operator("RESHAPE", [x, self.constant(np.array(shape, np.int32))], output, "ReshapeOptions", newShape=list(shape))

    def pool(
        self, x: Tensor, name: str, kernel: tuple[int, int], stride: tuple[int, int], padding: str = "VALID", activation: str = "none"
    ) -> Tensor:
        """`MAX` or `AVERAGE`, in the scale of the input."""
        size = _sizes(x, kernel, stride, (1, 1), padding)
        output = self.tensor((x.shape[0], *size, x.shape[3]), x.scale, x.zero)
        return self.operator(
            f"{name}_POOL_2D", [x], output, "Pool2DOptions", padding=int(padding == "VALID"), strideH=stride[0], strideW=stride[1],
            filterHeight=kernel[0], filterWidth=kernel[1], fusedActivationFunction=ACTIVATIONS[activation],
        )  # fmt: skip

    def mean(self, x: Tensor, scale: float | None = None) -> Tensor:
        """The mean of rows and columns, which stay as axes of 1."""
        output = self.tensor((x.shape[0], 1, 1, x.shape[3]), scale or x.scale, x.zero if scale is None else self.middle())
        return self.operator("MEAN", [x, self.constant(np.array([1, 2], np.int32))], output, "ReducerOptions", keepDims=True)

    def binary(self, name: str, x: Tensor, y: Tensor, scale: float | None = None, activation: str = "none") -> Tensor:
        """`ADD`, `SUB`, `MUL`, `MINIMUM` or `MAXIMUM` of two tensors, which are broadcast."""
        shape = np.broadcast_shapes(x.shape, y.shape)
        if name in ("MINIMUM", "MAXIMUM"):
            return self.operator(name, [x, y], self.tensor(shape, x.scale, x.zero), "MaximumMinimumOptions")
        guess = 64 * x.scale * y.scale if name == "MUL" else 1.4 * max(x.scale, y.scale)
        output = self._result(shape, activation, scale or guess)
        return self.operator(name, [x, y], output, f"{name.capitalize()}Options", fusedActivationFunction=ACTIVATIONS[activation])

    def unary(self, name: str, x: Tensor, output: Tensor | None = None, options: str = "", **fields: Any) -> Tensor:
        """Operator of one tensor.  The result has the given shape, and by default the scale of the operand."""
        return self.operator(name, [x], output or self.tensor(x.shape, x.scale, x.zero), options, **fields)

    def logistic(self, x: Tensor) -> Tensor:
        """A sigmoid, in the scale that TFLite wants."""
        return self.unary("LOGISTIC", x, self._unit(x.shape, 1 / 256, -128))

    def tanh(self, x: Tensor) -> Tensor:
        """A hyperbolic tangent, in the scale that TFLite wants."""
        return self.unary("TANH", x, self._unit(x.shape, 1 / 128, 0))

    def softmax(self, x: Tensor) -> Tensor:
        """A softmax over the last axis."""
        return self.unary("SOFTMAX", x, self._unit(x.shape, 1 / 256, -128), "SoftmaxOptions", beta=1.0)

    def quantize(self, x: Tensor, scale: float, zero: int = 0) -> Tensor:
        """Requantise a tensor to another scale."""
        return self.unary("QUANTIZE", x, self.tensor(x.shape, scale, zero), "QuantizeOptions")

    def concat(self, tensors: list[Tensor], axis: int = 3) -> Tensor:
        """Tensors of one scale behind each other."""
        shape = list(tensors[0].shape)
        shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
        output = self.tensor(tuple(shape), tensors[0].scale, tensors[0].zero)
        return self.operator("CONCATENATION", list(tensors), output, "ConcatenationOptions", axis=axis)

    def resize(self, x: Tensor, name: str, size: tuple[int, int], **fields: Any) -> Tensor:
        """`BILINEAR` or `NEAREST_NEIGHBOR`."""
        output = self.tensor((x.shape[0], *size, x.shape[3]), x.scale, x.zero)
        options = {"BILINEAR": "ResizeBilinearOptions", "NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions"}[name]
        return self.operator(f"RESIZE_{name}", [x, self.constant(np.array(size, np.int32))], output, options, **fields)

    def pad(self, x: Tensor, pads: tuple[tuple[int, int], ...]) -> Tensor:
        """Zeros around rows and columns."""
        shape = tuple(size + leading + trailing for size, (leading, trailing) in zip(x.shape, pads, strict=True))
        return self.operator("PAD", [x, self.constant(np.array(pads, np.int32))], self.tensor(shape, x.scale, x.zero), "PadOptions")

    def finish(self, *outputs: Tensor) -> bytes:
        """The file."""
        graph = schema.SubGraphT()
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs, graph.outputs = [tensor.index for tensor in self.inputs], [tensor.index for tensor in outputs]
        model = schema.ModelT()
        model.version, model.subgraphs, model.buffers, model.description = 3, [graph], self.buffers, "drawn"
        model.operatorCodes = []
        for code in self.codes:
            entry = schema.OperatorCodeT()
            entry.builtinCode, entry.deprecatedBuiltinCode, entry.version = code, min(code, 127), _VERSIONS.get(code, 2)
            model.operatorCodes.append(entry)
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _kernel(self, shape: tuple[int, ...], scales: list[float], axis: int) -> tuple[Tensor, list[float]]:
        """Weights and the scales of their channels; of 8 bits without sign they have one scale and a zero point."""
        weights = np.clip(np.rint(self.rng.normal(0, 40, shape)), -127, 127)
        if self.dtype == "uint8":
            return self.constant((weights + 128).astype(np.uint8), scales[:1], 0, [int(self.rng.integers(120, 136))]), scales[:1] * len(
                scales
            )
        return self.constant(weights.astype(np.int8), scales, axis), scales

    def _bias(self, channels: int, x: Tensor, scales: list[float]) -> Tensor:
        real = self.rng.normal(0, 0.3, channels)
        steps = np.float32(x.scale) * np.array(scales, np.float32)
        steps = steps[:1] if len(set(scales)) == 1 else steps
        return self.constant(np.rint(real / steps).astype(np.int64 if self.dtype == "int16" else np.int32), steps.tolist())

    def _result(self, shape: tuple[int, ...], activation: str, scale: float | None) -> Tensor:
        wide = 256 if self.dtype == "int16" else 1
        if activation.startswith("relu") and self.dtype != "int16" and activation != "relu_n1_to_1":
            return self.tensor(shape, scale or 6 / 255, self.lowest())
        return self.tensor(shape, scale or 10 / 255 / wide, self.middle())

    def _unit(self, shape: tuple[int, ...], scale: float, zero: int) -> Tensor:
        if self.dtype == "int16":
            return self.tensor(shape, 1 / 32768, 0)
        return self.tensor(shape, scale, zero + (128 if self.dtype == "uint8" else 0))


_VERSIONS = {
    getattr(schema.BuiltinOperator, name): version
    for version, names in (
        (1, ("RESHAPE", "HARD_SWISH", "QUANTIZE")), (3, ("TRANSPOSE_CONV", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")),
        (5, ("CONV_2D", "FULLY_CONNECTED")), (6, ("DEPTHWISE_CONV_2D",)),
    )
    for name in names
}  # fmt: skip
"""Of operators whose version is not 2, the first with int8."""


def _sizes(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], padding: str) -> list[int]:
    """Rows and columns of a result."""
    axes = zip(x.shape[1:3], kernel, stride, dilation, strict=True)
    return [-(-(length - (0 if padding == "SAME" else (reach - 1) * dilate)) // step) for length, reach, step, dilate in axes]
