"""Trained models as bytes: on their way from whoever trained them to the driver, which keeps them as files, and to whoever predicts."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError, TilefarmError
from simulator.npu.files import write_whole
from simulator.npu.level import Level
from tuner.learn.cost_model import CostModel
from tuner.learn.metrics import Metrics
from tuner.store.runfolder import read_json, write_json
from tuner.world.place import Place

VERSION = 4
SUFFIX, JUDGE = ".model", ".judge"


@dataclass(frozen=True)
class TrainedModel:
    """One level's.  raw: what predicts.  judge: what `metrics` are of.  width: features that both take."""

    raw: bytes
    judge: bytes
    level: Level
    width: int
    trained_rows: int
    left_out: int
    metrics: Metrics

    @property
    def version(self) -> str:
        """Digest of what predicts; the log's column `model_version`."""
        return _digest(self.raw)

    def load(self, kind: type[CostModel]) -> Loaded:
        """What predicts, ready to."""
        return Loaded(kind.load(self.raw, self.level), self.width)

    def judge_of(self, kind: type[CostModel]) -> Loaded:
        """What has not seen the rows that are held out."""
        return Loaded(kind.load(self.judge, self.level), self.width)

    def save(self, path: Place, kind: str) -> None:
        """`path` (.model) holds what predicts, with .judge the judge, with .json the metrics and the digests.  kind: name of the class."""
        facts = {
            "version": VERSION,
            "kind": kind,
            "model_version": self.version,
            "judge_version": _digest(self.judge),
            "level": self.level.model_dump(),
            "width": self.width,
            "trained_rows": self.trained_rows,
            "left_out": self.left_out,
            "metrics": asdict(self.metrics),
        }
        write_whole(path, [self.raw])
        write_whole(_beside(path, JUDGE), [self.judge])
        write_json(_beside(path, ".json"), facts)


class KeptModel(NamedTuple):
    """What a file holds.  kind: name of the class that trained it, by `tuner.learn.cost_model.find_cost_model`."""

    kind: str
    model: TrainedModel


def load_trained(path: Place) -> KeptModel:
    """What `save` wrote; `BadInputError` where the files do not belong together.  Digests are checked before a model sees a byte."""
    about = _beside(path, ".json")
    facts = read_json(about)
    if isinstance(facts, dict) and facts.get("version") != VERSION:
        raise BadInputError(f"{about}: version {facts.get('version')!r}; this program reads {VERSION}")
    try:
        kind, level, width = str(facts["kind"]), Level.model_validate(facts["level"]), int(facts["width"])
        versions = {path: facts["model_version"], _beside(path, JUDGE): facts["judge_version"]}
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
    return KeptModel(kind, TrainedModel(raws[0], raws[1], level, width, trained, left_out, metrics))


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model that is asked for what it was trained for, and whose answers can be used.  width: features that it takes."""

    model: CostModel
    width: int

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """As `CostModel.predict`, for n = 0 too.  Raises `TilefarmError` where a model breaks its promise."""
        if features.ndim != 2 or features.shape[1] != self.width:
            raise ValueError(f"features of shape {features.shape}; this model takes [n, {self.width}]")
        if not len(features):
            return np.zeros(0)
        found = np.asarray(self.model.predict(features), np.float64)
        if found.shape != features.shape[:1] or not (np.isfinite(found) & (found > 0)).all():
            what = f"cycles of shape {list(found.shape)}, {int((np.isfinite(found) & (found > 0)).sum())} of them finite and above 0"
            raise TilefarmError(f"cost model {type(self.model).__qualname__}: predicted {what}; expected {len(features)} of such")
        return found


Models = tuple[TrainedModel | None, ...]  # those in use, by level


class Trained(NamedTuple):
    """Of a training: what was trained, level by level, whether it replaces the older one, and what is in use after it."""

    candidates: tuple[TrainedModel, ...]
    promoted: tuple[bool, ...]
    models: Models


def _beside(path: Place, suffix: str) -> Place:
    return path.parent / (path.name.rpartition(".")[0] + suffix)


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:32]
