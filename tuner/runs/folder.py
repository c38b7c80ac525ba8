"""Folder of a run: layout, identity, and exclusive access."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, Self, TypeVar

from simulator.npu.errors import BadInputError, TilefarmError
from simulator.npu.files import leftover_of, make_folder, remove_leftovers, write_atomically
from tuner.log.digests import digest
from tuner.log.part_counts import FILE as COUNTS
from tuner.platform.files import AnyPath, Lock, LockedError
from tuner.plugins import Plugin

IDENTITY = "run.json"
LOCK = ".lock"
SETTINGS = "config.yaml"
OWN = "own"  # folder in `plans` with the champion of every level, shipped or not
TMP = ".tmp"
FOLDERS = ("plans", f"plans/{OWN}", "checkpoint", "models", TMP)
# files of a run, a sweep, a study; part 0 of a dataset has no rows
_RESULTS = ("log/*[1-9].parquet", "*/log/*[1-9].parquet", "batches/*.json")


P = TypeVar("P", bound=AnyPath)


class Readable(Protocol):
    """Path or place with readable bytes."""

    def read_bytes(self) -> bytes: ...


@dataclass(frozen=True)
class Identity:
    """Identity of a folder; the fields of a subclass are compared when the folder is reopened."""

    @property
    def run(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class RunIdentity(Identity):
    """Inputs of a run's results; equal identities give equal rows.  The budget is not part of it."""

    model: str  # name
    model_digest: str
    machine: str
    machine_digest: str
    config_digest: str
    simulator: str
    seed: int
    levels: tuple[str, ...]
    tag: str = ""
    warm_start: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    prior: str = ""  # digest of a cost model's file
    plugins: tuple[Plugin, ...] = ()
    champions: tuple[str, ...] = ()  # champions of a store that replace a search

    @property
    def run(self) -> str:
        """Id of the run: readable, and equal for equal identities."""
        return f"{plain_name(f'{self.model}-{self.machine}')[:60]}-s{self.seed}-{digest(asdict(self))[:8]}"


def write_json(path: AnyPath, value: Any) -> None:
    """Write one value atomically, readable by people."""
    write_atomically(path, [json.dumps(value, indent=2, sort_keys=False, allow_nan=False, ensure_ascii=False).encode(), b"\n"])


def read_json(path: Readable) -> Any:
    """Read one value.  Raises `BadInputError` with the file and the position."""
    try:
        return json.loads(path.read_bytes().decode())
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise BadInputError(f"{path}: not JSON: {error}") from None


def read_identity(folder: AnyPath | Path) -> dict[str, Any]:
    """Read a folder's `run.json`.  Raises `BadInputError` for a folder that is no run, study or sweep."""
    path = folder / IDENTITY
    identity = read_json(path)
    if not isinstance(identity, dict) or "run" not in identity:
        raise BadInputError(f"{path}: not the identity of a run")
    return identity


def initial_lines(folder: AnyPath | Path, field: str) -> tuple[str, ...]:
    """Lines of an identity about the initial runs or plans.  Raises `BadInputError`."""
    lines = read_identity(folder).get(field, [])
    if not isinstance(lines, list):
        raise BadInputError(f"{folder / IDENTITY}: {field} {lines!r}; a list is expected")
    return tuple(map(str, lines))


