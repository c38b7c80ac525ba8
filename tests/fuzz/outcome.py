"""What becomes of a model: compiled, planned in several ways, executed, sanitized, and compared with onnxruntime by position.

A class of outcome for every model; `FAULTS` are those that must not be.  "undefined": the reference is not finite, a tensor is beyond
the data type, or onnxruntime makes one thing of the model as it is and another of the same optimised, of which the NPU's is one.
"""

from __future__ import annotations

import re
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import tests.inline_reference
from compiler.build import containers_of, default_plans, measure, plans_of_pieces
from compiler.package import onnx_bytes
from compiler.plan.plan import Infeasible, Plan, joined
from compiler.quick import quick_genomes
from compiler.source import Opened, Source, open_source
from compiler.space.decode import decode, decode_all
from compiler.space.moves import random_genome, repaired
from compiler.space.order import ordered
from compiler.space.predicted import by_estimate
from compiler.unit.unit import Unit
from simulator.compiled import CompiledPiece
from simulator.exact_onnxruntime import REFUSALS, exact_session
from simulator.functional import execute
from simulator.host_layout import load_input, read_output
from simulator.npu.container import ContainerError
from simulator.npu.container_file import encode
from simulator.npu.errors import InfeasibleError, ProgramError, TilefarmError
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType
from simulator.npu.program import Program
from simulator.sanitizer import check
from simulator.session import InferenceSession
from tests.fuzz.builder import Array, Sample
from tests.fuzz.builder import values_of as plain_values
from tests.fuzz.perturbed import rounding_explains
from tests.plans import random_plan
from tuner.checks.fixed_point import referred
from tuner.checks.reference import Reference, Stored, reference
from tuner.checks.values import values_of

FAULTS = ("wrong", "crash")
_NEAR = 0.02  # of the largest magnitude: no fault that is looked for is as small, and rounding of several pieces mostly is
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


class Target(NamedTuple):
    """dtype: of floats.  plans: names, see `plans_of`."""

    machine: Machine
    dtype: DataType
    plans: tuple[str, ...]


class _EndError(Exception):
    """kind, what, message of an outcome."""


def plan_names(genomes: int, predicted: bool = True) -> tuple[str, ...]:
    return ("layer by layer", *(["predicted"] if predicted else []), *(f"genome {k}" for k in range(genomes)))


def judge(sample: Sample, target: Target, seed: int = 0) -> Outcome:
    """Never raises: a bug of what is compiled with is an outcome, too.  seed: of drawn plans."""
    found = Outcome("right")
    plan = ""
    try:
        expected = expected_of(sample)
        opened = open_source(Source(Path("fuzz.onnx"), target.machine, target.dtype), sample.model)
        found = found._replace(place=_place(opened), pairs=_pairs(opened))
        if not all(np.isfinite(value).all() for value in expected.values() if value.dtype.kind == "f"):
            return found._replace(kind="undefined")
        trial = _Trial(sample, expected, opened, target)
        executed = misfits = 0
        for plan in target.plans:
            programs = trial.programs_of(plan, seed)
            if isinstance(programs, Infeasible):
                misfits += 1
                continue
            executed += 1
            kind = trial.run(programs, target)
            found = found._replace(kind=kind) if kind != "right" else found
        plan = ""
        trial.check_ports()
        return found._replace(plans=(executed, misfits))
    except InfeasibleError as error:
        return found._replace(kind="infeasible", what=_short(str(error)), message=str(error))
    except (ContainerError, ProgramError) as error:  # of what the compiler itself has made
        return found._replace(kind="crash", what=_where(error), message=f"{type(error).__name__}: {error}", plan=plan)
    except TilefarmError as error:
        return found._replace(kind="refused", what=_short(str(error)), message=str(error), plan=plan)
    except _EndError as error:
        return found._replace(kind=error.args[0], what=error.args[1], message=error.args[2], plan=plan)
    except Exception as error:  # noqa: BLE001  what nobody foresaw is what is looked for
        return found._replace(kind="crash", what=_where(error), message=f"{type(error).__name__}: {error}", plan=plan)


