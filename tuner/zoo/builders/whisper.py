"""Encoder of Whisper (Radford et al. 2022), node by node as PyTorch exports it at opset 17."""

from __future__ import annotations

from onnx import ModelProto

from tuner.zoo.builders.net import Net, Tensor
from tuner.zoo.builders.transformer import attend, gelu, layer_norm, linear, mlp, split_heads


def whisper(frames: int = 3000, mels: int = 80, layers: int = 4, width: int = 384, heads: int = 6) -> ModelProto:
    """Build the encoder (defaults: tiny).  frames: columns of the spectrogram, 10 ms each."""
    net = Net("whisper")
    x = gelu(net, _conv(net, net.input("spectrogram", (1, mels, frames)), width, 1))
    x = net.transpose(gelu(net, _conv(net, x, width, 2)), 0, 2, 1)
    x = net.add(x, Tensor(net.weight(*x.shape[1:]), x.shape))
    for _ in range(layers):
        y = layer_norm(net, x, 1e-5)
        query = net.transpose(split_heads(net, linear(net, y, width), heads), 0, 2, 1, 3)
        key = split_heads(net, linear(net, y, width, bias=False), heads)
        value = net.transpose(split_heads(net, linear(net, y, width), heads), 0, 2, 1, 3)
        x = net.add(x, linear(net, attend(net, query, key, value, "Mul"), width))
        x = net.add(x, mlp(net, layer_norm(net, x, 1e-5)))
    return net.model(layer_norm(net, x, 1e-5))


def _conv(net: Net, tensor: Tensor, channels: int, stride: int) -> Tensor:
    """Append a convolution of a signal [n, c, samples] by three taps."""
    n, before, samples = tensor.shape
    return net.node(
        "Conv", [tensor.name, net.weight(channels, before, 3), net.weight(channels)], (n, channels, -(-samples // stride)),
        kernel_shape=[3], strides=[stride], pads=[1, 1],
    )  # fmt: skip
