"""A compiled model, executed with one set of programs after the other, and what is wrong with what it makes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import tests.inline_reference
from compiler.build import containers_of, default_plans, measure
from compiler.frontend.partition.partition import Partition
from compiler.model import LoweredModel
from compiler.package import onnx_bytes
from compiler.plan.plan import Infeasible
from simulator.compiled import CompiledPiece
from simulator.exact_onnxruntime import REFUSALS, exact_session
from simulator.host_layout import load_input, read_output
from simulator.npu.container_file import encode
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType
from simulator.npu.program import Program
from simulator.sanitizer import sanitize_program
from simulator.session import InferenceSession
from tests.fuzz.builder import Array, Sample
from tests.fuzz.perturbed import rounding_explains
from tests.fuzz.plans import LAYERWISE, programs_of
from tests.lane_sums import execute_checked, summed_lanes
from tuner.verify.fixed_point import apply_fixed_point
from tuner.verify.reference import ReferenceValues, StoredTensors, run_reference
from tuner.verify.values import compare_values

BEYOND = "undefined", "a tensor is beyond the data type"
CHANGED = "undefined", "onnxruntime makes something else of the model when it optimises it, as the NPU does"
_NEAR = 0.02  # of the largest magnitude: no fault that is looked for is as small, and rounding of several pieces mostly is


class Target(NamedTuple):
    """dtype: of floats.  plans: names, see `tests.fuzz.plans`."""

    machine: Machine
    dtype: DataType
    plans: tuple[str, ...]


class EndError(Exception):
    """kind, what and message of the outcome that a model has."""


class Ports:
    """Outputs of a file beside those of the model.  expected: by name, in the model's order."""

    def __init__(self, session: InferenceSession, expected: Mapping[str, Array], sample: Sample) -> None:
        self.session, self.expected, self.sample = session, expected, sample

    def check_names(self) -> None:
        """Names and declared shapes, in the model's order."""
        wanted, mine = list(self.expected), [port.name for port in self.session.get_outputs()]
        if mine != wanted:
            raise EndError("wrong", "order" if sorted(mine) == sorted(wanted) else "names", f"outputs {mine}, the model's are {wanted}")
        given, mine = list(self.sample.feeds), [port.name for port in self.session.get_inputs()]
        if mine != given:
            raise EndError("wrong", "order of inputs", f"inputs {mine}, the model's are {given}")
        by_place, by_name = (self.session.run(names, self.sample.feeds) for names in (None, wanted))
        if not all(np.array_equal(one, other) for one, other in zip(by_place, by_name, strict=True)):
            raise EndError("wrong", "order", "outputs by place are not those by name")
        for port in self.session.get_outputs():
            if port.shape != (shape := list(self.expected[port.name].shape)):
                raise EndError("wrong", "shape", f"output {port.name!r}: declared {port.shape}, the model's is {shape}")

    def run(self, level: str | None = None) -> list[Array]:
        """Outputs in the model's order, of its shapes and types."""
        made = self.session.run(list(self.expected), self.sample.feeds, level=level)
        for value, (name, wanted) in zip(made, self.expected.items(), strict=True):
            if value.shape != wanted.shape or value.dtype != wanted.dtype:
                text = f"output {name!r}: {value.dtype} {list(value.shape)}, onnxruntime's is {wanted.dtype} {list(wanted.shape)}"
                raise EndError("wrong", "shape", text)
        return made


def check_on_host(part: Partition, expected: Mapping[str, Array], sample: Sample) -> None:
    """Of a model of which nothing runs on the NPU.  Raises `EndError`."""
    ports = Ports(InferenceSession(onnx_bytes(part, [])), expected, sample)
    ports.check_names()
    for value, (name, wanted) in zip(ports.run(), expected.items(), strict=True):
        if not _near(value, wanted):
            kind, what = CHANGED if _near(value, _optimised(sample, name)) else ("wrong", "value on the host")
            raise EndError(kind, what, f"{name!r}: far from what onnxruntime makes of the model itself")