def expected_of(sample: Sample) -> dict[str, Array]:
    """onnxruntime's outputs of the model as it is, in its order."""
    names = [port.name for port in sample.model.graph.output]
    return plain_values(sample.model, sample.feeds, names)


class _Trial:
    """A compiled model, executed with one set of programs after the other.  layerwise: those of the file."""

    def __init__(self, sample: Sample, expected: Mapping[str, Array], opened: Opened, target: Target) -> None:
        self.sample, self.expected, self.opened = sample, expected, opened
        self.level = next(iter(target.machine.contention))
        measured = measure(opened, {self.level: default_plans(opened, self.level)})
        self.layerwise = dict(zip(opened.names, measured[self.level].programs, strict=True))
        data = onnx_bytes(opened.written, [encode(container) for container in containers_of(opened, measured)])
        self.programs: Mapping[str, Program] = {}
        self.made: dict[tuple[str, bytes], dict[str, Array]] = {}  # by the programs, of a piece and its inputs
        self.session = InferenceSession(data, compute=self._compute)
        self.data = data
        self.reference: Reference = self._refer()

    def programs_of(self, plan: str, seed: int) -> Mapping[str, Program] | Infeasible:
        return self.layerwise if plan == "layer by layer" else _programs(self.opened, plan, self.level, seed)

    def check_ports(self) -> None:
        """Names and declared shapes of the file, in the model's order."""
        wanted = list(self.expected)
        mine = [port.name for port in self.session.get_outputs()]
        if mine != wanted:
            raise _EndError("wrong", "order" if sorted(mine) == sorted(wanted) else "names", f"outputs {mine}, the model's are {wanted}")
        inputs, given = [port.name for port in self.session.get_inputs()], list(self.sample.feeds)
        if inputs != given:
            raise _EndError("wrong", "order of inputs", f"inputs {inputs}, the model's are {given}")
        for port in self.session.get_outputs():
            if tuple(port.shape) != self.expected[port.name].shape:
                raise _EndError(
                    "wrong", "shape", f"output {port.name!r}: declared {port.shape}, the model's is {list(self.expected[port.name].shape)}"
                )

    def _compute(self, piece: CompiledPiece, given: Mapping[str, Array]) -> dict[str, Array]:
        key = piece.name, b"".join(value.tobytes() for value in given.values())
        if key not in self.made:
            self.made[key] = self._execute(piece, given)
        return self.made[key]

    def _execute(self, piece: CompiledPiece, given: Mapping[str, Array]) -> dict[str, Array]:
        memory = piece.container.memory
        ddr: NDArray[np.uint8] = np.full(memory.size_blocks * BLOCK_BYTES, 0xFF, np.uint8)
        constants = np.frombuffer(piece.container.constants, np.uint8)
        ddr[: constants.size] = constants
        for buffer in memory.of_kind("input"):
            load_input(ddr, buffer, given[buffer.name], memory.type_of(buffer))
        execute(self.programs[piece.name], piece.container.machine, ddr, verify=False)
        outputs = memory.of_kind("output")
        return {b.name: read_output(ddr, b, memory.type_of(b)).reshape(b.onnx_shape) for b in outputs}

    def run(self, programs: Mapping[str, Program], target: Target) -> str:
        """ "right" or "rounding"; raises `_EndError` for what is wrong."""
        self.programs, self.made = programs, {}
        for name, program in programs.items():
            program.verify(target.machine)
            if findings := check(program, target.machine):
                raise _EndError("wrong", f"sanitizer: {findings[0].kind}", f"{name}: {findings[0]}")
        made = self.session.run(list(self.expected), self.sample.feeds, level=self.level)
        for value, (name, wanted) in zip(made, self.expected.items(), strict=True):
            if value.shape != wanted.shape or value.dtype != wanted.dtype:
                text = f"output {name!r}: {value.dtype} {list(value.shape)}, onnxruntime's is {wanted.dtype} {list(wanted.shape)}"
                raise _EndError("wrong", "shape", text)
        checked = values_of(self.session, self.sample.feeds, self.reference, self.level)
        doubtful = {name: one for name, one in checked.compared.items() if not one.ok}
        for name, one in doubtful.items():
            if one.exact or not rounding_explains(self.sample, name, checked.made[name], target.dtype):
                if self._refer(beyond=True) is not None:
                    return "undefined"
                raise _EndError("wrong", "value", f"{name!r}: {one}")
        kinds = {self._kind(name, value, target) for name, value in zip(self.expected, made, strict=True) if name not in checked.counted}
        return "undefined" if "undefined" in kinds else "rounding" if doubtful else "right"

    def _refer(self, beyond: bool = False) -> Any:
        """The reference; or the first tensor that the data type does not hold, None where there is none."""
        sample, compiled = self.sample, self.session.compiled
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, mock.patch("tuner.checks.reference._run", tests.inline_reference.run):
            path = Path(folder) / "compiled.onnx"
            path.write_bytes(self.data)
            try:
                found = reference(path, sample.feeds, Stored.of(compiled))
            except REFUSALS as error:  # of what it has made itself: the model as it is was executed
                raise _EndError("undefined", "onnxruntime cannot run it", str(error)) from None
            return found.beyond if beyond else referred(found, compiled, path, sample.feeds)

    def _kind(self, name: str, value: Array, target: Target) -> str:
        """Of an output where each piece was given what the one before it made, beside the model itself.

        "undefined" where onnxruntime makes something else of the model as soon as it optimises it, and value is that.
        """
        wanted = self.expected[name]
        if _near(value, wanted) or rounding_explains(self.sample, name, value, target.dtype):
            return "right"
        if self._refer(beyond=True) is not None or _near(value, exact_session(self.sample.model).run([name], dict(self.sample.feeds))[0]):
            return "undefined"
        raise _EndError("wrong", "value at its place", f"{name!r}: far from what onnxruntime makes of the model itself")


