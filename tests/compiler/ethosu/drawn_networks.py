"""Small networks of int8, drawn operator by operator, with plans, and their outputs by plain integer arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler.ethosu.segments import StreamPlan, StreamSegment
from compiler.frontend.tflite.network import TfliteNetwork, TfliteOperator, TfliteTensor

INT8, INT32 = np.dtype(np.int8), np.dtype(np.int32)
KINDS = (
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "MAX_POOL_2D",
    "AVERAGE_POOL_2D",
    "ADD",
    "CONCATENATION",
    "RESIZE_NEAREST_NEIGHBOR",
    "QUANTIZE",
    "TABLE",
)


class Builder:
    """A network that grows, with the values of each tensor for one input."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.tensors, self.operators, self.values = list[TfliteTensor](), list[TfliteOperator](), dict[int, NDArray[np.int64]]()

    def tensor(self, shape: tuple[int, ...], scale: float, zero: int, data: NDArray[Any] | None = None, scales: Any = None) -> int:
        scales = np.array([scale] if scales is None else scales, np.float32)
        dtype = INT8 if data is None else data.dtype
        self.tensors.append(TfliteTensor(f"t{len(self.tensors)}", shape, dtype, scales, np.full(len(scales), zero), 0, data))
        return len(self.tensors) - 1

    def input(self, *image: int) -> int:
        number = self.tensor((1, *image), 0.05, int(self.rng.integers(-30, 30)))
        self.values[number] = self.rng.integers(-128, 128, image)
        return number

    def result(self, shape: tuple[int, ...], kind: str, inputs: list[int], values: Any, same: int | None = None, **options: Any) -> int:
        """An operator's result, whose values are a function of its scale and zero point."""
        scale, zero = (float(self.rng.uniform(0.03, 0.09)), int(self.rng.integers(-30, 30)))
        if same is not None:
            scale, zero = float(self.tensors[same].scale), self.tensors[same].zero
        number = self.tensor((1, *shape), scale, zero)
        self.operators.append(TfliteOperator(kind, tuple(inputs), (number,), options))
        self.values[number] = np.clip(values(self.tensors[number]), -128, 127)
        return number

    def network(self) -> TfliteNetwork:
        """All of it; what nobody reads is an output."""
        read = {number for operator in self.operators for number in operator.inputs}
        made = [number for operator in self.operators for number in operator.outputs]
        first = [number for number in self.values if number not in made]
        return TfliteNetwork(tuple(self.tensors), tuple(self.operators), tuple(first), tuple(n for n in made if n not in read))

    # operators

    def conv(
        self, x: int, channels: int, kernel: tuple[int, int], stride: int, dilation: int, same: bool, depthwise: bool, low: bool
    ) -> int:
        values, source = self.values[x], self.tensors[x]
        inputs = values.shape[2]
        outputs = inputs if depthwise else channels
        weights = self.rng.integers(-127, 128, (outputs, *kernel, 1 if depthwise else inputs))
        scales = (0.004 * self.rng.uniform(0.5, 2, outputs) / math.sqrt(weights[0].size)).astype(np.float32)
        bias = self.rng.integers(-2000, 2000, outputs).astype(np.int32)
        stored = weights.transpose(3, 1, 2, 0) if depthwise else weights
        operands = [x, self.tensor(stored.shape, 0, 0, stored.astype(np.int8), scales), self.tensor(bias.shape, 0, 0, bias, scales)]

        def made(y: TfliteTensor) -> NDArray[np.int64]:
            taps = windows(values - source.zero, kernel, stride, dilation, same, 0)
            sums = np.einsum("yxcij,cij->yxc", taps, weights[..., 0]) if depthwise else np.einsum("yxcij,oijc->yxo", taps, weights)
            factors = [float(source.scale) * float(scale) / float(y.scale) for scale in scales]
            out = np.stack([scaled(sums[..., c] + bias[c], factor) for c, factor in enumerate(factors)], axis=2) + y.zero
            return np.maximum(out, y.zero) if low else out

        options = {"padding": int(not same), "stride_x": stride, "stride_y": stride, "activation": int(low)}
        options |= {"dilation_x": dilation, "dilation_y": dilation, "multiplier": 1}
        size = windows(values, kernel, stride, dilation, same, 0).shape[:2]
        return self.result((*size, outputs), "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", operands, made, **options)

    def pool(self, x: int, kernel: tuple[int, int], stride: int, same: bool, greatest: bool) -> int:
        values = self.values[x]

        def made(y: TfliteTensor) -> NDArray[np.int64]:
            if greatest:
                return windows(values, kernel, stride, 1, same, -128).max(axis=(3, 4))
            sums = windows(values, kernel, stride, 1, same, 0).sum(axis=(3, 4))
            counts = windows(np.ones_like(values), kernel, stride, 1, same, 0).sum(axis=(3, 4))
            return np.sign(sums) * ((np.abs(sums) + counts // 2) // counts)

        options = {
            "padding": int(not same),
            "stride_x": stride,
            "stride_y": stride,
            "columns": kernel[1],
            "rows": kernel[0],
            "activation": 0,
        }
        size = windows(values, kernel, stride, 1, same, 0).shape[:2]
        kind = "MAX_POOL_2D" if greatest else "AVERAGE_POOL_2D"
        return self.result((*size, values.shape[2]), kind, [x], made, x, **options)

    def add(self, a: int, b: int) -> int:
        first, second = self.tensors[a], self.tensors[b]

        def made(y: TfliteTensor) -> NDArray[np.int64]:
            twice = 2 * max(float(first.scale), float(second.scale))
            parts = (
                scaled((self.values[number] - self.tensors[number].zero) << 20, float(self.tensors[number].scale) / twice)
                for number in (a, b)
            )
            return scaled(sum(parts), twice / ((1 << 20) * float(y.scale))) + y.zero

        shape = np.broadcast_shapes(self.values[a].shape, self.values[b].shape)
        return self.result(shape, "ADD", [a, b], made, activation=0)

    def concat(self, a: int, b: int) -> int:
        """Of the second one in the scale of the first."""
        other = self.quantize(b, a)
        both = np.concatenate([self.values[a], self.values[other]], axis=2)
        return self.result(both.shape, "CONCATENATION", [a, other], lambda y: both, a, axis=3, activation=0)

    def quantize(self, x: int, like: int | None = None) -> int:
        source = self.tensors[x]

        def made(y: TfliteTensor) -> NDArray[np.int64]:
            return scaled(self.values[x] - source.zero, float(source.scale) / float(y.scale)) + y.zero

        return self.result(self.values[x].shape, "QUANTIZE", [x], made, like)

    def table(self, x: int) -> int:
        entries = self.rng.integers(-128, 128, 256)
        looked_up = entries[self.values[x] + 128]
        return self.result(looked_up.shape, "TABLE", [x], lambda y: looked_up, entries=tuple(entries.tolist()))

    def double(self, x: int) -> int:
        twice = self.values[x].repeat(2, axis=0).repeat(2, axis=1)
        options = {"align_corners": False, "half_pixel_centers": False}
        return self.result(twice.shape, "RESIZE_NEAREST_NEIGHBOR", [x], lambda y: twice, x, **options)


def windows(values: NDArray[np.int64], kernel: tuple[int, int], stride: int, dilation: int, same: bool, padding: int) -> NDArray[np.int64]:
    """[rows, columns, channels, kernel rows, kernel columns] of a padded image."""
    reach = [(taps - 1) * dilation + 1 for taps in kernel]
    sizes = [-(-(size - (0 if same else taps - 1)) // stride) for size, taps in zip(values.shape, reach, strict=False)]
    totals = [max(0, (made - 1) * stride + taps - size) for made, taps, size in zip(sizes, reach, values.shape, strict=False)]
    pads = [(total // 2, total - total // 2) for total in totals] if same else [(0, 0), (0, 0)]
    padded = np.pad(values, [*pads, (0, 0)], constant_values=padding)
    view = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(0, 1))
    return view[::stride, ::stride, :, ::dilation, ::dilation][: sizes[0], : sizes[1]]


def scaled(values: NDArray[np.int64], real: float) -> NDArray[np.int64]:
    """values * real in fixed point of 31 bits: halves up at the point, then halves away from zero."""
    fraction, power = math.frexp(real)
    factor = math.floor(fraction * 2**31 + 0.5)
    high = (values * 2 ** max(power, 0) * factor + 2**30) // 2**31
    divisor = 2 ** max(-power, 0)
    return np.sign(high) * ((np.abs(high) + divisor // 2) // divisor)


@st.composite
def networks(draw: st.DrawFn, most: int = 7) -> Builder:
    """A network of up to so many operators, some of which read what several before them have made."""
    builder = Builder(draw(st.integers(0, 1 << 30)))
    images = [builder.input(draw(st.integers(1, 14)), draw(st.integers(1, 12)), draw(st.sampled_from((1, 3, 8, 16, 17, 32))))]
    for _ in range(draw(st.integers(1, most))):
        x = images[draw(st.integers(max(0, len(images) - 3), len(images) - 1))]
        rows, columns, channels = builder.values[x].shape
        kind = draw(st.sampled_from(KINDS))
        kernel = draw(st.integers(1, min(5, rows))), draw(st.integers(1, min(5, columns)))
        stride, same = draw(st.integers(1, 3)), draw(st.booleans())
        alike = [y for y in images if builder.values[y].shape == builder.values[x].shape]
        beside = [y for y in images if builder.values[y].shape[:2] == (rows, columns)]
        if kind in ("CONV_2D", "DEPTHWISE_CONV_2D"):
            dilation = 2 if stride == 1 and 2 * max(kernel) - 1 <= min(rows, columns) and draw(st.booleans()) else 1
            outputs = draw(st.sampled_from((1, 8, 16, 20, 32)))
            images.append(builder.conv(x, outputs, kernel, stride, dilation, same, kind != "CONV_2D", draw(st.booleans())))
        elif kind in ("MAX_POOL_2D", "AVERAGE_POOL_2D"):
            images.append(builder.pool(x, kernel, stride, same, kind == "MAX_POOL_2D"))
        elif kind == "ADD":
            images.append(builder.add(x, draw(st.sampled_from(alike))))
        elif kind == "CONCATENATION" and channels <= 40:
            images.append(builder.concat(x, draw(st.sampled_from(beside))))
        elif kind == "RESIZE_NEAREST_NEIGHBOR" and rows * columns < 100:
            images.append(builder.double(x))
        elif kind == "TABLE":
            images.append(builder.table(x))
        else:
            images.append(builder.quantize(x))
    return builder


@st.composite
def plans(draw: st.DrawFn, network: TfliteNetwork) -> StreamPlan:
    """Segments of some operators in some stripes, and some tensors in SRAM."""
    segments, place, count = list[StreamSegment](), 0, len(network.operators)
    while place < count:
        last = draw(st.integers(place + 1, count))
        segments.append(StreamSegment(place, last, draw(st.sampled_from((1, 1, 2, 3, 5, 16)))))
        place = last
    made = [number for operator in network.operators for number in operator.outputs]
    return StreamPlan(tuple(segments), frozenset(draw(st.lists(st.sampled_from(made), max_size=3))))
