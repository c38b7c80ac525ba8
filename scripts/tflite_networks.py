"""Eight int8 networks as .tflite files, with random weights and the published shapes.

The last layer is a 1x1 convolution, as in the published MobileNet v1: LiteRT's reference kernel of FULLY_CONNECTED rounds once, while the
NPU and LiteRT 1.0 round twice.
"""

from __future__ import annotations

from collections.abc import Callable

from scripts.tflite_writer import Tensor, Writer

_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Of MobileNet v2: expansion, channels, repeats, stride."""
_V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
"""Of MobileNet v1: channels and stride of a pair of convolutions."""


def _classes(w: Writer, x: Tensor, count: int) -> Tensor:
    """Logits [1, count] of a tensor [1, 1, 1, channels]."""
    return w.reshape(w.conv(x, count, activation="none"), (1, count))


def keyword_spotting() -> bytes:
    """DS-CNN on 49x10 features."""
    w = Writer(1)
    x = w.conv(w.input(1, 49, 10, 1), 64, (10, 4), (2, 2), activation="relu")
    for _ in range(4):
        x = w.conv(w.depthwise(x, activation="relu"), 64, activation="relu")
    logits = _classes(w, w.pool(x, "AVERAGE", (25, 5), (25, 5)), 12)
    return w.finish(w.softmax(logits), logits)


def _mobilenet_v1(seed: int, size: int, channels: int, width: float, classes: int) -> bytes:
    w = Writer(seed)
    x = w.conv(w.input(1, size, size, channels), round(32 * width), (3, 3), (2, 2))
    for outputs, stride in _V1:
        x = w.conv(w.depthwise(x, stride=(stride, stride)), round(outputs * width))
    x = w.pool(x, "AVERAGE", x.shape[1:3], x.shape[1:3])
    logits = _classes(w, x, classes)
    return w.finish(w.softmax(logits), logits)


def person_detection() -> bytes:
    """MobileNet v1, a quarter of its width, on 96x96 of one channel."""
    return _mobilenet_v1(2, 96, 1, 0.25, 2)


def mobilenet_v1() -> bytes:
    """MobileNet v1 on 224x224."""
    return _mobilenet_v1(3, 224, 3, 1.0, 1001)


def mobilenet_v2() -> bytes:
    """MobileNet v2 on 224x224."""
    w = Writer(4)
    x = w.conv(w.input(1, 224, 224, 3), 32, (3, 3), (2, 2))
    for expansion, channels, repeats, first in _V2:
        for stride in (first, *(1,) * (repeats - 1)):
            y = w.conv(x, x.shape[3] * expansion) if expansion > 1 else x
            y = w.conv(w.depthwise(y, stride=(stride, stride)), channels, activation="none")
            x = w.binary("ADD", x, y) if stride == 1 and x.shape == y.shape else y
    x = w.mean(w.conv(x, 1280))
    return w.finish(_classes(w, x, 1001))


def squeezenet() -> bytes:
    """SqueezeNet 1.1 on 224x224."""
    w = Writer(5)
    x = w.conv(w.input(1, 224, 224, 3), 64, (3, 3), (2, 2), padding="VALID", activation="relu")
    for number, (squeeze, expand) in enumerate(((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))):
        if number in (0, 2, 4):
            x = w.pool(x, "MAX", (3, 3), (2, 2), "VALID")
        s = w.conv(x, squeeze, activation="relu")
        x = w.concat([w.conv(s, expand, activation="relu"), w.conv(s, expand, (3, 3), activation="relu")])
    x = w.conv(x, 1000, activation="relu")
    logits = w.reshape(w.mean(x), (1, 1000))
    return w.finish(w.softmax(logits), logits)


def residual() -> bytes:
    """A residual network of CIFAR's size, 8 convolutions, 32x32."""
    w = Writer(6)
    x = w.conv(w.input(1, 32, 32, 3), 16, (3, 3), activation="relu")
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        y = w.conv(w.conv(x, channels, (3, 3), (stride, stride), activation="relu"), channels, (3, 3), activation="none")
        x = w.binary("ADD", y, x if stride == 1 else w.conv(x, channels, (1, 1), (stride, stride), activation="none"), activation="relu")
    x = w.pool(x, "AVERAGE", (8, 8), (8, 8))
    logits = _classes(w, x, 10)
    return w.finish(w.softmax(logits), logits)


def resize_and_concat() -> bytes:
    """An encoder and a decoder with skips: bilinear and nearest resizing, concatenations of several scales, a transposed convolution."""
    w = Writer(7)
    image = w.input(1, 48, 64, 3)
    half = w.conv(image, 16, (3, 3), (2, 2))
    two = w.conv(half, 24, (3, 3), (2, 2))
    three = w.conv(w.pool(two, "MAX", (2, 2), (2, 2)), 32, (3, 3), dilation=(2, 2))
    upsampled = w.concat([w.resize(three, "NEAREST_NEIGHBOR", two.shape[1:3]), two])  # of one scale
    upsampled = w.resize(w.conv(upsampled, 24, (3, 3)), "BILINEAR", half.shape[1:3], halfPixelCenters=True)
    upsampled = w.conv(w.concat([w.quantize(upsampled, 0.04), w.quantize(half, 0.04)]), 16, (3, 3))
    return w.finish(w.transpose_conv(upsampled, 8, (3, 3), (2, 2)))


def table_activations() -> bytes:
    """Activations by table: sigmoid, hyperbolic tangent, hard swish, leaky ReLU, and a gate of a product."""
    w = Writer(8)
    x = w.conv(w.input(1, 40, 40, 3), 24, (3, 3), (2, 2), activation="none")
    x = w.unary("HARD_SWISH", x, w.tensor(x.shape, 0.03, -100), "HardSwishOptions")
    gate = w.logistic(w.conv(w.mean(x), 24, activation="none"))
    x = w.binary("MUL", x, gate, scale=0.02)
    x = w.tanh(w.conv(x, 32, (3, 3), activation="none"))
    x = w.conv(w.depthwise(x, (5, 5), (2, 2), activation="none"), 40, activation="none")
    x = w.unary("LEAKY_RELU", x, None, "LeakyReluOptions", alpha=0.1)
    x = w.logistic(x)
    return w.finish(_classes(w, w.mean(x), 10))


NETWORKS: dict[str, Callable[[], bytes]] = {
    build.__name__: build
    for build in (
        keyword_spotting,
        person_detection,
        mobilenet_v1,
        mobilenet_v2,
        squeezenet,
        residual,
        resize_and_concat,
        table_activations,
    )
}
