"""A compiled file held against onnxruntime, for the commands that do: what is found, as JSON and as text."""

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
from tuner.cli.text import finite
from tuner.summary import TensorSummary
from tuner.verify.check import Checked, check_levels
from tuner.verify.first_wrong import FirstWrong, first_wrong
from tuner.verify.fixed_point import referred
from tuner.verify.per_operator import Quantised, quantised
from tuner.verify.ports import port_faults
from tuner.verify.reference import Stored, reference
from tuner.verify.values import Compared
from tuner.zoo.load import load_network


@dataclass(frozen=True, eq=False)
class FileCheck:
    """ports: what is wrong with them.  levels: those that were asked for.  integers: of a quantised model.

    cause: what is to be said of wrong values, '' where there are none; first: the operator that is to blame.  outputs: of the first level.
    """

    ports: tuple[str, ...]
    levels: tuple[Checked, ...]
    integers: Quantised | None
    first: FirstWrong | None
    outputs: Mapping[str, NDArray[Any]]
    dtype: DataType
    cause: str

    @property
    def ok(self) -> bool:
        return all(map(self._right, self.levels))

    def _right(self, checked: Checked) -> bool:
        return checked.ok and not self.ports and (self.integers is None or not self.integers.faults)

    @property
    def faults(self) -> tuple[str, ...]:
        """But for those of ports; the operator that is to blame first."""
        found = [fault for checked in self.levels for fault in checked.faults]
        found += () if self.integers is None else self.integers.faults
        return tuple(dict.fromkeys(found if self.first is None else [self.cause, *found]))

    def told(self) -> dict[str, Any]:
        """Beside the levels."""
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
        """By level."""
        return {checked.level: _level(checked, self.dtype) for checked in self.levels}

    def show(self) -> None:
        for fault in self.ports:
            print_line(f"FAILED {fault}")
        for k, checked in enumerate(self.levels):
            if all(checked.values is not other.values for other in self.levels[:k]):  # of another program
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
    """session: of the file.  floats: the model before it was quantised.  body: a file with the model, of one that has none.

    Raises `BadInputError` for levels or feeds that the file does not have, for `floats` of one that is not quantised, and as `reference`.
    """
    compiled, body = session.compiled, body or path
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    expected = referred(reference(body, arrays, Stored.of(compiled)), compiled, path, arrays, body)
    if floats is not None and not expected.quantised:
        raise BadInputError(f"--float {floats}: {path} is not quantised")
    checked = check_levels(session, feeds, expected, levels)
    names = [port.name for port in session.get_outputs()]
    if len(compiled.pieces) == 1:
        outputs = {name: checked[0].values.made[name] for name in names}
    else:  # in a check the second piece is given onnxruntime's inputs
        outputs = dict(zip(names, session.run(names, feeds, level=levels[0]), strict=True))
    integers: Quantised | None = None
    if expected.quantised:
        first = {name: value[: len(value) // expected.frames] if value.ndim else value for name, value in outputs.items()}
        integers = quantised(expected.integers(None if floats is None else load_network(floats)), first, compiled.machine, compiled.dtype)
    wrong = next((each for each in checked if each.values.faults and each.values.beyond is None), None)
    blamed, cause = None, ""
    if wrong is not None:
        tensors = [name for name, one in wrong.values.compared.items() if not one.ok]
        blamed = first_wrong(body, compiled, arrays, wrong.level, tensors)
        cause = "no operator of it is found wrong where it is compiled anew; compile it again" if blamed is None else str(blamed)
    return FileCheck(port_faults(path), tuple(checked), integers, blamed, outputs, compiled.dtype, cause)


def _level(checked: Checked, dtype: DataType) -> dict[str, Any]:
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


def _print_check(checked: Checked, outputs: Mapping[str, Any]) -> None:
    for name, one in {**checked.values.compared, **checked.values.counted}.items():
        print_line(f"{'output' if name in outputs else 'tensor'} {name}: {one}")
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
        "stock": {"differing": found.stock[0], "of": found.stock[1]},
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
    print_line(f"onnxruntime's default options: {found.stock[0]:,} of {found.stock[1]:,} values of the outputs are others")
    if found.agreement is not None:
        same, choices = found.agreement.top1
        print_line(f"float model: top-1 agrees in {same:,} of {choices:,}, SQNR {found.agreement.sqnr_db:.1f} dB")
    for fault in found.faults:
        print_line(f"FAILED {fault}")
