"""What becomes of a model: compiled, planned in several ways, executed, sanitized, and compared with onnxruntime by position.

A class of outcome for every model; `FAULTS` are those that must not be.  "undefined": the reference is not finite, a tensor is beyond
the data type, or onnxruntime makes one thing of the model as it is and another of the same optimised, of which the NPU's is one.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from compiler.frontend.partition.partition import AllOnHostError
from compiler.model import LoweredModel, ModelSpec, lower_model
from compiler.plan.plan import Infeasible
from simulator.exact_onnxruntime import REFUSALS, exact_session
from simulator.npu.container import ContainerError
from simulator.npu.errors import InfeasibleError, ProgramError, TilefarmError
from tests.fuzz.builder import Array, Sample, values_of
from tests.fuzz.trial import EndError, Target, Trial, check_on_host

FAULTS = ("wrong", "crash")
_ENDS = ("QuantizeLinear", "DequantizeLinear")  # which the host has of a quantised model
CLASSES = ("right", "rounding", "undefined", "refused", "infeasible", *FAULTS)


class Outcome(NamedTuple):
    """kind: one of `CLASSES`.  what: of a fault, which; of a refusal, why.  message: for people.  plan: which one showed it.

    place: where nodes run: "npu", "partly", "host", or "" of what was not compiled.  pairs: operators of neighbours on the NPU.
    plans: how many were executed, and how many did not fit.
    """

    kind: str
    what: str = ""
    message: str = ""
    plan: str = ""
    place: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    plans: tuple[int, int] = (0, 0)

    @property
    def fault(self) -> bool:
        """Whether this must not be."""
        return self.kind in FAULTS


def judge(sample: Sample, target: Target, seed: int = 0) -> Outcome:
    """Never raises: a bug of what is compiled with is an outcome, too.  seed: of drawn plans."""
    found = Outcome("right")
    plan = ""
    try:
        try:
            expected = expected_of(sample)
        except REFUSALS as error:  # it took the nodes one by one: its inference knows another size behind a pool with ceil_mode
            return found._replace(kind="undefined", what="onnxruntime does not load the model", message=str(error))
        opened = lower_model(ModelSpec(Path("fuzz.onnx"), target.machine, target.dtype), sample.model)
        found = found._replace(place=_place(opened), pairs=_pairs(opened))
        if not all(np.isfinite(value).all() for value in expected.values() if value.dtype.kind == "f"):
            return found._replace(kind="undefined", what="not finite")
        trial = Trial(sample, expected, opened, target)
        executed = misfits = 0
        for plan in target.plans:
            programs = trial.programs_of(plan, seed)
            if isinstance(programs, Infeasible):
                misfits += 1
                continue
            executed += 1
            kind, what = trial.run(programs, target)
            found = found._replace(kind=kind, what=what) if kind != "right" else found
        plan = ""
        trial.ports.check_names()
        return found._replace(plans=(executed, misfits))
    except AllOnHostError as error:
        return _on_host(error, sample, expected)
    except InfeasibleError as error:
        return found._replace(kind="infeasible", what=_short(str(error)), message=str(error))
    except (ContainerError, ProgramError) as error:  # of what the compiler itself has made
        return found._replace(kind="crash", what=_where(error), message=f"{type(error).__name__}: {error}", plan=plan)
    except TilefarmError as error:
        return found._replace(kind="refused", what=_short(str(error)), message=str(error), plan=plan)
    except EndError as error:
        return found._replace(kind=error.args[0], what=error.args[1], message=error.args[2], plan=plan)
    except Exception as error:  # noqa: BLE001  what nobody foresaw is what is looked for
        return found._replace(kind="crash", what=_where(error), message=f"{type(error).__name__}: {error}", plan=plan)


def _on_host(nothing: AllOnHostError, sample: Sample, expected: Mapping[str, Array]) -> Outcome:
    try:
        check_on_host(nothing.part, expected, sample)
    except EndError as error:
        return Outcome(*error.args, place="host")
    except TilefarmError as error:  # nothing is refused any more
        try:
            exact_session(sample.model).run(None, dict(sample.feeds))
        except REFUSALS as its_own:
            return Outcome("undefined", "onnxruntime cannot run what it makes of the model", str(its_own), place="host")
        return Outcome("crash", _where(error), f"{type(error).__name__}: {error}", place="host")
    return Outcome("right", _short(str(nothing)), place="host")


def expected_of(sample: Sample) -> dict[str, Array]:
    """onnxruntime's outputs of the model as it is, in its order."""
    names = [port.name for port in sample.model.graph.output]
    return values_of(sample.model, sample.feeds, names)


# --- what is said of it ----------------------------------------------------------------------------------------------


def _place(opened: LoweredModel) -> str:
    if not opened.part.pieces:
        return "host"
    return "partly" if any(node.op_type not in _ENDS for node in opened.part.host) else "npu"


def _pairs(opened: LoweredModel) -> tuple[tuple[str, str], ...]:
    """Producer and consumer among the nodes of a piece; inputs and outputs of it are such as well, and integers between two are not."""
    found = set[tuple[str, str]]()
    for piece in opened.part.pieces:
        graph: Any = piece.npu.graph
        maker = {port.name: "input" for port in graph.input}
        for node in graph.node:
            through = maker.get(node.input[0]) if node.op_type in ("QuantizeLinear", "DequantizeLinear") else None
            maker |= dict.fromkeys(node.output, through or node.op_type)
            found |= {(maker[name], node.op_type) for name in node.input if name in maker and not through}
        found |= {(maker[port.name], "output") for port in graph.output if port.name in maker}
    return tuple(sorted(found))


def _where(error: BaseException) -> str:
    """Type of an error, and the innermost function of the project in which it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if re.search(r"/(compiler|simulator|tuner|tests)/", f.filename)]
    at = mine[-1] if mine else frames[-1]
    return f"{type(error).__name__} in {'/'.join(Path(at.filename).parts[-2:])} {at.name}"


def _short(text: str) -> str:
    """A reason without names and numbers, which differ from model to model."""
    text = text.removeprefix("nothing of it can run on the NPU: ").partition("; supported are")[0]
    text = re.sub(r"'[^']*'", "'..'", text)
    text = re.sub(r"[\[(][\d, x.-]*[\])]", "[..]", text)
    return re.sub(r"\d[\d,.]*", "N", text)[:160]


def outcome_line(outcome: Outcome) -> str:
    return ": ".join(filter(None, (outcome.kind, outcome.what, outcome.plan, outcome.message)))
