"""Chains of operators that profit from fusion, each in two forms: an ONNX model, and einsums for AccelForge's mapper.

Einsums name a rank by a lower-case letter and a number; a tensor read through a window is indexed by a sum of two ranks.  Activations,
softmax and biases are left out of the einsums: a fused chain moves no data for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from onnx import ModelProto

from tuner.zoo.builders.net import Net
from tuner.zoo.builders.transformer import attention, mlp

Ranks = Sequence[str] | dict[str, str]  # of a tensor where an einsum reads it: rank variables, or rank -> an expression of them


class Einsum(NamedTuple):
    """inputs: tensor -> ranks.  output: ranks of the tensor of that name.  windows: rank variables of the positions of a 3x3 window."""

    output: str
    ranks: Sequence[str]
    inputs: dict[str, Ranks]
    windows: Sequence[str] = ()


class Chain(NamedTuple):
    """model: made when it is asked for.  sizes: of every rank, by its upper-case name."""

    model: Callable[[], ModelProto]
    sizes: dict[str, int]
    einsums: Sequence[Einsum]

    @property
    def workload(self) -> str:
        """Workload as YAML of AccelForge; a value has eight bits, so its counts are divided by eight."""
        lines = ["workload:", "  rank_sizes:", *(f"    {name}: {size}" for name, size in self.sizes.items())]
        lines += ["  bits_per_value: {All: 8}", "  einsums:"]
        for einsum in self.einsums:
            lines += [f"  - name: Make{einsum.output}", "    tensor_accesses:"]
            lines += [f"    - {{name: {name}, projection: {_text(ranks)}}}" for name, ranks in einsum.inputs.items()]
            lines.append(f"    - {{name: {einsum.output}, projection: {_text(einsum.ranks)}, output: True}}")
            if einsum.windows:
                lines.append(f"    iteration_space_shape: [{', '.join(f'0 <= {name} < 3' for name in einsum.windows)}]")
        return "\n".join([*lines, ""])


def _text(ranks: Ranks) -> str:
    if isinstance(ranks, dict):
        return "{" + ", ".join(f"{name}: {value}" for name, value in ranks.items()) + "}"
    return f"[{', '.join(ranks)}]"


def products(count: int, rows: int = 3136, width: int = 256) -> Chain:
    """rows x width by width x width, so many times."""

    def model() -> ModelProto:
        net = Net(f"products_{count}")
        x = net.input("x", (1, rows, width))
        for _ in range(count):
            x = net.node("MatMul", [x.name, net.weight(width, width)], x.shape)
        return net.model(x)

    einsums = [Einsum(f"T{i + 1}", ("m", f"n{i + 1}"), {f"T{i}": ("m", f"n{i}"), f"W{i}": (f"n{i}", f"n{i + 1}")}) for i in range(count)]
    return Chain(model, {"M": rows} | {f"N{i}": width for i in range(count + 1)}, einsums)


def mobilenet(side: int, channels: int, wide: int, bodies: int = 2) -> Chain:
    """Expansion, depthwise 3x3, projection; the bodies one after the other, without their sums."""

    def model() -> ModelProto:
        net = Net(f"mobilenet_{side}")
        x = net.input("x", (1, channels, side, side))
        for _ in range(bodies):
            x = net.relu6(net.conv(x, wide, 1))
            x = net.relu6(net.conv(x, wide, 3, groups=wide))
            x = net.conv(x, channels, 1)
        return net.model(x)

    sizes, einsums = {"P0": side, "Q0": side, "C0": channels}, list[Einsum]()
    for i in range(bodies):
        j, taps = i + 1, (f"r{i}", f"s{i}")
        sizes |= {f"W{i}": wide, f"P{j}": side, f"Q{j}": side, f"C{j}": channels}
        einsums += [
            Einsum(f"Y{i}", (f"p{i}", f"q{i}", f"w{i}"), {f"X{i}": (f"p{i}", f"q{i}", f"c{i}"), f"A{i}": (f"c{i}", f"w{i}")}),
            Einsum(f"Z{i}", (f"p{j}", f"q{j}", f"w{i}"), {f"Y{i}": _window(i, j, f"w{i}"), f"D{i}": (*taps, f"w{i}")}, taps),
            Einsum(f"X{j}", (f"p{j}", f"q{j}", f"c{j}"), {f"Z{i}": (f"p{j}", f"q{j}", f"w{i}"), f"B{i}": (f"w{i}", f"c{j}")}),
        ]
    return Chain(model, sizes, einsums)


def bottleneck(side: int, channels: int, narrow: int) -> Chain:
    """1x1, 3x3 and 1x1 convolutions and the sum with the input."""

    def model() -> ModelProto:
        net = Net(f"bottleneck_{side}")
        x = net.input("x", (1, channels, side, side))
        y = net.relu(net.conv(net.relu(net.conv(x, narrow, 1)), narrow, 3))
        return net.model(net.relu(net.add(net.conv(y, channels, 1), x)))

    sizes = {"P0": side, "Q0": side, "C0": channels, "N0": narrow, "N1": narrow, "P1": side, "Q1": side, "C1": channels}
    einsums = [
        Einsum("Y", ("p0", "q0", "n0"), {"X": ("p0", "q0", "c0"), "A": ("c0", "n0")}),
        Einsum("Z", ("p1", "q1", "n1"), {"Y": _window(0, 1, "n0"), "B": ("r0", "s0", "n0", "n1")}, ("r0", "s0")),
        Einsum("V", ("p1", "q1", "c1"), {"Z": ("p1", "q1", "n1"), "C": ("n1", "c1")}),
        Einsum("O", ("p1", "q1", "c1"), {"V": ("p1", "q1", "c1"), "X": {"P0": "p1", "Q0": "q1", "C0": "c1"}}),
    ]
    return Chain(model, sizes, einsums)


def attention_block(tokens: int = 256, width: int = 512, heads: int = 8) -> Chain:
    """Query, key and value, scores, weighted sum of values, and the output product."""

    def model() -> ModelProto:
        net = Net("attention")
        return net.model(attention(net, net.input("x", (1, tokens, width)), heads, None))

    sizes = {"M": tokens, "P": tokens, "D": width, "H": heads, "E": width // heads, "G": width}
    key_ranks = {"M": "p", "H": "h", "E": "e"}
    einsums = [
        *(Einsum(name, ("m", "h", "e"), {"X": ("m", "d"), f"W{name}": ("h", "e", "d")}) for name in "QKV"),
        Einsum("S", ("m", "p", "h"), {"Q": ("m", "h", "e"), "K": key_ranks}),
        Einsum("N", ("m", "h", "e"), {"S": ("m", "p", "h"), "V": key_ranks}),
        Einsum("Z", ("m", "g"), {"N": ("m", "h", "e"), "WZ": ("h", "e", "g")}),
    ]
    return Chain(model, sizes, einsums)


def mlp_block(tokens: int = 256, width: int = 512) -> Chain:
    """Product to four times the width, GELU, and product back."""

    def model() -> ModelProto:
        net = Net("mlp")
        return net.model(mlp(net, net.input("x", (1, tokens, width))))

    einsums = [
        Einsum("Y", ("m", "h"), {"X": ("m", "d"), "A": ("d", "h")}),
        Einsum("Z", ("m", "g"), {"Y": ("m", "h"), "B": ("h", "g")}),
    ]
    return Chain(model, {"M": tokens, "D": width, "H": 4 * width, "G": width}, einsums)


def _window(i: int, j: int, channels: str) -> dict[str, str]:
    """Tensor of ranks Pi and Qi, read through a window by an operator with ranks j."""
    return {f"P{i}": f"p{j} + r{i}", f"Q{i}": f"q{j} + s{i}", channels.upper(): channels}


CHAINS: dict[str, Chain] = {
    "two products": products(2),
    "four products": products(4),
    "MobileNet at 28": mobilenet(28, 32, 192),
    "MobileNet at 56": mobilenet(56, 24, 144),
    "bottleneck at 56": bottleneck(56, 256, 64),
    "bottleneck at 28": bottleneck(28, 512, 128),
    "attention": attention_block(),
    "MLP": mlp_block(),
}
