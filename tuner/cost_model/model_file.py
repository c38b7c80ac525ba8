"""Trained model as bytes: between processes, and as a file.

Models of a run and of `tilefarm train` have the same form: a line with the format, a line of JSON, then the bytes of the model's class.
The JSON names the features, the simulator and the log columns of the model.  A file with others is refused: its predictions would be
meaningless.
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
from compiler.cost.features import FEATURE_SET, FEATURES
from compiler.cost.level_conditions import CONDITIONS
from simulator.npu.errors import BadInputError, TilefarmError
from simulator.npu.files import write_atomically
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


def model_requirements() -> dict[str, str]:
    """Requirements of a model of this program: its features, its simulator and its log columns."""
    return {
        "features": f"{FEATURE_SET} {digest([FEATURES, CONDITIONS])[:8]}",
        "simulator": simulator.VERSION,
        "columns": digest(columns_read())[:8],
    }


@dataclass(frozen=True)
class TrainedModel:
    """Model.  raw: for predictions.  judge: model that `metrics` evaluate, b'' if it is the same.  width: columns of both.  metrics: by
    level."""

    raw: bytes
    judge: bytes
    width: int
    trained_rows: int
    left_out: int
    metrics: Mapping[str, Metrics]

    @property
    def version(self) -> str:
        """Digest of `raw`; the log's column `model_version`."""
        return hashlib.sha256(self.raw).hexdigest()[:32]

    def load(self, kind: type[CostModel]) -> CheckedModel:
        """Load the model for predictions."""
        return CheckedModel(kind.load(self.raw), self.width)

    def judge_of(self, kind: type[CostModel]) -> CheckedModel:
        """Load the judge, which has not seen the held-out rows."""
        return CheckedModel(kind.load(self.judge or self.raw), self.width)

    def encoded(self, kind: str) -> bytes:
        """Content of a model file.  kind: name of the class."""
        facts = {
            "kind": kind,
            "made_for": model_requirements(),
            "digest": _digest(self.raw, self.judge),
            "bytes": [len(self.raw), len(self.judge)],
            "width": self.width,
            "trained_rows": self.trained_rows,
            "left_out": self.left_out,
            "metrics": {level: asdict(by_level) for level, by_level in self.metrics.items()},
        }
        return b"".join([MAGIC, canonical_json(facts).encode(), b"\n", self.raw, self.judge])

    def save(self, path: AnyPath, kind: str) -> None:
        write_atomically(path, [self.encoded(kind)])


class StoredModel(NamedTuple):
    """Content of a model file.  kind: name of the model's class for `tuner.cost_model.interface.find_cost_model`."""

    kind: str
    model: TrainedModel

    def load(self, source: str) -> CheckedModel:
        """Load the model for predictions.  A file may only name an installed class: no file decides about imported modules.

        Raises `BadInputError`.
        """
        if ":" in self.kind:
            expected_names = ", ".join((*COST_MODELS.built_in, *offered_names(COST_MODELS)))
            fault = f"trained by {self.kind}, which is not installed as an entry point of {COST_MODELS.group}"
            raise BadInputError(f"{source}: {fault}; expected one of {expected_names}")
        return self.model.load(find_cost_model(self.kind))


def load_trained(path: Readable) -> StoredModel:
    """Read a file of `save`.  Raises `BadInputError`: no model, a damaged one, or one made for another program.

    A model's class gets no byte of a file with a wrong digest.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    return decode_model(data, str(path))


def decode_model(data: bytes, source: str, make: str = "tilefarm train RUN... --out MODEL") -> StoredModel:
    """Parse as `load_trained` does.  source: name in messages.  make: command that makes the file again."""
    if not data.startswith(MAGIC):
        raise BadInputError(f"{source}: not a cost model of this version; expected a file of `tilefarm train`, or of RUN/models")
    line, _, payload = data[len(MAGIC) :].partition(b"\n")
    try:
        facts = json.loads(line)
        kind, requirements, (size, judge_size) = str(facts["kind"]), dict(facts["made_for"]), map(int, facts["bytes"])
        width, trained, left_out = int(facts["width"]), int(facts["trained_rows"]), int(facts["left_out"])
        metrics = {level: Metrics(**numbers) for level, numbers in facts["metrics"].items()}
        expected = str(facts["digest"])
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise BadInputError(f"{source}: not the facts of a cost model: {error!r}") from None
    raw, judge = payload[:size], payload[size:]
    if len(judge) != judge_size or _digest(raw, judge) != expected:
        raise BadInputError(f"{source}: damaged (digest differs)")
    for name, required in model_requirements().items():
        if requirements.get(name) != required:
            raise BadInputError(f"{source}: made for {name} {requirements.get(name)}, this program has {required}; `{make}`")
    return StoredModel(kind, TrainedModel(raw, judge, width, trained, left_out, metrics))


@dataclass(frozen=True, eq=False)
class CheckedModel:
    """Model with checked inputs and outputs.  width: columns of the features."""

    model: CostModel
    width: int

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Predict as `CostModel.predict` does, also for n = 0.  Raises `TilefarmError` for invalid predictions of a plug-in."""
        if features.ndim != 2 or features.shape[1] != self.width:
            raise ValueError(f"features of shape {features.shape}; this model takes [n, {self.width}]")
        if not len(features):
            return np.zeros(0)
        cycles = np.asarray(self.model.predict(features), np.float64)
        if cycles.shape != features.shape[:1] or not (np.isfinite(cycles) & (cycles > 0)).all():
            fault = f"cycles of shape {list(cycles.shape)}, {int((np.isfinite(cycles) & (cycles > 0)).sum())} of them finite and above 0"
            raise TilefarmError(f"cost model {type(self.model).__qualname__}: predicted {fault}; expected {len(features)} of such")
        return cycles


Models = tuple[TrainedModel, ...]  # the model in use; () without one


class TrainingOutcome(NamedTuple):
    """Outcome of a training: the candidate, the chosen proposer, and the models in use.

    pairs: share of held-out pairs in the right order, for each compared proposer.  cpu_s: CPU time of the training.
    """

    candidate: TrainedModel
    chosen: Proposer
    pairs: Mapping[Proposer, float]
    models: Models
    cpu_s: float = 0.0


def _digest(raw: bytes, judge: bytes) -> str:
    return hashlib.sha256(b"%d:" % len(raw) + raw + judge).hexdigest()[:32]
