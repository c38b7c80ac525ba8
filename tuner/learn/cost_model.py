"""Features to cycles: gradient boosting of what an estimate is off by, in octaves; held out by workload, promoted only if better.

| name     | dtype        | meaning                                                        |
|----------|--------------|----------------------------------------------------------------|
| features | float32 [n, F] | one row per task, columns in the order of the feature set    |
| cycles   | float64 [n]  | measured run times                                             |
| groups   | [n]          | workload of each row                                           |

What trees see, and the estimate that they correct, is `compiler.cost.features.seen`: a model that learns cycles themselves spends its
first trees on how large segments are (docs/decisions.md).

A model is trained twice: on the rows that are not held out, which says how good it is, and on all of them, which is what a search uses.
The first of the two, the judge, stays beside the second, because that is what a later candidate can be compared with.  Which rows are
held out follows from a hash of the workload (of the features where there is one workload), never from the number of rows: so two
judges are compared on rows that neither was trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import xgboost as xgb
from numpy.typing import NDArray

from compiler.cost.features import seen
from simulator.npu.errors import BadInputError
from simulator.npu.files import write_whole
from tuner.config import Model as ModelParams
from tuner.store.runfolder import read_json, write_json
from tuner.world.place import Place

VERSION = 2
BINS = 64  # of a column: few hundred rows fill no more, and a search waits for trainings
REGRET_AT = (1, 8, 32)
MAX_PAIRS = 200_000


class TrainingRows(NamedTuple):
    """What a model learns from; `left_out` counts rows that could not be used."""

    features: NDArray[np.float32]
    cycles: NDArray[np.float64]
    groups: NDArray[np.str_]
    left_out: int = 0


@dataclass(frozen=True)
class Metrics:
    """How well a model ranks rows it has not seen: means over the held-out workloads, each ranked apart.

    spearman: rank correlation.  pair_accuracy: share of pairs in the right order (0.5: a coin).  regret[k]: fastest of
    the k best by prediction ÷ fastest of all, minus 1.  log2_error: root mean square of log2(predicted ÷ measured).
    """

    rows: int
    groups: int
    spearman: float
    pair_accuracy: float
    regret: dict[str, float]
    log2_error: float


class Predictor(Protocol):
    """What a search needs of a model."""

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]: ...


@dataclass(frozen=True)
class CostModel:
    """A trained model of one contention level.  `version` is the digest of its bytes; `trained_rows`, `left_out` and `metrics` say how it
    came to be.

    share: of the DDR bandwidth.  raw: what predicts.  judge: what `metrics` are of.  width: features that it takes.
    """

    booster: xgb.Booster
    raw: bytes
    judge: bytes
    share: float
    width: int
    trained_rows: int
    left_out: int
    metrics: Metrics

    @property
    def version(self) -> str:
        return _digest(self.raw)

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Expected cycles, float64 [n], for features float32 [n, F]."""
        return _predict(self.booster, features, self.width, self.share)

    def judged(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """As `predict`, by what has not seen the rows that are held out."""
        return _predict(_booster(self.judge), features, self.width, self.share)

    @property
    def facts(self) -> dict[str, Any]:
        """Its metrics, as JSON has them."""
        return asdict(self.metrics)

    def save(self, path: Place) -> None:
        """`path` (.ubj) holds the trees, with .judge.ubj the judge's, with .json the metrics and the digests."""
        facts = {
            "version": VERSION,
            "model_version": self.version,
            "judge_version": _digest(self.judge),
            "ddr_share": self.share,
            "width": self.width,
            "trained_rows": self.trained_rows,
            "left_out": self.left_out,
            "metrics": asdict(self.metrics),
        }
        write_whole(path, [self.raw])
        write_whole(_beside(path, ".judge.ubj"), [self.judge])
        write_json(_beside(path, ".json"), facts)


def _beside(path: Place, suffix: str) -> Place:
    return path.parent / (path.name.rpartition(".")[0] + suffix)


def load_cost_model(path: Place) -> CostModel:
    """What `save` wrote; `BadInputError` where the files do not belong together.  Digests are checked before xgboost sees a byte."""
    about = _beside(path, ".json")
    facts = read_json(about)
    if isinstance(facts, dict) and facts.get("version") != VERSION:
        raise BadInputError(f"{about}: version {facts.get('version')!r}; this program reads {VERSION}")
    try:
        share, width = float(facts["ddr_share"]), int(facts["width"])
        versions = {path: facts["model_version"], _beside(path, ".judge.ubj"): facts["judge_version"]}
        trained, left_out, metrics = int(facts["trained_rows"]), int(facts["left_out"]), Metrics(**facts["metrics"])
    except (TypeError, KeyError, ValueError) as error:
        raise BadInputError(f"{about}: not the facts of a cost model: {error!r}") from None
    raws = []
    for file, version in versions.items():
        try:
            raws.append(file.read_bytes())
        except OSError as error:
            raise BadInputError(f"{file}: cannot be read: {error.strerror or error}") from None
        if _digest(raws[-1]) != version:
            raise BadInputError(f"{file}: damaged, or not the model of {about.name} (digest differs)")
    return CostModel(_booster(raws[0]), raws[0], raws[1], share, width, trained, left_out, metrics)


def cost_model_from(
    raw: bytes, judge: bytes, share: float, width: int, trained_rows: int, left_out: int, facts: Mapping[str, Any]
) -> CostModel:
    """A model from its parts, `raw` and `judge` as this program made them."""
    return CostModel(_booster(raw), raw, judge, share, width, trained_rows, left_out, Metrics(**facts))


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:32]


