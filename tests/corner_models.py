"""Small models at the corners of what is supported: one thing that can go wrong in each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import ModelProto

from tests.models import Builder

Rng = np.random.Generator
NO_PADS = (0, 0, 0, 0)


def grouped(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 12, 9, 10))
    return b.model(b.conv(b.relu(b.conv("x", 18, groups=3)), 6, (1, 1), pads=NO_PADS, groups=2))


def grouped_by_planes(rng: Rng) -> ModelProto:
    """Groups of whole planes and whole 16-channel blocks: real groups on the matrix unit."""
    b = Builder(rng, (1, 64, 6, 7))
    return b.model(b.conv("x", 96, groups=2))


def groups_across_planes(rng: Rng) -> ModelProto:
    """Groups that begin and end within blocks, then behind a shuffle: some blocks of weights are zeros alone."""
    b = Builder(rng, (1, 102, 6, 5))
    y = b.shuffle(b.relu(b.conv("x", 102, (1, 1), pads=NO_PADS, groups=3)), 3)
    return b.model(b.conv(b.conv(y, 150, groups=3), 75, (1, 1), pads=NO_PADS, groups=3))


def depthwise(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 21, 11, 8))
    return b.model(b.conv(b.conv("x", 21, stride=(2, 1), groups=21), 21, (5, 5), pads=(2, 2, 2, 2), groups=21))


def strided(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 5, 17, 19))
    return b.model(b.conv(b.conv("x", 7, (3, 5), (3, 2), (1, 2, 0, 1)), 9, (1, 1), (2, 2), NO_PADS))


def dilated(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 17, 14, 13))
    return b.model(b.conv(b.relu(b.conv("x", 20, dilation=(2, 3), pads=(2, 3, 2, 3))), 4, dilation=(3, 1), pads=(0, 1, 0, 1)))


def batch(rng: Rng) -> ModelProto:
    b = Builder(rng, (2, 3, 12, 16))
    x = b.max_pool(b.relu(b.conv("x", 20)), 3, 2, (1, 1, 1, 1))
    y = b.relu(b.add(b.conv(x, 20), x))
    return b.model(b.softmax(b.gemm(b.node("GlobalAveragePool", [y]), 10)))


def whole_kernel(rng: Rng) -> ModelProto:
    """A kernel as large as the image, then a product of 1 x 1 images."""
    b = Builder(rng, (1, 9, 6, 5))
    return b.model(b.gemm(b.relu(b.gemm("x", 33)), 7))


def more_pad_than_image(rng: Rng) -> ModelProto:
    """Windows that lie wholly in the padding."""
    b = Builder(rng, (1, 6, 4, 4))
    return b.model(b.conv(b.conv("x", 8, (2, 2), (1, 1), (3, 3, 3, 3)), 5, (3, 3), (2, 2), (2, 1, 2, 2)))


def concat_with_gaps(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 7, 8, 8))
    parts = [b.relu(b.conv("x", c, (1, 1), pads=NO_PADS)) for c in (5, 17, 1)]
    x = b.concat(*parts)
    return b.model(b.concat(b.conv(x, 11), b.max_pool(x, 3, 1, (1, 1, 1, 1)), parts[1]))


def residual_from_before(rng: Rng) -> ModelProto:
    """A residual operand that is much older than the other, and one that is read twice."""
    b = Builder(rng, (1, 18, 10, 9))
    x = b.relu(b.conv("x", 18))
    y = b.conv(b.relu(b.conv(b.relu(b.conv(x, 24)), 18)), 18)
    return b.model(b.add(b.relu(b.add(y, x)), x))


def channels_to_pixels(rng: Rng) -> ModelProto:
    """Channels that fill no block, in both orders, and results that a concatenation and a residual want elsewhere."""
    b = Builder(rng, (1, 5, 6, 7))
    x = b.node("DepthToSpace", [b.relu(b.conv("x", 76))], blocksize=2, mode="DCR")
    y = b.node("DepthToSpace", [b.relu(b.conv("x", 20))], blocksize=2, mode="CRD")
    z = b.node("DepthToSpace", [b.conv(b.concat(x, y), 27)], blocksize=3, mode="DCR")
    return b.model(b.conv(b.add(b.conv(x, 5), y), 3), z)


def channels_to_pixels_at_once(rng: Rng) -> ModelProto:
    """The model's input and output; whole planes of channels."""
    b = Builder(rng, (2, 128, 3, 5))
    return b.model(b.node("DepthToSpace", [b.node("DepthToSpace", ["x"], blocksize=2)], blocksize=1))


