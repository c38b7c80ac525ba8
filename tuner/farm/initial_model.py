"""Cost model that a run begins with: the packaged one, or a file that the user names.

Its digest is part of the run's identity, and a copy is in `RUN/models`.  So the run can be resumed even if the file or the package has
changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from simulator.npu.errors import BadInputError
from simulator.npu.files import write_atomically
from tuner.config import TuneConfig
from tuner.cost_model.model_file import StoredModel, decode_model
from tuner.cost_model.packaged import NAME, packaged_model
from tuner.cost_model.trainer import PRIOR
from tuner.platform.files import AnyPath
from tuner.runs.folder import IDENTITY, read_identity

NONE = Path("none")  # value of `--model`: use only the estimate


class Prior(NamedTuple):
    """Initial model.  name: for messages.  data: content of the file.  recorded: entry of `run.json`, a digest."""

    name: str
    data: bytes
    model: StoredModel

    @property
    def recorded(self) -> str:
        return hashlib.sha256(self.data).hexdigest()[:32]

    def copy(self, models: AnyPath) -> None:
        """Write the model to a run's folder."""
        write_atomically(models / PRIOR, [self.data])


def read_prior(path: Path | None, config: TuneConfig, out: AnyPath | Path, resume: bool, say: Callable[[str], None]) -> Prior | None:
    """Initial model of a run; None if there is none.  A resumed run has its own copy.

    path: file named by the user; None: the packaged model.  say: prints a line if the packaged model was made for other conditions.
    Raises `BadInputError`: no model of this package, another class than the run trains, or another model than the resumed run has.
    """
    path = None if path == NONE else path
    if path is not None and not config.use.cost_model:
        raise BadInputError("--model: use.cost_model is false; expected true")
    resumed = resume and (out / IDENTITY).is_file()
    began = str(read_identity(out).get("prior", "")) if resumed else ""
    if path is not None:
        prior = _read(path, str(path))
    elif not resumed:
        return packaged_prior(config, say)
    elif not began:
        return None
    else:
        prior = _read_own_prior(out, began)
    if resumed and prior.recorded != began:
        raise BadInputError(
            f"--model {prior.name}: {prior.recorded[:8]}; {out} began with {began[:8] or 'none'}; leave --model out, or give another --out"
        )
    if prior.model.kind != config.model.name:
        raise BadInputError(
            f"--model {prior.name}: trained by {prior.model.kind}, and model.name is {config.model.name}; expected the same"
        )
    return prior


def packaged_prior(config: TuneConfig, say: Callable[[str], None]) -> Prior | None:
    """Packaged model, if the configuration begins with it.

    None, with a line, if it was made for another version; None if another class of models is trained.
    """
    if not (config.use.cost_model and config.use.packaged_model):
        return None
    try:
        data, model = packaged_model()
    except BadInputError as error:
        say(f"{error}; the built-in estimate goes on without it")
        return None
    return Prior(NAME, data, model) if model.kind == config.model.name else None


def proposer_line(config: TuneConfig, prior: Prior | None) -> str:
    """The cost model that a run begins with, and when it trains its own; for a person."""
    if not config.use.cost_model:
        return "cost model: off (use.cost_model); the built-in estimate proposes candidates"
    training = f"trained on this run's log after {config.model.min_rows} segments, and used where it orders unseen pairs better"
    if prior is None:
        return f"cost model: the built-in estimate; {training}"
    return f"cost model: {prior.name} ({prior.recorded[:8]}); {training}"


def _read_own_prior(out: AnyPath | Path, began: str) -> Prior:
    """Copy of a resumed run's model; the packaged model if the run was stopped before the copy was written."""
    model_folder = out / "models" / PRIOR
    if not model_folder.is_file():
        data, model = packaged_model()
        if (packaged := Prior(NAME, data, model)).recorded == began:
            return packaged
    return _read(model_folder, f"the run's own copy {model_folder}")


def _read(path: AnyPath | Path, name: str) -> Prior:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"--model {path}: cannot be read: {error.strerror or error}") from None
    return Prior(name, data, decode_model(data, f"--model {path}"))
