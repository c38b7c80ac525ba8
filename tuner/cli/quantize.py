"""Command `tilefarm quantize`: convert a float model to int8 by onnxruntime's quantiser."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli import options
from tuner.cli.group import FILE
from tuner.cli.parse import parse_shapes
from tuner.cli.text import print_json
from tuner.zoo.quantiser import ActivationName, FormatName

app = new_app()


@app.command()
def quantize(
    model: options.Model,
    out: Annotated[Path, FILE, typer.Option("--out", metavar="Q.onnx", help="Where to write the quantised model.")],
    data: Annotated[
        Path | None, typer.Option(metavar="X.npz", help="Samples that ranges are taken from: an array [samples, ...] for every input.")
    ] = None,
    form: Annotated[
        FormatName,
        typer.Option("--format", help="qdq: operators between QuantizeLinear and DequantizeLinear; qop: operators on integers."),
    ] = "qdq",
    activations: Annotated[ActivationName, typer.Option(help="Type of activations; weights are int8.")] = "uint8",
    per_channel: Annotated[bool, typer.Option("--per-channel", help="A scale for each output channel of weights.")] = False,
    shape: options.Shape = None,
    random_weights: options.RandomWeights = None,
    as_json: options.Json = False,
) -> None:
    import onnx

    from simulator.feeds import load_feeds
    from simulator.npu.files import atomic_write
    from tuner.zoo.load import load_network
    from tuner.zoo.quantise import check_data, expected_data, quantise_model
    from tuner.zoo.quantiser import Quantiser

    loaded = load_network(model, parse_shapes(shape or ()), random_weights=random_weights)
    if data is None:
        raise BadInputError(f"--data: missing; expected an .npz file with {expected_data(loaded)}")
    samples = load_feeds(data)
    count = check_data(loaded, samples, str(data))
    encoded = quantise_model(loaded, samples, Quantiser(form, activations, per_channel), str(model))
    atomic_write(out, [encoded])
    kinds = Counter(node.op_type for node in onnx.load_model_from_string(encoded).graph.node)
    if as_json:
        print_json({"out": str(out), "samples": count, "bytes": len(encoded), "operators": dict(sorted(kinds.items()))})
        return
    listed = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    print_line(f"{out}: {len(encoded):,} bytes, ranges of {count} samples; {listed}")
