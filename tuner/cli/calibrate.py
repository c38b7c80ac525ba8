"""Command `tilefarm calibrate`: fit a machine file to a board; print the accuracy of every value and of predictions."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line, say
from tuner.cli import options
from tuner.cli.group import FILE, READ
from tuner.cli.text import print_json, print_next, print_table

if TYPE_CHECKING:
    from tuner.calibrate.identify import Calibration
    from tuner.calibrate.prediction_check import HeldOut

app = new_app()


@app.command()
def calibrate(
    machine: options.MachineName,
    out: Annotated[Path, FILE, typer.Option(metavar="FILE.yaml", help="Where to write the machine file.")],
    *,
    runner: options.RunnerName = "",
    log: Annotated[
        Path | None, READ, typer.Option(metavar="FILE.csv", help="Log of a board that ran --streams, in place of a runner.")
    ] = None,
    streams: Annotated[Path | None, READ, typer.Option(metavar="FILE.u65", help="Raw words that the board ran.")] = None,
    readings: Annotated[int, typer.Option(metavar="N", min=8, help="Of each micro-program, at most; fewer where all is known.")] = 256,
    tries: Annotated[int, typer.Option(metavar="N", min=1, help="Of a reading that fails.")] = 3,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="S", min=0.001, help="Of a command, for one reading.")] = 10.0,
    check: Annotated[
        int | None, typer.Option("--check", metavar="N", min=2, help="Measure and predict N segments of networks too.")
    ] = None,
    networks: Annotated[
        str | None, READ, typer.Option(metavar="A,B", help="Whose segments --check draws: light:NAME, made:NAME or files.")
    ] = None,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    from simulator.npu.machine_file import load_machine, machine_file
    from tuner.calibrate.board_log import calibrate_log, open_clock
    from tuner.calibrate.identify import calibrate_board as fit
    from tuner.calibrate.prediction_check import NETWORKS
    from tuner.calibrate.prediction_check import check as predict
    from tuner.calibrate.readings import ProbedBoard
    from tuner.calibrate.write import machine_text, name_calibrated
    from tuner.measure.runner_api import Bench
    from tuner.measure.runners import find_runner
    from tuner.measure.simulator_runner import measure

    if networks is not None and check is None:
        raise BadInputError("--networks goes with --check")
    if (log is None) == (not runner) or (log is None) != (streams is None):
        raise BadInputError("calibrate: expected --runner, or --log with --streams")
    if log is not None and check is not None:
        raise BadInputError("--check goes with --runner")
    given = load_machine(machine)
    source = machine_file(machine).read_text(encoding="utf-8")
    if log is not None and streams is not None:
        calibration = calibrate_log(given, open_clock(given, streams), log)
        words = ["tilefarm", "calibrate", "--log", log.name, "--streams", streams.name, "--machine", machine]
        _write(out, machine_text(source, name_calibrated(calibration.machine), calibration, shlex.join(words)))
        if as_json:
            print_json(_as_json(calibration, None, out))
            return
        _show(calibration)
        print_line(f"{out}: {name_calibrated(calibration.machine).name}; {calibration.readings:,} readings")
        return
    bench = Bench(find_runner(runner, timeout_s) or measure, 1, tries)
    board = ProbedBoard(runner, bench, given, (lambda line: None) if quiet else say)
    calibration = fit(board, readings)
    fitted = name_calibrated(calibration.machine)
    command = shlex.join(["tilefarm", "calibrate", "--runner", runner, "--machine", machine])
    _write(out, machine_text(source, fitted, calibration, command))
    # prediction of segments that the fit has not measured
    held_out = None if check is None else predict(board, fitted, check, seed, tuple(networks.split(",")) if networks else NETWORKS)
    if as_json:
        print_json(_as_json(calibration, held_out, out))
        return
    _show(calibration)
    if held_out is not None:
        _show_held_out(held_out)
    print_line(f"{out}: {fitted.name}, digest {fitted.digest}; {board.readings:,} readings, which scatter by {calibration.spread:.1%}")
    print_next(("tune", "MODEL.onnx", "--machine", out, "--runner", runner, "--out", "RUN"))


def _write(out: Path, text: str) -> None:
    from simulator.npu.files import atomic_write

    atomic_write(out, [text.encode()])


def _show(calibration: Calibration) -> None:
    rows = [
        (fit.name, f.key.path, f"{f.given:g}", f"{f.value:g}", "" if f.source == "given" else f"{f.half:.2g}", f.key.unit, f.source)
        for fit in calibration.classes
        for f in fit.findings
    ]
    print_table(("<class", "<key", "given", "value", "+-", "<unit", "<known"), rows)
    print_line("")
    probed = [fit for fit in calibration.classes if fit.probes]
    columns = ("<class", "probes", "readings", "residual", "noise", "worst", "<probe")
    print_table(
        columns,
        [(c.name, c.probes, c.readings, f"{c.residual:.2%}", f"{c.noise:.2%}", f"{c.worst:+.2%}", c.worst_probe) for c in probed],
    )
    print_line("")
    for line in _doubts(calibration):
        print_line(line)


def _doubts(calibration: Calibration) -> Iterator[str]:
    """Values without a reliable fit, with the reason, and classes that the model does not explain."""
    for finding in calibration.findings:
        if finding.why:
            verdict = "not identified" if finding.source == "given" else "uncertain"
            yield f"{finding.key.path}: {verdict}, {finding.value:g}; {finding.why}"
    for fit in calibration.classes:
        if fit.unexplained:
            deviation = f"probes are {fit.residual:.1%} off, noise explains {fit.noise:.1%}"
            yield f"class {fit.name}: {deviation}: the board does what this machine's description cannot say"


def _show_held_out(held_out: HeldOut) -> None:
    print_line(
        f"held out: {len(held_out.measured)} segments of {', '.join(held_out.networks)}: predicted within {held_out.median:.2%} (median),"
        f" {held_out.p95:.2%} (p95), {held_out.error.max():.2%} (worst); {held_out.pairs:.2%} of pairs ranked right"
    )


def _as_json(calibration: Calibration, held_out: HeldOut | None, out: Path) -> dict[str, Any]:
    classes = [
        {
            "name": fit.name, "probes": fit.probes, "readings": fit.readings, "residual": fit.residual, "noise": fit.noise,
            "worst": fit.worst, "worst_probe": fit.worst_probe, "unexplained": fit.unexplained,
            "keys": [
                {
                    "key": f.key.path, "unit": f.key.unit, "given": f.given, "value": f.value, "half": f.half, "low": f.low, "high": f.high,
                    "source": f.source, "why": f.why,
                }
                for f in fit.findings
            ],
        }
        for fit in calibration.classes
    ]  # fmt: skip
    checked = held_out and {
        "networks": list(held_out.networks), "segments": len(held_out.measured), "median": held_out.median, "p95": held_out.p95,
        "worst": float(held_out.error.max()), "pairs": held_out.pairs,
    }  # fmt: skip
    return {"out": str(out), "readings": calibration.readings, "spread": calibration.spread, "classes": classes, "check": checked or None}
