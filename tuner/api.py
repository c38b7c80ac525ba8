"""Library interface of the tuner, one call."""

from __future__ import annotations

import inspect
import os
from typing import Any

from tuner import driver
from tuner.summary import Summary
from tuner.tune_request import TuneRequest


def tune(model: str | os.PathLike[str], machine: str, out: str | os.PathLike[str], **options: Any) -> Summary:
    """Search for the best plan at every contention level; writes the run folder `out` as `tilefarm tune` does, and prints nothing.

    model: path, `light:NAME` or `made:NAME`.  machine: preset or YAML file.  options: fields of `TuneRequest`, by name, with the same
    defaults.  Raises `BadInputError`, `UnsupportedError`, `InfeasibleError`; `resume=True` continues an interrupted run.
    """
    return driver.tune(TuneRequest(model, machine, out, **options))  # type: ignore[arg-type]  # takes texts for paths


# signature for help() and completion: the options are declared once
tune.__signature__ = inspect.signature(TuneRequest).replace(return_annotation=Summary)  # type: ignore[attr-defined]
