"""Library interface of the tuner, one call."""

from __future__ import annotations

import inspect
import os
from typing import Any

from tuner import driver
from tuner.summary import Summary
from tuner.tune_request import TuneRequest


def tune(model: str | os.PathLike[str], machine: str, out: str | os.PathLike[str], **options: Any) -> Summary:
    """Search for the best plan at every contention level; writes `out`, a run folder, as `tilefarm tune` does, and prints nothing.

    model: a file, `light:NAME` or `made:NAME`.  machine: a preset or a YAML file.  options: those of `TuneRequest`, by name, with its
    defaults.  Raises `BadInputError`, `UnsupportedError`, `InfeasibleError`; an interrupted run is continued by `resume=True`.
    """
    return driver.tune(TuneRequest(model, machine, out, **options))  # type: ignore[arg-type]  # takes texts for paths


# what help() and completion show: the options are declared once
tune.__signature__ = inspect.signature(TuneRequest).replace(return_annotation=Summary)  # type: ignore[attr-defined]
