"""Where a run stands, as JSON: written whole or not at all, and never ahead of the log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from tuner.candidate import canonical_json, text_digest
from tuner.log import RunLog
from tuner.runfolder import read_json

VERSION = 1
FILE = "state.json"


def save_checkpoint(folder: Path, state: Mapping[str, Any], log: RunLog) -> None:
    """Publish the log, then write `state` (anything JSON can hold) to `folder`."""
    log.flush()
    text = canonical_json(state)
    head = {"version": VERSION, "rows": log.rows_published, "digest": text_digest(text), "run": log.origin.run}
    atomic_write(folder / FILE, [f'{{"head":{canonical_json(head)},"state":{text}}}\n'.encode()])


def load_checkpoint(folder: Path, log: RunLog) -> dict[str, Any] | None:
    """The state saved last, None where nothing was; `BadInputError` for one that is not this log's, or damaged."""
    path = folder / FILE
    if not path.exists():
        return None
    raw = read_json(path)
    try:
        head, state = raw["head"], raw["state"]
        version, rows, run, expected = head["version"], head["rows"], head["run"], head["digest"]
    except (TypeError, KeyError):
        raise BadInputError(f"{path}: not a checkpoint") from None
    if version != VERSION:
        raise BadInputError(f"{path}: version {version!r}; this program reads {VERSION}")
    if not isinstance(state, dict) or text_digest(canonical_json(state)) != expected:
        raise BadInputError(f"{path}: damaged (digest differs); remove it to start from the log alone")
    if run != log.origin.run or rows > log.rows_published:
        raise BadInputError(f"{path}: made for run {run} with {rows} rows; the log has {log.rows_published} rows of {log.origin.run}")
    return state
