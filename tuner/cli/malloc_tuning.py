"""Memory of a command that ends soon: what it frees is kept for what it makes next, and hardly looked through for cycles.

A network's weights are in memory several times over: as a file has them, as arrays, packed, and on their way into a file.  Each copy is
large, so the C library asks the kernel for it and gives it back afterwards, and the kernel clears all pages of the next one: half of the
time that VGG-19 takes, of which one page in a hundred is new.  Large pages, which numpy asks for, take the kernel longer still.

Python looks for cycles after every 700 objects more, and in the end through all of them: a tenth of what DenseNet takes, for a megabyte.
"""

from __future__ import annotations

import ctypes
import gc
import os

_OBJECTS = 100_000  # that are made until Python looks for cycles among them; among all of them, hardly ever
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_MOST = 2**31 - 1


def keep_freed_memory() -> None:
    """For a command that ends soon, before it imports numpy.  Where the C library is not glibc, its memory is as it was."""
    gc.set_threshold(_OBJECTS)
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:
        change(_MMAP_THRESHOLD, _MOST)
        change(_TRIM_THRESHOLD, _MOST)
