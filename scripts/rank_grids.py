"""Whether the estimate ranks grids of cores as the simulator does, for products drawn by seed.

    python scripts/rank_grids.py [--count N] [--cores 8,24] [--most SIZE] [--seed S] [--json]

A product x [m, k] times a constant [k, n]: sides from 1 to SIZE for m, from 16 on for k and n, each drawn evenly in its logarithm; every
fourth product has m below 16, every fourth k of four times n at least.  The machine is `ascend910b` with so many cores.  Of each grid, rows
by channels, the gene with the fewest estimated cycles is simulated.  `place` is that of the fastest one in the order of estimates, from 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from compiler.model import ModelSpec, lower_model  # noqa: E402
from compiler.planner.segmentation import SegmentationSearch, estimate_predictor  # noqa: E402
from compiler.space.decode import decode, plan_of  # noqa: E402
from compiler.space.gene import Gene, working_cores  # noqa: E402
from scripts.compare_gemm import product_model  # noqa: E402
from simulator.npu.machine_file import load_machine  # noqa: E402
from tuner.measure.npu_target import Npu  # noqa: E402

FIRST = 4  # places in which the fastest grid is wanted
_LEAST = 16


def drawn_products(count: int, most: int, seed: int) -> list[tuple[int, int, int]]:
    """(m, k, n) of products."""
    rng = np.random.default_rng(seed)

    def side(least: int, largest: int) -> int:
        return int(np.exp(rng.uniform(np.log(least), np.log(largest + 1))))

    products = []
    for i in range(count):
        m, k, n = side(1, most), side(_LEAST, most), side(_LEAST, most)
        if i % 4 == 0:
            m = side(1, _LEAST - 1)
        elif i % 4 == 1:
            k, n = max(k, n), max(_LEAST, min(k, n, max(k, n) // 4))
        products.append((m, k, n))
    return products


def rank(sizes: tuple[int, int, int], cores: int) -> dict[str, Any]:
    """Estimated and simulated cycles of the best gene on each grid, in the order of estimates."""
    machine = load_machine(f"ascend910b:cores={cores}")
    target_graph = lower_model(ModelSpec.named(Path("product.onnx"), machine, "float16", {}, None), product_model(*sizes)).target_graph
    search = SegmentationSearch(target_graph, ["none"], estimate_predictor(target_graph))
    search.cheapest(0)
    best = dict[tuple[int, int], tuple[float, Gene]]()
    for gene, cycles in search.prices[0, 1].items():
        width = len(working_cores(target_graph, gene))
        grid = (1, width) if gene.channels == width > 1 else (width // gene.channels, gene.channels)
        best[grid] = min(best.get(grid, (np.inf, gene)), (float(cycles[0]), gene))
    rows, npu = list[dict[str, Any]](), Npu(target_graph, ("none",), resuming=False)
    for grid, (estimate, gene) in sorted(best.items(), key=lambda item: item[1][0]):
        plan = decode(target_graph, gene)
        assert plan is not None
        times = npu.program(plan_of(target_graph, [plan]))
        if isinstance(times, np.ndarray):
            rows.append({"grid": list(grid), "estimate": round(estimate), "cycles": int(times[0, 0])})
    place = 1 + min(range(len(rows)), key=lambda i: rows[i]["cycles"])
    return {
        "sizes": list(sizes),
        "cores": cores,
        "place": place,
        "of": len(rows),
        "lost": rows[0]["cycles"] / rows[place - 1]["cycles"] - 1,
        "grids": rows,
    }


def main(
    count: Annotated[int, typer.Option(min=1, help="Number of products.")] = 100,
    cores: Annotated[str, typer.Option(help="Numbers of cores, with commas between.")] = "2,8,24",
    most: Annotated[int, typer.Option(min=64, help="Largest side.")] = 8192,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the products.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per product and number of cores.")] = False,
) -> None:
    """Whether the fastest grid of cores by simulation is among the first four by estimate."""
    for number in map(int, cores.split(",")):
        places, lost = [], []
        for sizes in drawn_products(count, most, seed):
            row = rank(sizes, number)
            places.append(row["place"])
            lost.append(row["lost"])
            if as_json:
                print(json.dumps(row), flush=True)
        if not as_json:
            among = sum(place <= FIRST for place in places)
            print(
                f"{number} cores: the fastest is among the first {FIRST} for {among} of {count}, first for {places.count(1)};"
                f" the first takes {100 * np.mean(lost):.1f}% longer than it in the mean, {100 * np.max(lost):.1f}% at most",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
