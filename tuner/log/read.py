"""The log and the tasks of a run as data frames, wherever the run lies."""

from __future__ import annotations

import pandas as pd

from simulator.npu.errors import BadInputError
from tuner.folder.place import Folder, arrow_path, place
from tuner.log.dataset import dataset_schema, part_numbers


def read_log(folder: Folder | str) -> pd.DataFrame:
    """All rows of `RUN/log` (give the run folder or the dataset, or its URL), in the order in which they were published."""
    return _read(folder, "log")


def read_tasks(folder: Folder | str) -> pd.DataFrame:
    """All rows of `RUN/tasks` (give the run folder or the dataset, or its URL)."""
    return _read(folder, "tasks")


def _read(where: Folder | str, name: str) -> pd.DataFrame:
    path = place(where) if isinstance(where, str) else where
    folder = path / name if (path / name).is_dir() else path
    if not part_numbers(folder):
        raise BadInputError(f"{folder}: no {name} here; expected a run folder or a folder of numbered .parquet parts")
    dataset_schema(folder)
    at, filesystem = arrow_path(folder)
    return pd.read_parquet(at, filesystem=filesystem)
