"""Questions become measurements and rows: the `Measure` of one job, beside the worker or in it.

What a worker knows of a row is written there, as columns that travel (`tuner.store.travelling`); the driver adds what it knows
(`tuner.farm.ledger`, `tuner.store.run_log`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from compiler.cost.features import FEATURE_SET, FEATURES, scaled
from compiler.unit.unit import Unit
from tuner.measure.evaluate import Answer, Ask, task_kind
from tuner.measure.outcome import Outcome
from tuner.search.champions import single_operators_in_turn
from tuner.search.packing import pack_individuals
from tuner.search.population import Individual
from tuner.search.question import Question, Reply
from tuner.store.arrays import to_bytes
from tuner.store.digests import canonical_json, task_digest
from tuner.store.run_log import Batch, Origin
from tuner.store.schema import FEATURE_PREFIX, RESULTS, SCHEMA_VERSION, FeatureSet, TaskKind, log_schema, task_schema
from tuner.store.travelling import packed, side_by_side

FEATURE_SETS = (FeatureSet(FEATURE_SET, FEATURES),)
Answers = Callable[[Sequence[Ask]], Iterator[Outcome[Answer]]]  # in the order of the asks, as they come


class Enough(Exception):
    """Raised by a `Recorder` that may measure no more: no error, the job returns what it has."""


class Limit(NamedTuple):
    """programs: that may be measured, None for any number.  deadline: on `time.monotonic` of this process."""

    programs: int | None = None
    deadline: float | None = None


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
    """answers: where asks go.  versions: of the models that predict, by level.  worker: who measures, unless an outcome says otherwise."""

    def __init__(self, facts: Facts, answers: Answers, island: int, generation: int, versions: Sequence[str | None], limit: Limit) -> None:
        self.facts, self.answers, self.island, self.generation = facts, answers, island, generation
        self.versions, self.limit = versions, limit
        self.programs = 0
        self._tasks: set[str] = set()
        self._rows = list[_Row]()
        self._found = list[Individual]()
        self._fits = list[int]()  # their places in `_rows`

    def __call__(self, questions: Sequence[Question]) -> list[Reply]:
        replies: list[Reply] = []
        while True:
            if self._spent():
                raise Enough
            part = questions[len(replies) :]
            if not part:
                return replies
            if part[0].ask.kind == "program" and self.limit.programs is not None:
                part = part[: self.limit.programs - self.programs]
            for question, outcome in zip(part, self.answers([question.ask for question in part]), strict=True):
                replies.append(self._reply(question, outcome))
                if self.limit.deadline is not None and self._spent():
                    raise Enough

    def _spent(self) -> bool:
        limit = self.limit
        if limit.programs is not None and self.programs >= limit.programs:
            return True
        return limit.deadline is not None and time.monotonic() >= limit.deadline

    def _reply(self, question: Question, outcome: Outcome[Answer]) -> Reply:
        answer, ask = outcome.value if outcome.status == "ok" else None, question.ask
        if not ask.measure and answer is not None:
            return Reply(question, answer, "")
        kind = task_kind(ask)
        payload = answer.payload if answer is not None else ""
        if not payload:
            payload = canonical_json({"unit": self.facts.unit.digest, "genome": [list(gene) for gene in ask.genome]})
        task = task_digest(kind, payload)
        if task in self._tasks:
            return Reply(question, answer, task)  # other genes, the same plan: nothing new was learnt
        self._tasks.add(task)
        self._rows.append(_Row(task, kind, payload, question, outcome, answer, time.time_ns() // 1000))
        if kind == "program":
            self.programs += 1
            if answer is not None and answer.values is not None:
                self._found.append(Individual(ask.genome, answer.values[:, 0], task))
                self._fits.append(len(self._rows) - 1)
        return Reply(question, answer, task)

    def measured(self) -> Measured:
        """All of it."""
        rows, found, levels = self._rows, self._found, len(self.facts.levels)
        return Measured(
            Batch([row.task for row in rows], self._packed_tasks(), self._packed_rows(), levels),
            np.array([row.kind == "program" for row in rows], np.bool_),
            [row.status for row in rows],
            to_bytes(pack_individuals(found, levels)),
            np.array(self._fits, np.intp),
            np.array([m.cycles for m in found], np.int64).reshape(len(found), levels),
            np.array([single_operators_in_turn(m.genome) for m in found], np.bool_),
        )

    def _packed_tasks(self) -> bytes:
        rows, count = self._rows, len(self._rows)
        blank = np.full(len(FEATURES), np.nan, np.float32)
        raws = [blank if row.answer is None or row.answer.features is None else scaled(row.answer.features) for row in rows]
        features = np.array(raws, np.float32).reshape(count, len(FEATURES))
        columns: dict[str, Any] = {
            "task": pa.array([row.task for row in rows], pa.string()),
            "schema_version": np.full(count, SCHEMA_VERSION, np.int16),
            "kind": pa.array([row.kind for row in rows], pa.string()),
            "payload": pa.array([row.payload for row in rows], pa.string()),
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

        status = [row.status for row in rows]
        bad = np.repeat(np.array([text != "ok" for text in status], np.bool_), levels * len(RESULTS))
        blank = np.zeros((levels, len(RESULTS)), np.int64)
        values = np.array([blank if row.answer is None or row.answer.values is None else row.answer.values for row in rows], np.int64)
        shape = (count * levels, len(RESULTS))
        predicted, versions = self._predictions()
        columns: dict[str, Any] = {
            "schema_version": np.full(count * levels, SCHEMA_VERSION, np.int16),
            "workload": texts([self._workload(row) for row in rows]),
            "kind": texts([row.kind for row in rows]),
            "task": texts([row.task for row in rows]),
            "attempt": each(np.array([row.outcome.attempt for row in rows], np.int16)),
            "island": np.full(count * levels, self.island, np.int16),
            "generation": np.full(count * levels, self.generation, np.int64),
            "level": pa.array(facts.levels, pa.string()).take(level(range(levels), np.int32)),
            "level_index": level(range(levels), np.int8),
            "ddr_share": level([machine.contention[name] for name in facts.levels], np.float64),
            "status": texts(status),
            "error": texts([row.error for row in rows]),
            RESULTS[0]: side_by_side(values.reshape(shape), bad.reshape(shape)),
            "clock_hz": np.full(count * levels, machine.clock_hz, np.int64),
            "predicted_cycles": pa.array(predicted, mask=np.isnan(predicted)),
            "model_version": versions,
            "worker": texts([row.outcome.worker for row in rows]),
            "wall_s": each(np.array([row.outcome.wall_s / levels for row in rows], np.float64)),
            "time": each(np.array([row.time_us for row in rows], np.int64)).cast(pa.timestamp("us", tz="UTC")),
        }
        return packed(columns, log_schema())

    def _predictions(self) -> tuple[NDArray[np.float64], Any]:
        """By row of the log: what was expected (NaN: nothing), and the model that said so."""
        levels = len(self.facts.levels)
        predicted = np.full((len(self._rows), levels), np.nan)
        for at, row in enumerate(self._rows):
            if row.question.predicted is not None:
                predicted[at] = row.question.predicted
        known = np.array([version is not None for version in self.versions], np.bool_)
        used = ~np.isnan(predicted) & known[None]
        index = np.where(used, np.arange(levels)[None], 0).astype(np.int32).ravel()
        return predicted.ravel(), pa.array(list(self.versions), pa.string()).take(pa.array(index, mask=~used.ravel()))

    def _workload(self, row: _Row) -> str:
        name = self.facts.origin.model
        if row.kind == "program":
            return name
        genome, operators = row.question.ask.genome, self.facts.unit.operators
        return workload(name, operators[genome[0].start].name, operators[genome[-1].stop - 1].name)


class _Row(NamedTuple):
    task: str
    kind: TaskKind
    payload: str
    question: Question
    outcome: Outcome[Answer]
    answer: Answer | None
    time_us: int

    @property
    def status(self) -> str:
        if self.answer is None:
            return self.outcome.status if self.outcome.status != "ok" else "crash"
        return self.answer.status

    @property
    def error(self) -> str | None:
        if self.answer is None:
            return self.outcome.error or "no answer"
        return self.answer.error if self.answer.values is None else None


def workload(model: str, first: str, last: str) -> str:
    """What the log calls a run of a model's operators, by its ends."""
    return f"{model}:{first}" if first == last else f"{model}:{first}..{last}"
