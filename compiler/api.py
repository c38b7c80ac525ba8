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
    """Model compiled with one plan for each contention level.  measured: level -> the plan, its programs and their cycles."""

    opened: LoweredModel
    measured: Mapping[str, MeasuredModel]

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.measured)

    def plan(self, level: str) -> Plan:
        """Plan of a level.  Raises `BadInputError` for an unknown level."""
        return self._measured_model(level).plan

    def cycles(self, level: str) -> int:
        """Simulated cycles of a level's program at that level.  Raises as `plan`."""
        return self._measured_model(level).timings[level].cycles

    def pace(self, level: str) -> Pace:
        """Latency and throughput at a level.  Raises as `plan`."""
        return Pace.of(self.cycles(level), self.opened.frames, self.opened.machine.clock_hz)

    def save(self, path: str | os.PathLike[str], style: Style = "function") -> None:
        """Write the compiled ONNX file atomically.  Raises `BadInputError`, `UnsupportedError`."""
        out = Path(path)
        check_out(out, [self.opened.source.model])
        package(self.opened, containers_of(self.opened, self.measured), out, style)

    def _measured_model(self, level: str) -> MeasuredModel:
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
    """Read a model, check it and lower it for a machine.

    model: path or bytes of an ONNX file, or a ModelProto.  machine: name of a preset, path of a YAML file, or a Machine.  shapes:
    dimensions of dynamic inputs.  random_weights: seed of weights that replace the model's; None: the model's own.  objective: `latency` (a
    run computes one frame) or `throughput` (a run computes `frames` frames, stacked along the first axis; default 2).  Plans belong to
    `.target_graph` of the returned model, or to `.target_graphs` if the model has several subgraphs.  Raises `BadInputError`,
    `UnsupportedError`, `InfeasibleError`.
    """
    source = ModelSpec.named(_shown_path(model), machine, dtype, shapes or {}, random_weights, frames_of(objective, frames))
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
    """Compile a model for every contention level of a machine; equal arguments give equal bytes.

    model: as for `load`, or the model that `load` returned; then the other options are ignored except `plan` and `layerwise`.
    plan: one plan for all levels, or level -> plan.  None: the plans with the fewest predicted cycles (`compiler.autoplan`), or with
    `layerwise` a plan of one segment per operator.  Raises `BadInputError` (also for a plan of another model), `UnsupportedError`,
    `InfeasibleError` (the plan does not fit).
    """
    if isinstance(model, LoweredModel):
        opened = model
    elif machine is None:
        raise BadInputError(f"{_shown_path(model)}: no machine given; a preset's name, a YAML file or a Machine is expected")
    else:
        opened = load(model, machine, dtype=dtype, shapes=shapes, random_weights=random_weights, objective=objective, frames=frames)
    if plan is None:
        plans: Mapping[str, Plan] = default_by_level(opened) if layerwise else quick_plans(opened)
    else:
        plans = plan if isinstance(plan, Mapping) else dict.fromkeys(opened.machine.contention, plan)
    return CompiledModel(opened, measure(opened, plans))


def _shown_path(model: str | os.PathLike[str] | bytes | ModelProto) -> Path:
    """Path of the model for error messages; "model" where it was not read from a file."""
    return Path("model") if isinstance(model, bytes | ModelProto) else Path(model)
