"""Runs as their folders tell: what stands there, how far it is, how two of them compare.  Nothing here writes."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from simulator.npu.errors import BadInputError
from tuner.folder.place import Folder, Place
from tuner.folder.runfolder import IDENTITY, LOCK, SETTINGS, read_json
from tuner.folder.served import best_so_far, copies, search_folders

if TYPE_CHECKING:  # what reads a few JSON files answers without it
    import pandas as pd

SUMMARY = "summary.json"
SUMMARY_VERSION: Literal[2] = 2
INDEX = "index.parquet"  # of a sweep
Kind = Literal["run", "sweep", "study"]
State = Literal["done", "unconfirmed", "running", "stopped", "unfinished"]
ENDED = ("done", "unconfirmed")  # states of a run that has all its files
_PACE = 24  # programs that tell how fast it goes: the first ones wait for kernels and segments
_COLUMNS = ["run", "seq", "kind", "level", "status", "cycles", "time"]
_SAME = (("machine_digest", "machine"), ("simulator", "simulator"), ("model_digest", "model"))


@dataclass(frozen=True, eq=False)
class Run:
    """identity: run.json.  summary: summary.json, None before the end.

    `unconfirmed`: done, but values of its programs are not onnxruntime's.  `stopped`: it can be resumed.  `unfinished`: running or stopped,
    which a URL does not tell.
    """

    path: Folder
    identity: dict[str, Any]
    summary: dict[str, Any] | None
    state: State

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.identity["levels"])


@dataclass(frozen=True)
class Standing:
    """How far a run is, by its published rows.  programs, tasks: measured; failures: tasks by status other than ok.

    best: level -> cycles of the best program so far; first: of the first one.  last_row: time of the newest row, None before any.
    lost: rows that were published and are not there any more.
    of: programs of the budget, None where it is one of time.  left_s: until then, at the pace of the last programs; None while nobody can
    tell.
    """

    programs: int
    tasks: int
    failures: dict[str, int]
    best: dict[str, int]
    first: dict[str, int]
    last_row: pd.Timestamp | None
    of: int | None
    left_s: float | None
    lost: int = 0

    @property
    def share(self) -> float:
        """Of the programs of the budget; 0 where it is one of time."""
        return self.programs / self.of if self.of else 0.0


def kind_of(path: Folder) -> Kind:
    """What a folder's identity is of.  Raises `BadInputError` where there is none."""
    if not (path / IDENTITY).is_file():
        raise BadInputError(f"{path}: no {IDENTITY} here; expected a folder that `tilefarm tune`, `study` or `sweep` wrote")
    identity = read_json(path / IDENTITY)
    if isinstance(identity, dict) and "machines" in identity:
        return "sweep"
    return "study" if isinstance(identity, dict) and "study_digest" in identity else "run"


def open_run(path: Folder) -> Run:
    """Raises `BadInputError` where there is no run, or one whose summary is of another version."""
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
    return Run(path, identity, summary, summary["status"] if summary is not None and state == "done" else state)


def _read_summary(path: Folder) -> dict[str, Any]:
    summary = read_json(path)
    version = summary.get("schema_version") if isinstance(summary, dict) else None
    if version != SUMMARY_VERSION:
        raise BadInputError(f"{path}: of version {version!r}, expected {SUMMARY_VERSION}; tune again in another folder")
    return dict(summary)


def find_runs(folder: Folder) -> Iterator[Run]:
    """Every run in a folder or below it, by path."""
    if not folder.is_dir():
        raise BadInputError(f"{folder}: not a folder")
    identities: Iterable[Folder] = folder.rglob(IDENTITY)
    for found in sorted(identities, key=lambda path: path.parts):
        try:
            yield open_run(found.parent)
        except BadInputError:
            continue  # a study's identity, somebody else's file of that name, or a run of another version


