"""A file or folder of the store, wherever it is: on this computer, behind a URL, on a simulated disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Protocol, Self


class Lock(Protocol):
    """That this process holds."""

    def close(self) -> None:
        """Let the next one in."""
        ...


class LockedError(OSError):
    """Somebody else holds the lock; the text says who."""


class AnyPath(Protocol):
    """Has as much of `pathlib.Path` as the store uses, and durability beside it.  `tuner.platform.local_files.LocalPath` is a `Path`.

    All methods raise OSError.  What was written or renamed outlives a crash of the computer only when `fsync` of the file, and of the
    folder for its name, has returned.  `simulator.npu.files.write_atomically` does that in its order.
    """

    @property
    def name(self) -> str: ...

    @property
    def parent(self) -> Self: ...

    def __truediv__(self, name: str) -> Self: ...

    def resolve(self) -> Self:
        """What a link leads to, itself where it is none."""
        ...

    def exists(self) -> bool:
        """Anything is there, a file or a folder or neither."""
        ...

    def is_file(self) -> bool: ...

    def is_dir(self) -> bool: ...

    def iterdir(self) -> Iterator[Self]: ...

    def glob(self, pattern: str) -> Iterator[Self]:
        """Files and folders below this folder, of such a name (`matches`), in any order; none where there is no folder."""
        ...

    def read_bytes(self) -> bytes: ...

    def mapped(self) -> memoryview:
        """The bytes, not read before they are looked at."""
        ...

    def version(self) -> tuple[int, int]:
        """Changes whenever the file does: nanoseconds of its last change, and bytes."""
        ...

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None: ...

    def beside(self) -> Self:
        """A file in the same folder that nobody else writes, to become this one (`simulator.npu.files.leftover_of` knows its name).

        Itself, where a file appears when it is complete, as in an object store.
        """
        ...

    def put(self, chunks: Iterable[bytes | memoryview], at: int | None = None) -> None:
        """Write: a new file or over an old one, or from byte `at` on, what was behind it cut off in the end.  Not durable before `fsync`.

        With `at` above 0 the file is there.
        """
        ...

    def fsync(self) -> None:
        """Of a file its bytes, of a folder its names."""
        ...

    def replace(self, to: Self) -> object:
        """Rename; what was there is gone.  One instant, whatever happens."""
        ...

    def remove(self) -> None:
        """A file, if it is there, or a folder with all in it."""
        ...

    def lock(self) -> Lock:
        """Hold the file for this process until the lock is closed or the process ends, and write who does.  Raises `LockedError`."""
        ...

    def is_locked(self) -> bool | None:
        """Whether a process holds the file; None where nobody can tell."""
        ...


def matches(name: str, pattern: str) -> bool:
    """Of a name below a folder, its parts joined by `/`.  Of the pattern's parts, `**` stands for any folders, also none; `*`, `?`, `[...]`
    are as a shell has them, but hidden names are no exception."""
    return _match(name.split("/"), pattern.split("/"))


def _match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] == "**":
        return any(_match(parts[at:], pattern[1:]) for at in range(len(parts)))
    return fnmatchcase(parts[0], pattern[0]) and _match(parts[1:], pattern[1:])
