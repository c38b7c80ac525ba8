"""Command line `tilefarm`: parse, call, print.

Exit codes: 0 done; 1 a check failed; 2 bad input (one line on stderr: the value and its place); 3 infeasible on this machine, or a smaller
share of the model on the NPU than `--min-npu-share`; 4 tuned, but the values are not confirmed against onnxruntime; 70 a bug (one line,
and a file with the details); 75 the Ray cluster went away (continue with `--resume`); 130 interrupted; 143 SIGTERM.
Each command is a module of this folder, imported on demand. Functions import heavy modules themselves, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from simulator import command
from simulator.command import new_app
from simulator.npu.errors import TilefarmError
from simulator.terminal import print_line, say
from tuner.cli.group import lazy_group
from tuner.cli.kernel_progress import report_kernels

DEBUG = "--debug"

# command (also its module's name) -> the first line of its help
COMMANDS = {
    "tune": "Search for the best plan at every contention level; writes RUN/best.onnx, plans, log and summary.",
    "study": "Tune the search's own settings with Optuna; writes STUDY/best.yaml for `tune --config`.",
    "sweep": "Every model on every machine with every seed: a run folder each, and DIR/index.parquet over all of them.",
    "train": "Train a cost model on the logs of runs, for `tune --model` and `compile --model`; says how well it knows unseen networks.",
    "quantize": "A float model to int8 by onnxruntime's quantiser, with ranges of given samples.",
    "compile": "Compile with given plans, without search: the same bytes every time.",
    "export": "Compile the best plans of a run into an ONNX file.",
    "run": "Execute the container on the simulated NPU, never the body.",
    "simulate": "Cycles, latency in us, bound, DDR bytes, balance and utilisation of every engine; with --trace, inferences under a "
    "changing load.",
    "trace": "Every instruction of a variant on a time line: engines, waits, memory, bandwidth; with --trace, inferences under a "
    "changing load.",
    "disasm": "The instructions of a variant as text.",
    "ls": "The runs below a folder: model, machine, state, speed-up per level.",
    "best": "The champions of a finished run.",
    "status": "How far a run is, also while it goes on: programs, failures, best so far; of a sweep its runs, of a study its trials.",
    "watch": "The page of a run while it goes on, for a browser on this computer.",
    "compare": "Two runs after the same number of measured programs, level by level.",
    "audit": "May the results of a finished run be trusted?  Champions timed again, beside the untuned plan, under noise, by other seeds. "
    "Exit 1 where not.",
    "report": "A finished run as one offline HTML page: variants, search, pipelines, buffers, roofline, predictions; also of a study or a "
    "sweep.",
    "log": "Look after a run's Parquet log.",
    "store": "Look after measurements that runs share (`--store`).",
    "calibrate": "Fit a machine file to a board by micro-programs; says how well each value is known, and what it predicts.",
    "machines": "The machines that there are, or every value of one, with unit and provenance.",
    "schema": "The JSON Schema of a file: plan.json, summary.json, a machine or a configuration (YAML, same keys).",
    "doctor": "Is everything here that a run needs?  Versions, disks, what Ray sees; with --whole a compile that is checked.  Exit 1 where "
    "not.",
    "plan": "Look at plans.",
}

app = new_app(
    name="tilefarm",
    help="Tune ONNX models for an NPU: one compiled pipeline per level of DDR contention, in one ONNX file.",
    no_args_is_help=True,
    cls=lazy_group(COMMANDS),
    add_completion=True,
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option(DEBUG, help="Of any command: show where an error came from.")] = False,
) -> None:
    del debug  # handled by `main`, anywhere on the line
    if version:
        from tuner.platform.crash import version_of

        print_line(version_of("tilefarm", "not installed (running from a source tree)"))
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = DEBUG in words  # accepted anywhere: users append it after they see an error
    words = [word for word in words if word != DEBUG]

    def on_error(error: TilefarmError) -> None:
        if debug:
            _details(error, words, debug)

    with report_kernels(search=words[:1] in (["tune"], ["sweep"])):
        return command.run_command(app, "tilefarm", words, on_error, lambda error: _bug(error, words, debug))


def _bug(error: Exception, words: Sequence[str], debug: bool) -> str:
    from tuner.platform.crash import error_line, write_crash_file

    path = write_crash_file(_details(error, words, debug), _folders(words))
    location = "which no file could be written about" if path is None else f"its details are in {path}"
    hint = "" if debug else f" ({DEBUG} shows them)"
    return f"`{_doing(words)}` met a bug of tilefarm's: {error_line(error).rstrip(': ')}; please report it, {location}{hint}"


def _details(error: Exception, words: Sequence[str], debug: bool) -> str:
    """Details of an error; with --debug also printed to the terminal."""
    from tuner.platform.crash import crash_details

    text = crash_details(error, _doing(words))
    if debug:
        for line in text.splitlines():
            say(line)
    return text


def _doing(words: Sequence[str]) -> str:
    return shlex.join(["tilefarm", *words])


def _folders(words: Sequence[str]) -> Iterator[Path]:
    """Run folders that a command names, the output folder first."""
    from tuner.runs.folder import IDENTITY

    values = [word.removeprefix("--out=") for word in words]
    outputs = [value for option, value in zip(words, values[1:], strict=False) if option == "--out"]
    return (Path(text) for text in (*outputs, *values) if os.path.isfile(os.path.join(text, IDENTITY)))
