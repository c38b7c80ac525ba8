"""`RUN/`: what lies where, whose it is, and who may write in it."""

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
OWN = "own"  # in `plans`: the champion of every level, whatever ships there
TMP = ".tmp"
FOLDERS = ("plans", f"plans/{OWN}", "checkpoint", "models", TMP)
# of a run, a sweep, a study; a dataset's part 0 is written when it begins, without rows
_RESULTS = ("log/*[1-9].parquet", "*/log/*[1-9].parquet", "batches/*.json")


P = TypeVar("P", bound=AnyPath)


class Readable(Protocol):
    """A place or a path."""

    def read_bytes(self) -> bytes: ...


@dataclass(frozen=True)
class Identity:
    """Whose folder it is; the fields of a subclass are compared when it is opened again."""

    @property
    def run(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class RunIdentity(Identity):
    """What a run's results follow from; equal identities give equal rows.  The budget is not part of it."""

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
    champions: tuple[str, ...] = ()  # of a store, that stand for a search

    @property
    def run(self) -> str:
        """Id of the run: readable, and the same for the same identity."""
        return f"{plain(f'{self.model}-{self.machine}')[:60]}-s{self.seed}-{digest(asdict(self))[:8]}"


def write_json(path: AnyPath, value: Any) -> None:
    """One value, readable by people, whole or not at all."""
    write_atomically(path, [json.dumps(value, indent=2, sort_keys=False, allow_nan=False, ensure_ascii=False).encode(), b"\n"])


def read_json(path: Readable) -> Any:
    """Raises `BadInputError` with file and place."""
    try:
        return json.loads(path.read_bytes().decode())
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise BadInputError(f"{path}: not JSON: {error}") from None


def read_identity(folder: AnyPath | Path) -> dict[str, Any]:
    """What a folder's `run.json` says.  Raises `BadInputError` where it is not of a run, a study or a sweep."""
    path = folder / IDENTITY
    there = read_json(path)
    if not isinstance(there, dict) or "run" not in there:
        raise BadInputError(f"{path}: not the identity of a run")
    return there


def began_with(folder: AnyPath | Path, field: str) -> tuple[str, ...]:
    """Lines of an identity that say what a run began with.  Raises `BadInputError`."""
    lines = read_identity(folder).get(field, [])
    if not isinstance(lines, list):
        raise BadInputError(f"{folder / IDENTITY}: {field} {lines!r}; a list is expected")
    return tuple(map(str, lines))


def plain(name: str) -> str:
    """A name as the beginning of a file's: letters, digits, `_`, `.` and `-` only, and not hidden."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).lstrip(".") or "-"


@dataclass(frozen=True)
class SearchFolder:
    """Where one search of a run keeps what is its own.  path: of the run, whose log it shares.  resumed: the run was there before."""

    path: AnyPath
    models: AnyPath
    checkpoint: AnyPath
    resumed: bool


def _names(folder: AnyPath) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _there(folder: AnyPath) -> None:
    """Made, if it is not there, and its name outlives a crash.  Raises `BadInputError`."""
    try:
        if folder.is_dir():
            folder.parent.fsync()
        else:
            make_folder(folder)
    except OSError as error:
        raise BadInputError(f"{folder}: cannot be made: {error.strerror}") from None


def _of_others(name: str) -> bool:
    """Not what a session leaves that is killed while it claims a folder."""
    return name not in (LOCK, *FOLDERS) and leftover_of(name) != IDENTITY


class RunFolder(Generic[P]):
    """An open run: locked until `close`.  Where `resume` is false, the folder must be new or empty.  folders: made inside it.

    explain: words for what a field of the identity differs in, where its values say little.

    A context manager: left by an error of the user's before there are results, it leaves the folder as it was found, so that the same
    command with the mistake corrected is not refused for what the mistaken one claimed.
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
            self._before: list[str] | None = _names(path) if path.exists() else None
        except OSError as error:
            raise BadInputError(f"--out {path}: cannot be read: {error.strerror}") from None
        if self._before is None:
            try:
                make_folder(path)
            except OSError as error:
                raise BadInputError(f"--out {path}: cannot be made: {error.strerror}") from None
        elif not (path / IDENTITY).exists() and (others := sorted(filter(_of_others, self._before))):
            raise BadInputError(f"--out {path}: holds other files ({', '.join(others[:3])}); give a folder that is new or empty")
        self._lock = self._locked()
        try:
            self._claim(resume)
            for name in folders:
                _there(path / name)
            for folder in (path, *(path / name for name in folders)):
                remove_leftovers(folder)
            if self._before is not None:
                with suppress(PermissionError):  # a folder that one may pass through only, where nobody made this one
                    path.parent.fsync()  # whoever made it may have been killed before its name would outlive a crash
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
            with suppress(OSError):  # what cannot be taken away stays; what is said is the error that led here
                self._abandon()
        self.close()

    def _abandon(self) -> None:
        """Take away what this session brought, unless there are results."""
        if any(found for pattern in _RESULTS for found in self.path.glob(pattern)):
            return
        brought = set(_names(self.path)) - set(self._before or ())
        gone = self.path / TMP / "gone"
        if gone.exists():
            gone.remove()
        make_folder(gone)
        # whole, and for good, before it is known no more whose they are; the count of parts before the parts: where the power is cut in
        # the midst of it, what is there is a run without results, or nobody's
        for name in sorted(brought - {IDENTITY, LOCK, TMP}, key=lambda name: (name != COUNTS, name)):
            (self.path / name).replace(gone / name)
            if name == COUNTS:
                self.path.fsync()
        self.path.fsync()
        if IDENTITY in brought:
            (self.path / IDENTITY).remove()
            self.path.fsync()
        gone.remove()
        for name in sorted(brought & {LOCK, TMP}):
            (self.path / name).remove()
        if self._before is None:
            self.path.remove()

    def close(self) -> None:
        """Let the next driver in.  The lock also ends with the process, however that ends."""
        self._lock.close()

    def _locked(self) -> Lock:
        try:
            return (self.path / LOCK).lock()
        except LockedError as who:
            raise BadInputError(f"--out {self.path}: {who} is writing here; wait for it, or give another --out") from None
        except OSError as error:
            raise BadInputError(f"--out {self.path}: cannot be written: {error.strerror}") from None

    def _claim(self, resume: bool) -> None:
        mine = json.loads(json.dumps({"run": self.run, **asdict(self.identity)}))
        path = self.path / IDENTITY
        if not path.exists():
            write_json(path, mine)
            return
        there = read_identity(self.path)
        if differ := [key for key in mine if key != "run" and there.get(key) != mine[key]]:
            words = [text for key in differ for text in self._differs(key, there.get(key), mine[key])]
            what = ", ".join(words[:3]) + (f", {len(words) - 3} more" if len(words) > 3 else "")
            raise BadInputError(f"--out {self.path}: holds run {there['run']} ({what}); give another --out")
        if not resume:
            raise BadInputError(f"--out {self.path}: holds run {there['run']}; --resume continues it, or give another --out")
        self.resumed = True

    def _differs(self, key: str, there: Any, mine: Any) -> list[str]:
        found = self._explain[key]() if key in self._explain else []
        return found or [f"{key} {there!r}, not {mine!r}"]

    def place(self, piece: str | None = None) -> SearchFolder:
        """Of the one search, or of that of a piece: folders of its name."""
        models, checkpoint = (self.models, self.checkpoint) if piece is None else (self.models / piece, self.checkpoint / piece)
        for folder in (models, checkpoint):
            _there(folder)
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
