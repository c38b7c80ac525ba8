"""Loading of compiled kernels without numba's compiler tables and without BLAS.

Before its first kernel, numba imports its typing of Python's and numpy's functions and builds compiler tables from it.  This takes a third
of a command's time for kernels.  Here it is postponed until a kernel is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_CACHING = "numba.core.caching"


def load_without_compiler() -> None:
    """Let numba, now or at its import, load cached kernels without preparing the compiler."""
    sys.meta_path.insert(0, _WithoutBlas())
    if (caching := sys.modules.get(_CACHING)) is not None:
        _load_alone(caching)
    else:
        sys.meta_path.insert(0, _Caching())


class _WithoutBlas:
    """Import hook that hides scipy's BLAS from numba only.

    The search for BLAS takes as long as the import of numba, and no kernel here multiplies matrices.
    """

    def find_spec(self, name: str, *_: object) -> None:
        asking = sys.modules.get("numba.np.arraymath")
        if name == "scipy.linalg" and asking is not None and not hasattr(asking, "_HAVE_BLAS"):  # that module is being imported
            sys.meta_path.remove(self)
            raise ModuleNotFoundError("no BLAS is loaded for kernels", name=name)


class _Caching:
    """Import hook for numba's cache module that changes its loading."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, *_: object) -> ModuleSpec | None:
        if name != _CACHING:
            return None
        sys.meta_path.remove(self)
        return changed_spec(name, path, _load_alone)


def changed_spec(name: str, path: Sequence[str] | None, change: Callable[[Any], None]) -> ModuleSpec | None:
    """The import spec of a module with `change` applied right after its import."""
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

        rtsys.initialize(target_context)  # the part of a refresh that kernels need
        target_context.refresh = lambda: None
        try:
            return load(self, sig, target_context)
        finally:
            del target_context.refresh

    caching.Cache.load_overload = load_overload
