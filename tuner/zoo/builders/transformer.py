"""ViT-B/16 (Dosovitskiy et al. 2021) and BERT base (Devlin et al. 2019), node by node as exporters of opset 17 write them.

Linear layers are MatMul and Add, heads are Reshape and Transpose, GELU is Div, Erf, Add, Mul, Mul.
"""

from __future__ import annotations

import math

from onnx import ModelProto, TensorProto

from tuner.zoo.builders.net import Net, Tensor

_PATCH = 16  # pixels per side of a patch of ViT


def vit_b16(size: int = 224, layers: int = 12, width: int = 768, heads: int = 12, class_token: int = 1, classes: int = 1000) -> ModelProto:
    """Build the network.  size: pixels per side of the image, a multiple of 16.  class_token: 0: the mean over the patches instead."""
    net = Net("vit_b16")
    # patches to tokens, with a learnt position each
    patches = net.conv(net.input("image", (1, 3, size, size)), width, _PATCH, _PATCH, 0, bias=True)
    tokens = (size // _PATCH) ** 2
    x = net.transpose(net.reshape(patches, 1, width, tokens), 0, 2, 1)
    if class_token:
        x = net.concat(Tensor(net.weight(1, 1, width), (1, 1, width)), x)
        tokens += 1
    x = net.add(x, Tensor(net.weight(1, tokens, width), x.shape))
    for _ in range(layers):
        x = net.add(x, attention(net, layer_norm(net, x, 1e-6), heads, None))
        x = net.add(x, mlp(net, layer_norm(net, x, 1e-6)))
    # classifier of the first token, or of the mean
    x = layer_norm(net, x, 1e-6)
    if class_token:
        index = net.integers((0,))
        x = net.reshape(net.node("Slice", [x.name, index, net.integers((1,)), net.integers((1,))], (1, 1, width)), 1, width)
    else:
        x = net.node("ReduceMean", [x.name], (1, width), axes=[1], keepdims=0)
    return net.model(net.node("Gemm", [x.name, net.weight(classes, width), net.weight(classes)], (1, classes), transB=1))


def bert_base(
    tokens: int = 128, layers: int = 12, width: int = 768, heads: int = 12, lookup: int = 0, vocabulary: int = 30522
) -> ModelProto:
    """Build the encoder and its pooler, from embedded tokens [1, tokens, width].

    lookup: 1 starts with token numbers (int64) and their embeddings instead, and adds an attention mask.
    """
    net = Net("bert_base")
    mask = None
    if lookup:
        ids = net.input("input_ids", (1, tokens), TensorProto.INT64)
        attention_mask = net.input("attention_mask", (1, tokens))  # 1: a token; 0: padding
        x = net.node("Gather", [net.weight(vocabulary, width), ids.name], (1, tokens, width), axis=0)
        # added to scores: 0 for a token, -10000 for padding
        inverted_mask = net.node("Sub", [net.number(1.0), attention_mask.name], (1, tokens))
        inverted_row = net.node("Unsqueeze", [inverted_mask.name, net.integers((1, 2))], (1, 1, 1, tokens))
        mask = net.mul(inverted_row, net.number(-10000.0))
    else:
        x = net.input("embeddings", (1, tokens, width))
    x = layer_norm(net, net.add(x, Tensor(net.weight(1, tokens, width), x.shape)), 1e-12)
    for _ in range(layers):
        x = layer_norm(net, net.add(attention(net, x, heads, mask), x), 1e-12)
        x = layer_norm(net, net.add(mlp(net, x), x), 1e-12)
    # pooler: a linear layer on the first token, and tanh
    first_token = net.node("Slice", [x.name, net.integers((0,)), net.integers((1,)), net.integers((1,))], (1, 1, width))
    operands = [net.reshape(first_token, 1, width).name, net.weight(width, width), net.weight(width)]
    pooled = net.node("Gemm", operands, (1, width), transB=1)
    return net.model(x, net.node("Tanh", [pooled.name], (1, width)))


def layer_norm(net: Net, tensor: Tensor, epsilon: float) -> Tensor:
    """Add a layer normalisation over the last axis.  tensor: [.., width]."""
    width = tensor.shape[-1]
    return net.node("LayerNormalization", [tensor.name, net.weight(width), net.weight(width)], tensor.shape, axis=-1, epsilon=epsilon)


def linear(net: Net, tensor: Tensor, features: int, *, bias: bool = True) -> Tensor:
    """Add a linear layer: [.., width] to [.., features]."""
    y = net.node("MatMul", [tensor.name, net.weight(tensor.shape[-1], features)], (*tensor.shape[:-1], features))
    return net.node("Add", [net.weight(features), y.name], y.shape) if bias else y


def attention(net: Net, tensor: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    """Add self-attention with its linear layers: [n, tokens, width] to the same shape.

    mask: added to the scores, [n, heads, tokens, tokens].
    """
    width = tensor.shape[2]
    query, key, value = (split_heads(net, linear(net, tensor, width), heads) for _ in range(3))
    query, value = (net.transpose(part, 0, 2, 1, 3) for part in (query, value))
    return linear(net, attend(net, query, key, value, "Div", mask), width)


def split_heads(net: Net, tensor: Tensor, heads: int) -> Tensor:
    """Add heads: [n, tokens, width] to [n, tokens, heads, width / heads]."""
    return net.reshape(tensor, *tensor.shape[:2], heads, tensor.shape[2] // heads)


def attend(net: Net, query: Tensor, key: Tensor, value: Tensor, scaling: str, mask: Tensor | None = None) -> Tensor:
    """Add attention of queries [n, heads, tokens, size] to keys [n, others, heads, size] and values: [n, tokens, heads * size].

    scaling: Mul or Div, with which scores are scaled.
    """
    n, heads, tokens, size = query.shape
    scores = net.node("MatMul", [query.name, net.transpose(key, 0, 2, 3, 1).name], (n, heads, tokens, key.shape[1]))
    scores = net.node(scaling, [scores.name, net.number(size ** (0.5 if scaling == "Div" else -0.5))], scores.shape)
    if mask is not None:
        scores = net.add(scores, mask)
    mixed = net.node("MatMul", [net.softmax(scores, axis=-1).name, value.name], query.shape)
    return net.reshape(net.transpose(mixed, 0, 2, 1, 3), n, tokens, heads * size)


def mlp(net: Net, tensor: Tensor) -> Tensor:
    """Add two linear layers with GELU between them, 4 times as wide: [.., width] to the same shape."""
    return linear(net, gelu(net, linear(net, tensor, 4 * tensor.shape[-1])), tensor.shape[-1])


def gelu(net: Net, tensor: Tensor) -> Tensor:
    """Add GELU (Hendrycks and Gimpel 2016) in five nodes."""
    scaled = net.node("Div", [tensor.name, net.number(math.sqrt(2))], tensor.shape)
    erf = net.node("Erf", [scaled.name], tensor.shape)
    return net.mul(net.mul(tensor, net.node("Add", [erf.name, net.number(1.0)], tensor.shape)), net.number(0.5))
