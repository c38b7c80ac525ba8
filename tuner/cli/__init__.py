"""The command `tilefarm`: parse, call, print.

Exit codes: 0 done; 1 a check failed; 2 bad input (one line on stderr: what and where); 3 infeasible on this machine;
4 done, but values of a tuned model are not confirmed against onnxruntime; 130 interrupted.
Everything heavy is imported inside the command that needs it, so that `tilefarm --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from simulator.npu.errors import TilefarmError
from tuner.cli import compiled, inspect, runs, search

INTERRUPTED = 130
BAD_INPUT = 2

app = typer.Typer(
    name="tilefarm",
    help="Tune ONNX models for an NPU: one compiled pipeline per level of DDR contention, in one ONNX file.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _group in (search, compiled, runs, inspect):
    app.add_typer(_group.app)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            print(installed("tilefarm"))
        except PackageNotFoundError:
            print("not installed (running from a source tree)")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    command = typer.main.get_command(app)
    try:
        code = command.main(list(sys.argv[1:] if arguments is None else arguments), prog_name="tilefarm", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # some versions of typer turn KeyboardInterrupt into this code, others into Abort
            return _say("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else 0
    except TilefarmError as error:
        return _say(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # the reader has enough (`| head`); Python would complain again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        usage = getattr(error, "format_message", None)  # click's own errors, whichever click typer carries
        if usage is None:
            raise
        return _say(f"{' '.join(usage().split())} (see {_path_of(error)} --help)", BAD_INPUT)


def _path_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "tilefarm"


def _say(text: str, code: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"tilefarm: {' '.join(text.split())}\n")
    return code
