"""UNet of a diffusion model (Ho et al. 2020, appendix B), node by node as PyTorch exports it at opset 17.

The inputs are an image and the sines and cosines of its step.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from tuner.zoo.builders.net import Net, Tensor
from tuner.zoo.builders.transformer import linear

_LEVELS = (1, 2, 2, 2)  # widths at halved sizes


def unet(size: int = 32, width: int = 128, repeats: int = 2, groups: int = 32) -> ModelProto:
    """Build the network (defaults: that of CIFAR-10).  groups: groups of channels that are normalised together."""
    net = Net("unet")
    x, step = net.input("image", (1, 3, size, size)), net.input("step", (1, width))
    step = net.silu(_gemm(net, net.silu(_gemm(net, step, 4 * width)), 4 * width))
    x = net.conv(x, width, 3, bias=True)
    skips = [x]
    for i, factor in enumerate(_LEVELS):
        for _ in range(repeats):
            x = _attended(net, _residual(net, x, step, factor * width, groups), size // 2, groups)
            skips.append(x)
        if i < len(_LEVELS) - 1:
            x = net.conv(x, x.channels, 3, 2, bias=True)
            skips.append(x)
    x = _attention(net, _residual(net, x, step, x.channels, groups), groups)
    x = _residual(net, x, step, x.channels, groups)
    for i, factor in reversed(list(enumerate(_LEVELS))):
        for _ in range(repeats + 1):
            x = _attended(net, _residual(net, net.concat(x, skips.pop()), step, factor * width, groups), size // 2, groups)
        if i:
            sizes = 2 * x.shape[2], 2 * x.shape[3]
            x = net.resize(x, sizes, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
            x = net.conv(x, x.channels, 3, bias=True)
    return net.model(net.conv(net.silu(_group_norm(net, x, groups)), 3, 3, bias=True))


def _gemm(net: Net, tensor: Tensor, features: int) -> Tensor:
    """Append a linear layer of a vector: [1, width] to [1, features]."""
    operands = [tensor.name, net.weight(features, tensor.shape[1]), net.weight(features)]
    return net.node("Gemm", operands, (1, features), transB=1)


def _group_norm(net: Net, tensor: Tensor, groups: int) -> Tensor:
    """Append a normalisation of groups of channels, as exporters without GroupNormalization write it."""
    n, channels, h, w = tensor.shape
    grouped = net.reshape(tensor, n, groups, channels // groups * h * w)
    ones, zeros = (net.array(np.full(groups, value, np.float32)) for value in (1, 0))
    normed = net.node("InstanceNormalization", [grouped.name, ones, zeros], grouped.shape, epsilon=1e-5)
    scaled = net.mul(net.reshape(normed, *tensor.shape), net.weight(channels, 1, 1))
    return net.node("Add", [scaled.name, net.weight(channels, 1, 1)], tensor.shape)


def _residual(net: Net, tensor: Tensor, step: Tensor, channels: int, groups: int) -> Tensor:
    """Append two convolutions, with a projection of the step between them."""
    y = net.conv(net.silu(_group_norm(net, tensor, groups)), channels, 3, bias=True)
    shift = _gemm(net, step, channels)
    for axis in (2, 3):
        shift = net.node("Unsqueeze", [shift.name, net.integers((axis,))], (*shift.shape, 1))
    y = net.add(y, shift)
    if tensor.channels != channels:
        tensor = net.conv(tensor, channels, 1, bias=True)
    return net.add(tensor, net.conv(net.silu(_group_norm(net, y, groups)), channels, 3, bias=True))


def _attended(net: Net, tensor: Tensor, side: int, groups: int) -> Tensor:
    """Append attention where the image has `side` rows."""
    return _attention(net, tensor, groups) if tensor.shape[2] == side else tensor


def _attention(net: Net, tensor: Tensor, groups: int) -> Tensor:
    """Append attention between all pixels of an image, added to it."""
    n, channels, h, w = tensor.shape
    pixels = net.transpose(net.reshape(_group_norm(net, tensor, groups), n, channels, h * w), 0, 2, 1)
    query, key = (linear(net, pixels, channels) for _ in range(2))
    scores = net.node("MatMul", [query.name, net.transpose(key, 0, 2, 1).name], (n, h * w, h * w))
    weights = net.softmax(net.mul(scores, net.number(channels**-0.5)), axis=-1)
    mixed = net.node("MatMul", [weights.name, linear(net, pixels, channels).name], pixels.shape)
    return net.add(tensor, net.reshape(net.transpose(linear(net, mixed, channels), 0, 2, 1), n, channels, h, w))
