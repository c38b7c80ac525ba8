"""Matrix products on pipelined weight-stationary arrays, compared with the cycles of ONNXim.

    python scripts/compare_onnxim.py [--json]

`array` is the closed form of simulator/npu/cycles.py, MMADs alone; `program` also loads the operands and stores the results.  Nothing is
fitted: sizes, frequencies and bandwidths are those of ONNXim's configurations (8x8: DDR4 at 51 bytes per core cycle; 128x128: HBM2 at 614).
The DDR latency is 100 cycles, as in this project's machines.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.gemm import ATOM, array_machine, mmads, tile_by_tile  # noqa: E402
from simulator.npu.level import NO_CONTENTION  # noqa: E402
from simulator.timing import simulate  # noqa: E402

# side of the array, bytes of DDR per core cycle, then (m, k, n) -> the cycles that ONNXim reports
CASES: tuple[tuple[int, int, dict[tuple[int, int, int], int]], ...] = (
    (8, 51, {(128, 128, 128): 33_052, (256, 128, 256): 131_419, (512, 512, 512): 2_097_507}),
    (128, 614, {(128, 128, 128): 862, (512, 512, 512): 9_311}),
)


def compare() -> list[dict[str, Any]]:
    """One row per product: array, m, k, n and the three cycle counts."""
    rows = []
    for side, ddr, products in CASES:
        machine = array_machine(side, side, "weight-stationary", pipelined=True, ddr_bytes_per_cycle=ddr)
        tile = max(side, ATOM)
        for (m, k, n), onnxim in products.items():
            array = simulate(mmads(machine, m, k, n, (m, tile, tile)), machine, NO_CONTENTION).cycles
            program = simulate(tile_by_tile(machine, m, k, n), machine, NO_CONTENTION).cycles
            rows.append({"array": side, "m": m, "k": k, "n": n, "onnxim": onnxim, "array_cycles": array, "program_cycles": program})
    return rows


def main(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False) -> None:
    """Matrix products on pipelined weight-stationary arrays, compared with the cycles of ONNXim."""
    rows = compare()
    if as_json:
        print(json.dumps(rows))
        return
    print("| array | m x k x n | ONNXim | array | off by | program | off by |\n|---|---|---|---|---|---|---|")
    for r in rows:
        deviations = [f"{r[name]:,} | {r[name] / r['onnxim'] - 1:+.2%}" for name in ("array_cycles", "program_cycles")]
        print(f"| {r['array']} x {r['array']} | {r['m']} x {r['k']} x {r['n']} | {r['onnxim']:,} | {' | '.join(deviations)} |")


if __name__ == "__main__":
    typer.run(main)
