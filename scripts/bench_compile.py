"""CPU seconds of `tilefarm compile` by network, with plans by prediction and without the check of values.

    python scripts/bench_compile.py [--networks made:yolo,light:squeezenet] [--machine edge]

Every network has a process of its own; its seconds are user and system time.  A small network is compiled before, so that kernels are in
the cache.  Cycles are those of the first level: a faster compilation must not make slower programs.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.studies import network_list  # noqa: E402
from tuner.cli.text import print_table  # noqa: E402

NETWORKS = "made:whisper,made:segformer,made:yolo,made:unet,made:nasnet_mobile,made:llama,layers=4,made:llama,layers=16"
WARM_UP = "made:llama-small"


def main(
    networks: Annotated[str, typer.Option(metavar="A,B", help="light:NAME, made:NAME or files.")] = NETWORKS,
    machine: Annotated[str, typer.Option(metavar="NAME")] = "edge",
) -> None:
    """Print CPU seconds of `tilefarm compile` by network."""
    names = network_list(networks)
    rows = []
    for name in (WARM_UP, *names):
        before = _cpu_seconds()
        operators, cycles = compile_once(name, machine)
        seconds = _cpu_seconds() - before
        sys.stderr.write(f"{name}: {seconds:.1f} s\n")
        rows.append((name.removeprefix("made:"), operators, f"{seconds:.1f}", f"{1000 * seconds / operators:.0f}", cycles))
    print_table(("<network", "operators", "CPU s", "ms per operator", "cycles"), rows[1:])


def compile_once(name: str, machine: str) -> tuple[int, int]:
    """(operators, cycles of the first level) of a network compiled by a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tuner", "compile", name, "--machine", machine, "--out", f"{folder}/out.onnx", "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    report = json.loads(done.stdout)
    return report["operators"], next(iter(report["levels"].values()))["cycles"]


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    typer.run(main)
