"""Study of `tilefarm calibrate` with a noisy clock: fitted values against those of hidden machines, and predictions of held-out segments.

A hidden machine is the preset with every fitted value changed by a random factor of 0.7 to 1.4 (0 becomes up to a dozen cycles, a launch up
to 3,000), behind readings with normal noise.  A value reported as known is right if it is within 2% or one unit.  A value reported as
unobservable is right if the hidden value is among those with the same times.  Then segments of networks, which no probe covers, are
measured (each 24 times) and predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from scripts.studies import Json, Out, Row, Table, finish, goal, spent_s, write_rows
from simulator.npu.machine_file import load_machine
from tuner.calibrate.hidden import hidden_machine
from tuner.calibrate.identify import calibrate_board
from tuner.calibrate.keys import read_value
from tuner.calibrate.prediction_check import NETWORKS, check
from tuner.calibrate.readings import ProbedBoard
from tuner.measure.runner_api import Bench
from tuner.measure.simulator_runner import SimulatedBoard

MEDIAN, P95, PAIRS = 0.02, 0.05, 0.98  # the goals


def calibrate_seed(machine: str, seed: int, noise: float, segments: int, networks: Sequence[str]) -> tuple[list[Row], Row]:
    """A row per value, and one of the segments."""
    truth_machine = load_machine(machine)
    hidden = hidden_machine(truth_machine, seed)
    board = ProbedBoard(f"hidden {machine}", Bench(SimulatedBoard(hidden, noise, seed)), truth_machine)
    result = calibrate_board(board)
    rows: list[Row] = []
    for fitted_class in result.classes:
        for finding in fitted_class.findings:
            truth = read_value(hidden, finding.key.path)
            accurate = abs(finding.value - truth) <= max(1 if finding.key.step >= 1 else 0, 0.02 * truth)
            right = finding.low <= truth <= finding.high if finding.source == "given" else accurate
            rows.append({
                "machine": machine, "seed": seed, "class": fitted_class.name, "key": finding.key.path, "given": finding.given,
                "hidden": truth,
                "fitted": finding.value, "half": finding.half, "error": finding.value / truth - 1 if truth else float(finding.value != 0),
                "known": finding.source, "right": right, "why": finding.why,
            })  # fmt: skip
    row: Row = {"machine": machine, "seed": seed, "keys": len(rows), "readings": result.readings, "spread": result.spread}
    if segments:
        held_out = check(board, result.machine, segments, seed, networks)
        row |= {"segments": segments, "median": held_out.median, "p95": held_out.p95}
        row |= {"worst": float(held_out.error.max()), "pairs": held_out.pairs}
    return rows, row


def report(rows: Sequence[Row], summary: Sequence[Row]) -> Iterator[Table | str]:
    table = [row | {"said": "yes" if row["right"] else "NO"} for row in rows]
    columns = ("given:g", "hidden:g", "fitted:g", "+-=half:.2g", "error:+.2%", "<known", "<right=said")
    yield Table.from_rows(table, "<machine", "seed", "<key", *columns)
    yield ""
    calibrated = [row for row in rows if row["known"] == "calibrated"]
    right = sum(row["right"] for row in calibrated)
    yield f"said to be known: {right} of {len(calibrated)} right within 2% or one of their unit; goal all: {goal(right == len(calibrated))}"
    other_rows = [row for row in rows if row["known"] != "calibrated"]
    yield f"named as not known: {len(other_rows)} of {len(rows)}, of which {sum(row['right'] for row in other_rows)} as is said of them"
    for row in summary:
        if "segments" in row:
            reached = goal(row["median"] <= MEDIAN and row["p95"] <= P95 and row["pairs"] >= PAIRS)
            yield (
                f"{row['machine']}, seed {row['seed']}: {row['readings']:,} readings with {row['spread']:.1%} noise;"
                f" {row['segments']} segments predicted within {row['median']:.2%} (median), {row['p95']:.2%} (p95), {row['worst']:.2%}"
                f" (worst); {row['pairs']:.2%} of pairs right; goals {MEDIAN:.0%}, {P95:.0%}, {PAIRS:.0%}: {reached}"
            )


def main(
    out: Out,
    machines: Annotated[str, typer.Option(help="Comma-separated presets or YAML files.")] = "edge,ascend310p",
    seeds: Annotated[int, typer.Option(min=1, help="Hidden machines of each: seeds 1..")] = 1,
    noise: Annotated[float, typer.Option(min=0, help="Standard deviation of a reading, in parts of it.")] = 0.03,
    segments: Annotated[int, typer.Option(min=0, help="Held out, of each; 0 for none.")] = 500,
    networks: Annotated[str, typer.Option(help="Comma-separated; their segments are held out.")] = ",".join(NETWORKS),
    as_json: Json = False,
) -> None:
    """Find hidden machines through noise, and predict held-out segments."""
    rows, summary = [], []
    for machine in machines.split(","):
        for seed in range(1, seeds + 1):
            seed_rows, row = calibrate_seed(machine, seed, noise, segments, networks.split(","))
            rows += seed_rows
            summary.append(row)
            write_rows(out / "keys.csv", rows)
            write_rows(out / "segments.csv", summary)
    finish("calibration", out, [*rows, *summary], report(rows, summary), spent_s(), as_json)
