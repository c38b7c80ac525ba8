"""Random network drawn from a seed: training data for a cost model of any network.

The network is a sequence of blocks of these kinds, each with random widths:

| kind         | block                                                                                      |
|--------------|--------------------------------------------------------------------------------------------|
| chain        | one to three convolutions of 1x1 to 5x5 (or 1x7 and 7x1), with ReLU                          |
| residual     | a bottleneck or two convolutions of 3x3, added to the block's input (He et al. 2016)         |
| dense        | two to four layers that read all earlier ones of the block (Huang et al. 2017)               |
| inverted     | wider, depthwise, narrower, with ReLU6 or SiLU (Sandler et al. 2018; Tan and Le 2019)         |
| branches     | three parallel branches, one of them a pooling (Szegedy et al. 2015)                         |
| attention    | self-attention and an MLP over the pixels as tokens, each added (Dosovitskiy et al. 2021)     |
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import ModelProto

from tuner.zoo.builders.net import Net, Tensor
from tuner.zoo.builders.transformer import attention, layer_norm, mlp

Rng = np.random.Generator
MOST_TOKENS = 256  # limit for attention: its scores are tokens squared
LEAST_SIZE = 7  # least size of a feature map


def drawn(seed: int = 0, size: int = 112, blocks: int = 8, widest: int = 512, classes: int = 100) -> ModelProto:
    """Draw a network.  size: pixels per side of the image.  blocks: number of blocks.  widest: most channels of a convolution."""
    rng, net = np.random.default_rng(seed), Net(f"drawn{seed}")
    x = net.relu(net.conv(net.input("image", (1, 3, size, size)), _width(rng, 16, min(64, widest)), int(rng.choice([3, 5])), 2))
    kinds = list(_KINDS)
    for _ in range(blocks):
        if x.shape[2] // 2 >= LEAST_SIZE and rng.random() < 0.4:
            x = _downsample(net, x, rng, widest)
        x = _KINDS[kinds[int(rng.integers(len(kinds)))]](net, x, rng, widest)
        if x.channels > widest:
            x = net.relu(net.conv(x, _width(rng, widest // 4, widest), 1))
    return net.model(net.classifier(x, classes))


def _width(rng: Rng, low: int, high: int) -> int:
    """Multiple of 8, log-uniform: small ones are as frequent as large ones."""
    return max(8, int(np.exp2(rng.uniform(np.log2(max(8, low)), np.log2(max(8, high))))) // 8 * 8)


def _downsample(net: Net, tensor: Tensor, rng: Rng, widest: int) -> Tensor:
    if rng.random() < 0.3:
        return net.max_pool(tensor, 3, 2, 1)
    return net.relu(net.conv(tensor, _width(rng, tensor.channels, min(widest, 2 * tensor.channels)), 3, 2))


def _chain(net: Net, tensor: Tensor, rng: Rng, widest: int) -> Tensor:
    for _ in range(int(rng.integers(1, 4))):
        shape = ((1, 1), (3, 3), (3, 3), (5, 5), (1, 7), (7, 1))[int(rng.integers(6))]
        tensor = net.relu(net.conv(tensor, _width(rng, tensor.channels // 2, min(widest, 2 * tensor.channels)), shape))
    return tensor


def _residual(net: Net, tensor: Tensor, rng: Rng, widest: int) -> Tensor:
    del widest
    if rng.random() < 0.5:
        inner = _width(rng, tensor.channels // 4, tensor.channels // 2)
        y = net.conv(net.relu(net.conv(net.relu(net.conv(tensor, inner, 1)), inner, 3)), tensor.channels, 1)
    else:
        y = net.conv(net.relu(net.conv(tensor, _width(rng, tensor.channels // 2, tensor.channels), 3)), tensor.channels, 3)
    return net.relu(net.add(y, tensor))


def _dense(net: Net, tensor: Tensor, rng: Rng, widest: int) -> Tensor:
    growth = _width(rng, 8, 48)
    for _ in range(int(rng.integers(2, 5))):
        y = net.relu(net.conv(tensor, min(widest, 4 * growth), 1)) if rng.random() < 0.7 else tensor
        tensor = net.concat(tensor, net.relu(net.conv(y, growth, 3)))
    return tensor


def _inverted(net: Net, tensor: Tensor, rng: Rng, widest: int) -> Tensor:
    act = net.silu if rng.random() < 0.4 else net.relu6
    inner = min(widest, tensor.channels * int(rng.choice([2, 3, 4, 6])))
    keeps_shape = rng.random() < 0.6
    y = act(net.conv(act(net.conv(tensor, inner, 1)), inner, int(rng.choice([3, 3, 5])), groups=inner))
    y = net.conv(y, tensor.channels if keeps_shape else _width(rng, tensor.channels // 2, tensor.channels), 1)
    return net.add(y, tensor) if keeps_shape else y


def _branches(net: Net, tensor: Tensor, rng: Rng, widest: int) -> Tensor:
    narrow = min(widest, tensor.channels) // 2
    narrow_branch = net.relu(net.conv(tensor, _width(rng, narrow // 2, narrow), 1))
    two = net.relu(
        net.conv(net.relu(net.conv(tensor, _width(rng, narrow // 2, narrow), 1)), _width(rng, narrow // 2, narrow), int(rng.choice([3, 5])))
    )
    pool = net.max_pool(tensor, 3, 1, 1) if rng.random() < 0.5 else net.average_pool(tensor, 3, 1, 1)
    return net.concat(narrow_branch, two, net.relu(net.conv(pool, _width(rng, narrow // 4, narrow), 1)))


def _attention_block(net: Net, tensor: Tensor, rng: Rng, widest: int) -> Tensor:
    n, channels, high, wide = tensor.shape
    if high * wide > MOST_TOKENS:
        return _residual(net, tensor, rng, widest)
    heads = int(rng.choice([1, 2, 4]))
    if channels % (16 * heads):
        tensor = net.conv(tensor, channels := -(-channels // (16 * heads)) * 16 * heads, 1)
    tokens = net.transpose(net.reshape(tensor, n, channels, high * wide), 0, 2, 1)
    tokens = net.add(tokens, attention(net, layer_norm(net, tokens, 1e-6), heads, None))
    tokens = net.add(tokens, mlp(net, layer_norm(net, tokens, 1e-6)))
    return net.reshape(net.transpose(tokens, 0, 2, 1), n, channels, high, wide)


_KINDS: dict[str, Callable[[Net, Tensor, Rng, int], Tensor]] = {
    "chain": _chain,
    "residual": _residual,
    "dense": _dense,
    "inverted": _inverted,
    "branches": _branches,
    "attention": _attention_block,
}