def _near(value: Array, wanted: Array) -> bool:
    most = float(np.abs(wanted.astype(np.float64)).max(initial=0.0)) or 1.0
    return float(np.abs(value.astype(np.float64) - wanted).max(initial=0.0)) <= _NEAR * most


# --- plans -----------------------------------------------------------------------------------------------------------


def _programs(opened: Opened, name: str, level: str, seed: int) -> dict[str, Program] | Infeasible:
    """Piece -> its program by a plan of that name."""
    plan = _drawn_plan(opened, name, level, seed)
    if isinstance(plan, Infeasible):
        return plan
    found = {}
    for piece, compiler, each in zip(opened.names, opened.compilers, plans_of_pieces(opened, plan, name), strict=True):
        program = compiler.compile(each)
        if isinstance(program, Infeasible):
            return program
        found[piece] = program
    return found


def _drawn_plan(opened: Opened, name: str, level: str, seed: int) -> Plan | Infeasible:
    plans = {}
    for at, (piece, compiler) in enumerate(zip(opened.names, opened.compilers, strict=True)):
        rng = np.random.default_rng([seed, at, int(name.partition(" ")[2] or 0)])
        if name == "predicted":
            unit = ordered(compiler.unit, "depth")
            plan: Plan | Infeasible | None = decode_all(unit, quick_genomes(compiler, unit, by_estimate(unit), [level])[level][0])
        else:
            plan = _random_plan(compiler.unit, rng)
        if plan is None or isinstance(plan, Infeasible):
            return plan or Infeasible(piece, "no plan drawn")
        plans[piece] = plan
    return joined(plans)


def _random_plan(unit: Unit, rng: np.random.Generator) -> Plan | Infeasible | None:
    """A genome as a search begins with, or any legal plan: those that no search would try as well."""
    if rng.integers(2):
        return random_plan(unit, rng, strips=True)
    genome = repaired(unit, random_genome(unit, rng), lambda gene: decode(unit, gene) is not None)
    return None if genome is None else decode_all(unit, genome)


# --- what is said of it ----------------------------------------------------------------------------------------------


def _place(opened: Opened) -> str:
    if not opened.part.pieces:
        return "host"
    return "partly" if opened.part.host else "npu"


def _pairs(opened: Opened) -> tuple[tuple[str, str], ...]:
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


__all__: Sequence[str] = ("CLASSES", "FAULTS", "Outcome", "Target", "judge", "outcome_line", "plan_names")
