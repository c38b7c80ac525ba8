"""Inception v3 (Szegedy et al. 2016, "Rethinking the Inception Architecture", table 1) with the channel numbers of torchvision."""

from __future__ import annotations

from onnx import ModelProto

from tuner.zoo.builders.net import Net, Pair, Tensor


class _Blocks:
    """Layers of one model with channels scaled by `width`."""

    def __init__(self, net: Net, width: float) -> None:
        self.net = net
        self.width = width

    def conv(self, tensor: Tensor, channels: int, kernel: int | Pair, stride: int = 1, pad: int | Pair | None = None) -> Tensor:
        net = self.net
        return net.relu(net.batch_norm(net.conv(tensor, max(8, round(channels * self.width)), kernel, stride, pad)))

    def pooled(self, tensor: Tensor, channels: int) -> Tensor:
        return self.conv(self.net.average_pool(tensor, 3, 1, 1, include_pad=True), channels, 1)

    def a(self, tensor: Tensor, pool: int) -> Tensor:
        double = self.conv(self.conv(self.conv(tensor, 64, 1), 96, 3), 96, 3)
        return self.net.concat(self.conv(tensor, 64, 1), self.conv(self.conv(tensor, 48, 1), 64, 5), double, self.pooled(tensor, pool))

    def b(self, tensor: Tensor) -> Tensor:
        double = self.conv(self.conv(self.conv(tensor, 64, 1), 96, 3), 96, 3, 2, 0)
        return self.net.concat(self.conv(tensor, 384, 3, 2, 0), double, self.net.max_pool(tensor, 3, 2))

    def c(self, tensor: Tensor, inner: int) -> Tensor:
        seven = self.conv(self.conv(self.conv(tensor, inner, 1), inner, (1, 7)), 192, (7, 1))
        double = self.conv(self.conv(self.conv(tensor, inner, 1), inner, (7, 1)), inner, (1, 7))
        double = self.conv(self.conv(double, inner, (7, 1)), 192, (1, 7))
        return self.net.concat(self.conv(tensor, 192, 1), seven, double, self.pooled(tensor, 192))

    def d(self, tensor: Tensor) -> Tensor:
        three = self.conv(self.conv(tensor, 192, 1), 320, 3, 2, 0)
        seven = self.conv(self.conv(self.conv(tensor, 192, 1), 192, (1, 7)), 192, (7, 1))
        return self.net.concat(three, self.conv(seven, 192, 3, 2, 0), self.net.max_pool(tensor, 3, 2))

    def e(self, tensor: Tensor) -> Tensor:
        three = self.conv(tensor, 384, 1)
        double = self.conv(self.conv(tensor, 448, 1), 384, 3)
        parts = [self.conv(side, 384, kernel) for side in (three, double) for kernel in ((1, 3), (3, 1))]
        return self.net.concat(self.conv(tensor, 320, 1), *parts, self.pooled(tensor, 192))


def inception_v3(size: int = 299, width: float = 1.0, classes: int = 1000) -> ModelProto:
    """Build the network.  size: pixels per side of the image, at least 75.  width: factor on all channels."""
    net = Net("inception_v3")
    blocks = _Blocks(net, width)
    conv = blocks.conv
    x = net.input("image", (1, 3, size, size))
    x = conv(conv(conv(x, 32, 3, 2, 0), 32, 3, 1, 0), 64, 3)
    x = conv(conv(net.max_pool(x, 3, 2), 80, 1), 192, 3, 1, 0)
    x = net.max_pool(x, 3, 2)
    for pool in (32, 64, 64):
        x = blocks.a(x, pool)
    x = blocks.b(x)
    for inner in (128, 160, 160, 192):
        x = blocks.c(x, inner)
    x = blocks.d(x)
    x = blocks.e(blocks.e(x))
    return net.model(net.classifier(x, classes))
