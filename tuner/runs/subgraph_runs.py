"""Logs of a model in several subgraphs: rows of each search, and totals of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.npu.errors import BadInputError
from tuner.platform.files import AnyPath
from tuner.runs.folder import read_json

if TYPE_CHECKING:
    import pandas as pd

FILE = "pieces.json"


def subgraph_copies(folder: AnyPath) -> dict[str, int]:
    """Number of subgraphs by id of their search in a run's log; {} for a model in one piece.  Raises `BadInputError`."""
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


def best_model_so_far(programs: pd.DataFrame, copies: dict[str, int]) -> pd.DataFrame:
    """Rows of one level's programs, in measured order, with `cycles` of the best model so far.

    Cycles of a model in several subgraphs are the sum over them; before a subgraph's first program, that first one counts.
    Empty if a subgraph has no program.
    """
    import pandas as pd

    if not copies:
        return programs.assign(cycles=programs["cycles"].cummin())
    runs = programs["run"].astype("str")
    total = pd.Series(0, index=programs.index, dtype="int64")
    for run, count in copies.items():
        cycles = programs["cycles"].where(runs == run)
        if cycles.isna().all():
            return programs.iloc[:0]
        total += (cycles.cummin().ffill().bfill() * count).astype("int64")
    return programs.assign(cycles=total)
