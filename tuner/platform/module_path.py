"""Search path of modules without Python's own folders, for workers on other nodes."""

from __future__ import annotations

import os
import sys


def search_current_folder() -> None:
    """Put the current folder first on the search path, as `python -m` does and an installed command does not."""
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)


def is_python_folder(folder: str) -> bool:
    """Whether a folder belongs to the interpreter or its environment.  Not everything below the prefix: that may be /usr."""
    return folder.startswith(tuple(os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix)))


def module_folders() -> list[str]:
    """Folders of `sys.path`, absolute, in order."""
    paths = dict.fromkeys(os.path.abspath(entry) for entry in sys.path)  # '' is the current folder
    return [folder for folder in paths if not is_python_folder(folder)]
