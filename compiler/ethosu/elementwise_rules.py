"""Sums, differences, products, least and greatest values of two tensors, one of which may be broadcast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compiler.ethosu.lowering import NetworkLowering, Rule
from compiler.ethosu.scaling import pair_scaling, sum_scaling
from compiler.ethosu.step import OperandScale
from compiler.frontend.tflite.network import TfliteOperator

_MODES = {"ADD": "ADD", "SUB": "SUB", "MUL": "MUL", "MINIMUM": "MIN", "MAXIMUM": "MAX"}


def _pair(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    tensors = [lowering.tensor(number) for number in (*operator.inputs, *operator.outputs)]
    a, b, y = tensors
    fields: dict[str, Any] = {"mode": _MODES[operator.kind]}
    zeros: tuple[int | None, ...] = (None, None, None)
    if operator.kind in ("MINIMUM", "MAXIMUM"):
        if not (a.scale, a.zero) == (b.scale, b.zero) == (y.scale, y.zero):
            raise lowering.refuse(f"scales {a.scale:g}, {b.scale:g} and {y.scale:g}: expected one scale and one zero point")
        zeros = (0, 0, 0)
    else:
        fields |= lowering.bounds(operator.options["activation"], operator.outputs[0])
    if operator.kind == "MUL":
        fields["scaling"] = pair_scaling(a.scale, b.scale, y.scale)
    reads = [lowering.view(number, zero) for number, zero in zip(operator.inputs, zeros, strict=False)]
    full = y.image
    swapped = reads[0][1:4] != full
    if swapped:
        reads.reverse()
    if reads[0][1:4] != full:
        raise lowering.refuse(f"{list(a.shape)} beside {list(b.shape)}: expected one with the shape of the result")
    if lowering.stores[reads[0].store].constant is not None:
        raise lowering.refuse("a constant of the shape of the result beside a tensor that is broadcast: expected the tensor to have it")
    if operator.kind in ("ADD", "SUB"):
        scaling = sum_scaling(a.scale, b.scale, y.scale)
        fields |= {"scaling": scaling.result, "operand_scale": OperandScale(2 if scaling.second else 1, scaling.operand)}
    lowering.add("ELEMENTWISE", tuple(reads), lowering.view(operator.outputs[0], zeros[2]), reversed=swapped, **fields)


RULES: Mapping[str, Rule] = dict.fromkeys(_MODES, _pair)
