"""Matrix products on systolic arrays without pipelining, compared with SCALE-Sim 3.

    python scripts/compare_scalesim.py [--venv FOLDER] [--json]

Creates a virtual environment (in FOLDER, which is reused; otherwise a temporary one), installs scalesim from the package registry into it,
and runs it on a sweep of products per array and dataflow, without memory stalls.  The same products are MMAD programs on the timing
simulator.  SCALE-Sim gives the number of the last cycle, counted from 0, so one is added.  Exit code 1 if a product differs.  Not part of
CI: it needs the registry.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.gemm import ATOM, array_machine, mmads  # noqa: E402
from simulator.npu.level import NO_CONTENTION  # noqa: E402
from simulator.timing import simulate  # noqa: E402

PACKAGES = ("scalesim==3.0.0", "numpy<2.3")  # it uses what numpy 2.3 took away
ARRAYS = ((8, 8), (16, 16), (16, 32), (32, 32))
DATAFLOWS = {"os": "output-stationary", "ws": "weight-stationary"}
PRODUCTS = (  # m, k, n in multiples of 16, which is what an MMAD counts in
    (16, 16, 16), (32, 48, 16), (48, 80, 112), (64, 64, 64), (16, 256, 96), (208, 32, 48), (96, 144, 32), (128, 128, 128), (16, 512, 16),
    (224, 64, 16),
)  # fmt: skip

_CONFIG = """\
[general]
run_name = out
[run_presets]
InterfaceBandwidth = CALC
UseRamulatorTrace = False
[architecture_presets]
ArrayHeight = {rows}
ArrayWidth = {columns}
IfmapSramSzkB = 4096
FilterSramSzkB = 4096
OfmapSramSzkB = 4096
IfmapOffset = 0
FilterOffset = 10000000
OfmapOffset = 20000000
Dataflow = {dataflow}
ReadRequestBuffer = 64
WriteRequestBuffer = 64
[layout]
IfmapCustomLayout = False
FilterCustomLayout = False
IfmapSRAMBankBandwidth = 10
IfmapSRAMBankNum = 10
IfmapSRAMBankPort = 2
FilterSRAMBankBandwidth = 10
FilterSRAMBankNum = 10
FilterSRAMBankPort = 2
[sparsity]
SparsitySupport = false
"""


def install(folder: Path) -> Path:
    """The environment's python; installs nothing where scalesim is there already."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    if subprocess.run([python, "-c", "import scalesim"], capture_output=True, check=False).returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def scalesim_cycles(python: Path, rows: int, columns: int, dataflow: str) -> list[int]:
    """SCALE-Sim's cycles of every product."""
    with tempfile.TemporaryDirectory(prefix="tilefarm-scalesim-") as name:
        folder = Path(name)
        (folder / "array.cfg").write_text(_CONFIG.format(rows=rows, columns=columns, dataflow=dataflow))
        lines = [f"p{i}, {m}, {n}, {k}," for i, (m, k, n) in enumerate(PRODUCTS)]
        (folder / "products.csv").write_text("\n".join(["Layer, M, N, K,", *lines, ""]))
        ones = "1, " * 20  # layouts are read and, without custom ones, not used
        (folder / "layout.csv").write_text("\n".join(["Layer, " + ones, *(f"p{i}, {ones}" for i in range(len(PRODUCTS))), ""]))
        files = ["-c", "array.cfg", "-t", "products.csv", "-l", "layout.csv", "-p", "."]
        command = [os.path.abspath(python), "-m", "scalesim.scale", *files, "-i", "gemm", "-s", "N"]
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        report = folder / "out" / "COMPUTE_REPORT.csv"
        if process.returncode or not report.is_file():
            raise SystemExit(f"scalesim failed on {rows}x{columns} {dataflow}:\n{process.stdout[-2000:]}{process.stderr[-2000:]}")
        with report.open(newline="") as file:
            return [int(float(row["Total Cycles"])) + 1 for row in csv.DictReader(file, skipinitialspace=True)]


def compare(python: Path) -> list[dict[str, Any]]:
    """One row per array, dataflow and product."""
    rows_found = []
    for rows, columns in ARRAYS:
        for short, dataflow in DATAFLOWS.items():
            machine = array_machine(rows, columns, dataflow, pipelined=False)
            for (m, k, n), reference in zip(PRODUCTS, scalesim_cycles(python, rows, columns, short), strict=True):
                # the tiles that the docstring of simulator/npu/cycles.py names: as many MMADs as may be without cutting one of the array's
                a, b = max(rows, ATOM), max(columns, ATOM)
                program = mmads(machine, m, k, n, (a, k, b) if short == "os" else (m, a, b))
                own_timing = simulate(program, machine, NO_CONTENTION).cycles
                rows_found.append(
                    {
                        "array": f"{rows} x {columns}",
                        "dataflow": dataflow,
                        "m": m,
                        "k": k,
                        "n": n,
                        "scalesim": reference,
                        "here": own_timing,
                    }
                )
    return rows_found


def main(
    folder: Annotated[Path | None, typer.Option("--venv", metavar="FOLDER", help="Where scalesim is, or is to be installed.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
) -> None:
    """Matrix products on systolic arrays without pipelining, beside SCALE-Sim 3 itself; exit code 1 where one differs."""
    with tempfile.TemporaryDirectory(prefix="tilefarm-scalesim-venv-") as temporary:
        rows = compare(install(folder or Path(temporary)))
    if as_json:
        print(json.dumps(rows))
    else:
        print("| array | dataflow | m x k x n | SCALE-Sim | here |\n|---|---|---|---|---|")
        for r in rows:
            print(f"| {r['array']} | {r['dataflow']} | {r['m']} x {r['k']} x {r['n']} | {r['scalesim']:,} | {r['here']:,} |")
    deviating = [r for r in rows if r["scalesim"] != r["here"]]
    sys.stderr.write(f"{len(rows) - len(deviating)} of {len(rows)} products take the same number of cycles\n")
    raise typer.Exit(1 if deviating else 0)


if __name__ == "__main__":
    typer.run(main)
