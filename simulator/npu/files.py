"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from simulator.npu.errors import BadInputError

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")


def leftover_of(name: str) -> str | None:
    """The file that a file of this name was to become, where `atomic_write` was killed; None for any other file."""
    found = _TEMPORARY.fullmatch(name)
    return None if found is None else found[1]


def remove_leftovers(folder: Path) -> None:
    """What `atomic_write` left in a folder; for who knows that nobody writes there now."""
    for path in folder.iterdir():
        if leftover_of(path.name) is not None:
            path.unlink(missing_ok=True)


def atomic_write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write `chunks` one after another to `path`: a reader, or a crash at any instant, meets the old file or the new one.

    A hidden temporary file in the same folder, fsync, rename, fsync of the folder.  A link is followed.  Raises `BadInputError` where the
    file cannot be written, and leaves nothing behind then.
    """
    target = Path(os.path.realpath(path))
    # not tempfile: its files are private to the user, a result follows the umask
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with open(temporary, "xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be written: {error.strerror or error}") from None
