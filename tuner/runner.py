"""Questions of the search become measurements: out to the workers, back in order, into the log, counted against the budget."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.tile.features import FEATURE_SET, FEATURES, scaled
from compiler.tile.spec import Unit
from tuner.backend import Backend, Outcome
from tuner.candidate import Measurement, TaskKind, TaskRecord, canonical_json, text_digest
from tuner.evaluate import Answer, Ask
from tuner.log import LogRow, RunLog
from tuner.search.champions import Champions
from tuner.search.population import Individual
from tuner.search.search import Question, Reply


class BudgetSpent(Exception):
    """Raised by `Runner` after the last program of the budget is in the log: no error, the run is done."""


@dataclass
class Budget:
    """Exactly one of them is set.  deadline: on `time.monotonic`."""

    candidates: int | None = None
    deadline: float | None = None

    def left(self, used: int) -> int | None:
        """Programs that may still be measured; None: as many as there is time for."""
        if self.deadline is not None:
            return 0 if time.monotonic() >= self.deadline else None
        assert self.candidates is not None
        return max(0, self.candidates - used)


@dataclass
class Runner:
    """The `Measure` of a search.

    seq: number of the next measured task.  tasks: those measured so far; a repeat writes no row and takes nothing off the budget.
    failures: status -> tasks that ended so, earlier sessions included.
    model_versions: per level, the cost model that predicts; None where there is none yet.  on_reply: called after each batch, for progress.
    """

    unit: Unit
    name: str
    levels: tuple[str, ...]
    backend: Backend[Ask, Answer]
    log: RunLog
    champions: Champions
    budget: Budget
    on_reply: Callable[[], None] = lambda: None
    model_versions: Sequence[str | None] = ()
    seq: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    tasks: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        machine = self.unit.machine
        self._facts = [(level, i, machine.contention[level], machine.clock_hz) for i, level in enumerate(self.levels)]

    def __call__(self, questions: Sequence[Question]) -> list[Reply]:
        replies: list[Reply] = []
        programs = bool(questions) and questions[0].ask.kind == "program"
        # in pieces, so that a deadline or a progress display does not wait for all of them
        step = 16 if programs else 256
        while not replies or len(replies) < len(questions):
            left = self.budget.left(self.champions.programs)
            if left == 0 and self.champions.programs == 0:
                left = 1  # a deadline that passed before the first program: a run always has one
            if left == 0:
                raise BudgetSpent
            if not questions:
                break
            size = step if left is None or not programs else min(step, left)
            part = questions[len(replies) : len(replies) + size]
            self.backend.submit([question.ask for question in part])
            outcomes = self.backend.collect(len(part))
            replies += [self._reply(question, outcome) for question, outcome in zip(part, outcomes, strict=True)]
            self.on_reply()
        return replies

    def _reply(self, question: Question, outcome: Outcome[Answer]) -> Reply:
        answer = outcome.value if outcome.status == "ok" else None
        if not question.ask.measure and answer is not None:
            return Reply(question, answer, "")
        kind: TaskKind = question.ask.kind
        if kind == "segment" and question.ask.genome[0].stop - question.ask.genome[0].start == 1:
            kind = "operator"
        payload = answer.payload if answer is not None else ""
        if not payload:
            payload = canonical_json({"unit": self.unit.digest, "genome": [list(gene) for gene in question.ask.genome]})
        raw = None if answer is None else answer.features
        features = np.full(len(FEATURES), np.nan, np.float32) if raw is None else scaled(raw)
        record = TaskRecord(text_digest(f"{kind}:{payload}"), kind, payload, FEATURE_SET, features)
        if record.task in self.tasks:
            return Reply(question, answer, record.task)  # other genes, the same plan: nothing new was learnt
        self.tasks[record.task] = None
        self.log.add_task(record)
        self.log.add_rows(self._rows(question, outcome, answer, record))
        self.seq += 1
        status = outcome.status if answer is None else answer.status
        if status != "ok":
            self.failures[status] += 1
        if kind == "program":
            self.champions.programs += 1
            if answer is not None and answer.values is not None:
                self.champions.note(Individual(question.ask.genome, answer.values[:, 0].copy(), record.task))
        return Reply(question, answer, record.task)

    def _rows(self, question: Question, outcome: Outcome[Answer], answer: Answer | None, record: TaskRecord) -> list[LogRow]:
        genome = question.ask.genome
        workload = self.name
        versions = self.model_versions or (None,) * len(self.levels)
        if record.kind != "program":
            first, last = self.unit.kernels[genome[0].start].name, self.unit.kernels[genome[-1].stop - 1].name
            workload = f"{self.name}:{first}" if first == last else f"{self.name}:{first}..{last}"
        rows = []
        for level, facts in enumerate(self._facts):
            if answer is None:
                measurement = Measurement(*facts, outcome.status if outcome.status != "ok" else "crash", outcome.error or "no answer")
            elif answer.values is None:
                measurement = Measurement(*facts, answer.status, answer.error)
            else:
                measurement = Measurement(*facts, "ok", None, *answer.values[level].tolist())
            guessed = versions[level] is None and record.kind != "program"  # by the roofline of the features alone
            predicted = None if question.predicted is None or guessed else float(question.predicted[level])
            rows.append(
                LogRow(
                    self.seq,
                    record.task,
                    record.kind,
                    workload,
                    measurement,
                    attempt=outcome.attempt,
                    island=question.island,
                    generation=question.generation,
                    predicted_cycles=predicted,
                    model_version=versions[level] if predicted is not None else None,
                    worker=outcome.worker,
                    wall_s=outcome.wall_s / len(self.levels),
                )
            )
        return rows
