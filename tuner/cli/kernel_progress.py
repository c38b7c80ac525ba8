"""What a command says while it compiles kernels, which takes a minute or two where a version runs first on a computer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from simulator.kernel_compiling import CompiledKernel, listeners
from simulator.terminal import say

EVERY_S = 5.0
_FEW = 20  # kernels that a cache has where nearly all are missing


@contextmanager
def report_kernels() -> Iterator[None]:
    """Says it on stderr: where the cache is empty when the first kernel is compiled, and then every few seconds."""
    begun = said = 0.0
    done = 0

    def tell(kernel: CompiledKernel | None) -> None:
        nonlocal begun, said, done
        done += kernel is not None
        now = time.monotonic()
        if not begun:
            from simulator.kernel_cache import own_folder  # numba is there, and has asked for it

            begun = said = now
            if len(list(own_folder().rglob("*.nbi"))) < _FEW:
                say("compiling kernels, once for this version on this computer: a minute or two")
        elif now - said >= EVERY_S:
            said = now
            say(f"compiling kernels: {done} done in {now - begun:.0f} s")

    listeners.append(tell)
    try:
        yield
    finally:
        listeners.remove(tell)
