"""`tilefarm run`: a compiled file on the simulated NPU, with a check where it is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli.options import Compiled, Json, OneLevel
from tuner.cli.parse import parse_input
from tuner.cli.text import finite, print_json, print_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simulator.npu.parts import DataType
    from tuner.checks.check import Checked
    from tuner.checks.values import Compared

app = new_app()


@app.command()
def run(
    compiled: Compiled,
    given: Annotated[str, typer.Option("--input", metavar="X.npz|random[:SEED]", help="Arrays by input name, or standard normal values.")],
    level: OneLevel = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with onnxruntime, run the sanitizer, recompute cycles; exit 1 on a fault.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="Y.npz", help="Write the outputs, float32 by name.")] = None,
    as_json: Json = False,
) -> int:
    import numpy as np

    from compiler.build import check_out
    from simulator.feeds import load_feeds, npz_bytes
    from simulator.npu.files import atomic_write
    from simulator.session import InferenceSession
    from tuner.checks.check import check_level, random_feeds
    from tuner.checks.reference import Stored, reference

    source = parse_input(given)
    if out is not None:
        check_out(out)
    if check and os.path.isdir(compiled):
        raise BadInputError(f"--check: {compiled} is a bundle, which has no model to compare with; check the compiled ONNX file")
    session = InferenceSession(compiled)
    level = level if level is not None else session.levels[0]
    session.compiled.variants(level)
    feeds = random_feeds(session, source) if isinstance(source, int) else load_feeds(source)
    try:
        session.checked(feeds)
    except BadInputError as error:
        raise BadInputError(f"--input {given}: {error}") from None
    names = [port.name for port in session.get_outputs()]
    checked: Checked | None = None
    if check:
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        checked = check_level(session, feeds, reference(compiled, arrays, Stored.of(session.compiled)), level)
    if checked is not None and len(session.compiled.pieces) == 1:
        outputs = {name: checked.values.made[name] for name in names}
    else:  # in a check the second piece is given onnxruntime's inputs
        outputs = dict(zip(names, session.run(names, feeds, level=level), strict=True))
    if out is not None:
        atomic_write(out, [npz_bytes(outputs)])
    described = {name: _described(value) for name, value in outputs.items()}
    if as_json:
        told = {} if checked is None else {"check": _check(checked, session.compiled.dtype)}
        print_json({"level": level, "outputs": described, **told})
    else:
        _print_outputs(described)
        if checked is not None:
            _print_check(checked, described)
    return 0 if checked is None or checked.ok else 1


def _described(value: NDArray[Any]) -> dict[str, Any]:
    """An output in a few numbers; null where it has no values."""
    found: dict[str, Any] = {"shape": list(value.shape), "min": None, "max": None, "mean": None, "argmax": None}
    if value.size:
        found |= {key: finite(float(getattr(value, key)())) for key in ("min", "max", "mean")} | {"argmax": int(value.argmax())}
    return found


def _check(checked: Checked, dtype: DataType) -> dict[str, Any]:
    from tuner.summary import TensorSummary

    values = checked.values
    return {
        "ok": checked.ok,
        **_figures(values.worst),
        "compared": {name: _figures(one) for name, one in values.compared.items()},
        "counted": {name: {"equal": one.equal, "of": one.count} for name, one in values.counted.items()},
        "first_beyond": None if values.beyond is None else TensorSummary.of(values.beyond, dtype).model_dump(),
        "findings": list(checked.findings),
        "variant_cycles": dict(checked.table_cycles),
        "recomputed_cycles": dict(checked.cycles),
        "program_bound_cycles": checked.bound_cycles,
        "faults": list(checked.faults),
    }


def _figures(one: Compared) -> dict[str, float | None]:
    rounding = None if one.rounding is None else finite(one.rounding)
    return {"max_rel_error": finite(one.error), "rounding_rel_error": rounding, "limit_rel_error": one.limit}


def _print_outputs(described: Mapping[str, Mapping[str, Any]]) -> None:
    rows = []
    for name, row in described.items():
        none = "nan or inf" if all(row["shape"]) else ""
        numbers = (none if row[key] is None else f"{row[key]:.6g}" for key in ("min", "max", "mean"))
        rows.append((name, "x".join(map(str, row["shape"])), *numbers, row["argmax"]))
    print_table(("<output", "<shape", "min", "max", "mean", "argmax"), rows)


def _print_check(checked: Checked, described: Mapping[str, Any]) -> None:
    for name, one in {**checked.values.compared, **checked.values.counted}.items():
        print_line(f"{'output' if name in described else 'tensor'} {name}: {one}")
    recomputed = f"cycles at {len(checked.cycles)} levels recomputed"
    print_line(f"sanitizer: {len(checked.findings)} findings; {recomputed}; bound {checked.bound_cycles:,}")
    for fault in checked.faults:
        print_line(f"FAILED {fault}")
    print_line(f"check of level {checked.level}: {'passed' if checked.ok else 'FAILED'}")