def state_of(path: Folder, ended: bool) -> State:
    """Whether a driver holds the lock; it is tried shared, so that two who look do not see each other."""
    if isinstance(path, Place):
        return "done" if ended else "unfinished"
    try:
        with (path / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    except OSError:
        pass
    return "done" if ended else "stopped"


def standing(run: Run) -> Standing:
    """Read the log.  Raises `BadInputError` where it cannot be read."""
    from tuner.log.count import Count, read_counts
    from tuner.log.read import read_rows

    of = budget_of(run.path)
    if not (run.path / "log").is_dir() and not (read_counts(run.path) or {}).get("log", Count()).rows:
        return Standing(0, 0, {}, {}, {}, None, of, None)
    log, lost = read_rows(run.path, "log", _COLUMNS)
    programs = _programs(log)
    failed = log[log["status"] != "ok"].drop_duplicates(["run", "seq"])["status"].astype("str").value_counts()
    by_level = [(level, best_so_far(programs[programs["level"] == level], copies(run.path))["cycles"]) for level in run.levels]
    count = len(programs[["run", "seq"]].drop_duplicates())
    return Standing(
        count,
        len(log[["run", "seq"]].drop_duplicates()),
        {str(name): int(count) for name, count in sorted(failed.items())},
        {level: int(cycles.iloc[-1]) for level, cycles in by_level if len(cycles)},
        {level: int(cycles.iloc[0]) for level, cycles in by_level if len(cycles)},
        log["time"].max() if len(log) else None,
        of,
        _left_s(programs, of - count) if of is not None and of > count else None,
        lost,
    )


def baseline_of(run: Run) -> dict[str, int]:
    """Level -> cycles of the baseline: as the summary has it, before that as the last checkpoint does; {} while there is none."""
    if run.summary is not None:
        return {level: int(row["baseline_layerwise_cycles"]) for level, row in run.summary["levels"].items()}
    folder, total = run.path / "checkpoint", dict.fromkeys(run.levels, 0)
    for name, count in zip(search_folders(run.path), list(copies(run.path).values()) or [1], strict=True):
        path = (folder / name if name else folder) / "state.json"
        try:
            cycles = read_json(path)["state"]["champions"]["baseline"][1]
            total = {level: total[level] + count * int(mine) for level, mine in zip(run.levels, cycles, strict=True)}
        except (BadInputError, KeyError, TypeError, ValueError):  # none yet, or of another version
            return {}
    return total


def budget_of(path: Folder) -> int | None:
    """Programs that were asked for last, as the folder's settings say."""
    import yaml

    if not (path / SETTINGS).is_file():
        return None
    try:
        settings = yaml.safe_load((path / SETTINGS).read_text(encoding="utf-8"))
        return settings["budget"]["candidates"]
    except (OSError, yaml.YAMLError, TypeError, KeyError):
        raise BadInputError(f"{path / SETTINGS}: not the settings of a run") from None


def _left_s(programs: pd.DataFrame, left: int) -> float | None:
    times = programs["time"].drop_duplicates().sort_values()[-_PACE:]
    return left * (times.iloc[-1] - times.iloc[0]).total_seconds() / (len(times) - 1) if len(times) > 1 else None


def _programs(log: pd.DataFrame) -> pd.DataFrame:
    rows = log[(log["kind"] == "program") & (log["status"] == "ok")].sort_values("seq", kind="stable")
    return rows.assign(level=rows["level"].astype("str"))


@dataclass(frozen=True)
class Comparison:
    """Two runs after the same number of measured programs.  cycles: level -> best of either; ratio: second / first.

    lost: rows that either log had and has not any more, so that its best may be among them.
    """

    candidates: int
    cycles: dict[str, tuple[int, int]]
    lost: tuple[int, int] = (0, 0)

    def ratio(self, level: str) -> float:
        first, second = self.cycles[level]
        return second / first


def compare(a: Run, b: Run, force: bool = False) -> Comparison:
    """Best so far at equal candidates: the smaller number of the two runs' measured programs.

    Raises `BadInputError` where the runs were made for different models, machines or simulators (unless `force`), or share no level.
    """
    for key, what in _SAME:
        if a.identity.get(key) != b.identity.get(key) and not force:
            theirs, ours = b.identity.get(key), a.identity.get(key)
            raise BadInputError(f"{b.path}: {what} {theirs!r}, {a.path} has {ours!r}; cycles do not compare (--force to see them)")
    from tuner.log.read import read_rows

    levels = [level for level in a.levels if level in b.levels]
    if not levels:
        raise BadInputError(f"{b.path}: levels {', '.join(b.levels)}; {a.path} has {', '.join(a.levels)}")
    read = [read_rows(run.path, "log", _COLUMNS) for run in (a, b)]
    logs = [_programs(rows.frame) for rows in read]
    served = [list((copies(run.path) or {run.identity["run"]: 1}).items()) for run in (a, b)]
    if [count for _, count in served[0]] != [count for _, count in served[1]]:
        raise BadInputError(f"{b.path}: its model runs in other pieces than that of {a.path}; cycles do not compare")
    total, cycles = 0, {level: [0, 0] for level in levels}
    for pair in zip(*served, strict=True):  # a model's best is the sum of its pieces' bests
        mine = [log[log["run"].astype("str") == name] for log, (name, _) in zip(logs, pair, strict=True)]
        count = min(log["seq"].nunique() for log in mine)
        if not count:
            lost = sum(rows.lost for rows in read)
            why = f"has none in its log any more, of which {lost} rows were lost" if lost else "has measured no program yet"
            raise BadInputError(f"{a.path}, {b.path}: one of them {why}")
        total += count
        for i, (log, (_, times)) in enumerate(zip(mine, pair, strict=True)):
            rows = log[log["seq"] <= sorted(log["seq"].unique())[count - 1]]
            for level in levels:
                cycles[level][i] += times * int(rows[rows["level"] == level]["cycles"].min())
    return Comparison(total, {level: (first, second) for level, (first, second) in cycles.items()}, (read[0].lost, read[1].lost))
