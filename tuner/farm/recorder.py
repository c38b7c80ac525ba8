"""Measurements become rows: a listener of one job.

What a worker knows of a row is written there, as columns that travel (`tuner.log.wire_format`); the driver adds what it knows
(`tuner.farm.commit_log`, `tuner.log.writer`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from compiler.cost.features import FEATURE_SET, FEATURES
from simulator.npu.level import GRANTED
from tuner.farm.search_spec import SearchSpec
from tuner.log.schema import SCHEMA_VERSION, FeatureSet, log_schema, task_schema
from tuner.log.wire_format import packed
from tuner.log.writer import Batch
from tuner.measure.grants import refusal
from tuner.measure.request import CYCLES, Measurement, Request

FEATURE_SETS = (FeatureSet(FEATURE_SET, FEATURES),)


class Recorder:
    """A `Listener`: of every task once.  version: of the model that predicts, None where the estimate does.

    strategy: name of what proposed where a request does not say.
    """

    def __init__(self, facts: SearchSpec, island: int, generation: int, version: str | None, strategy: str) -> None:
        self.facts, self.island, self.generation, self.version, self.strategy = facts, island, generation, version, strategy
        self._tasks: set[str] = set()
        self._rows = list[_Row]()

    def heard(self, request: Request, measurement: Measurement) -> None:
        if measurement.task and measurement.task not in self._tasks:  # other genes may be the same plan: nothing new was learnt
            self._tasks.add(measurement.task)
            self._rows.append(_Row(request, measurement, time.time_ns() // 1000))

    def batch(self, epoch: bytes) -> Batch:
        """epoch: what the collector has of the same measurements."""
        return Batch(epoch, self._packed_tasks(), self._packed_rows(), len(self.facts.levels))

    def _packed_tasks(self) -> bytes:
        rows, count, target_graph = self._rows, len(self._rows), self.facts.target_graph.digest
        columns: dict[str, Any] = {
            "task": pa.array([row.measurement.task for row in rows], pa.string()),
            "schema_version": np.full(count, SCHEMA_VERSION, np.int16),
            "kind": pa.array([row.request.task_kind for row in rows], pa.string()),
            "payload": pa.array([row.measurement.payload or row.request.without_plan(target_graph) for row in rows], pa.string()),
            "parents": pa.array([" ".join(row.request.proposal.parents) for row in rows], pa.string()),
            "feature_set": pa.repeat(FEATURE_SET, count),
        }
        return packed(columns, task_schema(FEATURE_SETS))

    def _packed_rows(self) -> bytes:
        rows, facts, levels = self._rows, self.facts, len(self.facts.levels)
        count, machine = len(self._rows), self.facts.target_graph.machine
        every = pa.array(np.repeat(np.arange(count), levels))

        def each(values: Any) -> Any:
            return pa.array(np.repeat(np.asarray(values), levels))

        def level(values: Sequence[Any], dtype: Any) -> Any:
            return pa.array(np.tile(np.asarray(values, dtype), count))

        def texts(values: Sequence[str | None]) -> Any:
            return pa.array(values, pa.string()).take(every)

        def granted(key: str) -> Any:
            values = [getattr(machine.contention[name], key) for name in facts.levels]
            return pa.array(values, schema.field(f"level_{key}").type).take(level(range(levels), np.int32))

        schema = log_schema()
        predicted, versions = self._predictions()
        outcomes = [outcome for row in rows for outcome in self._outcomes(row.measurement)]
        columns: dict[str, Any] = {
            "schema_version": np.full(count * levels, SCHEMA_VERSION, np.int16),
            "workload": texts([self._workload(row) for row in rows]),
            "kind": texts([row.request.task_kind for row in rows]),
            "task": texts([row.measurement.task for row in rows]),
            "attempt": each(np.array([row.measurement.attempt for row in rows], np.int16)),
            "island": np.full(count * levels, self.island, np.int16),
            "generation": np.full(count * levels, self.generation, np.int64),
            "proposed_by": texts([row.request.proposal.by or self.strategy for row in rows]),
            "level": pa.array(facts.levels, pa.string()).take(level(range(levels), np.int32)),
            "level_index": level(range(levels), np.int8),
            "ddr_share": level([machine.contention[name].share for name in facts.levels], np.float64),
            "level_latency_cycles": level([machine.contention[name].latency_cycles for name in facts.levels], np.int64),
            **{f"level_{key}": granted(key) for key in GRANTED},
            "status": pa.array([status for status, _ in outcomes], pa.string()),
            "error": pa.array([error for _, error in outcomes], pa.string()),
            "clock_hz": np.full(count * levels, machine.clock_hz, np.int64),
            "predicted_cycles": pa.array(predicted, mask=np.isnan(predicted)),
            "model_version": versions,
            "readings": np.array([0 if status == "infeasible" else facts.repeats for status, _ in outcomes], np.int64),
            "board": texts([row.measurement.board.board for row in rows]),
            "firmware": texts([row.measurement.board.firmware for row in rows]),
            "canary_cycles": pa.array([row.measurement.board.canary_cycles for row in rows], pa.int64()).take(every),
            "worker": texts([row.measurement.worker for row in rows]),
            "wall_s": each(np.array([row.measurement.wall_s / levels for row in rows], np.float64)),
            "time": each(np.array([row.time_us for row in rows], np.int64)).cast(pa.timestamp("us", tz="UTC")),
        }
        return packed(columns, schema)

    def _outcomes(self, measurement: Measurement) -> Iterator[tuple[str, str | None]]:
        """Status and error at every level."""
        for at, level in enumerate(self.facts.levels):
            if measurement.values is not None and not measurement.values[at, CYCLES]:
                yield "infeasible", refusal(self.facts.target_graph.machine, level)
            else:
                yield measurement.status, measurement.error

    def _predictions(self) -> tuple[NDArray[np.float64], Any]:
        """By row of the log: what was expected (NaN: nothing), and the model that said so, where one did."""
        levels = len(self.facts.levels)
        predicted = np.full((len(self._rows), levels), np.nan)
        for at, row in enumerate(self._rows):
            if row.request.predicted is not None:
                predicted[at] = row.request.predicted
        flat = predicted.ravel()
        return flat, pa.array(np.full(len(flat), self.version), pa.string(), mask=np.isnan(flat))

    def _workload(self, row: _Row) -> str:
        name = self.facts.origin.model
        if row.request.kind == "program":
            return name
        genome, operators = row.request.genome, self.facts.target_graph.operators
        return workload(name, operators[genome[0].start].name, operators[genome[-1].stop - 1].name)


class _Row(NamedTuple):
    request: Request
    measurement: Measurement
    time_us: int


def workload(model: str, first: str, last: str) -> str:
    """What the log calls a run of a model's operators, by its ends."""
    return f"{model}:{first}" if first == last else f"{model}:{first}..{last}"
