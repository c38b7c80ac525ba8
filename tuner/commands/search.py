"""`tune` and `study`: call the driver, print the summary that it left in the folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from simulator.npu.errors import BadInputError
from tuner.commands.text import print_json, print_table
from tuner.request import StudyRequest, TuneRequest
from tuner.runfolder import IDENTITY, read_json

SUMMARY = "summary.json"


def tune(request: TuneRequest, as_json: bool) -> None:
    """`tilefarm tune`."""
    from tuner.tune import tune as drive

    if request.candidates is not None and request.seconds is not None:
        raise BadInputError("--candidates and --seconds: give one of them")
    try:
        drive(request)
    except KeyboardInterrupt:
        if (request.out / IDENTITY).is_file():
            sys.stderr.write(f"{request.out}: --resume continues it\n")
        raise
    summary = read_json(request.out / SUMMARY)
    if as_json:
        print_json(summary)
        return
    print_levels(summary["levels"])
    print(f"{request.out}: {summary['status']}; {request.out / 'best.onnx'}")
    print(f"next: tilefarm report {request.out}; tilefarm run {request.out / 'best.onnx'} --input random --check")


def print_levels(levels: Mapping[str, Mapping[str, Any]]) -> None:
    """A table of a summary's levels."""
    columns = ("<level", "DDR share", "<plan", "cycles", "latency us", "baseline cycles", "of baseline", "roofline cycles")
    print_table(columns, [_level(name, row) for name, row in levels.items()])


def _level(name: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    baseline = row["baseline_layerwise_cycles"]
    plan = f"as {row['same_as']}" if row.get("same_as") else row["plan"][:12]
    ratio = f"{row['cycles'] / baseline:.3f}" if baseline else ""
    return name, f"{row['ddr_share']:g}", plan, row["cycles"], f"{row['latency_us']:,.1f}", baseline, ratio, row["roofline_cycles"]


def study(request: StudyRequest, as_json: bool) -> None:
    """`tilefarm study`."""
    from tuner.study_run import study as drive

    summary = drive(request, _quiet if request.quiet else _say)
    if as_json:
        print_json(summary)
        return
    best = summary["best"]
    if best is None:
        print(f"{request.out}: {summary['trials_done']} trials, none ran on every network")
        return
    print(
        f"{request.out}: {summary['trials_done']} trials; best is trial {best['trial']}, {best['ratio_to_baseline']:.4f} of layer by layer"
    )
    print_table(("<setting", "value"), [(name, f"{value:g}") for name, value in best["params"].items()])


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _quiet(_: str) -> None:
    pass
