"""Progress lines while numba compiles kernels: up to a minute when a version first runs on a computer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from simulator.kernel_compiling import CompiledKernel, listeners
from simulator.terminal import say
from tuner.platform.cpus import usable_cpus

EVERY_S = 2.0
_FEW = 20  # a cache with fewer kernels counts as empty


@contextmanager
def report_kernels(search: bool) -> Iterator[None]:
    """Report kernel compilation on stderr: at the first compiled kernel if the cache is empty, then every few seconds; idle cores help to
    compile.

    search: whether the command searches.
    """
    start_s = last_line_s = 0.0

    def tell(kernel: CompiledKernel | None) -> None:
        nonlocal start_s, last_line_s
        now = time.monotonic()
        if start_s and now - last_line_s < EVERY_S:
            return
        from simulator.kernel_cache import own_folder  # numba is imported already
        from simulator.kernel_list import compile_beside, listed_kernels

        done, total = len(list(own_folder().rglob("*.nbi"))), len(listed_kernels(search))
        if not start_s:
            start_s, last_line_s = now, now if done < _FEW else math.inf
            if done < _FEW:
                say("compiling kernels, once for this version on this computer")
                compile_beside(usable_cpus() - 1, search)
        elif done < total:
            last_line_s = now
            say(f"compiling kernels: {done} of about {total}, about {(now - start_s) * (total - done) / max(1, done):.0f} s")

    listeners.append(tell)
    try:
        yield
    finally:
        listeners.remove(tell)
