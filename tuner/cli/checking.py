"""Comparison of a compiled file with onnxruntime, as JSON and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.npu.errors import BadInputError
from simulator.npu.parts import DataType
from simulator.session import InferenceSession
from simulator.terminal import print_line
from tuner.cli.text import finite_or_none
from tuner.summary import TensorSummary
from tuner.verify.check import LevelCheck, check_levels
from tuner.verify.first_wrong import FirstWrong, first_wrong
from tuner.verify.fixed_point import apply_fixed_point
from tuner.verify.per_operator import QuantisedCheck, check_quantised
from tuner.verify.ports import port_faults
from tuner.verify.reference import StoredTensors, run_reference
from tuner.verify.values import TensorComparison
from tuner.zoo.load import load_network


@dataclass(frozen=True, eq=False)
class FileCheck:
    """Findings of one check of a file.

    ports: faults of the ports.  levels: one entry per checked level.  integers: results for a quantised model.  cause: message about wrong
    values, '' if there are none.  first: first wrong operator.  outputs: outputs at the first level.
    """

    ports: tuple[str, ...]
    levels: tuple[LevelCheck, ...]
    integers: QuantisedCheck | None
    first: FirstWrong | None
    outputs: Mapping[str, NDArray[Any]]
    dtype: DataType
    cause: str

    @property
    def ok(self) -> bool:
        return all(map(self._right, self.levels))

    def _right(self, checked: LevelCheck) -> bool:
        return checked.ok and not self.ports and (self.integers is None or not self.integers.faults)

    @property
    def faults(self) -> tuple[str, ...]:
        """Faults of values and cycles, the first wrong operator in front; faults of ports are separate."""
        faults = [fault for checked in self.levels for fault in checked.faults]
        faults += () if self.integers is None else self.integers.faults
        return tuple(dict.fromkeys(faults if self.first is None else [self.cause, *faults]))

    def told(self) -> dict[str, Any]:
        """JSON of the check, without the levels."""
        first = (
            None if self.first is None else {"operator": self.first.operator, "tensor": self.first.tensor, "why": str(self.first.compared)}
        )
        return {
            "ok": self.ok,
            "ports": list(self.ports),
            "first_wrong": first,
            **({} if self.integers is None else {"integers": _integers(self.integers)}),
        }

    def rows(self) -> dict[str, dict[str, Any]]:
        """JSON of each level, by name."""
        return {checked.level: _level(checked, self.dtype) for checked in self.levels}

    def show(self) -> None:
        for fault in self.ports:
            print_line(f"FAILED {fault}")
        for k, checked in enumerate(self.levels):
            if all(checked.values is not earlier.values for earlier in self.levels[:k]):  # once per program
                _print_check(checked, self.outputs)
            if k == 0 and self.cause:
                print_line(f"FAILED {self.cause}")
            if k == 0 and self.integers is not None:
                _print_integers(self.integers)
            print_line(f"check of level {checked.level}: {'passed' if self._right(checked) else 'FAILED'}")


def check_compiled(
    path: Path,
    session: InferenceSession,
    feeds: Mapping[str, ArrayLike],
    levels: Sequence[str],
    floats: Path | None = None,
    body: Path | None = None,
) -> FileCheck:
    """Check a compiled file at `levels`.  session: session of the file.  floats: the model before quantisation.  body: a file with the
    model, if `path` has none.

    Raises `BadInputError` for levels or feeds that the file does not have, for `floats` of a model that is not quantised, and as
    `run_reference` does.
    """
    compiled, body = session.compiled, body or path
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    expected = apply_fixed_point(run_reference(body, arrays, StoredTensors.of(compiled)), compiled, path, arrays, body)
    if floats is not None and not expected.quantised:
        raise BadInputError(f"--float {floats}: {path} is not quantised")
    checked = check_levels(session, feeds, expected, levels)
    names = [port.name for port in session.get_outputs()]
    if len(compiled.pieces) == 1:
        outputs = {name: checked[0].values.outputs[name] for name in names}
    else:  # the check feeds onnxruntime's inputs to later pieces: no outputs of the whole model
        outputs = dict(zip(names, session.run(names, feeds, level=levels[0]), strict=True))
    integers: QuantisedCheck | None = None
    if expected.quantised:
        first = {name: value[: len(value) // expected.frames] if value.ndim else value for name, value in outputs.items()}
        integers = check_quantised(
            expected.integers(None if floats is None else load_network(floats)), first, compiled.machine, compiled.dtype
        )
    failed_level = next((level_check for level_check in checked if level_check.values.faults and level_check.values.beyond is None), None)
    blamed, cause = None, ""
    if failed_level is not None:
        tensors = [name for name, tensor in failed_level.values.compared.items() if not tensor.ok]
        blamed = first_wrong(body, compiled, arrays, failed_level.level, tensors)
        cause = "no operator of it is found wrong where it is compiled anew; compile it again" if blamed is None else str(blamed)
    return FileCheck(port_faults(path), tuple(checked), integers, blamed, outputs, compiled.dtype, cause)


def _level(checked: LevelCheck, dtype: DataType) -> dict[str, Any]:
    values = checked.values
    return {
        "ok": checked.ok,
        **_figures(values.worst),
        "compared": {name: _figures(figures) for name, figures in values.compared.items()},
        "counted": {name: {"equal": figures.equal, "of": figures.count} for name, figures in values.counted.items()},
        "first_beyond": None if values.beyond is None else TensorSummary.of(values.beyond, dtype).model_dump(),
        "findings": list(checked.findings),
        "variant_cycles": dict(checked.table_cycles),
        "recomputed_cycles": dict(checked.cycles),
        "program_bound_cycles": checked.bound_cycles,
        "faults": list(checked.faults),
    }


def _figures(comparison: TensorComparison) -> dict[str, float | None]:
    rounding = None if comparison.rounding is None else finite_or_none(comparison.rounding)
    return {"max_rel_error": finite_or_none(comparison.error), "rounding_rel_error": rounding, "limit_rel_error": comparison.limit}


def _print_check(checked: LevelCheck, outputs: Mapping[str, Any]) -> None:
    for name, comparison in {**checked.values.compared, **checked.values.counted}.items():
        print_line(f"{'output' if name in outputs else 'tensor'} {name}: {comparison}")
    recomputed = f"cycles at {len(checked.cycles)} levels recomputed"
    print_line(f"sanitizer: {len(checked.findings)} findings; {recomputed}; bound {checked.bound_cycles:,}")
    for fault in checked.faults:
        print_line(f"FAILED {fault}")


def _integers(check: QuantisedCheck) -> dict[str, Any]:
    operators, values, differing = check.operators.total
    by_kind = {kind: dict(zip(("operators", "values", "differing"), counts, strict=True)) for kind, counts in check.operators.kinds.items()}
    report: dict[str, Any] = {
        "operators": operators, "values": values, "differing": differing, "first": check.operators.first or None, "kinds": by_kind,
        "left_out": list(check.operators.left_out), "fixed_point_steps": check.operators.steps and dict(check.operators.steps),
        "unfused_steps": dict(check.unfused), "unfused_through_steps": dict(check.through),
        "stock": {"differing": check.stock[0], "of": check.stock[1]},
        "faults": list(check.faults), "float": None,
    }  # fmt: skip
    if check.agreement is not None:
        equal, choices = check.agreement.top1
        report["float"] = {"top1_same": equal, "top1_of": choices, "sqnr_db": finite_or_none(check.agreement.sqnr_db)}
    return report


def _print_integers(integers: QuantisedCheck) -> None:
    operators, values, differing = integers.operators.total
    print_line(f"integers: {operators} operators on onnxruntime's inputs, {differing:,} of {values:,} values differ")
    if (steps := integers.operators.steps) is not None:
        step_counts = ", ".join(f"{count:,} by {step}" for step, count in steps.items()) or "none"
        print_line(f"  reference: TFLite's fixed-point rounding, as on the machine; distance from onnxruntime: {step_counts} steps")
    for kind, (count, size, differing_values) in integers.operators.kinds.items():
        print_line(f"  {kind}: {count} operators, {differing_values:,} of {size:,} values differ")
    if integers.operators.left_out:
        examples = ", ".join(integers.operators.left_out[:3])
        print_line(f"  not compared one by one: {len(integers.operators.left_out)} operators, such as {examples}")
    for scope, steps in (("each operator", integers.unfused), ("from the inputs on", integers.through)):
        step_counts = ", ".join(f"{int(count):,} by {step}" for step, count in steps.items()) or "none"
        print_line(f"onnxruntime without groups, {scope}: values off {step_counts} steps")
    print_line(f"onnxruntime's default options: {integers.stock[0]:,} of {integers.stock[1]:,} output values differ")
    if integers.agreement is not None:
        equal, choices = integers.agreement.top1
        print_line(f"float model: top-1 agrees in {equal:,} of {choices:,}, SQNR {integers.agreement.sqnr_db:.1f} dB")
    for fault in integers.faults:
        print_line(f"FAILED {fault}")
