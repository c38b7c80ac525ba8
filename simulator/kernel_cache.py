"""Where compiled kernels are kept: in a folder that is named after the sources of all of them.

numba takes a cached kernel for good while the file that holds it is unchanged; it does not look at the files of the functions and constants
that the kernel calls and reads, which such a file imports by name.  After an update that changes, say, which bytes an instruction touches,
schedulers would go on with the old rule and make wrong programs.  So kernels of other sources are looked for elsewhere.

numba also keeps the kernels of every path apart.  Trees with the same sources (a clone beside an installation, a copy in which tests run)
need not compile them again, which takes minutes: what numba takes for the folder of one path is a link to a folder that all of them use.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

_VARIABLE = "NUMBA_CACHE_DIR"
_PREFIX = "kernels-"
_PACKAGES = ("simulator", "compiler", "tuner")
_IMPORT = re.compile(rb"^from ((?:%s)[\w.]*) import (\([^)]*\)|.*)" % "|".join(_PACKAGES).encode(), re.MULTILINE)
_KEPT_DAYS = 30
_SHARED = "of"


def kernel_sources(root: Path) -> dict[Path, bytes]:
    """Text of every file of the packages in `root` that has a kernel, or that such a file imports from; by path in `root`, in order."""
    # paths are strings until the end: every command that has kernels waits for this, and for most of it where these are objects
    texts = dict(_texts(os.fspath(root)))
    found = {path for path, text in texts.items() if _has_kernel(text)}
    for path in list(found):
        for module, names in _IMPORT.findall(texts[path]):
            whole = module.decode().replace(".", "/")
            inside = (f"{whole}/{name}.py" for name in names.decode().strip("()").replace(",", " ").split())
            found |= {f"{whole}.py", f"{whole}/__init__.py", *inside} & texts.keys()
    return {Path(path): texts[path] for path in sorted(found, key=lambda path: path.split("/"))}


def _texts(root: str) -> Iterator[tuple[str, bytes]]:
    """Of all files of the packages."""
    for package in _PACKAGES:
        for folder, _, names in os.walk(f"{root}/{package}"):
            for name in names:
                if name.endswith(".py"):
                    path = f"{folder}/{name}"
                    with open(path, "rb", buffering=0) as file:
                        yield path[len(root) + 1 :], file.read()


def _has_kernel(text: bytes) -> bool:
    return b"njit" in text


def sources_digest(root: Path) -> str:
    """16 hex digits over `kernel_sources`."""
    return _digest(kernel_sources(root))


def _digest(sources: dict[Path, bytes]) -> str:
    total = hashlib.blake2b(digest_size=8)
    for path, text in sources.items():
        total.update(f"{path} {len(text)}\n".encode() + text)
    return total.hexdigest()


@cache
def own_folder() -> Path:
    """Tell numba where: below NUMBA_CACHE_DIR, or the user's cache folder.  Returns the folder.

    Where nothing can be written there, numba goes on to its other places.
    """
    given = os.environ.get(_VARIABLE)
    if given and Path(given).name.startswith(_PREFIX):  # from the process that started this one
        given = str(Path(given).parent)
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilefarm"
    sources = kernel_sources(Path(__file__).resolve().parents[1])
    folder = base / f"{_PREFIX}{_digest(sources)}"
    if not folder.exists():
        _forget_old(base)
    with suppress(OSError):
        _share(folder, Path(__file__).absolute().parents[1], sorted({path.parent for path, text in sources.items() if _has_kernel(text)}))
    os.environ[_VARIABLE] = str(folder)
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = str(folder)
    return folder


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


def _numbas_name(folder: Path) -> str:
    """What numba calls the folder of kernels from files in `folder` (numba.core.caching.get_suitable_cache_subpath)."""
    return f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}"


def _share(folder: Path, root: Path, parts: list[Path]) -> None:
    """Links for the tree in `root`, where there is nothing yet.

    Before 0.68, numba took a kernel for older than its source by the time of the file: trees would compile in turns.
    """
    missing = {folder / _numbas_name(root / part): part for part in parts if not (folder / _numbas_name(root / part)).exists()}
    from importlib.metadata import version  # takes as long as all else here, and is asked once for a tree

    if not missing or tuple(int(number) for number in version("numba").split(".")[:2]) < (0, 68):
        return
    for link, part in missing.items():
        common = Path(_SHARED, ".".join(part.parts))
        (folder / common).mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another process has been faster
            link.symlink_to(common)


def _note() -> Path:
    """One for all trees that share, and one for each that does not."""
    folder, root = own_folder(), Path(__file__).absolute().parents[1]
    if (folder / _numbas_name(root / _PACKAGES[0])).is_symlink():
        return folder / "compiled"
    return folder / f"compiled-{hashlib.blake2b(str(root).encode(), digest_size=8).hexdigest()}"


def _forget_old(base: Path) -> None:
    """Remove folders of sources that nobody has compiled for a month."""
    oldest = time.time() - _KEPT_DAYS * 86_400
    for old in base.glob(f"{_PREFIX}*"):
        try:
            if old.stat().st_mtime < oldest:
                shutil.rmtree(old, ignore_errors=True)
        except OSError:
            continue
