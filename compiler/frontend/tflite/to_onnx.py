"""A `.tflite` network as an ONNX model of QuantizeLinear and DequantizeLinear, with inputs and outputs of integers.

It has the shapes, scales and operators from which a plan is made; node `operator3...` is of operator 3 of the file.  Images are
[1, channels, rows, columns].  Roundings are those of ONNX, not those of TFLite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from compiler.frontend.tflite.file_schema import SAME
from compiler.frontend.tflite.network import TfliteNetwork, TfliteOperator, TfliteTensor, read_network
from simulator.npu.errors import BadInputError, UnsupportedError

_OPSET = 17
_ONNX_TYPES = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}
_RANK = 4
_TO_CHANNELS, _FROM_CHANNELS = (0, 3, 1, 2), (0, 2, 3, 1)
NODE = "operator"
"""Beginning of the names of nodes; the operator's number is behind it."""


TFLITE = ".tflite"


def model_of_tflite(data: bytes, where: str) -> ModelProto:
    """The model of a file's bytes.  Raises `BadInputError` and `UnsupportedError` with `where` in front."""
    try:
        return to_onnx(read_network(data))
    except (BadInputError, UnsupportedError) as error:
        raise type(error)(f"{where}: {error}") from None


def to_onnx(network: TfliteNetwork) -> ModelProto:
    """The model.  Raises `UnsupportedError` for an operator that it has no nodes for."""
    return _Writer(network).model()


class _Writer:
    """Nodes and initializers as they grow.  Floats of tensor 3 are `t3.float`, its integers `t3`."""

    def __init__(self, network: TfliteNetwork) -> None:
        self.network = network
        self.nodes, self.initializers = list[NodeProto](), list[TensorProto]()
        self.floats = dict[int, str]()
        self.number = 0

    def model(self) -> ModelProto:
        network = self.network
        ends = [[self._port(number) for number in numbers] for numbers in (network.inputs, network.outputs)]
        for number, operator in enumerate(network.operators):
            self.number = number
            write = _WRITERS.get(operator.kind)
            if write is None:
                raise UnsupportedError(f"{network.label(number)}: expected one of {', '.join(sorted(_WRITERS))}")
            write(self, operator)
        graph = helper.make_graph(self.nodes, "tflite", *ends, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)

    def tensor(self, number: int) -> TfliteTensor:
        return self.network.tensors[number]

    def shape(self, number: int) -> list[int]:
        """The shape in ONNX: channels in front of rows."""
        shape = self.tensor(number).shape
        return [shape[axis] for axis in _TO_CHANNELS] if len(shape) == _RANK else list(shape)

    def node(self, kind: str, inputs: list[str], output: str, suffix: str = "", /, **attributes: Any) -> str:
        """A node; its output."""
        name = f"{NODE}{self.number}{suffix}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=name, **attributes))
        return output

    def array(self, name: str, values: NDArray[Any] | np.float32) -> str:
        """An initializer."""
        self.initializers.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def read(self, number: int) -> str:
        """Floats of a tensor."""
        if number not in self.floats:
            tensor = self.tensor(number)
            if tensor.data is not None:
                data = tensor.data.transpose(_TO_CHANNELS) if tensor.data.ndim == _RANK else tensor.data
                self.array(f"t{number}", data)
            self.floats[number] = self.dequantise(f"t{number}", tensor, 0)
        return self.floats[number]

    def write(self, operator: TfliteOperator, output: str) -> None:
        """Integers of the result, from floats in which a fused activation is already."""
        (number,) = operator.outputs
        tensor = self.tensor(number)
        parts = [output, *self._parameters(f"t{number}.out", tensor)]
        self.node("QuantizeLinear", parts, f"t{number}", ".quantize")

    def dequantise(self, name: str, tensor: TfliteTensor, axis: int) -> str:
        """Floats of integers."""
        attributes = {"axis": axis} if len(tensor.scales) > 1 else {}
        parts = [name, *self._parameters(f"{name}.in", tensor)]
        return self.node("DequantizeLinear", parts, f"{name}.float", f".{name}", **attributes)

    def _parameters(self, name: str, tensor: TfliteTensor) -> list[str]:
        scales, zeros = tensor.scales.astype(np.float32), tensor.zeros.astype(tensor.dtype)
        if len(scales) == 0:
            raise UnsupportedError(f"{self.network.label(self.number)}: tensor {tensor.name!r} has no scale: expected one")
        if len(scales) == 1:
            return [self.array(f"{name}.scale", scales.reshape(())), self.array(f"{name}.zero", zeros.reshape(()))]
        return [self.array(f"{name}.scale", scales), self.array(f"{name}.zero", zeros)]

    def _port(self, number: int) -> Any:
        tensor = self.tensor(number)
        if tensor.dtype.name not in _ONNX_TYPES:
            raise UnsupportedError(f"tensor {tensor.name!r}: type {tensor.dtype}: expected {', '.join(_ONNX_TYPES)}")
        return helper.make_tensor_value_info(f"t{number}", _ONNX_TYPES[tensor.dtype.name], self.shape(number))

    def activated(self, operator: TfliteOperator, output: str) -> str:
        """A fused activation, where the result's range goes beyond it."""
        activation = operator.options.get("activation", 0)
        bounds = {1: (0.0, None), 2: (-1.0, 1.0), 3: (0.0, 6.0)}.get(activation)
        if bounds is None:
            return output
        tensor = self.tensor(operator.outputs[0])
        low, high = ((end - tensor.zero) * float(tensor.scale) for end in (np.iinfo(tensor.dtype).min, np.iinfo(tensor.dtype).max))
        cuts_high = bounds[1] is not None and high > bounds[1] + float(tensor.scale) / 2
        if low >= bounds[0] and not cuts_high:
            return output
        number, parts = operator.outputs[0], self._parameters(f"t{operator.outputs[0]}.raw", tensor)
        self.node("QuantizeLinear", [output, *parts], f"t{number}.raw", ".raw")  # a bound within the range is one of integers
        output = self.node("DequantizeLinear", [f"t{number}.raw", *parts], f"t{number}.raw.float", ".raw.float")
        if bounds[1] is None:
            return self.node("Relu", [output], f"t{number}.active", ".active")
        ends = [self.array(f"t{number}.{name}", np.float32(end)) for name, end in zip(("low", "high"), bounds, strict=True)]
        return self.node("Clip", [output, *ends], f"t{number}.active", ".active")


