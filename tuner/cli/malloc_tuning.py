"""Allocator and garbage collector settings for short-lived commands: keep freed memory, rarely search for cycles.

A network's weights are in memory several times: as read from the file, as arrays, packed, and on their way into a file.  Each copy is
large, so the C library maps and unmaps it, and the kernel clears all pages of the next copy: half of the time of VGG-19, although one page
in a hundred is new.  Large pages, which numpy requests, cost the kernel even more.

Python searches for cycles after every 700 new objects, and at exit through all of them: a tenth of the time of DenseNet, for a megabyte.
"""

from __future__ import annotations

import ctypes
import gc
import os

_OBJECTS = 100_000  # new objects before Python searches them for cycles
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # values in <malloc.h>
_MOST = 2**31 - 1


def keep_freed_memory() -> None:
    """Apply the settings; call before numpy is imported.  A C library other than glibc keeps its defaults."""
    gc.set_threshold(_OBJECTS)
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:
        change(_MMAP_THRESHOLD, _MOST)
        change(_TRIM_THRESHOLD, _MOST)
