"""Reading the log of a model in several pieces: whose rows are whose, and what the model takes in all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.npu.errors import BadInputError
from tuner.platform.files import AnyPath
from tuner.runs.folder import read_json

if TYPE_CHECKING:
    import pandas as pd

FILE = "pieces.json"


def copies(folder: AnyPath) -> dict[str, int]:
    """Id of a search in a run's log -> how many pieces it serves; {} for a model in one piece.  Raises `BadInputError`."""
    return {run: len(pieces) for run, pieces in _searches(folder).items()}


def search_folders(folder: AnyPath) -> list[str]:
    """Names of the searches' folders in `models/` and `checkpoint/`; '' for a model in one piece, which needs none."""
    return [pieces[0] for pieces in _searches(folder).values()] or [""]


def _searches(folder: AnyPath) -> dict[str, list[str]]:
    path = folder / FILE
    if not path.is_file():
        return {}
    raw: Any = read_json(path)
    try:
        return {str(row["run"]): [str(name) for name in row["pieces"]] for row in raw["searches"]}
    except (KeyError, TypeError):
        raise BadInputError(f"{path}: not a list of searches") from None


def best_so_far(programs: pd.DataFrame, served: dict[str, int]) -> pd.DataFrame:
    """Rows of whole programs of one level, in the order in which they were measured, with `cycles` of the best model so far.

    A model in several pieces takes the sum over its pieces; one that no program was measured of yet counts with the first that will be.
    Empty where a piece has none at all.
    """
    import pandas as pd

    if not served:
        return programs.assign(cycles=programs["cycles"].cummin())
    runs = programs["run"].astype("str")
    total = pd.Series(0, index=programs.index, dtype="int64")
    for run, count in served.items():
        mine = programs["cycles"].where(runs == run)
        if mine.isna().all():
            return programs.iloc[:0]
        total += (mine.cummin().ffill().bfill() * count).astype("int64")
    return programs.assign(cycles=total)
