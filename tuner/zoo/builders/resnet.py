"""ResNet-50 and 101 (He et al. 2016, table 1); the stride of a stage is that of its 3x3 convolution, as in torchvision."""

from __future__ import annotations

from onnx import ModelProto

from tuner.zoo.builders.mobilenet import layer, scale_channels
from tuner.zoo.builders.net import Net, Tensor

EXPANSION = 4  # output channels of a block over its inner channels


def resnet50(size: int = 224, width: float = 1.0, classes: int = 1000) -> ModelProto:
    """Build the network.  size: pixels per side of the image.  width: factor on all channels."""
    return _resnet("resnet50", (3, 4, 6, 3), size, width, classes)


def resnet101(size: int = 224, width: float = 1.0, classes: int = 1000) -> ModelProto:
    """Build the network.  size: pixels per side of the image.  width: factor on all channels."""
    return _resnet("resnet101", (3, 4, 23, 3), size, width, classes)


def _resnet(name: str, stages: tuple[int, ...], size: int, width: float, classes: int) -> ModelProto:
    net, first = Net(name), scale_channels(64, width)
    x = net.max_pool(layer(net, net.input("image", (1, 3, size, size)), first, 7, 2, 1, net.relu), 3, 2, 1)
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            x = _bottleneck(net, x, first << stage, 2 if stage and not block else 1)
    return net.model(net.classifier(x, classes))


def _bottleneck(net: Net, tensor: Tensor, channels: int, stride: int) -> Tensor:
    y = layer(net, tensor, channels, 1, 1, 1, net.relu)
    y = layer(net, y, channels, 3, stride, 1, net.relu)
    y = layer(net, y, channels * EXPANSION, 1, 1, 1, None)
    if tensor.shape != y.shape:
        tensor = layer(net, tensor, channels * EXPANSION, 1, stride, 1, None)
    return net.relu(net.add(y, tensor))