class Trial:
    """A compiled model, executed with one set of programs after the other.  layerwise: those of the file."""

    def __init__(self, sample: Sample, expected: Mapping[str, Array], opened: LoweredModel, target: Target) -> None:
        self.sample, self.expected, self.opened = sample, expected, opened
        self.level = next(iter(target.machine.contention))
        measured = measure(opened, {self.level: default_plans(opened, self.level)})
        self.layerwise = dict(zip(opened.names, measured[self.level].programs, strict=True))
        data = onnx_bytes(opened.written, [encode(container) for container in containers_of(opened, measured)])
        self.programs: Mapping[str, Program] = {}
        self.made: dict[tuple[str, bytes], dict[str, Array]] = {}  # by the programs, of a piece and its inputs
        self.session = InferenceSession(data, compute=self._compute)
        self.ports = Ports(self.session, expected, sample)
        self.folder = tempfile.TemporaryDirectory(prefix="fuzz-")  # as long as the reference, which asks more of the file later
        self.path = Path(self.folder.name) / "compiled.onnx"
        self.path.write_bytes(data)
        self.reference: ReferenceValues = self._refer()

    def programs_of(self, plan: str, seed: int) -> Mapping[str, Program] | Infeasible:
        return self.layerwise if plan == LAYERWISE else programs_of(self.opened, plan, self.level, seed)

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
        program, machine = self.programs[piece.name], piece.container.machine
        lanes = summed_lanes(self.opened.target_graphs[self.opened.names.index(piece.name)])
        _, faults = execute_checked(program, machine, ddr, lanes)
        if faults:
            raise EndError("wrong", "lanes", f"{piece.name}: {faults[0]}")
        outputs = memory.of_kind("output")
        return {b.name: read_output(ddr, b, memory.type_of(b)).reshape(b.onnx_shape) for b in outputs}

    def run(self, programs: Mapping[str, Program], target: Target) -> tuple[str, str]:
        """kind and what of an outcome that is no fault; raises `EndError` for one."""
        self.programs, self.made = programs, {}
        for name, program in programs.items():
            program.verify(target.machine)
            if findings := sanitize_program(program, target.machine):
                raise EndError("wrong", f"sanitizer: {findings[0].kind}", f"{name}: {findings[0]}")
        made = self.ports.run(self.level)
        checked = compare_values(self.session, self.sample.feeds, self.reference, self.level)
        doubtful = {name: one for name, one in checked.compared.items() if not one.ok}
        for name, one in doubtful.items():
            if name in self.expected and not np.isfinite(self.reference.values[name]).all():  # those of the model as it is are
                return CHANGED
            if one.exact or not rounding_explains(self.sample, name, checked.outputs[name], target.dtype):
                if self._is_beyond():
                    return BEYOND
                raise EndError("wrong", "value", f"{name!r}: {one}")
        places = [self._kind(name, value, target) for name, value in zip(self.expected, made, strict=True) if name not in checked.counted]
        return next((kind for kind in places if kind is not None), ("rounding", "") if doubtful else ("right", ""))

    def _refer(self) -> ReferenceValues:
        sample, compiled = self.sample, self.session.compiled
        with mock.patch("tuner.verify.reference._run", tests.inline_reference.run):
            try:
                found = run_reference(self.path, sample.feeds, StoredTensors.of(compiled))
            except REFUSALS as error:  # of what it has made itself: the model as it is was executed
                raise EndError("undefined", "onnxruntime cannot run what it makes of the model", str(error)) from None
            return apply_fixed_point(found, compiled, self.path, sample.feeds)

    def _is_beyond(self) -> bool:
        """Whether the data type does not hold a tensor."""
        with mock.patch("tuner.verify.reference._run", tests.inline_reference.run):
            return self.reference.beyond is not None

    def _kind(self, name: str, value: Array, target: Target) -> tuple[str, str] | None:
        """Of an output where each piece was given what the one before it made, beside the model itself; None where it is near that."""
        if _near(value, self.expected[name]) or rounding_explains(self.sample, name, value, target.dtype):
            return None
        if self._is_beyond():
            return BEYOND
        if _near(value, _optimised(self.sample, name)):
            return CHANGED
        raise EndError("wrong", "value at its place", f"{name!r}: far from what onnxruntime makes of the model itself")


def _optimised(sample: Sample, name: str) -> Array:
    """What onnxruntime makes of a model that it may change."""
    return np.asarray(exact_session(sample.model).run([name], dict(sample.feeds))[0])


def _near(value: Array, wanted: Array) -> bool:
    most = float(np.abs(wanted.astype(np.float64)).max(initial=0.0)) or 1.0
    return float(np.abs(value.astype(np.float64) - wanted).max(initial=0.0)) <= _NEAR * most
