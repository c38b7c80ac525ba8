"""Measurements become rows: a listener of one job.

What a worker knows of a row is written there, as columns that travel (`tuner.store.travelling`); the driver adds what it knows
(`tuner.farm.ledger`, `tuner.store.run_log`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from compiler.cost.features import FEATURE_SET, FEATURES, scaled
from compiler.unit.unit import Unit
from tuner.measure.measurement import Measurement, Request
from tuner.search.champions import single_operators_in_turn
from tuner.search.packing import pack_individuals
from tuner.search.population import Individual
from tuner.store.arrays import to_bytes
from tuner.store.run_log import Batch, Origin
from tuner.store.schema import FEATURE_PREFIX, RESULTS, SCHEMA_VERSION, FeatureSet, log_schema, task_schema
from tuner.store.travelling import packed, side_by_side

FEATURE_SETS = (FeatureSet(FEATURE_SET, FEATURES),)


@dataclass(frozen=True)
class Facts:
    """What is the same in all rows of a run."""

    origin: Origin
    unit: Unit
    levels: tuple[str, ...]


class Measured(NamedTuple):
    """What a job measured, packed.

    batch: of all tasks.  program: bool [tasks].  status: of each task.  programs: genomes of the programs that fit, packed; fits: their
    places among the tasks, cycles: int64 [fits, levels], singles: which of them are of single operators one after the other.
    """

    batch: Batch
    program: NDArray[np.bool_]
    status: list[str]
    programs: bytes
    fits: NDArray[np.intp]
    cycles: NDArray[np.int64]
    singles: NDArray[np.bool_]


class Recorder:
    """A `Listener`.  versions: of the models that predict, by level."""

    def __init__(self, facts: Facts, island: int, generation: int, versions: Sequence[str | None]) -> None:
        self.facts, self.island, self.generation, self.versions = facts, island, generation, versions
        self._tasks: set[str] = set()
        self._rows = list[_Row]()
        self._found = list[Individual]()
        self._fits = list[int]()  # their places in `_rows`

    def heard(self, request: Request, measurement: Measurement) -> None:
        task = measurement.task
        if not task or task in self._tasks:  # features only; or other genes, the same plan: nothing new was learnt
            return
        self._tasks.add(task)
        self._rows.append(_Row(request, measurement, time.time_ns() // 1000))
        if request.kind == "program" and measurement.cycles is not None:
            self._found.append(Individual(request.genome, measurement.cycles, task))
            self._fits.append(len(self._rows) - 1)

    def measured(self) -> Measured:
        """All of it."""
        rows, found, levels = self._rows, self._found, len(self.facts.levels)
        return Measured(
            Batch([row.measurement.task for row in rows], self._packed_tasks(), self._packed_rows(), levels),
            np.array([row.request.kind == "program" for row in rows], np.bool_),
            [row.measurement.status for row in rows],
            to_bytes(pack_individuals(found, levels)),
            np.array(self._fits, np.intp),
            np.array([m.cycles for m in found], np.int64).reshape(len(found), levels),
            np.array([single_operators_in_turn(m.genome) for m in found], np.bool_),
        )

    def _packed_tasks(self) -> bytes:
        rows, count, unit = self._rows, len(self._rows), self.facts.unit.digest
        blank = np.full(len(FEATURES), np.nan, np.float32)
        raws = [blank if (raw := row.measurement.features) is None else scaled(raw) for row in rows]
        features = np.array(raws, np.float32).reshape(count, len(FEATURES))
        columns: dict[str, Any] = {
            "task": pa.array([row.measurement.task for row in rows], pa.string()),
            "schema_version": np.full(count, SCHEMA_VERSION, np.int16),
            "kind": pa.array([row.request.task_kind for row in rows], pa.string()),
            "payload": pa.array([row.measurement.payload or row.request.without_plan(unit) for row in rows], pa.string()),
            "parents": pa.repeat("", count),
            "feature_set": pa.repeat(FEATURE_SET, count),
            FEATURE_PREFIX + FEATURES[0]: side_by_side(features),
        }
        return packed(columns, task_schema(FEATURE_SETS))

    def _packed_rows(self) -> bytes:
        rows, facts, levels = self._rows, self.facts, len(self.facts.levels)
        count, machine = len(self._rows), self.facts.unit.machine
        every = pa.array(np.repeat(np.arange(count), levels))

        def each(values: Any) -> Any:
            return pa.array(np.repeat(np.asarray(values), levels))

        def level(values: Sequence[Any], dtype: Any) -> Any:
            return pa.array(np.tile(np.asarray(values, dtype), count))

        def texts(values: Sequence[str | None]) -> Any:
            return pa.array(values, pa.string()).take(every)

        status = [row.measurement.status for row in rows]
        bad = np.repeat(np.array([text != "ok" for text in status], np.bool_), levels * len(RESULTS))
        blank = np.zeros((levels, len(RESULTS)), np.int64)
        values = np.array([blank if row.measurement.values is None else row.measurement.values for row in rows], np.int64)
        shape = (count * levels, len(RESULTS))
        predicted, versions = self._predictions()
        columns: dict[str, Any] = {
            "schema_version": np.full(count * levels, SCHEMA_VERSION, np.int16),
            "workload": texts([self._workload(row) for row in rows]),
            "kind": texts([row.request.task_kind for row in rows]),
            "task": texts([row.measurement.task for row in rows]),
            "attempt": each(np.array([row.measurement.attempt for row in rows], np.int16)),
            "island": np.full(count * levels, self.island, np.int16),
            "generation": np.full(count * levels, self.generation, np.int64),
            "level": pa.array(facts.levels, pa.string()).take(level(range(levels), np.int32)),
            "level_index": level(range(levels), np.int8),
            "ddr_share": level([machine.contention[name] for name in facts.levels], np.float64),
            "status": texts(status),
            "error": texts([row.measurement.error for row in rows]),
            RESULTS[0]: side_by_side(values.reshape(shape), bad.reshape(shape)),
            "clock_hz": np.full(count * levels, machine.clock_hz, np.int64),
            "predicted_cycles": pa.array(predicted, mask=np.isnan(predicted)),
            "model_version": versions,
            "worker": texts([row.measurement.worker for row in rows]),
            "wall_s": each(np.array([row.measurement.wall_s / levels for row in rows], np.float64)),
            "time": each(np.array([row.time_us for row in rows], np.int64)).cast(pa.timestamp("us", tz="UTC")),
        }
        return packed(columns, log_schema())

    def _predictions(self) -> tuple[NDArray[np.float64], Any]:
        """By row of the log: what was expected (NaN: nothing), and the model that said so."""
        levels = len(self.facts.levels)
        predicted = np.full((len(self._rows), levels), np.nan)
        for at, row in enumerate(self._rows):
            if row.request.predicted is not None:
                predicted[at] = row.request.predicted
        known = np.array([version is not None for version in self.versions], np.bool_)
        used = ~np.isnan(predicted) & known[None]
        index = np.where(used, np.arange(levels)[None], 0).astype(np.int32).ravel()
        return predicted.ravel(), pa.array(list(self.versions), pa.string()).take(pa.array(index, mask=~used.ravel()))

    def _workload(self, row: _Row) -> str:
        name = self.facts.origin.model
        if row.request.kind == "program":
            return name
        genome, kernels = row.request.genome, self.facts.unit.kernels
        return workload(name, kernels[genome[0].start].name, kernels[genome[-1].stop - 1].name)


class _Row(NamedTuple):
    request: Request
    measurement: Measurement
    time_us: int


def workload(model: str, first: str, last: str) -> str:
    """What the log calls a run of a model's operators, by its ends."""
    return f"{model}:{first}" if first == last else f"{model}:{first}..{last}"
