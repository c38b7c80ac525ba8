"""Log columns that a model reads: columns of `log/` and of `tasks/`, and its inputs among these.

Only these columns decide whether a model fits the logs of a version.  Other new columns of the log have no effect.
"""

from __future__ import annotations

from compiler.cost.features import FEATURES
from compiler.cost.level_conditions import CONDITIONS
from tuner.log import record

WIDTH = len(FEATURES) + len(CONDITIONS)
LOG = ("task", "kind", "level_index", "level", "status", "cycles", "simulator", "model", "workload", "run", "seq")
TASKS = ("task", "kind", "feature_set")
INPUTS = tuple(record.FEATURE_PREFIX + name for name in FEATURES)  # columns of `tasks/`; their feature set defines them


def columns_read() -> list[list[str]]:
    """Name, type, unit and meaning of each column except the inputs: a change of any invalidates a model."""
    rows = []
    for columns, names in ((record.LOG_COLUMNS, LOG), (record.TASK_COLUMNS, TASKS)):
        by_name = {column.name: column for column in columns}
        rows += [[name, str(by_name[name].type), by_name[name].unit, by_name[name].meaning] for name in names]
    return rows
