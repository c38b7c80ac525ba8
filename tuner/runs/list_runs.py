"""Runs read from their folders: content and state.  Read-only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from simulator.npu.errors import BadInputError
from tuner.platform.files import AnyPath
from tuner.platform.remote_files import place
from tuner.runs.folder import IDENTITY, LOCK, SETTINGS, read_json
from tuner.runs.subgraph_runs import search_folders, subgraph_copies

SUMMARY = "summary.json"
SUMMARY_VERSION: Literal[4] = 4
INDEX = "index.parquet"  # file of a sweep
Kind = Literal["run", "sweep", "study"]
State = Literal["done", "unconfirmed", "running", "stopped", "unfinished"]
ENDED = ("done", "unconfirmed")  # states of a complete run


@dataclass(frozen=True, eq=False)
class RunEntry:
    """Run in a folder.  identity: run.json.  summary: summary.json, None before the end.

    `unconfirmed`: done, but values of its programs differ from onnxruntime's.  `stopped`: it can be resumed.  `unfinished`: running or
    stopped, which is unknown behind a URL.
    """

    path: AnyPath
    identity: dict[str, Any]
    summary: dict[str, Any] | None
    state: State

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.identity["levels"])


def kind_of(path: AnyPath) -> Kind:
    """Kind of a folder by its identity.  Raises `BadInputError` without one."""
    if not (path / IDENTITY).is_file():
        raise BadInputError(f"{path}: no {IDENTITY} here; expected a folder that `tilefarm tune`, `study` or `sweep` wrote")
    identity = read_json(path / IDENTITY)
    if isinstance(identity, dict) and "machines" in identity:
        return "sweep"
    return "study" if isinstance(identity, dict) and "study_digest" in identity else "run"


def open_run(folder: AnyPath | Path | str) -> RunEntry:
    """Open a run.  Raises `BadInputError` for other folders, and for a summary of another version."""
    path = place(folder)
    kind = kind_of(path)
    if kind == "sweep":
        raise BadInputError(f"{path}: a sweep; give one of its runs (`tilefarm ls {path}` lists them)")
    if kind == "study":
        raise BadInputError(f"{path}: a study, which keeps no runs; `tilefarm report {path}` shows it")
    identity = read_json(path / IDENTITY)
    if not isinstance(identity, dict) or not {"run", "model", "machine", "levels", "seed"} <= identity.keys():
        raise BadInputError(f"{path / IDENTITY}: not the identity of a tuning run")
    summary = _read_summary(path / SUMMARY) if (path / SUMMARY).is_file() else None
    state = state_of(path, summary is not None)
    return RunEntry(path, identity, summary, summary["status"] if summary is not None and state == "done" else state)


def _read_summary(path: AnyPath) -> dict[str, Any]:
    summary = read_json(path)
    version = summary.get("schema_version") if isinstance(summary, dict) else None
    if version != SUMMARY_VERSION:
        raise BadInputError(f"{path}: of version {version!r}, expected {SUMMARY_VERSION}; tune again in another folder")
    return dict(summary)


def find_runs(root: AnyPath | Path | str) -> Iterator[RunEntry]:
    """Find all runs in a folder and below, sorted by path."""
    folder = place(root)
    if not folder.is_dir():
        raise BadInputError(f"{folder}: not a folder")
    for identity_path in sorted(folder.glob(f"**/{IDENTITY}"), key=lambda path: str(path).split("/")):
        try:
            yield open_run(identity_path.parent)
        except BadInputError:
            continue  # a study, a foreign file of that name, or a run of another version


def state_of(path: AnyPath, ended: bool) -> State:
    """State of a folder by its lock."""
    locked = (path / LOCK).is_locked()
    if locked:
        return "running"
    if ended:
        return "done"
    return "stopped" if locked is not None else "unfinished"


def baseline_of(run: RunEntry) -> dict[str, int]:
    """Baseline cycles by level, from the summary or the last checkpoint; {} before the first checkpoint."""
    if run.summary is not None:
        return {level: int(row["baseline_layerwise_cycles"]) for level, row in run.summary["levels"].items()}
    folder, total = run.path / "checkpoint", dict.fromkeys(run.levels, 0)
    for name, count in zip(search_folders(run.path), list(subgraph_copies(run.path).values()) or [1], strict=True):
        path = (folder / name if name else folder) / "state.json"
        try:
            baselines = [cycles for _, cycles, _ in read_json(path)["state"]["champions"]["baselines"]]
            # one of these is the level's baseline; the others need more than the level grants
            total = {
                level: total[level] + count * min(map(int, level_cycles))
                for level, *level_cycles in zip(run.levels, *baselines, strict=True)
            }
        except (BadInputError, KeyError, TypeError, ValueError):  # no checkpoint yet, or of another version
            return {}
    return total


class AskedBudget(NamedTuple):
    """Budget of the last command: one of the first two, or neither for a budget of time.  core_hours: limit beside it."""

    candidates: int | None = None
    measurements: int | None = None
    core_hours: float | None = None


def budget_of(path: AnyPath) -> AskedBudget:
    """Budget from the folder's settings."""
    import yaml

    if not (path / SETTINGS).is_file():
        return AskedBudget()
    try:
        settings = yaml.safe_load((path / SETTINGS).read_bytes().decode())
        return AskedBudget(*(settings["budget"].get(name) for name in AskedBudget._fields))
    except (OSError, yaml.YAMLError, TypeError, KeyError, AttributeError):
        raise BadInputError(f"{path / SETTINGS}: not the settings of a run") from None
