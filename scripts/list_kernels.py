"""Write `simulator/kernels.json`: kernels in the order of their first use, which idle cores compile ahead.

    python scripts/list_kernels.py [--out FILE]

The list has the kernels of README's first command with few programs, from an empty cache.  Kernels of only some models are left out:
most emitters, which are compiled when an operator asks for them, and kernels that few programs reach.  Run it after adding a kernel or
changing its arguments.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "compile": "compile light:squeezenet --machine edge --out {}/out.onnx",
    "search": "tune light:squeezenet --machine edge-shared --out {}/run {}",
}
SEARCH = "--candidates 8 --backend serial --quiet"
RECORDED = """
import json, os, sys
from contextlib import suppress
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # nobody compiles beside
from simulator.kernel_compiling import listeners
from simulator.kernel_list import describe_type

kernels, emitters = [], ("conv_part", "conv_rows", "program_rows")  # of products and element-wise operators, which every network has


def note(kernel):
    if kernel is None:
        return
    module, name = kernel.name.rsplit(".", 1)
    if not module.endswith("_emitter") or name in emitters:
        with suppress(ValueError):
            kernels.append((module, name, [describe_type(kind) for kind in kernel.arguments]))


listeners.append(note)
from tuner.cli import main

code = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    json.dump([kernel for kernel in kernels if "<" not in kernel[0]], file)
sys.exit(code)
"""


def main(out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write it.")] = ROOT / "simulator/kernels.json") -> None:
    """Note the kernels that programs need."""
    kernels = {}
    with TemporaryDirectory(prefix="tilefarm-") as folder:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": f"{folder}/cache"}
        for name, command in COMMANDS.items():
            report_file = Path(folder, "told.json")
            words = [sys.executable, "-c", RECORDED, str(report_file), *shlex.split(command.format(folder, SEARCH))]
            subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL)
            kernels[name] = json.loads(report_file.read_text())
    lists = (f'"{name}": [\n' + ",\n".join(map(json.dumps, listed)) + "\n]" for name, listed in kernels.items())
    out.write_text("{" + ",\n".join(lists) + "}\n")
    print(f"{sum(map(len, kernels.values()))} kernels: {out}")


if __name__ == "__main__":
    typer.run(main)
