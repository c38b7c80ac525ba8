"""A cost model that a run begins with.

Its digest is part of the run's identity and a copy lies in `RUN/models`, so the run can be resumed whatever becomes of the file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from simulator.npu.errors import BadInputError
from simulator.npu.files import write_whole
from tuner.config import TuneConfig
from tuner.learn.trained import KeptModel, decoded_model
from tuner.learn.training import PRIOR
from tuner.store.runfolder import IDENTITY, read_identity
from tuner.world.place import Place


class Prior(NamedTuple):
    """data: the file.  said: what `run.json` says of it, a digest."""

    data: bytes
    kept: KeptModel

    @property
    def said(self) -> str:
        return hashlib.sha256(self.data).hexdigest()[:32]

    def copy(self, models: Place) -> None:
        """To a run's folder."""
        write_whole(models / PRIOR, [self.data])


def read_prior(path: Path | None, config: TuneConfig, out: Place | Path, resume: bool) -> Prior | None:
    """The model that a run begins with, None where there is none.  A run that is resumed has a copy of its own.

    Raises `BadInputError`: no model of this program, one of another class than the run trains, or another one than a resumed run has.
    """
    resumed = resume and (out / IDENTITY).is_file()
    began = str(read_identity(out).get("prior", "")) if resumed else ""
    if path is None and not began:
        return None
    where = out / "models" / PRIOR if path is None else path
    try:
        data = where.read_bytes()
    except OSError as error:
        raise BadInputError(f"--model {where}: cannot be read: {error.strerror or error}") from None
    prior = Prior(data, decoded_model(data, f"--model {where}"))
    if resumed and prior.said != began:
        raise BadInputError(
            f"--model {where}: {prior.said[:8]}; {out} began with {began[:8] or 'none'}; leave --model out, or give another --out"
        )
    if prior.kept.kind != config.model.name:
        raise BadInputError(f"--model {where}: trained by {prior.kept.kind}, and model.name is {config.model.name}; expected the same")
    return prior


def with_prior(config: TuneConfig) -> TuneConfig:
    """The settings of a run that begins with a model: it is asked.  Raises `BadInputError` where they say that none is."""
    if config.use.cost_model is False:
        raise BadInputError("--model: use.cost_model is false; expected true, or null")
    return config.replaced({"use.cost_model": True})
