"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PosixPath
from typing import Protocol, Self

from simulator.npu.errors import BadInputError

_AT_ONCE = 1 << 18  # bytes; for more the kernel looks for large pages, which takes up to six times the copy where memory is in pieces
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")


class _Durable(Protocol):
    """What is asked of a file or folder here: `DurablePath`, `tuner.platform.files.AnyPath`."""

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
    """A path on this computer, whose owner says when it must outlive a crash.  All methods raise OSError."""

    def resolve(self, strict: bool = False) -> Self:
        """What links lead to; a circle of them is an error of whoever opens it."""
        return type(self)(os.path.realpath(self, strict=strict))

    def beside(self) -> Self:
        """A file in the same folder, to become this one, that nobody else writes."""
        # not tempfile: its files are private to the user, a result follows the umask
        return self.with_name(f".{self.name}.{secrets.token_hex(4)}.tmp")

    def put(self, chunks: Iterable[bytes | memoryview], at: int | None = None) -> None:
        """A new file, or over an old one; or from byte `at` on, what was behind it cut off."""
        # cut off at last: ext4 writes a file to the disk when it is closed that was cut to nothing before
        where = self if at is None else os.open(self, os.O_WRONLY | (0 if at else os.O_CREAT), 0o666)
        with open(where, "wb") as file:
            file.seek(at or 0)
            for chunk in chunks:
                whole = memoryview(chunk).cast("B")
                file.writelines(whole[i : i + _AT_ONCE] for i in range(0, len(whole), _AT_ONCE))
            file.truncate()

    def fsync(self) -> None:
        """Of a file its bytes, of a folder its names."""
        handle = os.open(self, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def remove(self) -> None:
        """A file, if it is there, or a folder with all in it."""
        if self.is_dir() and not self.is_symlink():
            shutil.rmtree(self)
        else:
            self.unlink(missing_ok=True)


def leftover_of(name: str) -> str | None:
    """The file that a file of this name was to become, where `put_whole` was killed; None for any other file."""
    found = _TEMPORARY.fullmatch(name)
    return None if found is None else found[1]


def remove_leftovers(folder: _Durable) -> None:
    """What `put_whole` left in a folder; for who knows that nobody writes there now."""
    for path in folder.iterdir():
        if leftover_of(path.name) is not None:
            path.remove()


def make_folder(folder: _Durable) -> None:
    """With those above it; each outlives a crash.  Raises OSError, also where it is there."""
    above = folder.parent
    if not above.exists():
        make_folder(above)
    folder.mkdir()
    above.fsync()


def put_whole(place: _Durable, chunks: Iterable[bytes | memoryview]) -> None:
    """Write `chunks` one after another to `place`: a reader, or a crash at any instant, meets the old file or the new one.

    A hidden temporary file in the same folder, fsync, rename, fsync of the folder.  A link is followed.  Raises OSError, and leaves nothing
    behind then.
    """
    target = place.resolve()
    staged = target.beside()
    if staged is target:  # a file appears there when it is complete
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


def write_whole(place: _Durable, chunks: Iterable[bytes | memoryview]) -> None:
    """The same for a user's file: raises `BadInputError` where it cannot be written."""
    try:
        put_whole(place, chunks)
    except OSError as error:
        raise BadInputError(f"{place}: cannot be written: {error.strerror or error}") from None


def atomic_write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """`write_whole` of a path."""
    write_whole(DurablePath(path), chunks)
