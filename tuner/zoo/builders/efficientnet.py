"""EfficientNet-B0 (Tan and Le 2019, table 1): inverted residuals with squeeze-and-excite, and x * sigmoid(x) after every convolution."""

from __future__ import annotations

from onnx import ModelProto

from tuner.zoo.builders.mobilenet import layer, scale_channels
from tuner.zoo.builders.net import Net, Tensor

# (expansion, kernel, channels, repeats, first stride)
B0 = ((1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2), (6, 5, 112, 3, 1), (6, 5, 192, 4, 2), (6, 3, 320, 1, 1))
SQUEEZE = 4  # channels of a block's input per channel of its squeeze


def efficientnet_b0(size: int = 224, width: float = 1.0, classes: int = 1000) -> ModelProto:
    """Build the network.  size: pixels per side of the image.  width: factor on all channels."""
    net = Net("efficientnet_b0")
    x = layer(net, net.input("image", (1, 3, size, size)), scale_channels(32, width), 3, 2, 1, net.silu)
    for expansion, kernel, channels, repeats, first in B0:
        for i in range(repeats):
            x = _block(net, x, expansion, kernel, scale_channels(channels, width), first if i == 0 else 1)
    x = layer(net, x, scale_channels(1280, width), 1, 1, 1, net.silu)
    return net.model(net.classifier(x, classes))


def _block(net: Net, tensor: Tensor, expansion: int, kernel: int, channels: int, stride: int) -> Tensor:
    inner = tensor.channels * expansion
    y = layer(net, tensor, inner, 1, 1, 1, net.silu) if expansion > 1 else tensor
    y = layer(net, y, inner, kernel, stride, inner, net.silu)
    y = _squeeze_excite(net, y, max(1, tensor.channels // SQUEEZE))
    y = layer(net, y, channels, 1, 1, 1, None)
    return net.add(tensor, y) if stride == 1 and tensor.channels == channels else y


def _squeeze_excite(net: Net, tensor: Tensor, squeezed: int) -> Tensor:
    """Scale channels by gates in 0..1, which are computed from the means of all channels."""
    means = net.node("GlobalAveragePool", [tensor.name], (*tensor.shape[:2], 1, 1))
    gate = net.conv(net.silu(net.conv(means, squeezed, 1, bias=True)), tensor.channels, 1, bias=True)
    return net.mul(tensor, net.sigmoid(gate))
