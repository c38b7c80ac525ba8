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
    from tuner.checks.alone import Quantised
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
    floats: Annotated[
        Path | None,
        typer.Option("--float", metavar="MODEL", help="With --check: the model before it was quantised; top-1 agreement and SQNR."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="Y.npz", help="Write the outputs, float32 by name.")] = None,
    as_json: Json = False,
) -> int:
    import numpy as np

    from compiler.build import check_out
    from simulator.feeds import load_feeds, npz_bytes
    from simulator.npu.files import atomic_write
    from simulator.session import InferenceSession
    from tuner.checks.alone import quantised
    from tuner.checks.check import check_level, random_feeds
    from tuner.checks.fixed_point import referred
    from tuner.checks.reference import Stored, reference
    from tuner.networks.load import load_network

    source = parse_input(given)
    if out is not None:
        check_out(out)
    if check and os.path.isdir(compiled):
        raise BadInputError(f"--check: {compiled} is a bundle, which has no model to compare with; check the compiled ONNX file")
    if floats is not None and not check:
        raise BadInputError(f"--float {floats}: expected together with --check")
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
    integers: Quantised | None = None
    if check:
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        expected = referred(reference(compiled, arrays, Stored.of(session.compiled)), session.compiled, compiled, arrays)
        if floats is not None and not expected.quantised:
            raise BadInputError(f"--float {floats}: {compiled} is not quantised")
        checked = check_level(session, feeds, expected, level)
    if checked is not None and len(session.compiled.pieces) == 1:
        outputs = {name: checked.values.made[name] for name in names}
    else:  # in a check the second piece is given onnxruntime's inputs
        outputs = dict(zip(names, session.run(names, feeds, level=level), strict=True))
    if checked is not None and expected.quantised:
        of_integers = expected.integers(None if floats is None else load_network(floats))
        first = {name: value[: len(value) // expected.frames] if value.ndim else value for name, value in outputs.items()}
        integers = quantised(of_integers, first, session.compiled.machine, session.compiled.dtype)
    ok = (checked is None or checked.ok) and (integers is None or not integers.faults)
    if out is not None:
        atomic_write(out, [npz_bytes(outputs)])
    described = {name: _described(value) for name, value in outputs.items()}
    if as_json:
        told = {} if checked is None else {"check": {**_check(checked, session.compiled.dtype), "ok": ok}}
        if integers is not None:
            told["check"]["integers"] = _integers(integers)
        print_json({"level": level, "outputs": described, **told})
    else:
        _print_outputs(described)
        if checked is not None:
            _print_check(checked, described)
            if integers is not None:
                _print_integers(integers)
            print_line(f"check of level {checked.level}: {'passed' if ok else 'FAILED'}")
    return 0 if ok else 1


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


def _integers(found: Quantised) -> dict[str, Any]:
    operators, values, wrong = found.operators.total
    by_kind = {kind: dict(zip(("operators", "values", "differing"), counts, strict=True)) for kind, counts in found.operators.kinds.items()}
    told: dict[str, Any] = {
        "operators": operators, "values": values, "differing": wrong, "first": found.operators.first or None, "kinds": by_kind,
        "left_out": list(found.operators.left_out), "fixed_point_steps": found.operators.steps and dict(found.operators.steps),
        "unfused_steps": dict(found.unfused), "unfused_through_steps": dict(found.through),
        "stock": {"differing": found.stock[0], "of": found.stock[1]}, "cpu": list(found.cpu), "exact_products": found.exact_products,
        "faults": list(found.faults), "float": None,
    }  # fmt: skip
    if found.agreement is not None:
        same, choices = found.agreement.top1
        told["float"] = {"top1_same": same, "top1_of": choices, "sqnr_db": finite(found.agreement.sqnr_db)}
    return told


def _print_integers(found: Quantised) -> None:
    operators, values, wrong = found.operators.total
    print_line(f"integers: {operators} operators given onnxruntime's, {wrong:,} of {values:,} values differ")
    if (steps := found.operators.steps) is not None:
        said = ", ".join(f"{count:,} by {step}" for step, count in steps.items()) or "none"
        print_line(f"  compared with TFLite's rounding in fixed point, as the machine's; off onnxruntime's: {said} steps")
    for kind, (count, size, off) in found.operators.kinds.items():
        print_line(f"  {kind}: {count} operators, {off:,} of {size:,} values differ")
    if found.operators.left_out:
        some = ", ".join(found.operators.left_out[:3])
        print_line(f"  not run by themselves: {len(found.operators.left_out)}, as {some}")
    for what, steps in (("each operator", found.unfused), ("from the inputs on", found.through)):
        said = ", ".join(f"{int(count):,} by {step}" for step, count in steps.items()) or "none"
        print_line(f"onnxruntime without groups, {what}: values off {said} steps")
    products = "are exact" if found.exact_products else "saturate, and the reference has none"
    print_line(f"CPU: {' '.join(found.cpu) or 'not told'}; its products of uint8 and int8 {products}")
    print_line(f"onnxruntime's default options: {found.stock[0]:,} of {found.stock[1]:,} values of the outputs are others")
    if found.agreement is not None:
        same, choices = found.agreement.top1
        print_line(f"float model: top-1 agrees in {same:,} of {choices:,}, SQNR {found.agreement.sqnr_db:.1f} dB")
    for fault in found.faults:
        print_line(f"FAILED {fault}")
