"""MobileNet v1 (Howard et al. 2017, table 1) and v2 (Sandler et al. 2018, table 2)."""

from __future__ import annotations

from collections.abc import Callable

from onnx import ModelProto

from tuner.zoo.builders.net import Net, Tensor

# v1: (channels, stride) of the pointwise convolutions; v2: (expansion, channels, repeats, first stride)
V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def scale_channels(channels: int, width: float) -> int:
    """Number of channels: a multiple of 8, at most a tenth below channels * width (the rule of the authors' code)."""
    scaled = channels * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * scaled else rounded


def layer(net: Net, tensor: Tensor, channels: int, kernel: int, stride: int, groups: int, act: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Layer of convolution, normalisation, activation."""
    tensor = net.batch_norm(net.conv(tensor, channels, kernel, stride, groups=groups), 1e-5)
    return act(tensor) if act is not None else tensor


def mobilenet_v1(size: int = 224, width: float = 1.0, classes: int = 1000) -> ModelProto:
    """Build the network.  size: pixels per side of the image.  width: factor on all channels."""
    net = Net("mobilenet_v1")
    x = layer(net, net.input("image", (1, 3, size, size)), scale_channels(32, width), 3, 2, 1, net.relu)
    for channels, stride in V1:
        x = layer(net, x, x.channels, 3, stride, x.channels, net.relu)
        x = layer(net, x, scale_channels(channels, width), 1, 1, 1, net.relu)
    return net.model(net.classifier(x, classes))


def mobilenet_v2(size: int = 224, width: float = 1.0, classes: int = 1000) -> ModelProto:
    """Build the network.  size: pixels per side of the image.  width: factor on all channels (the last layer's 1280 only grow)."""
    net = Net("mobilenet_v2")
    x = layer(net, net.input("image", (1, 3, size, size)), scale_channels(32, width), 3, 2, 1, net.relu6)
    for expansion, channels, repeats, first in V2:
        for i in range(repeats):
            x = _inverted_residual(net, x, expansion, scale_channels(channels, width), first if i == 0 else 1)
    x = layer(net, x, scale_channels(1280, max(1.0, width)), 1, 1, 1, net.relu6)
    return net.model(net.classifier(x, classes))


def _inverted_residual(net: Net, tensor: Tensor, expansion: int, channels: int, stride: int) -> Tensor:
    inner = tensor.channels * expansion
    y = layer(net, tensor, inner, 1, 1, 1, net.relu6) if expansion > 1 else tensor
    y = layer(net, y, inner, 3, stride, inner, net.relu6)
    y = layer(net, y, channels, 1, 1, 1, None)
    return net.add(tensor, y) if stride == 1 and tensor.channels == channels else y
