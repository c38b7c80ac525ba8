"""NASNet-A (4 @ 1056), the mobile variant (Zoph et al. 2018, figure 4 and table 3): cells of two inputs and five sums of branches."""

from __future__ import annotations

from onnx import ModelProto

from tuner.zoo.builders.net import Net, Tensor


def nasnet_mobile(size: int = 224, filters: int = 44, repeats: int = 4, classes: int = 1000) -> ModelProto:
    """Build the network.  size: pixels per side.  filters: filters of the first cells, a multiple of 4; the last cells have 24 times as
    many.  repeats: cells per size."""
    net = Net("nasnet_mobile")
    stem = net.batch_norm(net.conv(net.input("image", (1, 3, size, size)), 32, 3, 2, 0))
    previous, x = stem, _reduction(net, _squeeze(net, stem, filters // 4), stem, filters // 4)
    last = x
    x = _reduction(net, _squeeze(net, x, filters // 2), _halve(net, previous, filters // 2), filters // 2)
    previous = last
    for stage in range(3):
        wide = filters << stage
        if stage:
            last = x
            x = _reduction(net, _squeeze(net, x, wide), _squeeze(net, previous, wide), wide)
            previous = last
        for cell in range(repeats):
            # after a reduction the older input is twice as large
            older = _squeeze(net, previous, wide) if cell else _halve(net, previous, wide)
            previous, x = x, _normal(net, older, _squeeze(net, x, wide), wide)
    return net.model(net.classifier(net.relu(x), classes))


def _squeeze(net: Net, tensor: Tensor, channels: int) -> Tensor:
    return net.batch_norm(net.conv(net.relu(tensor), channels, 1))


def _halve(net: Net, tensor: Tensor, channels: int) -> Tensor:
    """Half the size without loss of every other pixel: even pixels and odd pixels as separate channels."""
    tensor = net.relu(tensor)
    n, c, h, w = tensor.shape
    even_pixels = net.conv(net.average_pool(tensor, 1, 2), channels // 2, 1)
    padded = net.node("Pad", [tensor.name, net.integers((0, 0, 0, 0, 0, 0, 1, 1))], (n, c, h + 1, w + 1))
    shifted = net.node(
        "Slice", [padded.name, net.integers((1, 1)), net.integers((h + 1, w + 1)), net.integers((2, 3))], (n, c, h, w)
    )  # fmt: skip
    odd_pixels = net.conv(net.average_pool(shifted, 1, 2), channels - channels // 2, 1)
    return net.batch_norm(net.concat(even_pixels, odd_pixels))


def _separable(net: Net, tensor: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
    """Separable block: ReLU, depthwise, pointwise, normalisation; twice, with the stride in the first."""
    for step in (stride, 1):
        tensor = net.conv(net.relu(tensor), tensor.channels, kernel, step, groups=tensor.channels)
        tensor = net.batch_norm(net.conv(tensor, channels, 1))
    return tensor


def _normal(net: Net, older: Tensor, newer: Tensor, channels: int) -> Tensor:
    left_mean = net.average_pool(older, 3, 1, 1)
    return net.concat(
        older,
        net.add(_separable(net, newer, channels, 5), _separable(net, older, channels, 3)),
        net.add(_separable(net, older, channels, 5), _separable(net, older, channels, 3)),
        net.add(net.average_pool(newer, 3, 1, 1), older),
        net.add(left_mean, left_mean),
        net.add(_separable(net, newer, channels, 3), newer),
    )


def _reduction(net: Net, newer: Tensor, older: Tensor, channels: int) -> Tensor:
    """Reduction cell of the newer and the older input."""
    first = net.add(_separable(net, newer, channels, 5, 2), _separable(net, older, channels, 7, 2))
    pooled = net.max_pool(newer, 3, 2, 1)
    second = net.add(pooled, _separable(net, older, channels, 7, 2))
    third = net.add(net.average_pool(newer, 3, 2, 1), _separable(net, older, channels, 5, 2))
    fourth = net.add(net.average_pool(first, 3, 1, 1), second)
    return net.concat(second, third, fourth, net.add(_separable(net, first, channels, 3), pooled))
