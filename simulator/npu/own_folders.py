"""Private folders of the user: the cache, or a temporary folder if there is no cache."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from simulator.npu.errors import BadInputError

_KEPT_DAYS = 30  # age at which unused caches are deleted


def user_cache() -> Path | None:
    """XDG_CACHE_HOME/tilefarm, or ~/.cache/tilefarm; None for a user without a home."""
    if override := os.environ.get("XDG_CACHE_HOME"):
        return Path(override) / "tilefarm"
    try:
        return Path.home() / ".cache" / "tilefarm"
    except RuntimeError:  # no HOME, and no entry in passwd
        return None


def write_error(folder: Path) -> str:
    """Create the folder; returns the reason why no file can be written there, or ""."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def private_folder(base: str = "") -> Path:
    """Private folder of the user in a public folder, by default that of temporary files.  Raises `BadInputError`.

    Its files are loaded as code, so no other user may own it or write to it.
    """
    try:
        folder = Path(base or tempfile.gettempdir()) / f"tilefarm-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except OSError as error:
        raise BadInputError(f"no temporary folder: {error.strerror or error}; set TMPDIR to one that can be written") from None
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise BadInputError(f"{folder}: belongs to somebody else, or others may write there; set TMPDIR to another folder")
    return folder


def remove_old(paths: Iterable[Path]) -> None:
    """Remove files and folders that have not been used for a month."""
    for path in paths:
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _KEPT_DAYS * 86_400:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
