"""Study of `tilefarm compile` without a plan: its share of the tuned gain, and its CPU time.

A network is tuned (one arm, the default search), and compiled by the command as a user runs it: a process that starts, loads the model,
plans every level, writes the file and ends, with its child process and with compiled kernels.  The share of a level is log(baseline /
quick) / log(baseline / tuned); the baseline is the search's program of tuned single operators.  Goals: 85% in the geometric mean over
networks and levels; 5 s for any shipped network, 3 s for ResNet-50.  Seconds are meaningful only on an idle computer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import yaml

from scripts.bench_cli import cpu_s, tilefarm
from scripts.studies import CELL, MEAN, SHIPPED, Arm, Pair, Row, Study, Table, geometric, goal, groups, medians, model_named
from simulator.compiled import read_compiled
from simulator.npu.files import atomic_write
from simulator.onnx_container import read_file

TUNED = "tuned"
SHARE, SECONDS, RESNET_SECONDS = 0.85, 5.0, 3.0


def rows(pair: Pair) -> Iterator[Row]:
    """Row per level.  CPU: the smaller of two runs, since the first may compile kernels."""
    result = pair.results[TUNED]
    with TemporaryDirectory() as folder:
        machine, out = Path(folder) / "machine.yaml", Path(folder) / "quick.onnx"
        atomic_write(machine, [yaml.safe_dump(pair.target_graph.machine.model_dump(mode="json")).encode()])
        words = ("compile", str(model_named(pair.name)), "--machine", str(machine), "--out", str(out))
        took = min(cpu_s(tilefarm(words)) for _ in range(2))
        compiled = read_compiled(out)
        size = len(read_file(out))
    for level in pair.levels:
        quick = compiled.cycles(level)[level]
        assert quick is not None
        baseline, tuned = result.baseline_cycles[level], result.cycles[level]
        cycles = {"baseline_cycles": baseline, "tuned_cycles": tuned, "quick_cycles": quick}
        share = log(baseline / quick) / log(baseline / tuned) if tuned < baseline else 1.0
        yield {"level": level, **cycles, "share": share, "compile_cpu_s": took, "tune_cpu_s": pair.cpu_s[TUNED], "file_bytes": size}


def mean(rows: Sequence[Row]) -> float:
    """Geometric, of shares; one that is below a hundredth counts as that."""
    return geometric(np.maximum(0.01, np.array([row["share"] for row in rows])))


def show(rows: Sequence[Row]) -> Iterator[Table | str]:
    for (machine,), machine_rows in groups(medians(rows, *CELL), "machine").items():
        table = []
        for (name,), levels in groups(machine_rows, "network").items():
            shares = [f"{row['share']:.0%}" for row in levels]
            table.append((name, *shares, f"{levels[0]['compile_cpu_s']:.1f}", f"{levels[0]['tune_cpu_s']:.1f}"))
        by_level = groups(machine_rows, "level")
        table.append((MEAN, *(f"{mean(level_rows):.0%}" for level_rows in by_level.values()), "", ""))
        yield f"{machine}: share of the tuned gain at each level, and CPU seconds of `compile` and of the search"
        yield Table(("<network", *(level for (level,) in by_level), "compile s", "tune s"), table)
        yield f"goal, {SHARE:.0%} in the geometric mean: {mean(machine_rows):.1%}, {goal(mean(machine_rows) >= SHARE)}"
        shipped = {row["network"]: row["compile_cpu_s"] for row in machine_rows if row["network"] in SHIPPED.split(",")}
        if shipped:
            slowest = max(shipped, key=lambda name: shipped[name])
            yield f"goal, {SECONDS:g} s for a shipped network: {slowest} {shipped[slowest]:.1f} s, {goal(shipped[slowest] <= SECONDS)}"
        if "resnet50" in shipped:
            yield f"goal, {RESNET_SECONDS:g} s for resnet50: {shipped['resnet50']:.1f} s, {goal(shipped['resnet50'] <= RESNET_SECONDS)}"


STUDY = Study(
    "quick", {TUNED: Arm()}, rows, show, networks=f"{SHIPPED},made:mobilenet_v2,made:efficientnet_b0,made:vit_b16",
    machines=("edge", "ascend310"), candidates=96, seeds=1,
)  # fmt: skip
