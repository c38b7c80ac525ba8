"""Settings of the quantiser, and names of quantised networks: `made:resnet50,quantised=qdq`.

After the name of a float network come `quantised=`, a format, and options: `activations=int8`, `per_channel=1`, and `weights=SEED`, from
which the float weights are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from simulator.npu.errors import BadInputError

FormatName = Literal["qdq", "qop"]
ActivationName = Literal["uint8", "int8"]
MARK = ",quantised="


@dataclass(frozen=True)
class Quantiser:
    """Settings.  qdq: operators between QuantizeLinear and DequantizeLinear; qop: operators on integers.  Weights are int8 around 0.

    per_channel: a scale for each output channel of weights.
    """

    format: FormatName = "qdq"
    activations: ActivationName = "uint8"
    per_channel: bool = False


class QuantisedName(NamedTuple):
    """Parsed name.  network: name of the float network.  weights: the seed of its weights, None if not in the name."""

    network: str
    quantiser: Quantiser
    weights: int | None

    def __str__(self) -> str:
        options = [f"activations={self.quantiser.activations}"] if self.quantiser.activations != Quantiser.activations else []
        options += ["per_channel=1"] if self.quantiser.per_channel else []
        options += [f"weights={self.weights}"] if self.weights is not None else []
        return ",".join([f"{self.network}{MARK}{self.quantiser.format}", *options])


def parse_quantised_name(name: str) -> QuantisedName:
    """Parse a name with `MARK`.  Raises `BadInputError`."""
    network, _, settings = name.partition(MARK)
    form, *pairs = settings.split(",")
    accepted_values = {"activations": get_args(ActivationName), "per_channel": ("0", "1"), "weights": ()}
    values: dict[str, str] = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        if key not in accepted_values or key in values:
            raise BadInputError(f"{name}: {pair!r}; expected, once each, some of {', '.join(f'{key}=' for key in accepted_values)}")
        values[key] = text
    for key, text in {"quantised": form, **values}.items():
        choices = accepted_values.get(key, get_args(FormatName))
        if text not in choices if choices else not text.isdecimal():
            raise BadInputError(f"{name}: {key} {text!r}; expected {' or '.join(choices) or 'a seed, a number from 0 on'}")
    quantiser = Quantiser(form, values.get("activations", Quantiser.activations), values.get("per_channel") == "1")  # type: ignore[arg-type]
    return QuantisedName(network, quantiser, int(values["weights"]) if "weights" in values else None)
