"""Where compiled kernels are kept: in a folder that is named after the sources of all of them.

numba takes a cached kernel for good while the file that holds it is unchanged; it does not look at the files of the functions and constants
that the kernel calls and reads.  After an update that changes, say, which bytes an instruction touches, schedulers would go on with the old
rule and make wrong programs.  So kernels of other sources are looked for elsewhere.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_VARIABLE = "NUMBA_CACHE_DIR"
_PREFIX = "kernels-"
_PACKAGES = ("simulator", "compiler", "tuner")
_CONSTANTS = ("isa.py", "machine.py")  # without a kernel, and read by kernels
_KEPT_DAYS = 30


def sources_digest(root: Path) -> str:
    """16 hex digits over every file below the packages in `root` that has a kernel, or constants of kernels."""
    total = hashlib.blake2b(digest_size=8)
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_bytes()
            if b"njit" in text or path.name in _CONSTANTS:
                total.update(f"{path.relative_to(root)} {len(text)}\n".encode() + text)
    return total.hexdigest()


def use_own_folder() -> None:
    """Tell numba where: below NUMBA_CACHE_DIR, or the user's cache folder.  Called before any kernel is defined.

    Where nothing can be written there, numba goes on to its other places.
    """
    given = os.environ.get(_VARIABLE)
    if given and Path(given).name.startswith(_PREFIX):  # from the process that started this one
        given = str(Path(given).parent)
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilefarm"
    folder = base / f"{_PREFIX}{sources_digest(Path(__file__).resolve().parents[1])}"
    if not folder.exists():
        _forget_old(base)
    os.environ[_VARIABLE] = str(folder)
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = str(folder)


@contextmanager
def compiling() -> Iterator[bool]:
    """Whether whoever asks is to compile every kernel that a search needs, inside; noted at the end, unless inside raises.

    One process of a computer at a time: the workers of a first run wait for one of them, and load what it has compiled.  Where no file
    can be written, every process compiles for itself.
    """
    note = _note()
    if note.is_file():
        yield False
        return
    with ExitStack() as held:
        try:
            note.parent.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context(note.with_suffix(".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process, however that ends
        except OSError:
            yield True
            return
        if not note.is_file():
            yield True
            with suppress(OSError):
                note.touch()
            return
    yield False


def _note() -> Path:
    """numba keeps the kernels of each source tree apart, so each has a note of its own."""
    root = str(Path(__file__).resolve().parents[1])
    return Path(os.environ[_VARIABLE]) / f"compiled-{hashlib.blake2b(root.encode(), digest_size=8).hexdigest()}"


def _forget_old(base: Path) -> None:
    """Remove folders of sources that nobody has compiled for a month."""
    oldest = time.time() - _KEPT_DAYS * 86_400
    for old in base.glob(f"{_PREFIX}*"):
        try:
            if old.stat().st_mtime < oldest:
                shutil.rmtree(old, ignore_errors=True)
        except OSError:
            continue
