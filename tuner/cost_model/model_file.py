"""A trained model as bytes: on its way from whoever trained it to the driver, as a file, and to whoever predicts.

One file for a model of a run and for one of `tilefarm train`: a line that says what it is, a line of JSON, then what the class of models
saved.  The JSON names what the model was made for.  Where features, the simulator or the columns that it learnt from differ, its numbers
would mean something else, so it is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import simulator
from compiler.cost.context import CONDITIONS
from compiler.cost.features import FEATURE_SET, FEATURES
from simulator.npu.errors import BadInputError, TilefarmError
from simulator.npu.files import write_whole
from tuner.cost_model.interface import CostModel, find_cost_model
from tuner.cost_model.log_columns import columns_read
from tuner.cost_model.messages import Proposer
from tuner.cost_model.metrics import Metrics
from tuner.log.digests import canonical_json, digest
from tuner.platform.files import AnyPath
from tuner.plugins import COST_MODELS, offered_names
from tuner.runs.folder import Readable

MAGIC = b"tilefarm cost model 5\n"
SUFFIX = ".model"


def made_for() -> dict[str, str]:
    """What a model of this program is made for: its features, its simulator and the columns it learns from."""
    return {
        "features": f"{FEATURE_SET} {digest([FEATURES, CONDITIONS])[:8]}",
        "simulator": simulator.VERSION,
        "columns": digest(columns_read())[:8],
    }


@dataclass(frozen=True)
class TrainedModel:
    """raw: what predicts.  judge: what `metrics` are of, b'' for the same.  width: columns that both take.  metrics: by level."""

    raw: bytes
    judge: bytes
    width: int
    trained_rows: int
    left_out: int
    metrics: Mapping[str, Metrics]

    @property
    def version(self) -> str:
        """Digest of what predicts; the log's column `model_version`."""
        return hashlib.sha256(self.raw).hexdigest()[:32]

    def load(self, kind: type[CostModel]) -> Loaded:
        """What predicts, ready to."""
        return Loaded(kind.load(self.raw), self.width)

    def judge_of(self, kind: type[CostModel]) -> Loaded:
        """What has not seen the rows that are held out."""
        return Loaded(kind.load(self.judge or self.raw), self.width)

    def encoded(self, kind: str) -> bytes:
        """A file of it.  kind: name of the class."""
        facts = {
            "kind": kind,
            "made_for": made_for(),
            "digest": _digest(self.raw, self.judge),
            "bytes": [len(self.raw), len(self.judge)],
            "width": self.width,
            "trained_rows": self.trained_rows,
            "left_out": self.left_out,
            "metrics": {level: asdict(each) for level, each in self.metrics.items()},
        }
        return b"".join([MAGIC, canonical_json(facts).encode(), b"\n", self.raw, self.judge])

    def save(self, path: AnyPath, kind: str) -> None:
        write_whole(path, [self.encoded(kind)])


class KeptModel(NamedTuple):
    """What a file holds.  kind: name of the class that trained it, by `tuner.cost_model.interface.find_cost_model`."""

    kind: str
    model: TrainedModel

    def load(self, where: str) -> Loaded:
        """What predicts.  A file names a class, but no file decides which module is imported: what is installed is somebody's choice.

        Raises `BadInputError`.
        """
        if ":" in self.kind:
            known = ", ".join((*COST_MODELS.built_in, *offered_names(COST_MODELS)))
            what = f"trained by {self.kind}, which is not installed as an entry point of {COST_MODELS.group}"
            raise BadInputError(f"{where}: {what}; expected one of {known}")
        return self.model.load(find_cost_model(self.kind))


def load_trained(path: Readable) -> KeptModel:
    """What `save` wrote.  Raises `BadInputError`: no model, a damaged one, or one that was made for something else.

    A model's class sees no byte of a file whose digest differs.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    return decoded_model(data, str(path))


def decoded_model(data: bytes, where: str, make: str = "tilefarm train RUN... --out MODEL") -> KeptModel:
    """As `load_trained`.  where: for messages.  make: what makes it anew."""
    if not data.startswith(MAGIC):
        raise BadInputError(f"{where}: not a cost model of this version; expected a file of `tilefarm train`, or of RUN/models")
    line, _, rest = data[len(MAGIC) :].partition(b"\n")
    try:
        facts = json.loads(line)
        kind, theirs, (size, more) = str(facts["kind"]), dict(facts["made_for"]), map(int, facts["bytes"])
        width, trained, left_out = int(facts["width"]), int(facts["trained_rows"]), int(facts["left_out"])
        metrics = {level: Metrics(**each) for level, each in facts["metrics"].items()}
        expected = str(facts["digest"])
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise BadInputError(f"{where}: not the facts of a cost model: {error!r}") from None
    raw, judge = rest[:size], rest[size:]
    if len(judge) != more or _digest(raw, judge) != expected:
        raise BadInputError(f"{where}: damaged (digest differs)")
    for what, ours in made_for().items():
        if theirs.get(what) != ours:
            raise BadInputError(f"{where}: made for {what} {theirs.get(what)}, this program has {ours}; `{make}`")
    return KeptModel(kind, TrainedModel(raw, judge, width, trained, left_out, metrics))


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model that is asked for what it was trained for, and whose answers can be used.  width: columns that it takes."""

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


Models = tuple[TrainedModel, ...]  # the one in use; () while none is


class Trained(NamedTuple):
    """Of a training: what was trained, who says from now on what is measured, and which model that is.

    pairs: share of held-out pairs that each of those who could have been chosen puts in the right order.
    """

    candidate: TrainedModel
    chosen: Proposer
    pairs: Mapping[Proposer, float]
    models: Models


def _digest(raw: bytes, judge: bytes) -> str:
    return hashlib.sha256(b"%d:" % len(raw) + raw + judge).hexdigest()[:32]
