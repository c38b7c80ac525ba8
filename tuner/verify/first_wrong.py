"""Search for the first operator of a compiled file with wrong values.  The model in the file is compiled again, in two ways.

1. Layer by layer, with every tensor of its subgraphs as an output, in one run.  Each is compared with onnxruntime by the limits of
   `tuner.verify.values`; the first tensor beyond its limit is the result.
2. If the extra outputs hide the fault: parts of the model up to one operator, by bisection, with fusion as `compile` does without plans.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from compiler.autoplan import quick_plans
from compiler.build import default_by_level
from compiler.diagnostics.float_range import out_of_range_lines
from simulator.compiled import Compiled
from simulator.npu.errors import TilefarmError
from simulator.session import InferenceSession
from tuner.verify.body_parts import BodyParts, Plans
from tuner.verify.fixed_point import apply_fixed_point
from tuner.verify.reference import StoredTensors, run_reference
from tuner.verify.values import TensorComparison, compare_values


@dataclass(frozen=True)
class FirstWrong:
    """First operator with a wrong value.  operator: its kind and name.  tensor: its output.  weights: remarks on weights up to it."""

    operator: str
    tensor: str
    compared: TensorComparison
    weights: tuple[str, ...] = ()

    def __str__(self) -> str:
        output_text = "" if self.operator.endswith(repr(self.tensor)) else f", which makes {self.tensor!r}"
        return "; ".join([f"the first operator whose value is wrong is {self.operator}{output_text}: {self.compared}", *self.weights])


def first_wrong(
    body: Path, compiled: Compiled, feeds: Mapping[str, NDArray[Any]], level: str, failed_outputs: Sequence[str]
) -> FirstWrong | None:
    """Find the first wrong operator; None without one, as when this compiler compiles the model correctly.

    body: a file with the model.  failed_outputs: names of outputs of the compiled file that failed the check.
    """
    search = _Search(BodyParts(body, compiled, level), feeds)
    names = search.parts.names
    fault = search.first(names, default_by_level)
    bad = max((names.index(name) for name in failed_outputs if name in names), default=-1)
    if fault is None and bad >= 0 and (fault := search.first([names[bad]], quick_plans)) is not None:
        # bisection: the tensor at index `good` is right (-1: the inputs), and the one at `bad` is wrong, which `fault` describes
        good = -1
        while bad - good > 1:
            middle = (bad + good) // 2
            middle_fault = search.first([names[middle]], quick_plans)
            good, bad, fault = (middle, bad, fault) if middle_fault is None else (good, middle, middle_fault)
    return fault


class _Search:
    def __init__(self, parts: BodyParts, feeds: Mapping[str, NDArray[Any]]) -> None:
        self.parts, self.feeds = parts, feeds

    def first(self, names: Sequence[str], plans: Plans) -> FirstWrong | None:
        """First wrong tensor if the model ends in these tensors; None without one, or if this part cannot be compiled."""
        try:
            with tempfile.TemporaryDirectory(prefix="tilefarm-") as folder:
                path = Path(folder) / "anew.onnx"
                lowered = self.parts.compile(self.parts.up_to(names), plans, path)
                session = InferenceSession(path)
                expected = apply_fixed_point(
                    run_reference(path, self.feeds, StoredTensors.of(session.compiled)), session.compiled, path, self.feeds
                )
                compared = compare_values(session, self.feeds, expected, self.parts.level).compared
        except TilefarmError:  # this compiler or onnxruntime may reject a part
            return None
        weights = tuple(out_of_range_lines(lowered.weights_beyond, self.parts.source.dtype))
        return next(
            (FirstWrong(self.parts.makers[name], name, comparison, weights) for name, comparison in compared.items() if not comparison.ok),
            None,
        )
