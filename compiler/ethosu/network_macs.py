"""Multiply-accumulates of a network's operators, and the share of them that streams have."""

from __future__ import annotations

import math

from compiler.ethosu.network_parts import CompiledNetwork
from compiler.frontend.tflite.network import TfliteNetwork


def operator_macs(network: TfliteNetwork, number: int) -> int:
    """Those of a convolution or fully connected layer; 0 of any other operator."""
    operator = network.operators[number]
    if operator.kind not in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"):
        return 0
    weights, result = network.tensors[operator.inputs[1]].shape, network.tensors[operator.outputs[0]].shape
    if operator.kind == "TRANSPOSE_CONV":  # every element of the input meets every weight of its channel
        source = network.tensors[operator.inputs[2]].shape
        return math.prod(source) * math.prod(weights[:3])
    taps = weights[1:] if operator.kind != "DEPTHWISE_CONV_2D" else weights[1:3]
    return math.prod(result) * math.prod(taps)


def stream_share(compiled: CompiledNetwork) -> tuple[int, int]:
    """Multiply-accumulates in streams, and of all operators."""
    macs = [operator_macs(compiled.network, number) for number in range(len(compiled.network.operators))]
    return sum(count for number, count in enumerate(macs) if number not in compiled.on_processor), sum(macs)
