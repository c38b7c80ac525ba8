"""Interface of a file or folder of the store: local, behind a URL, or on a simulated disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Protocol, Self


class Lock(Protocol):
    """Lock held by this process."""

    def close(self) -> None:
        """Release the lock."""
        ...


class LockedError(OSError):
    """Error for a lock held by another process; the text names it."""


class AnyPath(Protocol):
    """Part of `pathlib.Path` used by the store, with durability.  `tuner.platform.local_files.LocalPath` is a `Path`.

    All methods raise OSError.  Data and names survive a crash of the computer only after `fsync` of the file, and of the folder for its
    name.  `simulator.npu.files.write_atomically` does this in the right order.
    """

    @property
    def name(self) -> str: ...

    @property
    def parent(self) -> Self: ...

    def __truediv__(self, name: str) -> Self: ...

    def resolve(self) -> Self:
        """Return the target of a link, else the path itself."""
        ...

    def exists(self) -> bool:
        """Whether a file, a folder or anything else has the name."""
        ...

    def is_file(self) -> bool: ...

    def is_dir(self) -> bool: ...

    def iterdir(self) -> Iterator[Self]: ...

    def glob(self, pattern: str) -> Iterator[Self]:
        """Find files and folders below this folder by name (`matches`), in any order; none without a folder."""
        ...

    def read_bytes(self) -> bytes: ...

    def mapped(self) -> memoryview:
        """Return the bytes, read on access."""
        ...

    def version(self) -> tuple[int, int]:
        """Return a value that changes with the file: nanoseconds of its last change, and bytes."""
        ...

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None: ...

    def beside(self) -> Self:
        """Return a temporary file in the same folder, for this process only (`simulator.npu.files.leftover_of` recognises its name).

        The path itself, if files appear only when complete, as in an object store.
        """
        ...

    def put(self, chunks: Iterable[bytes | memoryview], at: int | None = None) -> None:
        """Write a new file, or replace the old content, or from byte `at` on; old content behind is cut off.  Not durable before `fsync`.

        With `at` above 0 the file must exist.
        """
        ...

    def fsync(self) -> None:
        """Make a file's bytes durable, or a folder's names."""
        ...

    def replace(self, to: Self) -> object:
        """Rename atomically; an existing target is replaced."""
        ...

    def remove(self) -> None:
        """Remove a file, if it exists, or a folder with its content."""
        ...

    def lock(self) -> Lock:
        """Lock the file until the lock is closed or the process ends, and write the holder into it.  Raises `LockedError`."""
        ...

    def is_locked(self) -> bool | None:
        """Whether a process holds the file; None if unknown."""
        ...


def matches(name: str, pattern: str) -> bool:
    """Match a name below a folder, its parts joined by `/`.  In the pattern `**` stands for any number of folders; `*`, `?`, `[...]` are
    as in a shell, but also match hidden names."""
    return _match(name.split("/"), pattern.split("/"))


def _match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] == "**":
        return any(_match(parts[index:], pattern[1:]) for index in range(len(parts)))
    return fnmatchcase(parts[0], pattern[0]) and _match(parts[1:], pattern[1:])
