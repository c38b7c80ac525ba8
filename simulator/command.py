"""The rim of a command (`tilefarm` or `python -m compiler`): exceptions become an exit code and a line on stderr."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Any

import typer

from simulator.npu.errors import TilefarmError
from simulator.terminal import say

BAD_INPUT = 2
BUG = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED, TERMINATED = 130, 143
SEND_AGAIN_S = 0.01  # until a dropped interrupt comes again: behind the end of the callback that met it
OS_ERROR_HINTS = {  # errors of the operating system, not of the program -> advice
    errno.ENAMETOOLONG: "the name is too long for a file system",
    errno.EROFS: "is on a file system that is only read; give another folder, or set TMPDIR, XDG_CACHE_HOME",
    errno.ENOSPC: "no space is left on its disk",
    errno.EDQUOT: "the disk quota of its user is spent",
}

# the kernel frees all memory at exit; Python would search it for cycles first, with thousands of numba's objects
atexit.register(gc.freeze)


def new_app(add_completion: bool = False, **settings: Any) -> typer.Typer:
    """Typer app with plain-text help: rich formatting takes longer than all else of a small command."""
    return typer.Typer(add_completion=add_completion, pretty_exceptions_enable=False, rich_markup_mode=None, **settings)


def run_command(
    app: typer.Typer,
    name: str,
    arguments: Sequence[str],
    on_error: Callable[[TilefarmError], None] = lambda _: None,
    bug: Callable[[Exception], str] | None = None,
) -> int:
    """Parse and call; returns the exit code: 0, the code of a typed error, 2 for usage, 70 for a bug, 130 for an interrupt, 143 for
    SIGTERM.

    on_error: called with a typed error before its line is printed.  bug: returns the line for any other exception, and may record it;
    default: print the traceback.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal has no letters for is no bug
    stopped = (INTERRUPTED, "interrupted")

    def terminate(*_: object) -> None:
        nonlocal stopped
        stopped = (TERMINATED, "terminated")
        raise KeyboardInterrupt

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        # Python drops what is raised in a destructor or in a callback (of a weak reference, of C code), an interrupt too
        if lost.exc_type is not KeyboardInterrupt:
            old_hook(lost)
            return
        number = signal.SIGTERM if stopped[0] == TERMINATED else signal.SIGINT

        def send() -> None:
            while True:  # an interrupt inside this hook would be dropped for good
                time.sleep(SEND_AGAIN_S)
                frame = sys._current_frames().get(threading.main_thread().ident or 0)
                while frame is not None and frame.f_code is not send_again.__code__:
                    frame = frame.f_back
                if frame is None:
                    os.kill(os.getpid(), number)
                    return

        threading.Thread(target=send, name="signal", daemon=True).start()

    in_main = threading.current_thread() is threading.main_thread()
    old_handler = signal.signal(signal.SIGTERM, terminate) if in_main else None
    old_hook, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # some versions of typer turn KeyboardInterrupt into this code, others into Abort
            return _said(name, stopped[1], stopped[0])
        return code if isinstance(code, int) else 0
    except TilefarmError as error:
        on_error(error)
        return _said(name, str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _said(name, stopped[1], stopped[0])
    except BrokenPipeError:
        # the reader closed the pipe (`| head`); Python would report it again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001  the rim: a bug is a bug's line, not a traceback
        if isinstance(error, OSError) and error.errno in OS_ERROR_HINTS:  # any look at a path may be the first that finds it so
            return _said(name, f"{error.filename or 'a file'}: {OS_ERROR_HINTS[error.errno]}", BAD_INPUT)
        if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):  # raised by tempfile
            return _said(name, f"{error.strerror}; set TMPDIR to a folder that can be written", BAD_INPUT)
        usage = getattr(error, "format_message", None)  # click's own errors, whichever click typer carries
        if usage is None:
            return _said(name, _traceback(error) if bug is None else bug(error), BUG)
        if type(error).__name__ == "NoArgsIsHelpError":  # newer versions of click; the message is the help text
            for line in usage().splitlines():
                say(line)
            return BAD_INPUT
        context = getattr(error, "ctx", None)
        return _said(name, f"{usage()} (see {name if context is None else context.command_path} --help)", BAD_INPUT)
    finally:
        sys.unraisablehook = old_hook
        if old_handler is not None:
            signal.signal(signal.SIGTERM, old_handler)


def _traceback(error: Exception) -> str:
    import traceback

    for line in "".join(traceback.format_exception(error)).splitlines():
        say(line)
    return f"a bug: {type(error).__name__}: {error}"


def _said(name: str, text: str, code: int) -> int:
    sys.stdout.flush()
    say(f"{name}: {' '.join(text.split())}")
    return code
