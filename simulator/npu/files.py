"""Atomic writes: a file exists in full or not at all."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PosixPath
from typing import Protocol, Self

from simulator.npu.errors import BadInputError

_AT_ONCE = 1 << 18  # bytes per write; for more the kernel looks for large pages, which takes long in fragmented memory
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")


class _Durable(Protocol):
    """Methods of a file or folder that these functions use: `DurablePath`, `tuner.platform.files.AnyPath`."""

    @property
    def name(self) -> str: ...

    @property
    def parent(self) -> Self: ...

    def resolve(self) -> Self: ...

    def exists(self) -> bool: ...

    def iterdir(self) -> Iterator[Self]: ...

    def mkdir(self) -> None: ...

    def beside(self) -> Self: ...

    def put(self, chunks: Iterable[bytes | memoryview]) -> None: ...

    def fsync(self) -> None: ...

    def replace(self, to: Self) -> object: ...

    def remove(self) -> None: ...


class DurablePath(PosixPath):
    """A path on this computer; the caller says when it must survive a crash.  All methods raise OSError."""

    def resolve(self, strict: bool = False) -> Self:
        """The path with links followed; a circle of links fails at opening."""
        return type(self)(os.path.realpath(self, strict=strict))

    def beside(self) -> Self:
        """An unused temporary file in the same folder, to be renamed to this one."""
        # not tempfile: its files are private to the user, a result follows the umask
        return self.with_name(f".{self.name}.{secrets.token_hex(4)}.tmp")

    def put(self, chunks: Iterable[bytes | memoryview], at: int | None = None) -> None:
        """Write a file, new or over an old one.  at: write from that byte on, and cut off the old content behind the new one."""
        # cut off last: ext4 writes a file to disk on closing if it was first truncated to nothing
        where = self if at is None else os.open(self, os.O_WRONLY | (0 if at else os.O_CREAT), 0o666)
        with open(where, "wb") as file:
            file.seek(at or 0)
            for chunk in chunks:
                view = memoryview(chunk).cast("B")
                file.writelines(view[i : i + _AT_ONCE] for i in range(0, len(view), _AT_ONCE))
            file.truncate()

    def fsync(self) -> None:
        """Flush a file's bytes, or a folder's names."""
        handle = os.open(self, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def remove(self) -> None:
        """Remove a file, if it exists, or a folder with its content."""
        if self.is_dir() and not self.is_symlink():
            shutil.rmtree(self)
        else:
            self.unlink(missing_ok=True)


def leftover_of(name: str) -> str | None:
    """The target of a temporary file that a killed `put_atomically` left behind; None for any other file."""
    match = _TEMPORARY.fullmatch(name)
    return None if match is None else match[1]


def remove_leftovers(folder: _Durable) -> None:
    """Remove temporary files of `put_atomically` from a folder.  No other process may be writing there."""
    for path in folder.iterdir():
        if leftover_of(path.name) is not None:
            path.remove()


def make_folder(folder: _Durable) -> None:
    """Make a folder and its parents; each survives a crash.  Raises OSError, also where the folder exists."""
    parent = folder.parent
    if not parent.exists():
        make_folder(parent)
    folder.mkdir()
    parent.fsync()


def put_atomically(place: _Durable, chunks: Iterable[bytes | memoryview]) -> None:
    """Write `chunks` in sequence to `place`, atomically: after a crash at any time a reader finds the old file or the new one.

    A hidden temporary file in the same folder, fsync, rename, fsync of the folder.  A link is followed.  Raises OSError, and removes the
    temporary file then.
    """
    target = place.resolve()
    staged = target.beside()
    if staged is target:  # a new file appears when it is complete
        target.put(chunks)
        return
    try:
        staged.put(chunks)
        staged.fsync()
        staged.replace(target)
    except BaseException:
        staged.remove()
        raise
    target.parent.fsync()


def write_atomically(place: _Durable, chunks: Iterable[bytes | memoryview]) -> None:
    """`put_atomically` for a user's file: raises `BadInputError` where it cannot be written."""
    try:
        put_atomically(place, chunks)
    except OSError as error:
        raise BadInputError(f"{place}: cannot be written: {error.strerror or error}") from None


def atomic_write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """`write_atomically` of a path."""
    write_atomically(DurablePath(path), chunks)
