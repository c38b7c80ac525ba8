"""Trials of a study: Optuna's sampler asks them, the area of a curve judges them, Optuna's pruner stops them.

Pure: the trials of a batch, and which of them are stopped, depend only on the seed, the number of the batch and the trials of earlier
batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from simulator.npu.errors import BadInputError
from tuner.config import Choice, TuneConfig
from tuner.cost_model.optuna_ranges import distribution
from tuner.log.digests import digest
from tuner.study.curve import areas

Params = dict[str, int | float | str]
HISTORY = 1000  # trials that Optuna hears of, so that a batch costs no more in a long study
BEST = 25  # of them, whatever their age: TPE takes no more for good ones


@dataclass
class Record:
    """Trial as stored in its batch file.

    curve: mean over searches at every count reached.  cells: network and seed -> level -> curve of the search.
    value: area under the curve; None: failed, or stopped by the pruner.  cpu_s: CPU time of all its searches.
    """

    number: int
    params: Params
    curve: list[float] = field(default_factory=list)
    cells: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    value: float | None = None
    pruned: bool = False
    error: str | None = None
    cpu_s: float = 0.0


def search_space(config: TuneConfig) -> dict[str, BaseDistribution]:
    return {path: distribution(span) for path, span in config.study.parameters.items()}


def check_space(config: TuneConfig) -> None:
    """Raise `BadInputError` for a choice that the setting does not accept."""
    for path, span in config.study.parameters.items():
        for value in span.choices if isinstance(span, Choice) else ():
            try:
                config.replaced({path: value})
            except BadInputError as error:
                raise BadInputError(f"study.parameters: {path}: choice {value!r}: {error}") from None


def to_frozen_trial(record: Record, config: TuneConfig, counts: Sequence[int]) -> FrozenTrial:
    """Optuna's form of a trial: its area at every count is an intermediate value."""
    state = TrialState.PRUNED if record.pruned else TrialState.FAIL if record.value is None else TrialState.COMPLETE
    steps = dict(zip(counts, areas(record.curve), strict=False))
    return optuna.create_trial(
        params=record.params, distributions=search_space(config), value=record.value, state=state, intermediate_values=steps
    )


def select_history(records: Sequence[Record]) -> list[Record]:
    """Trials that sampler and pruner hear of, in order: the `BEST` ones and the newest, at most `HISTORY`."""
    if len(records) <= HISTORY:
        return list(records)
    finished = sorted((record for record in records if record.value is not None), key=lambda record: (record.value, record.number))
    best = {record.number for record in finished[:BEST]}
    numbers = best.union([record.number for record in records if record.number not in best][len(best) - HISTORY :])
    return [record for record in records if record.number in numbers]


def ask_trials(config: TuneConfig, seed: int, batch: int, count: int, earlier: Sequence[Record], counts: Sequence[int]) -> list[Record]:
    """First `count` trials of a batch; earlier: trials of all earlier batches.  A smaller count gives a prefix."""
    settings = config.study
    sampler_seed = int(digest(["study", seed, batch])[:8], 16)
    sampler = TPESampler(seed=sampler_seed, multivariate=True, constant_liar=True, n_startup_trials=settings.startup)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    study.add_trials(to_frozen_trial(record, config, counts) for record in select_history(earlier))
    if not earlier:
        study.enqueue_trial(_own_values(config))  # the best is never worse than the present settings
    return [Record(len(earlier) + number, study.ask(search_space(config)).params) for number in range(count)]


def _own_values(config: TuneConfig) -> dict[str, Any]:
    """Values of the configuration itself, where inside the range."""
    values: dict[str, Any] = {}
    for path, span in config.study.parameters.items():
        value: Any = config
        for part in path.split("."):
            value = getattr(value, part)
        if value in span.choices if isinstance(span, Choice) else span.low <= value <= span.high:
            values[path] = value
    return values


class Pruner:
    """Optuna's median pruner of one batch: a step is the number of readings, its value the area up to this number.

    earlier: trials of all earlier batches.
    """

    def __init__(self, config: TuneConfig, counts: Sequence[int], earlier: Sequence[Record]) -> None:
        pruner = MedianPruner(n_startup_trials=max(1, config.study.startup))
        self._counts, self._study = counts, optuna.create_study(pruner=pruner, direction="minimize")
        self._study.add_trials(to_frozen_trial(record, config, counts) for record in select_history(earlier))

    def stops(self, record: Record) -> bool:
        """Whether a trial is stopped now.  It stays unfinished in Optuna's study, and no other trial is judged by it."""
        trial = self._study.ask()
        for count, area in zip(self._counts, areas(record.curve), strict=False):
            trial.report(area, count)
        return bool(trial.should_prune())


def may_stop(config: TuneConfig, earlier: Sequence[Record]) -> bool:
    """Whether enough trials have ended for the pruner."""
    return sum(record.value is not None for record in earlier) >= max(1, config.study.startup)


def best_trial(records: Sequence[Record]) -> Record | None:
    """Best finished trial; the first of equals."""
    complete = [record for record in records if record.value is not None]
    return min(complete, key=lambda record: (record.value, record.number), default=None)


def front(records: Sequence[Record], counts: Sequence[int]) -> list[tuple[int, int, float]]:
    """Front of (readings, trial, value): the lowest trial at each count; the first of equals."""
    points = []
    for index, count in enumerate(counts):
        candidates = [record for record in records if record.error is None and len(record.curve) > index]
        if candidates:
            best = min(candidates, key=lambda record: (record.curve[index], record.number))
            points.append((count, best.number, best.curve[index]))
    return points
