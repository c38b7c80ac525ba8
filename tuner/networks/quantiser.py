"""How a float model is quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FormatName = Literal["qdq", "qop"]
ActivationName = Literal["uint8", "int8"]


@dataclass(frozen=True)
class Quantiser:
    """qdq: operators between QuantizeLinear and DequantizeLinear; qop: operators on integers.  Weights are int8 around 0.

    per_channel: a scale for each output channel of weights.
    """

    format: FormatName = "qdq"
    activations: ActivationName = "uint8"
    per_channel: bool = False
