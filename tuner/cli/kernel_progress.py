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
        now_s = time.monotonic()
        if start_s and now_s - last_line_s < EVERY_S:
            return
        from simulator.kernel_cache import own_folder  # numba is imported already
        from simulator.kernel_list import compile_beside, listed_kernels

        compiled, total = len(list(own_folder().rglob("*.nbi"))), len(listed_kernels(search))
        if not start_s:
            start_s, last_line_s = now_s, now_s if compiled < _FEW else math.inf
            if compiled < _FEW:
                say("compiling kernels, once for this version on this computer")
                compile_beside(usable_cpus() - 1, search)
        elif compiled < total:
            last_line_s = now_s
            say(f"compiling kernels: {compiled} of about {total}, about {(now_s - start_s) * (total - compiled) / max(1, compiled):.0f} s")

    listeners.append(tell)
    try:
        yield
    finally:
        listeners.remove(tell)
