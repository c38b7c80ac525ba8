"""Copy of a study's trials for Optuna's own tools: a journal in the study's folder, or the user's database.

The batch files are the study; the copy is read only to check that it belongs to the study.
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
from tuner.study.trials import Record, to_frozen_trial

JOURNAL = "journal.log"


class StudyStorage:
    """Optuna's copy of a study.  url: the user's database; None: a new journal in `folder`, since a killed driver may have torn the old.

    Raises `BadInputError` for a database that cannot be opened.
    """

    def __init__(self, folder: Path, url: str | None, name: str) -> None:
        self._url, self._checked = url, 0
        self._study = optuna.create_study(storage=_open(folder, url), study_name=name, direction="minimize", load_if_exists=True)

    def publish(self, records: Sequence[Record], config: TuneConfig, counts: Sequence[int]) -> None:
        """Add new trials.  Raises `BadInputError` if another study has the name."""
        stored_trials = self._study.get_trials(deepcopy=False)[self._checked :]
        trials = [to_frozen_trial(record, config, counts) for record in records[self._checked :]]
        if [(trial.params, trial.state, trial.value) for trial in stored_trials] != [
            (t.params, t.state, t.value) for t in trials[: len(stored_trials)]
        ]:
            raise BadInputError(
                f"--storage {self._url}: has another study {self._study.study_name}, of another folder; give another --storage or --seed"
            )
        self._study.add_trials(trials[len(stored_trials) :])
        self._checked = len(records)


def _open(folder: Path, url: str | None) -> BaseStorage:
    if url is None:
        for journal in folder.glob(f"{JOURNAL}*"):
            journal.unlink()
        return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    try:
        return RDBStorage(url)
    except (SQLAlchemyError, OptunaError, ImportError, OSError, ValueError) as error:
        raise BadInputError(f"--storage {url}: {' '.join(str(error).split())[:200]}") from None
