"""Library interface of the compiler: a model is read for a machine, and compiled with plans."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from compiler.autoplan import quick_plans
from compiler.build import MeasuredModel, containers_of, default_by_level, measure, package
from compiler.model import LoweredModel, ModelSpec, lower_model
from compiler.plan.plan import Plan
from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from simulator.objective import Objective, Pace, frames_of
from simulator.onnx_names import Style
from simulator.outputs import check_out


@dataclass(frozen=True, eq=False)
class CompiledModel:
    """A model with a program for every contention level.  measured: level -> its plan, the programs of it, and what they take."""

    opened: LoweredModel
    measured: Mapping[str, MeasuredModel]

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.measured)

    def plan(self, level: str) -> Plan:
        """Plan of a level.  Raises `BadInputError` where there is none of that name."""
        return self._of(level).plan

    def cycles(self, level: str) -> int:
        """Simulated cycles of a level's program at that level.  Raises as `plan`."""
        return self._of(level).timings[level].cycles

    def pace(self, level: str) -> Pace:
        """Latency and throughput at a level.  Raises as `plan`."""
        return Pace.of(self.cycles(level), self.opened.frames, self.opened.machine.clock_hz)

    def save(self, path: str | os.PathLike[str], style: Style = "function") -> None:
        """Write the compiled ONNX file, whole or not at all.  Raises `BadInputError`, `UnsupportedError`."""
        out = Path(path)
        check_out(out, [self.opened.source.model])
        package(self.opened, containers_of(self.opened, self.measured), out, style)

    def _of(self, level: str) -> MeasuredModel:
        if level not in self.measured:
            raise BadInputError(f"level {level!r}: unknown; levels here: {', '.join(self.measured)}")
        return self.measured[level]


def load(
    model: str | os.PathLike[str] | bytes | ModelProto,
    machine: str | Machine,
    *,
    dtype: str = "float16",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    random_weights: int | None = None,
    objective: Objective = "latency",
    frames: int | None = None,
) -> LoweredModel:
    """A model read, checked and lowered for a machine: plans are of `.target_graph`, or of `.target_graphs` of several pieces.

    model: an ONNX file, the bytes of one, or what was read already.  machine: a preset, a YAML file or a Machine.  shapes: dimensions of
    dynamic inputs.  random_weights: a seed that replaces all weights.  objective: `latency`, a frame of the model in a run, or
    `throughput`, `frames` of them (2 unless given) along the first axis.
    Raises `BadInputError`, `UnsupportedError`, `InfeasibleError`.
    """
    source = ModelSpec.named(_called(model), machine, dtype, shapes or {}, random_weights, frames_of(objective, frames))
    return lower_model(source, model if isinstance(model, bytes | ModelProto) else None)


def compile(
    model: str | os.PathLike[str] | bytes | ModelProto | LoweredModel,
    machine: str | Machine | None = None,
    plan: Plan | Mapping[str, Plan] | None = None,
    *,
    dtype: str = "float16",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    random_weights: int | None = None,
    layerwise: bool = False,
    objective: Objective = "latency",
    frames: int | None = None,
) -> CompiledModel:
    """A model compiled for every contention level of a machine; the same arguments give the same bytes.

    model: as `load` takes or gives it, which has the other options.  plan: one for all levels, or level -> plan; unless given, those that
    are best by prediction (`compiler.autoplan`), or layer by layer.
    Raises `BadInputError` (a plan of something else as well), `UnsupportedError`, `InfeasibleError` (a plan that does not fit).
    """
    if isinstance(model, LoweredModel):
        opened = model
    elif machine is None:
        raise BadInputError(f"{_called(model)}: no machine given; a preset's name, a YAML file or a Machine is expected")
    else:
        opened = load(model, machine, dtype=dtype, shapes=shapes, random_weights=random_weights, objective=objective, frames=frames)
    if plan is None:
        plans: Mapping[str, Plan] = default_by_level(opened) if layerwise else quick_plans(opened)
    else:
        plans = plan if isinstance(plan, Mapping) else dict.fromkeys(opened.machine.contention, plan)
    return CompiledModel(opened, measure(opened, plans))


def _called(model: str | os.PathLike[str] | bytes | ModelProto) -> Path:
    """The file, or what stands for it in errors."""
    return Path("model") if isinstance(model, bytes | ModelProto) else Path(model)
