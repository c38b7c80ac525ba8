"""Scripts of the tree, run as `python scripts/NAME.py WORDS` would, in this process: a new one imports and loads kernels for seconds.

That each also starts in a process of its own, with nothing of the tests at hand, is what `tests/docs` sees to.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

ROOT = Path(__file__).parent.parent


class Ran(NamedTuple):
    """As `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def run_script(name: str, *words: object, cwd: Path | None = None) -> Ran:
    """`scripts/<name>.py`.  What it raises, other than SystemExit, comes through."""
    path = ROOT / "scripts" / f"{name}.py"
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", [str(path), *map(str, words)]))
        stack.enter_context(mock.patch.dict(os.environ, {"NO_COLOR": "1"}))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        if cwd is not None:
            stack.enter_context(contextlib.chdir(cwd))
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            code = end.code
    if isinstance(code, str):
        err.write(f"{code}\n")
    return Ran(code if isinstance(code, int) else 0 if code is None else 1, out.getvalue(), err.getvalue())