def plain_name(name: str) -> str:
    """Name as the start of a file name: letters, digits, `_`, `.` and `-` only, and not hidden."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).lstrip(".") or "-"


@dataclass(frozen=True)
class SearchFolder:
    """Folders of one search of a run.  path: folder of the run, whose log is shared.  resumed: whether the run is older than this
    session."""

    path: AnyPath
    models: AnyPath
    checkpoint: AnyPath
    resumed: bool


def _names(folder: AnyPath) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _ensure_folder(folder: AnyPath) -> None:
    """Create a folder if missing, with a durable name.  Raises `BadInputError`."""
    try:
        if folder.is_dir():
            folder.parent.fsync()
        else:
            make_folder(folder)
    except OSError as error:
        raise BadInputError(f"{folder}: cannot be made: {error.strerror}") from None


def _is_foreign(name: str) -> bool:
    """Whether a name is foreign, not left by a session killed during its claim of the folder."""
    return name not in (LOCK, *FOLDERS) and leftover_of(name) != IDENTITY


class RunFolder(Generic[P]):
    """Open folder of a run: locked until `close`.  Without `resume` it must be new or empty.  folders: created inside it.

    explain: words for differences in an identity's field, if its values say little.

    A context manager: after a user's error before the first results it restores the folder, so that the corrected command is not refused
    for the claim of the wrong one.
    """

    def __init__(
        self,
        path: P,
        identity: Identity,
        resume: bool = False,
        folders: tuple[str, ...] = FOLDERS,
        explain: Mapping[str, Callable[[], list[str]]] = MappingProxyType({}),
    ) -> None:
        self.path, self.identity, self.run, self._explain = path, identity, identity.run, explain
        self.resumed = False
        if path.exists() and not path.is_dir():
            raise BadInputError(f"--out {path}: a file is there; give a folder that is new or empty")
        try:
            self._former_names: list[str] | None = _names(path) if path.exists() else None
        except OSError as error:
            raise BadInputError(f"--out {path}: cannot be read: {error.strerror}") from None
        if self._former_names is None:
            try:
                make_folder(path)
            except OSError as error:
                raise BadInputError(f"--out {path}: cannot be made: {error.strerror}") from None
        elif not (path / IDENTITY).exists() and (foreign := sorted(filter(_is_foreign, self._former_names))):
            raise BadInputError(f"--out {path}: holds other files ({', '.join(foreign[:3])}); give a folder that is new or empty")
        self._lock = self._locked()
        try:
            self._claim(resume)
            for name in folders:
                _ensure_folder(path / name)
            for folder in (path, *(path / name for name in folders)):
                remove_leftovers(folder)
            if self._former_names is not None:
                with suppress(PermissionError):  # a parent without read permission has not been changed
                    path.parent.fsync()  # the process that created it may have been killed before its name was durable
        except OSError as error:
            self.close()
            raise BadInputError(f"--out {path}: cannot be written: {error.strerror}") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, TilefarmError) and not self.resumed:
            with suppress(OSError):  # leftovers stay; the first error is the one to report
                self._abandon()
        self.close()

    def _abandon(self) -> None:
        """Remove everything that this session created, unless there are results."""
        if any(result_file for pattern in _RESULTS for result_file in self.path.glob(pattern)):
            return
        brought = set(_names(self.path)) - set(self._former_names or ())
        trash = self.path / TMP / "gone"
        if trash.exists():
            trash.remove()
        make_folder(trash)
        # durably, before the identity is removed; the count of parts before the parts: a power cut in between leaves a run without
        # results, or a folder without identity
        for name in sorted(brought - {IDENTITY, LOCK, TMP}, key=lambda name: (name != COUNTS, name)):
            (self.path / name).replace(trash / name)
            if name == COUNTS:
                self.path.fsync()
        self.path.fsync()
        if IDENTITY in brought:
            (self.path / IDENTITY).remove()
            self.path.fsync()
        trash.remove()
        for name in sorted(brought & {LOCK, TMP}):
            (self.path / name).remove()
        if self._former_names is None:
            self.path.remove()

    def close(self) -> None:
        """Release the folder for the next driver.  The lock also ends with the process."""
        self._lock.close()

    def _locked(self) -> Lock:
        try:
            return (self.path / LOCK).lock()
        except LockedError as who:
            raise BadInputError(f"--out {self.path}: {who} is writing here; wait for it, or give another --out") from None
        except OSError as error:
            raise BadInputError(f"--out {self.path}: cannot be written: {error.strerror}") from None

    def _claim(self, resume: bool) -> None:
        claimed = json.loads(json.dumps({"run": self.run, **asdict(self.identity)}))
        path = self.path / IDENTITY
        if not path.exists():
            write_json(path, claimed)
            return
        existing = read_identity(self.path)
        if differ := [key for key in claimed if key != "run" and existing.get(key) != claimed[key]]:
            words = [text for key in differ for text in self._differs(key, existing.get(key), claimed[key])]
            changes = ", ".join(words[:3]) + (f", {len(words) - 3} more" if len(words) > 3 else "")
            raise BadInputError(f"--out {self.path}: holds run {existing['run']} ({changes}); give another --out")
        if not resume:
            raise BadInputError(f"--out {self.path}: holds run {existing['run']}; --resume continues it, or give another --out")
        self.resumed = True

    def _differs(self, key: str, existing: Any, claimed: Any) -> list[str]:
        words = self._explain[key]() if key in self._explain else []
        return words or [f"{key} {existing!r}, not {claimed!r}"]

    def place(self, piece: str | None = None) -> SearchFolder:
        """Folders of the only search, or of the search of a subgraph, by its name."""
        models, checkpoint = (self.models, self.checkpoint) if piece is None else (self.models / piece, self.checkpoint / piece)
        for folder in (models, checkpoint):
            _ensure_folder(folder)
        return SearchFolder(self.path, models, checkpoint, self.resumed)

    @property
    def log(self) -> P:
        return self.path / "log"

    @property
    def tasks(self) -> P:
        return self.path / "tasks"

    @property
    def plans(self) -> P:
        return self.path / "plans"

    @property
    def models(self) -> P:
        return self.path / "models"

    @property
    def checkpoint(self) -> P:
        return self.path / "checkpoint"

    @property
    def summary(self) -> P:
        return self.path / "summary.json"

    @property
    def best(self) -> P:
        return self.path / "best.onnx"
