"""Cost of measurements: readings, task x level x repeat, which a board pays for.

A row of the log is a task at a level, and costs `runner.repeats` readings, also if it failed.  A task costs nothing at a level that it does
not fit.  So the spent readings of a run follow from its rows, whoever measured, even if something was measured twice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.config import BUILT_IN, TuneConfig
from tuner.log.record import STATUSES
from tuner.measure.request import CYCLES, Measurement

_OK, _INFEASIBLE = STATUSES.index("ok"), STATUSES.index("infeasible")


def repeat_count(config: TuneConfig) -> int:
    """Readings of a task at a level."""
    return 1 if config.runner.name == BUILT_IN else config.runner.repeats


def readings_of(measurement: Measurement, levels: int, repeats: int) -> int:
    """Readings of one requested measurement."""
    if measurement.values is not None:
        return repeats * int((measurement.values[:, CYCLES] > 0).sum())
    return 0 if measurement.status == "infeasible" else repeats * levels


def readings_of_each(status: NDArray[np.int8], values: NDArray[np.int64], repeats: int) -> NDArray[np.int64]:
    """The same of many.  status: places in `STATUSES` [tasks].  values: [tasks, levels, len(RESULTS)], 0 where not ok."""
    fits, levels = (values[:, :, CYCLES] > 0).sum(1), values.shape[1]
    readings: NDArray[np.int64] = repeats * np.where(status == _OK, fits, np.where(status == _INFEASIBLE, 0, levels)).astype(np.int64)
    return readings
