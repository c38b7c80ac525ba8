"""Comparison of onnxruntime's integers with the formulas: quantised models, operator by operator (`docs/accuracy.md`).

    python scripts/check_integers.py Q.onnx made:mobilenet_v2-small ... [--details]

A quantised model is used unchanged; a float model is quantised in eight forms: QDQ and QOperator, activations of uint8 and int8, weights
per tensor and per channel, with ranges from two random samples.  Inputs are random.  Exit code 1 if a value differs.
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

from tuner.verify.integers import compare_integers, isolated_integers, summarise_differences  # noqa: E402
from tuner.zoo.load import load_network  # noqa: E402
from tuner.zoo.quantise import quantise_model, random_samples  # noqa: E402
from tuner.zoo.quantiser import Quantiser  # noqa: E402


def quantised_forms(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Name of each form, and the quantised model."""
    if any(node.op_type.startswith(("QLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger")) for node in model.graph.node):
        yield "as it is", model
        return
    for quantiser in (Quantiser(*options) for options in product(("qdq", "qop"), ("uint8", "int8"), (False, True))):
        quantised = onnx.load_model_from_string(quantise_model(model, random_samples(model, 2, 0), quantiser))
        yield f"{quantiser.format} {quantiser.activations} {'per channel' if quantiser.per_channel else 'per tensor'}", quantised


def main(
    models: Annotated[list[str], typer.Argument(metavar="MODEL.onnx ...", help="ONNX models, light:NAME or made:NAME.")],
    details: Annotated[bool, typer.Option(help="A line for each kind of operator.")] = False,
) -> None:
    """Compare every operator of quantised models with onnxruntime, from its own integers."""
    failed = False
    for name in models:
        model = load_network(name)
        for form, quantised in quantised_forms(model):
            comparisons = compare_integers(
                isolated_integers(quantised, {key: value[0] for key, value in random_samples(model, 1, 1).items()})
            )
            value_count = sum(comparison.count for comparison in comparisons)
            differing = sum(comparison.differing or 0 for comparison in comparisons)
            kinds_without_formula = [comparison.kind for comparison in comparisons if comparison.differing is None]
            failed |= differing > 0
            note = f"; without a formula: {', '.join(sorted(set(kinds_without_formula)))}" if kinds_without_formula else ""
            print(f"{name}, {form}: {len(comparisons)} operators, {value_count:,} values, {differing:,} differing{note}")
            if details:
                print("".join(f"  {line}\n" for line in summarise_differences(comparisons)), end="")
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
