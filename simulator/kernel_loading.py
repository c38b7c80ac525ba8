"""How compiled kernels are loaded: without what numba compiles others with, and without BLAS.

Numba gets ready to compile before it loads its first kernel: it imports what it knows of Python's and numpy's functions, and makes tables
of that.  It takes a third of the time that the kernels of a command do, and is done anyway as soon as one is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_CACHING = "numba.core.caching"


def load_without_compiler() -> None:
    """Have numba, now or as soon as it is imported, load cached kernels without what it compiles others with."""
    sys.meta_path.insert(0, _WithoutBlas())
    if (caching := sys.modules.get(_CACHING)) is not None:
        _load_alone(caching)
    else:
        sys.meta_path.insert(0, _Caching())


class _WithoutBlas:
    """Tells numba that there is no BLAS, which it looks for in scipy as it is told of numpy's functions; all others find it.

    That takes as long as numba itself does to import, and no kernel here multiplies matrices.
    """

    def find_spec(self, name: str, *_: object) -> None:
        asking = sys.modules.get("numba.np.arraymath")
        if name == "scipy.linalg" and asking is not None and not hasattr(asking, "_HAVE_BLAS"):  # that module is on its way
            sys.meta_path.remove(self)
            raise ModuleNotFoundError("no BLAS is loaded for kernels", name=name)


class _Caching:
    """Finds numba's module of cached kernels, and changes how it loads them."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, *_: object) -> ModuleSpec | None:
        if name != _CACHING:
            return None
        sys.meta_path.remove(self)
        return changed_spec(name, path, _load_alone)


def changed_spec(name: str, path: Sequence[str] | None, change: Callable[[Any], None]) -> ModuleSpec | None:
    """Of a module that is to be changed as soon as it is imported."""
    spec = PathFinder.find_spec(name, path)
    if spec is not None and spec.loader is not None:
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
    return spec


def _load_alone(caching: Any) -> None:
    load = caching.Cache.load_overload

    def load_overload(self: Any, sig: Any, target_context: Any) -> Any:
        from numba.core.runtime import rtsys

        rtsys.initialize(target_context)  # what kernels call: of all that a refresh does they need nothing else
        target_context.refresh = lambda: None
        try:
            return load(self, sig, target_context)
        finally:
            del target_context.refresh

    caching.Cache.load_overload = load_overload
