"""Random single operators as .tflite files: a table of generators by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scripts.tflite_writer import Tensor, Writer

Draw = Callable[[Writer], Tensor]


def _random_size(w: Writer, low: int, high: int) -> int:
    return int(w.rng.integers(low, high, endpoint=True))


def _image(w: Writer, channels: int | None = None, lowest: int = 1, highest: int = 20) -> Tensor:
    """Random image of 8 or 16 bits, with a random scale."""
    unit = 1 / 256 if w.dtype == "int16" else 1
    scale = float(w.rng.uniform(0.01, 0.1)) * unit
    return w.input(1, _random_size(w, lowest, highest), _random_size(w, lowest, highest), channels or _random_size(w, 1, 40), scale=scale)


def _padding(w: Writer) -> str:
    return str(w.rng.choice(["SAME", "VALID"]))


def _activation(w: Writer) -> str:
    return str(w.rng.choice(["none", "relu", "relu6", "relu_n1_to_1"]))


def _kernel(w: Writer, x: Tensor, highest: int = 7) -> tuple[int, int]:
    """Random kernel, at most as large as the input."""
    return _random_size(w, 1, min(highest, x.shape[1])), _random_size(w, 1, min(highest, x.shape[2]))


def _stride(w: Writer) -> tuple[int, int]:
    return _random_size(w, 1, 3), _random_size(w, 1, 3)


def _conv(w: Writer) -> Tensor:
    x = _image(w)
    return w.conv(x, _random_size(w, 1, 48), _kernel(w, x), _stride(w), padding=_padding(w), activation=_activation(w))


def _pointwise(w: Writer) -> Tensor:
    return w.conv(_image(w), _random_size(w, 1, 200), padding="VALID", activation=_activation(w))


def _dilated(w: Writer) -> Tensor:
    x = _image(w, lowest=8)
    return w.conv(x, _random_size(w, 1, 32), _kernel(w, x, 3), dilation=(_random_size(w, 1, 2), _random_size(w, 1, 2)), padding=_padding(w))


def _large_kernel(w: Writer) -> Tensor:
    x = _image(w, _random_size(w, 1, 6), lowest=12, highest=24)
    return w.conv(x, _random_size(w, 1, 12), _kernel(w, x, 12), padding=_padding(w), activation="none")


def _depthwise(w: Writer) -> Tensor:
    x = _image(w)
    return w.depthwise(x, _kernel(w, x), _stride(w), padding=_padding(w), activation=_activation(w))


def _multiplier(w: Writer) -> Tensor:
    x = _image(w, 1)
    return w.depthwise(x, _kernel(w, x), padding=_padding(w), multiplier=_random_size(w, 2, 24))


def _transpose_conv(stride: int) -> Draw:
    def draw(w: Writer) -> Tensor:
        return w.transpose_conv(
            _image(w, highest=10), _random_size(w, 1, 24), (_random_size(w, 2, 4), _random_size(w, 2, 4)), (stride, stride), _padding(w)
        )

    return draw


def _dense(w: Writer) -> Tensor:
    unit = 1 / 256 if w.dtype == "int16" else 1
    return w.dense(
        w.input(1, _random_size(w, 1, 300), scale=float(w.rng.uniform(0.01, 0.1)) * unit), _random_size(w, 1, 150), _activation(w)
    )


def _max_pool(w: Writer) -> Tensor:
    x = _image(w)
    return w.pool(x, "MAX", _kernel(w, x), _stride(w), _padding(w), _activation(w))


def _average_pool(w: Writer) -> Tensor:
    x = _image(w)
    return w.pool(x, "AVERAGE", _kernel(w, x), _stride(w), _padding(w), _activation(w))


def _mean(w: Writer) -> Tensor:
    x = _image(w)
    return w.mean(x, None if w.rng.random() < 0.5 else x.scale * float(w.rng.uniform(0.5, 1)))


def _operands(w: Writer) -> tuple[Tensor, Tensor]:
    x = _image(w)
    shape = tuple(1 if w.rng.random() < 0.2 else size for size in x.shape[1:])
    if w.rng.random() < 0.2:
        return x, w.constant(
            w.rng.integers(-100, 100, (1, 1, 1, x.shape[3])).astype(w.dtype), [x.scale * float(w.rng.uniform(0.3, 3))], 0, [0]
        )
    return x, w.input(1, *shape, scale=x.scale if w.rng.random() < 0.3 else x.scale * float(w.rng.uniform(0.2, 5)))


def _binary(name: str) -> Draw:
    def draw(w: Writer) -> Tensor:
        x, y = _operands(w)
        return w.binary(name, x, y, None, _activation(w) if w.dtype != "int16" else "none")

    return draw


def _extreme(name: str) -> Draw:
    def draw(w: Writer) -> Tensor:
        x = _image(w)
        operand = w.input(*x.shape, scale=x.scale, zero=x.zero)
        return w.binary(name, x, operand)

    return draw


def _abs(w: Writer) -> Tensor:
    x = _image(w)
    return w.unary("ABS", x, w.tensor(x.shape, x.scale * float(w.rng.uniform(0.5, 2)), w.middle()))


def _leaky_relu(w: Writer) -> Tensor:
    x = _image(w)
    output = None if w.rng.random() < 0.5 else w.tensor(x.shape, x.scale * float(w.rng.uniform(0.5, 2)), w.middle())
    return w.unary("LEAKY_RELU", x, output, "LeakyReluOptions", alpha=float(w.rng.uniform(0.01, 0.9)))


def _relu6(w: Writer) -> Tensor:
    x = _image(w)
    return w.unary("RELU6", x)


def _logistic(w: Writer) -> Tensor:
    return w.logistic(_image(w))


def _tanh(w: Writer) -> Tensor:
    return w.tanh(_image(w))


def _hard_swish(w: Writer) -> Tensor:
    x = _image(w)
    return w.unary("HARD_SWISH", x, w.tensor(x.shape, x.scale * float(w.rng.uniform(0.3, 1)), w.middle()), "HardSwishOptions")


def _softmax(w: Writer) -> Tensor:
    return w.softmax(w.input(_random_size(w, 1, 8), _random_size(w, 2, 200), scale=float(w.rng.uniform(0.01, 0.2))))


def _quantize(w: Writer) -> Tensor:
    x = _image(w)
    return w.quantize(x, x.scale * float(w.rng.uniform(0.3, 3)), w.middle())


def _concat(w: Writer) -> Tensor:
    x, axis = _image(w), _random_size(w, 1, 3)
    shape = list(x.shape)
    shape[axis] = _random_size(w, 1, 20)
    return w.concat([x, w.input(*shape, scale=x.scale, zero=x.zero)], axis)


def _pad(w: Writer) -> Tensor:
    pads = ((0, 0), (_random_size(w, 0, 3), _random_size(w, 0, 3)), (_random_size(w, 0, 3), _random_size(w, 1, 3)), (0, 0))
    return w.pad(_image(w), pads)


def _slice(w: Writer) -> Tensor:
    x = _image(w)
    begin = [0, *(_random_size(w, 0, size - 1) for size in x.shape[1:])]
    size = [1, *(_random_size(w, 1, extent - first) for extent, first in zip(x.shape[1:], begin[1:], strict=True))]
    inputs = [x, *(w.constant(np.array(values, np.int32)) for values in (begin, size))]
    return w.operator("SLICE", inputs, w.tensor(tuple(size), x.scale, x.zero), "SliceOptions")


def _bilinear(w: Writer) -> Tensor:
    x, factor = _image(w, highest=10), 2 ** _random_size(w, 1, 2)
    style = {"halfPixelCenters": True} if w.rng.random() < 0.5 else {}
    return w.resize(x, "BILINEAR", (x.shape[1] * factor, x.shape[2] * factor), **style)


def _nearest_resize(w: Writer) -> Tensor:
    x, factor = _image(w, highest=10), 2 ** _random_size(w, 1, 2)
    return w.resize(x, "NEAREST_NEIGHBOR", (x.shape[1] * factor, x.shape[2] * factor))


OPERATORS: dict[str, Draw] = {
    "CONV_2D": _conv,
    "CONV_2D 1x1": _pointwise,
    "CONV_2D dilated": _dilated,
    "CONV_2D large": _large_kernel,
    "DEPTHWISE_CONV_2D": _depthwise,
    "DEPTHWISE_CONV_2D multiplier": _multiplier,
    "TRANSPOSE_CONV": _transpose_conv(2),
    "TRANSPOSE_CONV stride 1": _transpose_conv(1),
    "FULLY_CONNECTED": _dense,
    "MAX_POOL_2D": _max_pool,
    "AVERAGE_POOL_2D": _average_pool,
    "MEAN": _mean,
    "ADD": _binary("ADD"),
    "SUB": _binary("SUB"),
    "MUL": _binary("MUL"),
    "MINIMUM": _extreme("MINIMUM"),
    "MAXIMUM": _extreme("MAXIMUM"),
    "ABS": _abs,
    "LEAKY_RELU": _leaky_relu,
    "RELU6": _relu6,
    "LOGISTIC": _logistic,
    "TANH": _tanh,
    "HARD_SWISH": _hard_swish,
    "SOFTMAX": _softmax,
    "QUANTIZE": _quantize,
    "CONCATENATION": _concat,
    "PAD": _pad,
    "SLICE": _slice,
    "RESIZE_BILINEAR": _bilinear,
    "RESIZE_NEAREST_NEIGHBOR": _nearest_resize,
}
"""Operators by name, with what is drawn of them in a second word."""


def draw_operator(name: str, seed: int, dtype: str = "int8") -> bytes:
    """Random operator as a .tflite file."""
    writer = Writer(seed, dtype)
    return writer.finish(OPERATORS[name](writer))
