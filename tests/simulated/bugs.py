"""Faults of the program, planted to see that they are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """While this lasts, the program has it."""
    with BUGS[name]() if name is not None else nullcontext():
        yield