def shuffled(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 20, 7, 6))
    x = b.shuffle(b.relu(b.conv("x", 20, groups=4)), 4)
    return b.model(b.add(b.conv(x, 20, groups=20), b.shuffle(b.conv(x, 20), 5)))


def normalised(rng: Rng) -> ModelProto:
    """LRN of 19 channels: a logarithm of lanes without a channel, in front of a convolution."""
    b = Builder(rng, (1, 19, 7, 8))
    return b.model(b.conv(b.lrn(b.relu(b.conv("x", 19)), 5, 1e-2), 8))


def undefined_at_zero(rng: Rng) -> ModelProto:
    """Logarithm, reciprocal and a quotient of two tensors, none of which may see a gap's zero."""
    b = Builder(rng, (1, 5, 6, 6))
    square = b.node("Mul", ["x", "x"])
    positive = b.node("Add", [square, b.constant(np.full((5, 1, 1), 0.5, np.float32))])
    y = b.conv(b.node("Log", [positive]), 5)
    z = b.conv(b.node("Reciprocal", [positive]), 5)
    bounded = b.node("Add", [b.node("Mul", [z, z]), b.constant(np.full((5, 1, 1), 1.0, np.float32))])
    return b.model(b.conv(b.node("Div", [y, bounded]), 6))


def pools(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 18, 13, 11))
    x = b.average_pool("x", 3, 2, (1, 1, 1, 1))
    x = b.max_pool(b.conv(x, 18), 3, 2, ceil_mode=1)
    y = b.average_pool("x", 3, 2, (1, 1, 1, 1), count_include_pad=1)
    return b.model(b.add(x, b.average_pool(y, 3, 2, ceil_mode=1)))


def global_pools(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 20, 9, 9))
    y = b.node("GlobalMaxPool", [b.conv("x", 20)])
    return b.model(b.add(y, b.node("GlobalAveragePool", ["x"])))


def signals(rng: Rng) -> ModelProto:
    """Samples a stride apart as channels, windows over rows of one column, and tokens behind them."""
    b = Builder(rng, (1, 1, 76))
    x = b.relu(b.node("Conv", ["x", b.normal((20, 1, 7), 0.4), b.normal((20,))], strides=[2], pads=[2, 3]))
    x = b.node("MaxPool", [x], kernel_shape=[3], strides=[2], pads=[1, 0])
    x = b.node("ConvTranspose", [x, b.normal((20, 9, 3), 0.2)], strides=[2], pads=[1, 0])
    x = b.node("AveragePool", [x], kernel_shape=[4], strides=[3], pads=[2, 1])
    return b.model(b.node("MatMul", [b.node("Transpose", [x], perm=[0, 2, 1]), b.normal((9, 18), 0.3)]))


def wide_windows(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 18, 23, 19))
    x = b.node("AveragePool", ["x"], kernel_shape=[19, 15], strides=[2, 3], pads=[3, 4, 2, 1])
    return b.model(b.add(b.conv(x, 18), b.node("GlobalMaxPool", ["x"])))


def softmax_of_images(rng: Rng) -> ModelProto:
    """At every pixel, over channels with gaps from a Concat."""
    b = Builder(rng, (1, 6, 9, 7))
    return b.model(b.softmax(b.concat(b.conv("x", 3), b.conv("x", 18))))


def output_that_is_read(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 8, 9, 8))
    x = b.relu(b.conv("x", 12))
    return b.model(x, b.conv(b.max_pool(x), 5))


def two_outputs(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 8, 9, 8))
    x = b.relu(b.conv("x", 12))
    return b.model(b.conv(x, 5), b.softmax(b.gemm(x, 6)))


def outputs_of_one_concat(rng: Rng) -> ModelProto:
    """A tensor, its Concat with another, and a shuffle of that: all three read by the host."""
    b = Builder(rng, (1, 8, 6, 8))
    x, y = b.conv("x", 12), b.relu(b.conv("x", 4))
    z = b.concat(x, y)
    return b.model(x, z, b.shuffle(z, 4))


def input_in_a_concat(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 3, 8, 8))
    return b.model(b.concat("x", b.conv("x", 5), "x"))


def wide_kernels(rng: Rng) -> ModelProto:
    """Kernels of 255 columns, which one instruction can name, and of 256 and 511."""
    b = Builder(rng, (1, 3, 2, 258))
    x = b.relu(b.conv("x", 5, (1, 255), pads=(0, 255, 0, 3)))
    return b.model(b.conv(x, 4, (2, 256), (1, 3), (1, 0, 0, 0)), b.conv("x", 4, (1, 511), pads=(0, 255, 0, 0)))


