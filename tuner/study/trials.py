"""What a study asks and how it judges: trials from Optuna's sampler, the value of one, and when one is stopped early.

Pure: the trials of a batch follow from the seed, the number of the batch and the trials of the batches before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from tuner.config import TuneConfig
from tuner.learn.ranges import distribution
from tuner.store.digests import digest

INSTANCES = 8
"""Pairs of network and seed that a trial has run before it may be stopped: a sign test of fewer cannot tell bad settings from bad luck at
1 % (2 / 2**8 is below that, 2 / 2**7 is not), and a study over less would be one of its first network."""


@dataclass
class Record:
    """One trial as its batch file holds it.  `means[k]`: running mean after k + 1 networks; `value` None: failed."""

    number: int
    params: dict[str, int | float]
    means: list[float] = field(default_factory=list)
    value: float | None = None
    pruned: bool = False
    error: str | None = None


def _space(config: TuneConfig) -> dict[str, BaseDistribution]:
    return {path: distribution(span) for path, span in config.study.parameters.items()}


def frozen(record: Record, config: TuneConfig) -> FrozenTrial:
    """A trial as Optuna keeps it; the sampler does not look at failed ones."""
    state = TrialState.FAIL if record.value is None else TrialState.COMPLETE
    return optuna.create_trial(params=record.params, distributions=_space(config), value=record.value, state=state)


def ask(config: TuneConfig, seed: int, batch: int, count: int, earlier: Sequence[Record]) -> list[Record]:
    """The first `count` trials of a batch; earlier: those of all batches before.  Fewer are a prefix of more."""
    settings = config.study
    sampler_seed = int(digest(["study", seed, batch])[:8], 16)
    sampler = TPESampler(seed=sampler_seed, multivariate=True, constant_liar=True, n_startup_trials=settings.startup)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    study.add_trials(frozen(record, config) for record in earlier)
    if not earlier:
        study.enqueue_trial(_own_values(config))  # so that the best is never worse than what is there
    return [Record(trial.number, trial.params) for trial in (study.ask(_space(config)) for _ in range(count))]


def _own_values(config: TuneConfig) -> dict[str, Any]:
    """The configuration's own values, where they lie in the range."""
    values: dict[str, Any] = {}
    for path, span in config.study.parameters.items():
        value: Any = config
        for part in path.split("."):
            value = getattr(value, part)
        if span.low <= value <= span.high:
            values[path] = value
    return values


def stops(networks: int, seeds: int) -> range:
    """Networks, from 0, after which a trial may be stopped: `INSTANCES` are behind it, and a network is left."""
    return range(-(-INSTANCES // seeds) - 1, networks - 1)


def behind(mean: float, network: int, earlier: Sequence[Record], startup: int) -> bool:
    """Is a running mean worse than the median of earlier batches at the same network?  Needs `startup` of them."""
    seen = [record.means[network] for record in earlier if len(record.means) > network]
    return len(seen) >= max(1, startup) and mean > median(seen)


def pruned_value(record: Record, earlier: Sequence[Record]) -> float:
    """The value of a pruned trial: the median of the complete ones, plus how far it was behind their median when it stopped.

    Its bare running mean is over other networks than theirs: where the first network gains most, stopping would look like winning.
    """
    complete = [other for other in earlier if other.value is not None and not other.pruned]
    if not complete:
        return record.means[-1]
    last = len(record.means) - 1
    return median(other.means[-1] for other in complete) + record.means[-1] - median(other.means[last] for other in complete)


def best_of(records: Sequence[Record]) -> Record | None:
    """The best trial that ran on every network; the first of equals."""
    complete = [record for record in records if record.value is not None and not record.pruned]
    return min(complete, key=lambda record: (record.value, record.number), default=None)
