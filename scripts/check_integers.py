"""Are onnxruntime's integers those of the formulas?  Quantised models, operator by operator (`docs/accuracy.md`).

    python scripts/check_integers.py Q.onnx made:mobilenet_v2-small ... [--details]

A model that is quantised is taken as it is, any other in eight forms: QDQ and QOperator, activations of uint8 and int8, weights per tensor
and per channel, with ranges of two samples of random values.  Inputs are random.  Exit code 1 where a value differs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated

import onnx
import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tuner.verify.integers import compare_integers, integers_of, summarise_differences  # noqa: E402
from tuner.zoo.load import load_network  # noqa: E402
from tuner.zoo.quantise import quantise_model, random_samples  # noqa: E402
from tuner.zoo.quantiser import Quantiser  # noqa: E402


def forms_of(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """What it is called and the quantised model."""
    if any(node.op_type.startswith(("QLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger")) for node in model.graph.node):
        yield "as it is", model
        return
    for how in (Quantiser(*each) for each in product(("qdq", "qop"), ("uint8", "int8"), (False, True))):
        made = onnx.load_model_from_string(quantise_model(model, random_samples(model, 2, 0), how))
        yield f"{how.format} {how.activations} {'per channel' if how.per_channel else 'per tensor'}", made


def main(
    models: Annotated[list[str], typer.Argument(metavar="MODEL.onnx ...", help="ONNX models, light:NAME or made:NAME.")],
    details: Annotated[bool, typer.Option(help="A line for each kind of operator.")] = False,
) -> None:
    """Compare every operator of quantised models with onnxruntime, from its own integers."""
    wrong = False
    for name in models:
        model = load_network(name)
        for form, made in forms_of(model):
            found = compare_integers(integers_of(made, {key: value[0] for key, value in random_samples(model, 1, 1).items()}))
            differing, without = sum(one.differing or 0 for one in found), [one.kind for one in found if one.differing is None]
            wrong |= differing > 0
            left = f"; without a formula: {', '.join(sorted(set(without)))}" if without else ""
            print(f"{name}, {form}: {len(found)} operators, {sum(one.count for one in found):,} values, {differing:,} differing{left}")
            if details:
                print("".join(f"  {line}\n" for line in summarise_differences(found)), end="")
    if wrong:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