def wide_kernel_in_fours(rng: Rng) -> ModelProto:
    """Four taps share a block: parts of 252 columns, and of 252 rows where a row has three of them."""
    b = Builder(rng, (1, 3, 258, 8))
    return b.model(b.conv("x", 6, (256, 3), (1, 2), (9, 2, 0, 1)))


def wide_kernel_of_one_row(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 4, 2, 300))
    return b.model(b.conv("x", 6, (1, 257), (2, 1), (0, 6, 1, 3), dilation=(1, 1)))


def high_kernels(rng: Rng) -> ModelProto:
    """Signals under kernels of 256 and 255 samples, and a product of a whole one."""
    b = Builder(rng, (1, 3, 280))
    x = b.relu(b.node("Conv", ["x", b.normal((18, 3, 256), 0.05), b.normal((18,))], pads=[128, 127]))
    y = b.node("Conv", [x, b.normal((4, 18, 255), 0.02)], pads=[127, 127], strides=[2])
    return b.model(y, b.gemm(x, 5))


def far_rows(rng: Rng) -> ModelProto:
    """Dilations that a field holds and that it does not, on rows that are cached and made again."""
    b = Builder(rng, (1, 18, 262, 1))
    x = b.relu(b.conv("x", 18, (2, 2), pads=(0, 1, 0, 0), dilation=(256, 1), groups=18))
    y = b.conv("x", 4, (3, 1), (2, 1), (255, 0, 256, 0), dilation=(255, 1))
    return b.model(b.conv(x, 5, (2, 1), pads=(1, 0, 0, 0)), b.conv(y, 3, (2, 1), pads=(300, 0, 0, 0), dilation=(300, 1)))


def far_columns(rng: Rng) -> ModelProto:
    """The same along columns, and along both."""
    b = Builder(rng, (1, 6, 3, 262))
    x = b.relu(b.conv("x", 18, (2, 2), pads=(1, 3, 0, 0), dilation=(1, 256)))
    return b.model(b.conv(x, 5, (1, 3)), b.conv("x", 4, (2, 3), (1, 2), (300, 255, 0, 300), dilation=(300, 258)))


def far_padding(rng: Rng) -> ModelProto:
    """Padding in front and behind of 255, 256, 511 and more, of images and signals; windows that see nothing else."""
    b = Builder(rng, (1, 17, 9, 5))
    x = b.conv("x", 17, (3, 3), (2, 3), (256, 1, 0, 256), groups=17)
    y = b.conv(b.relu("x"), 4, (3, 3), (40, 2), (511, 256, 600, 1))
    return b.model(x, y, b.conv("x", 4, (2, 3), (17, 1), (511, 3, 300, 0)))


def far_padding_of_a_signal(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 20, 40))
    x = b.relu(b.node("Conv", ["x", b.normal((20, 20, 3), 0.1)], dilations=[256], pads=[512, 0]))
    x = b.node("Conv", [x, b.normal((6, 20, 2), 0.1)], dilations=[300], pads=[300, 290], strides=[3])
    return b.model(x)


def far_windows(rng: Rng) -> ModelProto:
    """Strides of 256 and more along a signal, which is longer than a whole number of them; poolings as wide."""
    b = Builder(rng, (1, 1, 900))
    x = b.relu(b.node("Conv", ["x", b.normal((18, 1, 511), 0.05), b.normal((18,))], strides=[256], pads=[300, 200]))
    y = b.node("MaxPool", ["x"], kernel_shape=[300], strides=[257], pads=[299, 290])
    return b.model(x, b.node("AveragePool", [y], kernel_shape=[2]))


CORNER_MODELS: dict[str, Callable[[Rng], ModelProto]] = {
    f.__name__: f
    for f in (
        grouped, grouped_by_planes, depthwise, strided, dilated, batch, whole_kernel, more_pad_than_image, concat_with_gaps,
        residual_from_before, channels_to_pixels, channels_to_pixels_at_once, shuffled,
        normalised, undefined_at_zero, pools, global_pools, softmax_of_images, output_that_is_read,
        two_outputs, outputs_of_one_concat, input_in_a_concat, signals, wide_windows,
        far_rows, far_columns, wide_kernels, wide_kernel_in_fours, high_kernels, wide_kernel_of_one_row, far_padding,
        far_padding_of_a_signal, far_windows, groups_across_planes,
    )
}  # fmt: skip


def corner_model(name: str, seed: int = 0) -> ModelProto:
    """One of CORNER_MODELS, its weights drawn from `seed`."""
    return CORNER_MODELS[name](np.random.default_rng(seed))
