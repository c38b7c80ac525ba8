"""What a training of a run is given: rows that are durable before they are read, so that the log alone explains every model."""

from __future__ import annotations

import numpy as np

from tuner.farm.ledger import Ledger
from tuner.farm.recorder import Facts
from tuner.learn.cost_model import conditions_of
from tuner.learn.logged import packed_rows, rows_of_search
from tuner.store.task_numbers import first
from tuner.world.place import Place


def durable_rows(folder: Place, ledger: Ledger, facts: Facts, tasks: int) -> bytes:
    """Of so many tasks, the first in their order, packed.  folder: of the run, whose log is published first.

    Raises `BadInputError` where it cannot be written or read.
    """
    ledger.log.flush()
    conditions = np.stack(list(conditions_of(facts.unit, facts.levels).values()))
    return packed_rows(rows_of_search(folder, ledger.log.origin.run, first(ledger.numbers, tasks), conditions))
