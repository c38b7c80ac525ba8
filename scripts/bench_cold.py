"""Cost of compiling kernels with an empty cache: CPU and wall time of commands, and of their kernels one by one.

    python scripts/bench_cold.py [--cases compile,first,all] [--most N] [--json]

compile   `compile light:squeezenet --machine edge`
first     the search of README's first command, with 16 programs in one process
all       float16 and int8, `compile`, `tune`, `run --check`, and `simulate`, one after the other with one cache

Each case begins with an empty cache.  Seconds depend on the computer, so kernels are also given as multiples of a reference kernel, a sum
of products over two arrays that each process compiles first.  functions: compiled functions, counted once per type; most of them are parts
of the kernels that call them (`simulator.kernel_compiling`).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SEARCH = "--candidates 16 --backend serial --quiet"
CASES: dict[str, list[str]] = {
    "compile": ["compile light:squeezenet --machine edge --out {}/out.onnx"],
    "first": [f"tune light:squeezenet --machine edge-shared --out {{}}/run {SEARCH}"],
    "all": [
        "compile light:squeezenet --machine edge --out {}/float.onnx --check",
        "compile made:mobilenet_v2-small,quantised=qdq --machine ethos-u65-512 --out {}/int8.onnx --check",
        f"tune made:bert_base-small --machine edge-shared --out {{}}/run {SEARCH}",
        "run {}/run/best.onnx --input random --check",
        "simulate {}/run/best.onnx --trace periodic:1",
    ],
}
RECORDED = """
import json, os, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # nobody compiles beside
import numpy as np
from numba import njit
from simulator.kernel_compiling import listeners

@njit
def reference(a, b):
    total = 0.0
    for i in range(a.shape[0]):
        for j in range(b.shape[0]):
            total += a[i] * b[j]
    return total

kernels = []
listeners.append(lambda kernel: None if kernel is None else kernels.append(kernel._replace(arguments=())._asdict()))
reference(np.ones(1), np.ones(1))
from tuner.cli import main
code = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    json.dump({"kernels": kernels, "cpu_s": time.process_time(), "code": code}, file)
"""


def run_case(name: str) -> dict[str, Any]:
    """Its commands in an empty cache.  Raises SystemExit where one fails."""
    kernels, reference_s, cpu_s, wall_s = list[dict[str, Any]](), list[float](), 0.0, 0.0
    with TemporaryDirectory(prefix="tilefarm-") as folder:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": f"{folder}/cache"}
        for number, text in enumerate(CASES[name]):
            report_file = Path(folder) / f"{number}.json"
            begin = time.monotonic()
            words = [sys.executable, "-c", RECORDED, str(report_file), *shlex.split(text.format(folder))]
            process = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
            wall_s += time.monotonic() - begin
            if not report_file.exists() or (report := json.loads(report_file.read_text()))["code"]:
                raise SystemExit(f"{text}: {process.stderr.strip().splitlines()[-1] if process.stderr.strip() else 'failed'}")
            reference, *later = report["kernels"]
            reference_s.append(reference["cpu_s"])
            kernels += later
            cpu_s += report["cpu_s"]
    unit = sum(reference_s) / len(reference_s)
    rows = [{**kernel, "times": kernel["cpu_s"] / unit} for kernel in sorted(kernels, key=lambda kernel: -kernel["cpu_s"])]
    return {
        "commands": CASES[name], "cpu_s": cpu_s, "wall_s": wall_s, "reference_cpu_s": unit, "kernels": len(rows),
        "functions": sum(row["functions"] for row in rows), "kernels_cpu_s": sum(row["cpu_s"] for row in rows), "slowest": rows,
    }  # fmt: skip


def describe(name: str, report: dict[str, Any], limit: int) -> Iterator[str]:
    unit = report["reference_cpu_s"]
    kernels = f"{report['kernels']} kernels of {report['functions']} functions"
    yield f"{name}: {report['cpu_s']:.1f} s of CPU, {report['wall_s']:.1f} s; {kernels}"
    yield f"  kernels: {report['kernels_cpu_s']:.1f} s of CPU, {report['kernels_cpu_s'] / unit:,.0f} times the reference's {unit:.2f} s"
    for row in report["slowest"][:limit]:
        yield f"  {row['cpu_s']:6.2f} s {row['times']:6.1f} times  {row['functions']:4d} functions  {row['name']}"


def main(
    cases: Annotated[str, typer.Option(metavar="NAME,...", help=f"Of {', '.join(CASES)}.")] = ",".join(CASES),
    most: Annotated[int, typer.Option(metavar="N", help="Kernels that are named, the slowest.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """CPU and wall time of commands that find no kernel compiled."""
    names = cases.split(",")
    if unknown := [name for name in names if name not in CASES]:
        raise SystemExit(f"--cases {unknown[0]}: expected some of {', '.join(CASES)}")
    reports = {name: run_case(name) for name in names}
    if as_json:
        print(json.dumps(reports, indent=1))
    else:
        print("\n".join(line for name in names for line in describe(name, reports[name], most)))


if __name__ == "__main__":
    typer.run(main)
