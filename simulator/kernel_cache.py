"""Cache folder of compiled kernels, named after all of their sources.

numba reuses a cached kernel while the file that defines it is unchanged.  It does not look at other files whose functions and constants
the kernel imports by name.  After an update of, say, the bytes that an instruction touches, schedulers would use the old rule and make
wrong programs.  So kernels of other sources are in another folder.

numba also separates the kernels of every path.  Trees with the same sources (a clone beside an installation, a copy in which tests run)
need not compile them again, which takes minutes: numba's folder of one path is a link to a folder that all of them share.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from simulator.npu.errors import BadInputError
from simulator.npu.own_folders import private_folder, remove_old, user_cache, write_error
from simulator.terminal import say

_VARIABLE = "NUMBA_CACHE_DIR"
_PREFIX = "kernels-"
_PACKAGES = ("simulator", "compiler", "tuner")
_IMPORT = re.compile(rb"^from ((?:%s)[\w.]*) import (\([^)]*\)|.*)" % "|".join(_PACKAGES).encode(), re.MULTILINE)
_SHARED = "of"
_COMPILER = "simulator/kernel_compiling.py"  # affects all kernels, as what it imports does
_PATIENCE_S = 10.0  # age from which a lease without renewal belongs to a dead process


def kernel_sources(root: Path) -> dict[Path, bytes]:
    """Text of every file of the packages in `root` that defines a kernel, is imported by such a file, or configures compilation.

    By path in `root`, sorted.
    """
    # paths are strings until the end: objects would take most of the time of this function, and every command with kernels waits for it
    texts = dict(_texts(os.fspath(root)))
    paths = {path for path, text in texts.items() if _has_kernel(text)} | ({_COMPILER} & texts.keys())
    for path in list(paths):
        for module, names in _IMPORT.findall(texts[path]):
            module_path = module.decode().replace(".", "/")
            inside = (f"{module_path}/{name}.py" for name in names.decode().strip("()").replace(",", " ").split())
            paths |= {f"{module_path}.py", f"{module_path}/__init__.py", *inside} & texts.keys()
    return {Path(path): texts[path] for path in sorted(paths, key=lambda path: path.split("/"))}


def _texts(root: str) -> Iterator[tuple[str, bytes]]:
    """(path, text) of all files of the packages."""
    for package in _PACKAGES:
        for folder, _, names in os.walk(f"{root}/{package}"):
            for name in names:
                if name.endswith(".py"):
                    path = f"{folder}/{name}"
                    with open(path, "rb", buffering=0) as file:
                        yield path[len(root) + 1 :], file.read()


def _has_kernel(text: bytes) -> bool:
    return b"njit" in text and b"\nfrom numba import " in b"\n" + text  # a line that this file has not


def sources_digest(sources: dict[Path, bytes]) -> str:
    """16 hex digits over `kernel_sources`."""
    total = hashlib.blake2b(digest_size=8)
    for path, text in sources.items():
        total.update(f"{path} {len(text)}\n".encode() + text)
    return total.hexdigest()


@cache
def own_folder() -> Path:
    """Set numba's cache folder: below NUMBA_CACHE_DIR, or the user's cache folder.  Returns the folder.

    If that is not writable, the folder is below the temporary folder, with a copy of the readable kernels and one message.  Raises
    `BadInputError`.
    """
    override = os.environ.get(_VARIABLE)
    if override and Path(override).name.startswith(_PREFIX):  # set by the process that started this one
        override = str(Path(override).parent)
    base = Path(override) if override else user_cache()
    sources = kernel_sources(Path(__file__).resolve().parents[1])
    folder = _writable(base, f"{_PREFIX}{sources_digest(sources)}")
    if not folder.exists():
        remove_old(folder.parent.glob(f"{_PREFIX}*"))
    with suppress(OSError):
        _share(folder, Path(__file__).absolute().parents[1], sorted({path.parent for path, text in sources.items() if _has_kernel(text)}))
    os.environ[_VARIABLE] = str(folder)
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = str(folder)
    return folder


def _writable(base: Path | None, name: str) -> Path:
    """The folder of this name in `base`, or in a private one among temporary files."""
    why = "no home folder, and no XDG_CACHE_HOME" if base is None else write_error(base)
    if base is not None and not why:
        return base / name
    where = "" if base is None else f"{base}: "
    try:
        spare = private_folder()
    except BadInputError as error:
        raise BadInputError(f"no folder for compiled kernels ({where}{why}); set {_VARIABLE} to one that can be written; {error}") from None
    if base is not None and not (spare / name).exists():
        with suppress(OSError):  # the file may not exist
            shutil.copytree(base / name, spare / name, symlinks=True)
    say(f"compiled kernels are kept in {spare} ({where}{why}); {_VARIABLE} names another folder")
    return spare / name


@contextmanager
def compiling() -> Iterator[bool]:
    """Yield whether the caller is to compile every kernel that a search needs; a note is left at the end, unless the caller raises.

    One process at a time, of all that share the folder: the workers of a first run wait for one of them, and load its kernels.
    It holds a lease, a file that it renews: network file systems have no locks, or none between computers.  Where none can be written,
    every process compiles for itself.
    """
    note = compiled_note()
    if note.is_file():
        yield False
        return
    from filelock import SoftFileLease  # most processes find the note

    try:
        lease = SoftFileLease(note.with_suffix(".lease"), lease_duration=_PATIENCE_S, poll_interval=0.1)
        note.parent.mkdir(parents=True, exist_ok=True)
        lease.acquire()
    except OSError:
        yield True
        return
    with lease:  # counts: both give it back
        lease.release()
        is_compiler = not note.is_file()
        yield is_compiler
        if is_compiler:
            with suppress(OSError):
                note.touch()


def _numbas_name(folder: Path) -> str:
    """numba's name of the folder for kernels from files in `folder` (numba.core.caching.get_suitable_cache_subpath)."""
    return f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}"


def _share(folder: Path, root: Path, parts: list[Path]) -> None:
    """Link the tree in `root` to shared folders, where no folder exists yet.

    Before 0.68, numba compared a kernel with its source by the time of the file: trees would compile in turns.
    """
    missing = {folder / _numbas_name(root / part): part for part in parts if not (folder / _numbas_name(root / part)).exists()}
    from importlib.metadata import version  # slow to import, and needed once per source tree

    if not missing or tuple(int(number) for number in version("numba").split(".")[:2]) < (0, 68):
        return
    for link, part in missing.items():
        common = Path(_SHARED, ".".join(part.parts))
        (folder / common).mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another process has been faster
            link.symlink_to(common)


def shared_folder() -> Path | None:
    """Folder of the kernels that all trees of these sources share; None where numba keeps those of each tree apart."""
    folder, root = own_folder(), Path(__file__).absolute().parents[1]
    return folder / _SHARED if (folder / _numbas_name(root / _PACKAGES[0])).is_symlink() else None


def compiled_note() -> Path:
    """The note of compiled kernels: one for all trees that share, and for each kind of processor, since kernels are specific to it."""
    from llvmlite import binding

    kind = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    if shared_folder() is None:
        kind += f" {Path(__file__).absolute().parents[1]}"
    return own_folder() / f"compiled-{hashlib.blake2b(kind.encode(), digest_size=8).hexdigest()}"