def _result(operator: TfliteOperator) -> str:
    return f"t{operator.outputs[0]}.sum"


def _pads(writer: _Writer, operator: TfliteOperator, kernel: tuple[int, int]) -> list[int]:
    """Padding as ONNX has it: rows and columns in front, then behind."""
    options = operator.options
    if options["padding"] != SAME:
        return [0, 0, 0, 0]
    image, result = writer.tensor(operator.inputs[0]).image, writer.tensor(operator.outputs[0]).image
    steps = ((options["stride_y"], options.get("dilation_y", 1)), (options["stride_x"], options.get("dilation_x", 1)))
    totals = [
        max(0, (extent - 1) * stride + (taps - 1) * dilation + 1 - size)
        for size, extent, taps, (stride, dilation) in zip(image, result, kernel, steps, strict=False)
    ]
    return [total // 2 for total in totals] + [total - total // 2 for total in totals]


def _weights(writer: _Writer, number: int, order: tuple[int, ...], what: str) -> str:
    tensor = writer.tensor(number)
    if tensor.data is None:
        raise UnsupportedError(f"{writer.network.label(writer.number)}: {what} that are computed: expected constants")
    values = tensor.data.transpose(order)
    return writer.dequantise(writer.array(f"w{writer.number}", values), tensor, 0)


def _bias(writer: _Writer, operator: TfliteOperator, place: int) -> list[str]:
    if len(operator.inputs) <= place or operator.inputs[place] < 0:
        return []
    bias, weights = writer.tensor(operator.inputs[place]), writer.tensor(operator.inputs[1])
    steps = np.float32(writer.tensor(operator.inputs[place - 2]).scale) * weights.scales
    tensor = bias._replace(scales=steps.astype(np.float32), zeros=np.zeros(len(steps), np.int64))
    assert bias.data is not None
    return [writer.dequantise(writer.array(f"b{writer.number}", bias.data.astype(np.int32)), tensor, 0)]


def _conv(writer: _Writer, operator: TfliteOperator) -> None:
    depthwise = operator.kind == "DEPTHWISE_CONV_2D"
    shape, options = writer.tensor(operator.inputs[1]).shape, operator.options
    weights = _weights(writer, operator.inputs[1], (3, 0, 1, 2) if depthwise else (0, 3, 1, 2), "weights")
    inputs = [writer.read(operator.inputs[0]), weights, *_bias(writer, operator, 2)]
    fields = {"strides": [options["stride_y"], options["stride_x"]], "dilations": [options["dilation_y"], options["dilation_x"]]}
    group = writer.tensor(operator.inputs[0]).image[2] if depthwise else 1
    pads = _pads(writer, operator, (shape[1], shape[2]))
    output = writer.node("Conv", inputs, _result(operator), kernel_shape=list(shape[1:3]), pads=pads, group=group, **fields)
    writer.write(operator, writer.activated(operator, output))


def _dense(writer: _Writer, operator: TfliteOperator) -> None:
    """A product of rows as long as those of the weights, which TFLite makes of an input of any rank."""
    source, weights, result = (writer.tensor(number) for number in (*operator.inputs[:2], operator.outputs[0]))
    columns = weights.shape[1]
    rows = writer.read(operator.inputs[0])
    if source.shape[1:] != (columns,):
        target = writer.array(f"t{operator.outputs[0]}.flat", np.array((-1, columns), np.int64))
        rows = writer.node("Reshape", [_as_stored(writer, operator), target], f"{_result(operator)}.rows", ".flat")
    inputs = [rows, _weights(writer, operator.inputs[1], (0, 1), "weights"), *_bias(writer, operator, 2)]
    output = writer.activated(operator, writer.node("Gemm", inputs, _result(operator), transB=1))
    writer.write(operator, output if len(result.shape) == len(weights.shape) else _shaped(writer, operator, output))


def _transposed(writer: _Writer, operator: TfliteOperator) -> None:
    _, kernel, source = operator.inputs[:3]
    shape, options = writer.tensor(kernel).shape, operator.options
    weights = writer.tensor(kernel)
    if weights.data is None:
        raise UnsupportedError(f"{writer.network.label(writer.number)}: weights that are computed: expected constants")
    one = weights._replace(scales=weights.scales[:1], zeros=weights.zeros[:1])  # ONNX has no scales of a transposed convolution's results
    read = writer.dequantise(writer.array(f"w{writer.number}", weights.data.transpose(3, 0, 1, 2)), one, 0)
    image, result = writer.tensor(source).image, writer.tensor(operator.outputs[0]).image
    strides = [options["stride_y"], options["stride_x"]]
    totals = [(size - 1) * step + taps - extent for size, step, taps, extent in zip(image, strides, shape[1:3], result, strict=False)]
    fronts = [max(0, total) // 2 for total in totals]
    pads = [*fronts, *(max(0, total) - front for total, front in zip(totals, fronts, strict=True))]
    fields = {"pads": pads, "output_padding": [max(0, -total) for total in totals]}
    output = writer.node(
        "ConvTranspose", [writer.read(source), read], _result(operator), kernel_shape=list(shape[1:3]), strides=strides, **fields
    )
    writer.write(operator, writer.activated(operator, output))


def _pool(writer: _Writer, operator: TfliteOperator) -> None:
    options = operator.options
    kernel = (options["rows"], options["columns"])
    fields = {"kernel_shape": list(kernel), "strides": [options["stride_y"], options["stride_x"]], "pads": _pads(writer, operator, kernel)}
    kind = "MaxPool" if operator.kind == "MAX_POOL_2D" else "AveragePool"
    if kind == "AveragePool" and writer.tensor(operator.inputs[0]).image[:2] == kernel:
        kind, fields = "GlobalAveragePool", {}
    output = writer.node(kind, [writer.read(operator.inputs[0])], _result(operator), **fields)
    writer.write(operator, writer.activated(operator, output))


def _mean(writer: _Writer, operator: TfliteOperator) -> None:
    output = writer.node("GlobalAveragePool", [writer.read(operator.inputs[0])], _result(operator))
    writer.write(operator, _reshaped(writer, operator, output))


def _reshaped(writer: _Writer, operator: TfliteOperator, output: str) -> str:
    shape = writer.shape(operator.outputs[0])
    target = writer.array(f"t{operator.outputs[0]}.shape", np.array(shape, np.int64))
    return writer.node("Reshape", [output, target], f"t{operator.outputs[0]}.reshaped", ".reshape")


def _as_stored(writer: _Writer, operator: TfliteOperator) -> str:
    """Floats of the first input with its axes in TFLite's order."""
    source, output = writer.tensor(operator.inputs[0]), writer.read(operator.inputs[0])
    if len(source.shape) == _RANK and source.image[:2] != (1, 1):
        return writer.node("Transpose", [output], f"{_result(operator)}.stored", ".rows", perm=list(_FROM_CHANNELS))
    return output


def _shaped(writer: _Writer, operator: TfliteOperator, output: str) -> str:
    """Floats in TFLite's order with the shape of the result, in ONNX's order."""
    result = writer.tensor(operator.outputs[0])
    if len(result.shape) == _RANK and result.image[:2] != (1, 1):
        target = writer.array(f"t{operator.outputs[0]}.shape", np.array(result.shape, np.int64))
        output = writer.node("Reshape", [output, target], f"{_result(operator)}.shaped", ".reshape")
        return writer.node("Transpose", [output], f"{_result(operator)}.channels", ".channels", perm=list(_TO_CHANNELS))
    return _reshaped(writer, operator, output)


def _reshape(writer: _Writer, operator: TfliteOperator) -> None:
    writer.write(operator, _shaped(writer, operator, _as_stored(writer, operator)))


def _pair(kind: str) -> Callable[[_Writer, TfliteOperator], None]:
    def write(writer: _Writer, operator: TfliteOperator) -> None:
        output = writer.node(kind, [writer.read(number) for number in operator.inputs], _result(operator))
        writer.write(operator, writer.activated(operator, output))

    return write


def _single(kind: str, **attributes: Any) -> Callable[[_Writer, TfliteOperator], None]:
    def write(writer: _Writer, operator: TfliteOperator) -> None:
        fields = {key: operator.options[value] if isinstance(value, str) else value for key, value in attributes.items()}
        writer.write(operator, writer.node(kind, [writer.read(operator.inputs[0])], _result(operator), **fields))

    return write


def _clip(low: float, high: float) -> Callable[[_Writer, TfliteOperator], None]:
    def write(writer: _Writer, operator: TfliteOperator) -> None:
        ends = [writer.array(f"{_result(operator)}.{name}", np.float32(end)) for name, end in (("low", low), ("high", high))]
        writer.write(operator, writer.node("Clip", [writer.read(operator.inputs[0]), *ends], _result(operator)))

    return write


def _requantise(writer: _Writer, operator: TfliteOperator) -> None:
    writer.write(operator, writer.read(operator.inputs[0]))


def _concatenate(writer: _Writer, operator: TfliteOperator) -> None:
    rank = len(writer.tensor(operator.outputs[0]).shape)
    axis = operator.options["axis"] % rank
    axis = _TO_CHANNELS.index(axis) if rank == _RANK else axis
    writer.write(operator, writer.node("Concat", [writer.read(number) for number in operator.inputs], _result(operator), axis=axis))


def _resize(writer: _Writer, operator: TfliteOperator) -> None:
    nearest = operator.kind == "RESIZE_NEAREST_NEIGHBOR"
    half = operator.options["half_pixel_centers"]
    sizes = writer.array(f"{_result(operator)}.sizes", np.array(writer.shape(operator.outputs[0]), np.int64))
    mode = {"mode": "nearest", "nearest_mode": "floor"} if nearest else {"mode": "linear"}
    fields = mode | {"coordinate_transformation_mode": "half_pixel" if half and not nearest else "asymmetric"}
    writer.write(operator, writer.node("Resize", [writer.read(operator.inputs[0]), "", "", sizes], _result(operator), **fields))


_Write = Callable[[_Writer, TfliteOperator], None]
_WRITERS: Mapping[str, _Write] = {
    "ADD": _pair("Add"),
    "SUB": _pair("Sub"),
    "MUL": _pair("Mul"),
    "MINIMUM": _pair("Min"),
    "MAXIMUM": _pair("Max"),
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _conv,
    "TRANSPOSE_CONV": _transposed,
    "FULLY_CONNECTED": _dense,
    "AVERAGE_POOL_2D": _pool,
    "MAX_POOL_2D": _pool,
    "MEAN": _mean,
    "RESHAPE": _reshape,
    "SQUEEZE": _reshape,
    "CONCATENATION": _concatenate,
    "RESIZE_NEAREST_NEIGHBOR": _resize,
    "RESIZE_BILINEAR": _resize,
    "QUANTIZE": _requantise,
    "RELU": _single("Relu"),
    "RELU6": _clip(0, 6),
    "RELU_N1_TO_1": _clip(-1, 1),
    "LOGISTIC": _single("Sigmoid"),
    "TANH": _single("Tanh"),
    "HARD_SWISH": _single("HardSwish"),
    "LEAKY_RELU": _single("LeakyRelu", alpha="alpha"),
    "SOFTMAX": _single("Softmax", axis=-1),
    "ABS": _single("Abs"),
}
