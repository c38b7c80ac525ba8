"""Recorder: turns the measurements of one job into rows.

Sources of the columns of `tuner.log.record`: a worker writes those that it knows (`tuner.log.wire_format`), and the driver adds its own
(`tuner.log.writer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from compiler.cost.features import FEATURE_SET, FEATURES
from simulator.npu.level import Level
from tuner.farm.search_spec import SearchSpec
from tuner.log.record import SCHEMA_VERSION, FeatureSet
from tuner.log.wire_format import LOG_ROWS, TASK_ROWS
from tuner.log.writer import Batch
from tuner.measure.grants import refusal
from tuner.measure.request import CYCLES, Measurement, Request

FEATURE_SETS = (FeatureSet(FEATURE_SET, FEATURES),)


class Recorder:
    """`Listener` that records every task once.  version: version of the predicting model; None: the estimate predicts.

    strategy: name of the proposer, if a request has none.
    """

    schema_version, feature_set = SCHEMA_VERSION, FEATURE_SET

    def __init__(self, spec: SearchSpec, shard: int, generation: int, version: str | None, strategy: str) -> None:
        self.spec, self.shard, self.generation, self.version, self.strategy = spec, shard, generation, version, strategy
        self.clock_hz = spec.target_graph.machine.clock_hz
        self._tasks = dict[str, _Task]()

    def heard(self, request: Request, measurement: Measurement) -> None:
        if measurement.task and measurement.task not in self._tasks:  # different genes may have the same plan, which has a row already
            self._tasks[measurement.task] = _Task(self, request, measurement, self.spec.clock.epoch_us())

    @property
    def stored(self) -> int:
        """Number of tasks whose results the store had."""
        return sum(bool(task.measurement.pack) for task in self._tasks.values())

    def batch(self, epoch: bytes) -> Batch:
        """Batch of the recorded tasks.  epoch: the collector's columns for the same measurements."""
        tasks, contention = [*self._tasks.values()], self.spec.target_graph.machine.contention
        levels = [_Level(name, index, contention[name]) for index, name in enumerate(self.spec.levels)]
        rows = LOG_ROWS.to_batch(self, tasks, levels, [reading for task in tasks for reading in self._readings(task)])
        return Batch(epoch, TASK_ROWS.pack(TASK_ROWS.to_batch(self, tasks)), LOG_ROWS.pack(rows), len(levels))

    def _readings(self, task: _Task) -> Iterator[_Reading]:
        """At every level."""
        measurement, predicted = task.measurement, task.request.predicted
        for index, level in enumerate(self.spec.levels):
            status, error = measurement.status, measurement.error
            if measurement.values is not None and not measurement.values[index, CYCLES]:
                status, error = "infeasible", refusal(self.spec.target_graph.machine, level)
            cycles = None if predicted is None or np.isnan(predicted[index]) else predicted[index]
            version = None if cycles is None else self.version
            yield _Reading(status, error, cycles, version, 0 if status == "infeasible" else self.spec.repeats)


class _Level(NamedTuple):
    level: str
    level_index: int
    contention: Level


class _Reading(NamedTuple):
    status: str
    error: str | None
    predicted_cycles: float | None
    model_version: str | None
    readings: int


class _Task(NamedTuple):
    """time: microseconds."""

    job: Recorder
    request: Request
    measurement: Measurement
    time: int

    @property
    def payload(self) -> str:
        return self.measurement.payload or self.request.without_plan(self.job.spec.target_graph.digest)

    @property
    def parents(self) -> str:
        return " ".join(self.request.proposal.parents)

    @property
    def proposed_by(self) -> str:
        return self.request.proposal.by or self.job.strategy

    @property
    def wall_s(self) -> float:
        return self.measurement.wall_s / len(self.job.spec.levels)

    @property
    def workload(self) -> str:
        spec, genome = self.job.spec, self.request.genome
        if self.request.kind == "program":
            return spec.origin.model
        operators = spec.target_graph.operators
        return workload(spec.origin.model, operators[genome[0].start].name, operators[genome[-1].stop - 1].name)


def workload(model: str, first: str, last: str) -> str:
    """Name in the log of a range of a model's operators, by its ends."""
    return f"{model}:{first}" if first == last else f"{model}:{first}..{last}"
