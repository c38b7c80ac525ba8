"""Archive of compiled kernels: a computer that joins a cluster loads those of another one, in place of a minute of compilation.

An archive is code, as what a cluster sends its workers is; it never comes from a file that somebody gave.
"""

from __future__ import annotations

import io
import tarfile
from contextlib import suppress
from typing import NamedTuple

from simulator.kernel_cache import compiled_note, compiling, own_folder, shared_folder


class KernelArchive(NamedTuple):
    """Packed kernels.  key: their sources and kind of processor."""

    key: str
    packed: bytes


def pack_kernels() -> KernelArchive | None:
    """Compiled kernels of this computer, or None where they are not complete or belong to one source tree alone."""
    shared = shared_folder()
    if shared is None or not compiled_note().is_file():
        return None
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        # sorted: the code of a kernel, .nbc, comes before its index, .nbi, so that an interruption leaves no index of missing code
        for path in sorted(shared.rglob("*.nb[ci]")):
            archive.add(path, path.relative_to(shared))
    return KernelArchive(_key(), buffer.getvalue())


def unpack_kernels(archive: KernelArchive) -> None:
    """Put kernels into this computer's cache, if they are missing there and it can use them."""
    shared = shared_folder()
    if shared is None or archive.key != _key():
        return
    with suppress(OSError), compiling() as missing:  # what cannot be written is compiled
        if missing:
            with tarfile.open(fileobj=io.BytesIO(archive.packed)) as packed:
                packed.extractall(shared, filter="data")


def _key() -> str:
    return f"{own_folder().name} {compiled_note().name}"
