"""Lazy imports of package attributes: `import tuner` need not load modules that `tilefarm --help` does without."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.  homes: name -> its module.  Raises `AttributeError` for other names, as Python does."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # the next access finds the attribute directly
        return value

    return get
