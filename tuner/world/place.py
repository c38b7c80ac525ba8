"""A file or folder of the store, wherever it is: on this computer, behind a URL, on a simulated disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, Self


class Place(Protocol):
    """Has as much of `pathlib.Path` as the store uses, and durability beside it.  `tuner.world.local.LocalPlace` is a `Path`.

    All methods raise OSError.  What was written or renamed outlives a crash of the computer only when `fsync` of the file, and of the
    folder for its name, has returned.
    """

    @property
    def name(self) -> str: ...

    @property
    def parent(self) -> Self: ...

    def __truediv__(self, name: str) -> Self: ...

    def is_file(self) -> bool: ...

    def is_dir(self) -> bool: ...

    def iterdir(self) -> Iterator[Self]: ...

    def read_bytes(self) -> bytes: ...

    def mapped(self) -> memoryview:
        """The bytes, not read before they are looked at."""
        ...

    def version(self) -> tuple[int, int]:
        """Changes whenever the file does: nanoseconds of its last change, and bytes."""
        ...

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None: ...

    def put(self, chunks: Sequence[bytes | memoryview], at: int | None = None) -> None:
        """Write: a new file or over an old one, or from byte `at` on, what was behind it cut off.  Not durable before `fsync`."""
        ...

    def fsync(self) -> None:
        """Of a file its bytes, of a folder its names."""
        ...

    def replace(self, to: Self) -> None:
        """Rename; what was there is gone.  One instant, whatever happens."""
        ...

    def remove(self) -> None:
        """A file, if it is there, or a folder with all in it."""
        ...

    def locked(self, who: str) -> str | None:
        """Lock the file for this process until it ends, and write who holds it there; who does already, else None."""
        ...


def write_whole(place: Place, chunks: Sequence[bytes | memoryview]) -> None:
    """A reader, or a crash at any instant, meets the old file or the new one: beside it, fsync, rename, fsync of the folder."""
    raise NotImplementedError