def _booster(raw: bytes) -> xgb.Booster:
    booster = xgb.Booster({"nthread": 1})
    booster.load_model(bytearray(raw))
    return booster


def _predict(booster: xgb.Booster, features: NDArray[np.float32], width: int, share: float) -> NDArray[np.float64]:
    if features.ndim != 2 or features.shape[1] != width:
        raise ValueError(f"features of shape {features.shape}; this model takes [n, {width}]")
    if not len(features):
        return np.zeros(0)
    columns, expected = seen(features, share)
    off = booster.inplace_predict(np.ascontiguousarray(columns), missing=np.nan)
    return expected * np.exp2(np.asarray(off, np.float64))


def usable(features: NDArray[np.float32], cycles: NDArray[Any], groups: Sequence[Any] | NDArray[Any]) -> TrainingRows:
    """Leave out rows whose cycles or features are no finite numbers, or whose cycles are not positive."""
    x, y = np.asarray(features, np.float32), np.asarray(cycles, np.float64)
    good = np.isfinite(y) & (y > 0) & np.isfinite(x).all(axis=1)
    return TrainingRows(x[good], y[good], np.asarray(groups).astype(str)[good], int((~good).sum()))


def _unit(seed: int, data: bytes) -> float:
    return int.from_bytes(hashlib.sha256(str(seed).encode() + b":" + data).digest()[:8], "big") / 2.0**64


def held_out(rows: TrainingRows, seed: int, share: float) -> NDArray[np.bool_]:
    """Mask of the rows that are kept back: whole workloads, or rows of equal features where there is one workload."""
    names = np.unique(rows.groups)
    if len(names) > 1:
        place = {name: _unit(seed, name.encode()) for name in names.tolist()}
        back = {name for name, unit in place.items() if unit < share}
        if len(back) in (0, len(place)):  # one at least on either side
            first = min(place, key=lambda name: (place[name], name))
            back = {first}
        return np.isin(rows.groups, sorted(back))
    return np.array([_unit(seed, row.tobytes()) < share for row in rows.features], np.bool_)


