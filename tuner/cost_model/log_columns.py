"""What a model reads of a log: columns of `log/` and of `tasks/`, and of these its inputs.

Only these decide whether a model fits the logs of a program.  A column that is added to the log beside them changes nothing.
"""

from __future__ import annotations

from compiler.cost.context import CONDITIONS
from compiler.cost.features import FEATURES
from tuner.log import record

WIDTH = len(FEATURES) + len(CONDITIONS)
LOG = ("task", "kind", "level_index", "level", "status", "cycles", "simulator", "model", "workload", "run", "seq")
TASKS = ("task", "kind", "feature_set")
INPUTS = tuple(record.FEATURE_PREFIX + name for name in FEATURES)  # of `tasks/`, too; what they mean is their set's


def columns_read() -> list[list[str]]:
    """Name, type, unit and meaning of each column but the inputs: a model of other ones has learnt something else."""
    found = []
    for columns, names in ((record.LOG_COLUMNS, LOG), (record.TASK_COLUMNS, TASKS)):
        known = {column.name: column for column in columns}
        found += [[name, str(known[name].type), known[name].unit, known[name].meaning] for name in names]
    return found
