"""What a command says while it compiles kernels, which takes the better part of a minute where a version runs first on a computer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from simulator.kernel_compiling import CompiledKernel, listeners
from simulator.terminal import say
from tuner.platform.cpus import usable_cpus

EVERY_S = 2.0
_FEW = 20  # kernels that a cache has where nearly all are missing


@contextmanager
def report_kernels(search: bool) -> Iterator[None]:
    """Says it on stderr: where the cache is empty when the first kernel is compiled, and then every few seconds; idle cores help.

    search: whether the command is one.
    """
    begun = said = 0.0

    def tell(kernel: CompiledKernel | None) -> None:
        nonlocal begun, said
        now = time.monotonic()
        if begun and now - said < EVERY_S:
            return
        from simulator.kernel_cache import own_folder  # numba is there, and has asked for it
        from simulator.kernel_list import compile_beside, listed_kernels

        done, every = len(list(own_folder().rglob("*.nbi"))), len(listed_kernels(search))
        if not begun:
            begun, said = now, now if done < _FEW else math.inf
            if done < _FEW:
                say("compiling kernels, once for this version on this computer")
                compile_beside(usable_cpus() - 1, search)
        elif done < every:
            said = now
            say(f"compiling kernels: {done} of about {every}, about {(now - begun) * (every - done) / max(1, done):.0f} s")

    listeners.append(tell)
    try:
        yield
    finally:
        listeners.remove(tell)
