"""YOLOv8 (Jocher et al. 2023), node by node as PyTorch exports it at opset 17, with boxes and scores as its output.

Sides of boxes are distributions over 16 distances (Li et al. 2020): a softmax, and a convolution with the distances as weights.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from tuner.zoo.builders.net import Net, Tensor

_DISTANCES = 16
_STRIDES = (8, 16, 32)


def yolo(size: int = 640, width: int = 16, repeats: int = 1, classes: int = 80) -> ModelProto:
    """Build the network (defaults: v8n).  size: pixels per side of the image, a multiple of 32.  width: channels of the first layer."""
    net = Net("yolo")
    widths = [width * 2**i for i in range(5)]
    x = _block(net, net.input("image", (1, 3, size, size)), widths[0], 3, 2)
    features: list[Tensor] = []
    for i, channels in enumerate(widths[1:]):
        x = _split_stage(net, _block(net, x, channels, 3, 2), channels, repeats * (1 + (i in (1, 2))), shortcut=True)
        features.append(x)
    deep = _pyramid_pool(net, x)
    middle = _split_stage(net, net.concat(_upsample(net, deep), features[2]), widths[3], repeats)
    fine = _split_stage(net, net.concat(_upsample(net, middle), features[1]), widths[2], repeats)
    middle = _split_stage(net, net.concat(_block(net, fine, widths[2], 3, 2), middle), widths[3], repeats)
    deep = _split_stage(net, net.concat(_block(net, middle, widths[3], 3, 2), deep), widths[4], repeats)
    return net.model(_head(net, (fine, middle, deep), size, classes))


def _block(net: Net, tensor: Tensor, channels: int, kernel: int = 1, stride: int = 1) -> Tensor:
    return net.silu(net.conv(tensor, channels, kernel, stride, bias=True))


def _split_stage(net: Net, tensor: Tensor, channels: int, repeats: int, *, shortcut: bool = False) -> Tensor:
    """Append bottlenecks on one half of the channels; both halves and all results are joined."""
    parts = net.split(_block(net, tensor, channels), channels // 2, channels // 2)
    for _ in range(repeats):
        x = _block(net, _block(net, parts[-1], channels // 2, 3), channels // 2, 3)
        parts.append(net.add(parts[-1], x) if shortcut else x)
    return _block(net, net.concat(*parts), channels)


def _pyramid_pool(net: Net, tensor: Tensor) -> Tensor:
    """Append maxima over growing windows."""
    parts = [_block(net, tensor, tensor.channels // 2)]
    for _ in range(3):
        parts.append(net.max_pool(parts[-1], 5, 1, 2))
    return _block(net, net.concat(*parts), tensor.channels)


def _upsample(net: Net, tensor: Tensor) -> Tensor:
    _, _, h, w = tensor.shape
    return net.resize(tensor, (2 * h, 2 * w), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _head(net: Net, features: tuple[Tensor, ...], size: int, classes: int) -> Tensor:
    """Append the boxes (centre and size in pixels) and scores of all cells: [1, 4 + classes, cells]."""
    # two branches per feature: distributions of the four sides, and scores
    wide = features[0].channels
    widths = max(_DISTANCES, wide // 4, 4 * _DISTANCES), max(wide, min(classes, 100))
    parts: list[Tensor] = []
    for feature in features:
        branches = [
            net.conv(_block(net, _block(net, feature, inner, 3), inner, 3), outputs, 1, bias=True)
            for inner, outputs in zip(widths, (4 * _DISTANCES, classes), strict=True)
        ]
        parts.append(net.concat(*branches))
    parts = [net.reshape(part, 1, part.channels, part.shape[2] * part.shape[3]) for part in parts]
    boxes, scores = net.split(net.concat(*parts, axis=2), 4 * _DISTANCES, classes)
    # mean distance of each side from the centre of its cell, in cells
    cells = boxes.shape[2]
    shares = net.softmax(net.transpose(net.reshape(boxes, 1, 4, _DISTANCES, cells), 0, 2, 1, 3), axis=1)
    distances = net.array(np.arange(_DISTANCES, dtype=np.float32).reshape(1, -1, 1, 1))
    mean = net.node("Conv", [shares.name, distances], (1, 1, 4, cells), kernel_shape=[1, 1])
    low, high = net.split(net.reshape(mean, 1, 4, cells), 2, 2)
    # corners, then centre and size, in pixels
    sides = [size // stride for stride in _STRIDES]
    anchors = np.concatenate([np.stack(np.meshgrid(*[np.arange(side) + 0.5] * 2)).reshape(2, -1) for side in sides], 1)
    strides = np.repeat(np.array(_STRIDES), np.square(sides))
    centres, scale = (net.array(values.astype(np.float32)[None]) for values in (anchors, strides[None]))
    low = net.node("Sub", [centres, low.name], low.shape)
    high = net.node("Add", [centres, high.name], high.shape)
    middle = net.node("Div", [net.add(low, high).name, net.number(2.0)], low.shape)
    extent = net.node("Sub", [high.name, low.name], low.shape)
    return net.concat(net.mul(net.concat(middle, extent), scale), net.sigmoid(scores))
