"""Training of a model on the logs of any number of runs, and its card: the data, and the accuracy on unseen networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from simulator.npu.errors import BadInputError
from tuner.config import ModelSettings, Range
from tuner.cost_model.cross_validation import UnseenPredictions, compare_with_estimate, predict_unseen
from tuner.cost_model.interface import CostModel, find_cost_model
from tuner.cost_model.log_columns import WIDTH
from tuner.cost_model.metrics import merit, metrics_by_level
from tuner.cost_model.model_file import StoredModel, TrainedModel, model_requirements
from tuner.cost_model.training_rows import LoggedRows

STARTUP = 8  # random trials at the start


class ModelOfRuns(NamedTuple):
    """Trained model with its card.  model: content of the file.  card: JSON beside it."""

    model: StoredModel
    card: dict[str, Any]


def model_of_runs(
    logged: LoggedRows, settings: ModelSettings, seed: int, trials: int = 0, say: Callable[[str], None] = lambda _: None
) -> ModelOfRuns:
    """Train a model; same rows, settings, seed and trials give the same bytes.  trials: number of further settings to try; 0: none.

    say: prints a line after each trial.  Raises `BadInputError`: too few rows, or trials of a model without `ranges`.
    """
    kind = find_cost_model(settings.name)
    try:
        unseen = predict_unseen(kind, logged, seed, settings)
    except ValueError as error:
        raise BadInputError(f"{', '.join(logged.runs)}: {error}; expected some hundred measured segments") from None
    if trials:
        settings, unseen = _search_settings(kind, logged, seed, settings, unseen, trials, say)
    # the file's model is trained on all rows; its metrics are of the models that have not seen them
    rows = logged.rows
    raw = kind.train(rows, seed, settings).save()
    model = TrainedModel(raw, b"", WIDTH, len(rows.cycles), rows.left_out, metrics_by_level(unseen.predicted, rows))
    networks, counts = np.unique(logged.networks, return_counts=True)
    card = {
        "model_version": model.version,
        "made_for": model_requirements(),
        "saw": {
            "runs": list(logged.runs),
            "networks": dict(zip(networks.tolist(), counts.tolist(), strict=True)),
            "machines": list(logged.machines),
            "levels": np.unique(rows.levels).tolist(),
            "tasks": logged.tasks,
            "rows": len(rows.cycles),
            "left_out": rows.left_out,
            "beyond_limit": logged.skipped,
        },
        "settings": settings.model_dump(mode="json"),
        "seed": seed,
        "trials": trials,
        "held_out": {"by": unseen.held_out, "folds": unseen.folds},
        "metrics": {
            grouping: {name: {"model": asdict(entry.model), "estimate": asdict(entry.estimate)} for name, entry in entries.items()}
            for grouping, entries in compare_with_estimate(logged, unseen.predicted).items()
        },
    }
    return ModelOfRuns(StoredModel(settings.name, model), card)


def _search_settings(
    kind: type[CostModel], logged: LoggedRows, seed: int, settings: ModelSettings, start: UnseenPredictions, trials: int,
    say: Callable[[str], None],
) -> tuple[ModelSettings, UnseenPredictions]:  # fmt: skip
    """Settings that rank unseen networks best, by Optuna, starting with the given settings."""
    import optuna  # a second to import

    from tuner.cost_model.optuna_ranges import distribution

    ranges: Mapping[str, Range] = getattr(kind, "ranges", {})
    if not ranges:
        raise BadInputError(f"--trials: cost model {settings.name} names no ranges of its settings; expected 0 trials of it")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    defaults = {name: getattr(settings, name) for name in ranges}
    spans = {
        name: Range(low=min(span.low, defaults[name]), high=max(span.high, defaults[name]), log=span.log) for name, span in ranges.items()
    }
    space = {name: distribution(span) for name, span in spans.items()}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=STARTUP), direction="maximize")
    best, best_unseen, pairs = settings, start, merit(metrics_by_level(start.predicted, logged.rows))[0]
    study.add_trial(optuna.create_trial(params=defaults, distributions=space, value=pairs))
    say(f"given settings: {pairs:.2%} of pairs of unseen {start.held_out} in order")
    for number in range(1, trials + 1):
        trial = study.ask(space)
        candidate = settings.model_copy(update=trial.params)
        unseen = predict_unseen(kind, logged, seed, candidate)
        share = merit(metrics_by_level(unseen.predicted, logged.rows))[0]
        study.tell(trial, share)
        say(f"trial {number}: {share:.2%}; " + ", ".join(f"{name} {value:.4g}" for name, value in trial.params.items()))
        if share > pairs:
            best, best_unseen, pairs = candidate, unseen, share
    return best, best_unseen
