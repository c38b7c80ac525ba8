"""Command `tilefarm run`: execute a compiled file on the simulated NPU, optionally with a check."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli.group import FILE, READ
from tuner.cli.options import Compiled, Json, OneLevel
from tuner.cli.parse import parse_input
from tuner.cli.text import finite_or_none, print_json, print_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tuner.cli.checking import FileCheck
    from tuner.verify.layer_errors import LayerError

app = new_app()


@app.command()
def run(
    compiled: Compiled,
    given: Annotated[
        str, READ, typer.Option("--input", metavar="X.npz|random[:SEED]", help="Arrays by input name, or standard normal values.")
    ],
    level: OneLevel = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with onnxruntime, run the sanitizer, recompute cycles; exit 1 on a fault.")
    ] = False,
    floats: Annotated[
        Path | None,
        typer.Option("--float", metavar="MODEL", help="With --check: the model before it was quantised; top-1 agreement and SQNR."),
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="With --check: errors of every tensor against float32, and the operator that adds most.")
    ] = False,
    out: Annotated[Path | None, FILE, typer.Option(metavar="Y.npz", help="Write the outputs, float32 by name.")] = None,
    as_json: Json = False,
) -> int:
    import numpy as np

    from simulator.feeds import load_feeds, npz_bytes
    from simulator.npu.files import atomic_write
    from simulator.session import InferenceSession
    from tuner.cli.checking import check_compiled
    from tuner.cli.layer_table import layer_rows, print_layers
    from tuner.verify.check import random_feeds
    from tuner.verify.layer_errors import layer_errors

    source = parse_input(given)
    if check and os.path.isdir(compiled):
        raise BadInputError(f"--check: {compiled} is a bundle, which has no model to compare with; check the compiled ONNX file")
    if floats is not None and not check:
        raise BadInputError(f"--float {floats}: expected together with --check")
    if layers and not check:
        raise BadInputError("--layers: expected together with --check")
    session = InferenceSession(compiled)
    on_npu = bool(session.compiled.pieces)
    if on_npu:
        level = level if level is not None else session.levels[0]
        session.compiled.variants(level)  # raises for an unknown level, before the inputs are read
    feeds = random_feeds(session, source) if isinstance(source, int) else load_feeds(source)
    try:
        session.checked(feeds)
    except BadInputError as error:
        raise BadInputError(f"--input {given}: {error}") from None
    file_check: FileCheck | None = None
    errors: tuple[LayerError, ...] = ()
    if check and on_npu and level is not None:
        file_check = check_compiled(compiled, session, feeds, [level], floats)
        outputs = file_check.outputs
        if layers:
            errors = layer_errors(compiled, session.compiled, {name: np.asarray(value) for name, value in feeds.items()}, level)
    else:
        names = [port.name for port in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, feeds, level=level), strict=True))
    if out is not None:
        atomic_write(out, [npz_bytes(outputs)])
    described = {name: _described(value) for name, value in outputs.items()}
    if as_json:
        check_values = {} if file_check is None else {"check": {**file_check.rows()[file_check.levels[0].level], **file_check.told()}}
        layer_values = {"layers": layer_rows(errors)} if layers else {}
        print_json({"level": level, "outputs": described, **check_values, **layer_values})
    else:
        _print_outputs(described)
        if file_check is not None:
            file_check.show()
        if errors:
            print_layers(errors)
        if not on_npu:
            print_line("nothing of it runs on the NPU: onnxruntime ran all of it" + (", so there is nothing to check" if check else ""))
    return 0 if file_check is None or file_check.ok else 1


def _described(value: NDArray[Any]) -> dict[str, Any]:
    """Statistics of an output; null where it has no values."""
    statistics: dict[str, Any] = {"shape": list(value.shape), "min": None, "max": None, "mean": None, "argmax": None}
    if value.size:
        statistics |= {key: finite_or_none(float(getattr(value, key)())) for key in ("min", "max", "mean")} | {
            "argmax": int(value.argmax())
        }
    return statistics


def _print_outputs(described: Mapping[str, Mapping[str, Any]]) -> None:
    rows = []
    for name, row in described.items():
        none = "nan or inf" if all(row["shape"]) else ""
        numbers = (none if row[key] is None else f"{row[key]:.6g}" for key in ("min", "max", "mean"))
        rows.append((name, "x".join(map(str, row["shape"])), *numbers, row["argmax"]))
    print_table(("<output", "<shape", "min", "max", "mean", "argmax"), rows)
