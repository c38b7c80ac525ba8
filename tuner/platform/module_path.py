"""Where modules are looked for, apart from what Python itself brings: what a worker elsewhere has to be told."""

from __future__ import annotations

import os
import sys


def search_here() -> None:
    """Look for modules in the current folder first, as `python -m` does and a command that is installed does not."""
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)


def is_pythons(folder: str) -> bool:
    """Whether it comes with the interpreter or its environment.  Not all below the prefix: that may be /usr."""
    return folder.startswith(tuple(os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix)))


def folders() -> list[str]:
    """Of `sys.path`, absolute, in its order."""
    found = dict.fromkeys(os.path.abspath(entry) for entry in sys.path)  # '' is the current one
    return [folder for folder in found if not is_pythons(folder)]
