"""A package as a command of its own: `python -m simulator`, `python -m compiler`.  Small ones; the command of all is `tilefarm`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import typer

from simulator.npu.errors import TilefarmError
from simulator.terminal import say

BAD_INPUT = 2
BUG = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130


def new_app() -> typer.Typer:
    """Help is plain text: what rich draws around it takes longer than everything else together."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def run(app: typer.Typer, name: str, arguments: Sequence[str]) -> int:
    """Parse and call; returns the exit code: 0, that of a typed error, 2 of usage, 70 of a bug, 130 where it is interrupted."""
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except TilefarmError as error:
        return _said(name, str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _said(name, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        # the reader has enough; Python would complain again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001  the rim: click's own errors have a text, whichever click typer carries; others are bugs
        usage = getattr(error, "format_message", None)
        if usage is not None:
            return _said(name, f"{usage()} (see {name} --help)", BAD_INPUT)
        for line in traceback.format_exc().splitlines():
            say(line)
        return BUG


def _said(name: str, text: str, code: int) -> int:
    say(f"{name}: {' '.join(text.split())}")
    return code
