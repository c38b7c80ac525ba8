"""LLaMA (Touvron et al. 2023) with grouped queries (Ainslie et al. 2023), node by node as exporters of opset 17 write a step with a cache.

The inputs are embedded tokens, cosines and sines of their positions, a mask that is added to the scores, and the keys and values of the
`past` tokens before them; the outputs are logits of the last token, and the keys and values of all tokens.  A step of `tokens` 1 decodes,
a step without a `past` is a prefill.
"""

from __future__ import annotations

import math

from onnx import ModelProto

from tuner.zoo.builders.net import Net, Tensor


def llama(
    tokens: int = 1, past: int = 255, layers: int = 30, width: int = 576, heads: int = 9, kv_heads: int = 3, hidden: int = 1536,
    vocabulary: int = 0,
) -> ModelProto:  # fmt: skip
    """Build a step of the decoder (defaults: SmolLM-135M without its embeddings).

    tokens, past: tokens of the step, and before it.  hidden: width of the gated layer.  vocabulary: 0: the output is the last hidden state.
    """
    net = Net("llama")
    size = width // heads
    x = net.input("embeddings", (1, tokens, width))
    cos, sin = (
        net.node("Unsqueeze", [net.input(name, (1, tokens, size)).name, net.integers((1,))], (1, 1, tokens, size))
        for name in ("cos", "sin")
    )
    mask = net.input("mask", (1, 1, tokens, past + tokens))
    present: list[Tensor] = []
    for layer in range(layers):
        cache = [net.input(f"past_{layer}_{kind}", (1, kv_heads, past, size)) for kind in ("key", "value")] if past else []
        normed = rms_norm(net, x)
        query, key, value = (_heads(net, _linear(net, normed, count * size), count) for count in (heads, kv_heads, kv_heads))
        query, key = _rotate(net, query, cos, sin), _rotate(net, key, cos, sin)
        if cache:
            key, value = net.concat(cache[0], key, axis=2), net.concat(cache[1], value, axis=2)
        present += [key, value]
        key, value = (_repeated(net, tensor, heads // kv_heads) for tensor in (key, value))
        mixed = _attention(net, query, key, value, mask)
        x = net.add(x, _linear(net, mixed, width))
        normed = rms_norm(net, x)
        gated = net.mul(net.silu(_linear(net, normed, hidden)), _linear(net, normed, hidden))
        x = net.add(x, _linear(net, gated, width))
    x = rms_norm(net, x)
    if vocabulary:
        x = _linear(net, x, vocabulary)
    return net.model(x, *present)


def rms_norm(net: Net, tensor: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Append a normalisation by the root of the mean of squares over the last axis, as exporters write it.  tensor: [.., width]."""
    row = (*tensor.shape[:-1], 1)
    squares = net.node("Pow", [tensor.name, net.number(2.0)], tensor.shape)
    mean = net.node("ReduceMean", [squares.name], row, axes=[-1])
    root = net.node("Sqrt", [net.node("Add", [mean.name, net.number(epsilon)], row).name], row)
    inverse = net.node("Div", [net.number(1.0), root.name], row)
    return net.node("Mul", [net.weight(tensor.shape[-1]), net.mul(tensor, inverse).name], tensor.shape)


def _linear(net: Net, tensor: Tensor, features: int) -> Tensor:
    """Append a linear layer without bias: [.., width] to [.., features]."""
    return net.node("MatMul", [tensor.name, net.weight(tensor.shape[-1], features)], (*tensor.shape[:-1], features))


def _heads(net: Net, tensor: Tensor, heads: int) -> Tensor:
    """Append heads: [n, tokens, width] to [n, heads, tokens, width / heads]."""
    n, tokens, width = tensor.shape
    return net.transpose(net.reshape(tensor, n, tokens, heads, width // heads), 0, 2, 1, 3)


def _rotate(net: Net, tensor: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Append a rotary embedding (Su et al. 2021): x cos + (-x of the upper half, x of the lower half) sin."""
    size = tensor.shape[-1]
    half = (*tensor.shape[:-1], size // 2)
    axis = net.integers((3,))
    bounds = [net.integers((n,)) for n in (0, size // 2, size)]
    turning = net.mul(tensor, cos)
    upper = net.node("Slice", [tensor.name, *bounds[1:], axis], half)
    negated = net.node("Neg", [upper.name], half)
    lower = net.node("Slice", [tensor.name, *bounds[:2], axis], half)
    turned = net.concat(negated, lower, axis=3)
    return net.add(turning, net.mul(turned, sin))


def _repeated(net: Net, tensor: Tensor, times: int) -> Tensor:
    """Append a repetition of every head: [n, heads, tokens, size] to [n, heads * times, tokens, size]."""
    if times == 1:
        return tensor
    n, heads, tokens, size = tensor.shape
    unsqueezed = net.node("Unsqueeze", [tensor.name, net.integers((2,))], (n, heads, 1, tokens, size))
    shape = n, heads, times, tokens, size
    return net.reshape(net.node("Expand", [unsqueezed.name, net.integers(shape)], shape), n, heads * times, tokens, size)


def _attention(net: Net, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Append attention over all tokens: heads [n, heads, tokens, size] to [n, tokens, width]."""
    n, heads, tokens, size = query.shape
    scores = net.node("MatMul", [query.name, net.transpose(key, 0, 1, 3, 2).name], (n, heads, tokens, key.shape[2]))
    scores = net.add(net.mul(scores, net.number(1 / math.sqrt(size))), mask)
    weights = net.node("Softmax", [scores.name], scores.shape, axis=-1)
    mixed = net.node("MatMul", [weights.name, value.name], query.shape)
    return net.reshape(net.transpose(mixed, 0, 2, 1, 3), n, tokens, heads * size)
