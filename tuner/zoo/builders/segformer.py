"""SegFormer (Xie et al. 2021), node by node as PyTorch exports it at opset 17."""

from __future__ import annotations

from onnx import ModelProto

from tuner.zoo.builders.net import Net, Tensor
from tuner.zoo.builders.transformer import attend, gelu, layer_norm, linear, split_heads

_WIDTHS, _REDUCTIONS = (1, 2, 5, 8), (8, 4, 2, 1)  # of the four stages; widths are heads as well


def segformer(size: int = 512, width: int = 32, layers: int = 2, decoder: int = 256, classes: int = 150) -> ModelProto:
    """Build the network (defaults: B0).  size: pixels per side of the image, a multiple of 32.  width: channels of a head."""
    net = Net("segformer")
    x = net.input("image", (1, 3, size, size))
    features: list[Tensor] = []
    for i, (heads, reduction) in enumerate(zip(_WIDTHS, _REDUCTIONS, strict=True)):
        x = net.conv(x, width * heads, 3, 2, bias=True) if i else net.conv(x, width, 7, 4, bias=True)
        n, channels, h, w = x.shape
        tokens = layer_norm(net, _tokens(net, x), 1e-5)
        for _ in range(layers):
            tokens = net.add(tokens, _attention(net, layer_norm(net, tokens, 1e-5), heads, reduction, (h, w)))
            tokens = net.add(tokens, _mixed_mlp(net, layer_norm(net, tokens, 1e-5), (h, w)))
        x = net.transpose(net.reshape(layer_norm(net, tokens, 1e-5), n, h, w, channels), 0, 3, 1, 2)
        features.append(x)
    _, _, h, w = features[0].shape
    parts: list[Tensor] = []
    for feature in features:
        part = _image(net, linear(net, _tokens(net, feature), decoder), feature.shape[2:])
        parts.append(net.resize(part, (h, w), mode="linear", coordinate_transformation_mode="half_pixel", cubic_coeff_a=-0.75))
    x = net.relu(net.conv(net.concat(*parts[::-1]), decoder, 1, bias=True))
    return net.model(net.conv(x, classes, 1, bias=True))


def _tokens(net: Net, image: Tensor) -> Tensor:
    """Append the pixels of an image as tokens: [n, c, h, w] to [n, h * w, c]."""
    n, channels, h, w = image.shape
    return net.transpose(net.reshape(image, n, channels, h * w), 0, 2, 1)


def _image(net: Net, tokens: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Append tokens as the pixels of an image: [n, h * w, c] to [n, c, h, w]."""
    n, _, channels = tokens.shape
    return net.reshape(net.transpose(tokens, 0, 2, 1), n, channels, *sizes)


def _attention(net: Net, tokens: Tensor, heads: int, reduction: int, sizes: tuple[int, int]) -> Tensor:
    """Append attention of all tokens to those of an image that is `reduction` times smaller."""
    width = tokens.shape[2]
    query = net.transpose(split_heads(net, linear(net, tokens, width), heads), 0, 2, 1, 3)
    if reduction > 1:
        reduced = net.conv(_image(net, tokens, sizes), width, reduction, reduction, 0, bias=True)
        tokens = layer_norm(net, _tokens(net, reduced), 1e-5)
    key, value = (split_heads(net, linear(net, tokens, width), heads) for _ in range(2))
    value = net.transpose(value, 0, 2, 1, 3)
    return linear(net, attend(net, query, key, value, "Div"), width)


def _mixed_mlp(net: Net, tokens: Tensor, sizes: tuple[int, int]) -> Tensor:
    """Append two linear layers with a depthwise convolution and GELU between them, 4 times as wide."""
    width = tokens.shape[2]
    image = _image(net, linear(net, tokens, 4 * width), sizes)
    mixed = net.conv(image, 4 * width, 3, groups=4 * width, bias=True)
    return linear(net, gelu(net, _tokens(net, mixed)), width)
