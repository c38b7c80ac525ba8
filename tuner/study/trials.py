"""What a study asks and how it judges: trials from Optuna's sampler, the value of one, and when Optuna's pruner stops one.

Pure: the trials of a batch, and which of them are stopped, follow from the seed, the number of the batch and the trials of the batches
before it.
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


@dataclass
class Record:
    """One trial as its batch file holds it.

    curve: mean over searches at every count that it came to; cells: of each search, by network and seed, level -> the same.
    value: the area under the curve; None: failed, or stopped by the pruner.  cpu_s: of all of its searches.
    """

    number: int
    params: Params
    curve: list[float] = field(default_factory=list)
    cells: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    value: float | None = None
    pruned: bool = False
    error: str | None = None
    cpu_s: float = 0.0


def space(config: TuneConfig) -> dict[str, BaseDistribution]:
    return {path: distribution(span) for path, span in config.study.parameters.items()}


def check_space(config: TuneConfig) -> None:
    """Raise `BadInputError` for a choice that the setting does not take."""
    for path, span in config.study.parameters.items():
        for value in span.choices if isinstance(span, Choice) else ():
            try:
                config.replaced({path: value})
            except BadInputError as error:
                raise BadInputError(f"study.parameters: {path}: choice {value!r}: {error}") from None


def frozen(record: Record, config: TuneConfig, counts: Sequence[int]) -> FrozenTrial:
    """A trial as Optuna keeps it: its area at every count as an intermediate value."""
    state = TrialState.PRUNED if record.pruned else TrialState.FAIL if record.value is None else TrialState.COMPLETE
    steps = dict(zip(counts, areas(record.curve), strict=False))
    return optuna.create_trial(
        params=record.params, distributions=space(config), value=record.value, state=state, intermediate_values=steps
    )


def ask(config: TuneConfig, seed: int, batch: int, count: int, earlier: Sequence[Record], counts: Sequence[int]) -> list[Record]:
    """The first `count` trials of a batch; earlier: those of all batches before.  Fewer are a prefix of more."""
    settings = config.study
    sampler_seed = int(digest(["study", seed, batch])[:8], 16)
    sampler = TPESampler(seed=sampler_seed, multivariate=True, constant_liar=True, n_startup_trials=settings.startup)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    study.add_trials(frozen(record, config, counts) for record in earlier)
    if not earlier:
        study.enqueue_trial(_own_values(config))  # so that the best is never worse than what is there
    return [Record(trial.number, trial.params) for trial in (study.ask(space(config)) for _ in range(count))]


def _own_values(config: TuneConfig) -> dict[str, Any]:
    """The configuration's own values, where they lie in the range."""
    values: dict[str, Any] = {}
    for path, span in config.study.parameters.items():
        value: Any = config
        for part in path.split("."):
            value = getattr(value, part)
        if value in span.choices if isinstance(span, Choice) else span.low <= value <= span.high:
            values[path] = value
    return values


def stopped(record: Record, config: TuneConfig, counts: Sequence[int], earlier: Sequence[Record]) -> bool:
    """Whether Optuna's median pruner stops a trial where it is: its step is the number of readings, its value the area up to there."""
    study = optuna.create_study(pruner=MedianPruner(n_startup_trials=max(1, config.study.startup)), direction="minimize")
    study.add_trials(frozen(each, config, counts) for each in earlier)
    trial = study.ask()
    for count, area in zip(counts, areas(record.curve), strict=False):
        trial.report(area, count)
    return bool(trial.should_prune())


def may_stop(config: TuneConfig, earlier: Sequence[Record]) -> bool:
    """Whether there are trials enough to be behind."""
    return sum(each.value is not None for each in earlier) >= max(1, config.study.startup)


def best_of(records: Sequence[Record]) -> Record | None:
    """The best trial that came to its end; the first of equals."""
    complete = [record for record in records if record.value is not None]
    return min(complete, key=lambda record: (record.value, record.number), default=None)


def front(records: Sequence[Record], counts: Sequence[int]) -> list[tuple[int, int, float]]:
    """(readings, trial, value) of the trial that is lowest at each count; the first of equals."""
    found = []
    for at, count in enumerate(counts):
        there = [record for record in records if record.error is None and len(record.curve) > at]
        if there:
            best = min(there, key=lambda record: (record.curve[at], record.number))
            found.append((count, best.number, best.curve[at]))
    return found
