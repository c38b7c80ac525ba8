"""`tune`, `study` and `sweep`: call the driver, print the summary that it left in the folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulator.npu.errors import BadInputError
from simulator.terminal import print_line, say
from tuner.commands.text import print_json, print_next, print_table
from tuner.folder.runfolder import IDENTITY, read_json
from tuner.merit import speedup
from tuner.request import StudyRequest, SweepRequest, TuneRequest

SUMMARY = "summary.json"
UNCONFIRMED = 4  # exit code


def tune(request: TuneRequest, as_json: bool) -> int:
    """`tilefarm tune`.  Returns `UNCONFIRMED` where values are not onnxruntime's."""
    from tuner.driver import tune as drive

    if request.candidates is not None and request.seconds is not None:
        raise BadInputError("--candidates and --seconds: give one of them")
    with _resumable(request.out):
        drive(request)
    summary = read_json(request.out / SUMMARY)
    code = 0 if summary["status"] == "done" else UNCONFIRMED
    if as_json:
        print_json(summary)
        return code
    print_levels(summary["levels"])
    print_unconfirmed(summary)
    early = {"plateau": "; ended early: nothing was gained any more", "exhausted": "; ended early: nothing new was left to try"}
    why = next((early[reason] for reason in summary["stopped"] if reason in early), "")
    print_line(f"{request.out}: {summary['status']}{why}; {request.out / 'best.onnx'}")
    print_next(("report", request.out), ("run", request.out / "best.onnx", "--input", "random", "--check"))
    return code


def print_unconfirmed(summary: Mapping[str, Any]) -> None:
    """What is wrong with the values of a run, and why, if anything is."""
    for line in summary["unconfirmed"]:
        print_line(f"values not confirmed: {line}")


def print_levels(levels: Mapping[str, Mapping[str, Any]]) -> None:
    """A table of a summary's levels, in cycles where nothing else is said; 80 columns take eight digits of them."""
    columns = ("<level", "share", "<plan", "cycles", "latency", "baseline", "speed-up", "roofline")
    print_table(columns, [_level(name, row) for name, row in levels.items()])


def _level(name: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    baseline = row["baseline_layerwise_cycles"]
    plan = f"as {row['same_as']}" if row.get("same_as") else row["plan"][:8]
    latency = f"{us:.1f} us" if (us := row["latency_us"]) < 1000 else f"{us / 1000:,.2f} ms"
    gain = speedup(baseline / row["cycles"] if baseline else None)
    return name, f"{row['ddr_share']:g}", plan, row["cycles"], latency, baseline, gain, row["roofline_cycles"]


def study(request: StudyRequest, as_json: bool) -> int:
    """`tilefarm study`.  Returns 1 where no trial ran on every network."""
    from tuner.study_run import study as drive

    with _resumable(request.out):
        summary = drive(request, _quiet if request.quiet else say)
    if as_json:
        print_json(summary)
        return int(summary["best"] is None)
    best = summary["best"]
    if best is None:
        why = next((f"; trial {trial['number']}: {trial['error']}" for trial in summary["trials"] if trial["error"]), "")
        print_line(f"{request.out}: {summary['trials_done']} trials, none ran on every network{why}")
        return 1
    gain = speedup(1 / best["ratio_to_baseline"])
    print_line(f"{request.out}: {summary['trials_done']} trials; best is trial {best['trial']}, {gain} the untuned plan")
    print_table(("<setting", "value"), [(name, f"{value:g}") for name, value in best["params"].items()])
    print_next(("report", request.out), ("tune", "MODEL.onnx", "--machine", "M", "--config", request.out / "best.yaml", "--out", "RUN"))
    return 0


def sweep(request: SweepRequest, as_json: bool) -> int:
    """`tilefarm sweep`.  Returns 1 where a cell failed, else `UNCONFIRMED` where values of one are not onnxruntime's."""
    from tuner.folder.runs import ENDED, INDEX
    from tuner.sweep import sweep as drive

    with _resumable(request.out):
        index = drive(request, _quiet if request.quiet else say)
    failed, unconfirmed = index[index["state"] == "failed"], index[index["state"] == "unconfirmed"].drop_duplicates("path")
    code = 1 if len(failed) else UNCONFIRMED if len(unconfirmed) else 0
    runs = index.drop_duplicates("path")
    tasks, shared = int(runs["tasks"].sum()), int(runs["shared_tasks"].sum())
    if as_json:
        rows = json.loads(index.to_json(orient="records"))
        print_json({"out": str(request.out), "index": str(request.out / INDEX), "tasks": tasks, "shared_tasks": shared, "rows": rows})
        return code
    done = index[index["state"].isin(ENDED)]
    if len(done):
        # over seeds the geometric mean: they are ratios
        logs = done["speedup"].astype("float64").map(math.log)
        gains = logs.groupby([done["model"], done["machine"], done["level"]], sort=False).mean().map(math.exp)
        levels = list(dict.fromkeys(done["level"]))
        rows = [
            (model, machine, *(speedup(gains.get((model, machine, level))) for level in levels))
            for model, machine in dict.fromkeys(zip(done["model"], done["machine"], strict=True))
        ]
        print_line("speed-up over the baseline, by level")
        print_table(("<model", "<machine", *levels), rows)
    for _, row in failed.iterrows():
        print_line(f"{row['path']}: failed: {row['error']}")
    for _, row in unconfirmed.iterrows():
        print_line(f"{row['path']}: values not confirmed: {row['error']}")
    ended = f"{done['path'].nunique()} of {index['path'].nunique()} runs done"
    print_line(f"{request.out}: {ended}; pd.read_parquet({str(request.out / INDEX)!r})")
    if shared:
        print_line(f"{shared:,} of {tasks:,} tasks had been measured by another of these runs")
    if len(done):
        print_next(("report", request.out), ("ls", request.out))
    return code


@contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Whoever interrupts is told how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if (out / IDENTITY).is_file():
            say(f"{out}: --resume continues it")
        raise


def _quiet(_: str) -> None:
    pass
