"""A study's trials where Optuna's own tools look for them: a journal in the study's folder, or the user's database.

Nothing is read from there but to see whose it is: the batch files are the study.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import SQLAlchemyError

from simulator.npu.errors import BadInputError
from tuner.config import TuneConfig
from tuner.study.trials import Record, frozen

JOURNAL = "journal.log"


class StudyStorage:
    """Optuna's copy of a study.  url: of the user's database; None: a journal in `folder`, made anew, as a killed driver may have torn it.

    Raises `BadInputError` where the database cannot be opened.
    """

    def __init__(self, folder: Path, url: str | None, name: str) -> None:
        self._where = url
        self._study = optuna.create_study(storage=_opened(folder, url), study_name=name, direction="minimize", load_if_exists=True)

    def publish(self, records: Sequence[Record], config: TuneConfig, counts: Sequence[int]) -> None:
        """Add the trials that are not there.  Raises `BadInputError` where another study has that name."""
        there = self._study.get_trials(deepcopy=False)
        mine = [frozen(record, config, counts) for record in records]
        if [(trial.params, trial.state, trial.value) for trial in there] != [(t.params, t.state, t.value) for t in mine[: len(there)]]:
            raise BadInputError(
                f"--storage {self._where}: has another study {self._study.study_name}, of another folder; give another --storage or --seed"
            )
        self._study.add_trials(mine[len(there) :])


def _opened(folder: Path, url: str | None) -> BaseStorage:
    if url is None:
        for left in folder.glob(f"{JOURNAL}*"):
            left.unlink()
        return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    try:
        return RDBStorage(url)
    except (SQLAlchemyError, OptunaError, ImportError, OSError, ValueError) as error:
        raise BadInputError(f"--storage {url}: {' '.join(str(error).split())[:200]}") from None