def evaluate(predicted: NDArray[np.float64], rows: TrainingRows, seed: int) -> Metrics:
    """Ranking metrics, workload by workload, then averaged."""
    rng = np.random.default_rng(seed)
    spearmans, pairs, regrets = [], [], {k: list[float]() for k in REGRET_AT}
    for name in np.unique(rows.groups):
        own = rows.groups == name
        guess, truth = predicted[own], rows.cycles[own]
        if len(np.unique(truth)) < 2:
            continue
        a, b = _ranks(guess), _ranks(truth)
        spearmans.append(float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 else 0.0)
        pairs.append(_pair_accuracy(a, b, rng))
        order = np.argsort(guess, kind="stable")
        for k in REGRET_AT:
            regrets[k].append(float(truth[order[:k]].min() / truth.min() - 1))
    error = np.log2(predicted / rows.cycles) if len(predicted) else np.zeros(1)
    return Metrics(
        rows=len(rows.cycles),
        groups=len(spearmans),
        spearman=float(np.mean(spearmans)) if spearmans else 0.0,
        pair_accuracy=float(np.mean(pairs)) if pairs else 0.5,
        regret={str(k): float(np.mean(values)) if values else 0.0 for k, values in regrets.items()},
        log2_error=float(np.sqrt(np.mean(error**2))),
    )


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 for the smallest; equal values share their mean rank."""
    return np.asarray(pd.Series(values).rank(), np.float64)


def _pair_accuracy(guess: NDArray[np.float64], truth: NDArray[np.float64], rng: np.random.Generator) -> float:
    n = len(truth)
    if n * (n - 1) // 2 <= MAX_PAIRS:
        i, j = np.triu_indices(n, 1)
    else:
        i, j = rng.integers(0, n, (2, MAX_PAIRS))
    differ = truth[i] != truth[j]
    i, j = i[differ], j[differ]
    product = np.sign(guess[i] - guess[j]) * np.sign(truth[i] - truth[j])
    return float(np.mean((product + 1) / 2)) if len(product) else 0.5


def train(
    features: NDArray[np.float32],
    cycles: NDArray[Any],
    groups: Sequence[Any] | NDArray[Any],
    share: float,
    seed: int,
    params: ModelParams,
    left_out: int = 0,
) -> CostModel:
    """Fit the judge on the rows that are not held out, measure it on those that are, and fit on all.  Same rows and seed, same bytes.

    share: of the DDR bandwidth, where the cycles were measured.  Raises `ValueError` where fewer than two usable rows are left to learn
    from.
    """
    rows = usable(features, cycles, groups)
    back = held_out(rows, seed, params.hold_out)
    if (~back).sum() < 2:
        raise ValueError(f"{(~back).sum()} rows to learn from ({rows.left_out} left out, {int(back.sum())} held out)")
    columns, expected = seen(rows.features, share)
    off = np.log2(rows.cycles / expected)
    judge, booster = (_fit(columns[kept], off[kept], seed, params) for kept in (~back, slice(None)))
    width = rows.features.shape[1]
    unseen = TrainingRows(rows.features[back], rows.cycles[back], rows.groups[back])
    metrics = evaluate(_predict(judge, unseen.features, width, share), unseen, seed)
    raw, judged = (bytes(each.save_raw("ubj")) for each in (booster, judge))
    return CostModel(booster, raw, judged, share, width, len(off), rows.left_out + left_out, metrics)


def _fit(columns: NDArray[np.float32], off: NDArray[np.float64], seed: int, params: ModelParams) -> xgb.Booster:
    settings = {
        "objective": "reg:squarederror",
        "tree_method": "hist",
        "max_bin": BINS,
        "max_depth": params.max_depth,
        "learning_rate": params.learning_rate,
        "subsample": params.subsample,
        "colsample_bytree": params.column_sample,
        "min_child_weight": params.min_child_weight,
        "lambda": params.l2,
        "base_score": float(off.mean()),
        "seed": seed % 2**31,
        "nthread": 1,  # more threads add in another order
        "verbosity": 0,
    }
    return xgb.train(settings, xgb.QuantileDMatrix(columns, label=off, max_bin=BINS, nthread=1), num_boost_round=params.rounds)


class Retrained(NamedTuple):
    """`model` is the one to use (None: none has earned it yet); `candidate` what was trained; `incumbent` on the same rows."""

    model: CostModel | None
    promoted: bool
    candidate: CostModel
    incumbent: Metrics | None


def retrain(rows: TrainingRows, share: float, seed: int, params: ModelParams, current: CostModel | None) -> Retrained:
    """Train, and promote only a model that ranks the held-out rows better than the current one (than a coin, if none)."""
    candidate = train(rows.features, rows.cycles, rows.groups, share, seed, params, rows.left_out)
    if current is None:
        promoted = candidate.metrics.groups > 0 and candidate.metrics.pair_accuracy > 0.5
        return Retrained(candidate if promoted else None, promoted, candidate, None)
    clean = usable(rows.features, rows.cycles, rows.groups)
    back = held_out(clean, seed, params.hold_out)
    unseen = TrainingRows(clean.features[back], clean.cycles[back], clean.groups[back])
    incumbent = evaluate(current.judged(unseen.features), unseen, seed)
    promoted = merit(candidate.metrics) > merit(incumbent)
    return Retrained(candidate if promoted else current, promoted, candidate, incumbent)


def merit(metrics: Metrics) -> tuple[float, float, float]:
    """What the gate compares: the order of pairs first, then rank correlation, then the regret of a short list."""
    return metrics.pair_accuracy, metrics.spearman, -metrics.regret.get("8", 0.0)
