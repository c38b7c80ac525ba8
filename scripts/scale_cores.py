"""Speed-up of networks on several cores over one core of the same machine, without a search.

    python scripts/scale_cores.py [--networks resnet50,made:bert_base] [--frames 24,1] [--cores 1,2,4,8,16,24] [--machine M] [--json]

Each program is that of `compile` at level `none`.  `linear` is its speed-up over one core, over the number of cores; `of_bound` the lower
bound of any program on so many cores over its cycles.  The goal is the lower of 0.6 of linear and 0.9 of the bound.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from compiler.autoplan import quick_genomes  # noqa: E402
from compiler.bound.bound import Bound  # noqa: E402
from compiler.build import measure_plans  # noqa: E402
from compiler.plan.plan import Infeasible  # noqa: E402
from compiler.planner.segmentation import estimate_predictor  # noqa: E402
from compiler.space.decode import decode_all  # noqa: E402
from compiler.space.operator_order import ordered  # noqa: E402
from scripts.studies import opened, short  # noqa: E402
from simulator.npu.machine_file import load_machine  # noqa: E402

LEVEL = "none"
LINEAR, NEAR_BOUND = 0.6, 0.9  # goals


def measure(network: str, machine: str, cores: int, frames: int) -> dict[str, Any]:
    """Cycles of a network's program on some cores, and their bound."""
    described = load_machine(f"{machine}{',' if ':' in machine else ':'}cores={cores}")
    compiler = opened(network, described, "float16", frames).compiler
    target_graph = ordered(compiler.target_graph, "depth")
    plan = decode_all(target_graph, quick_genomes(compiler, target_graph, estimate_predictor(target_graph), [LEVEL])[LEVEL][0])
    assert not isinstance(plan, Infeasible), "it was simulated"
    cycles = measure_plans(compiler, {LEVEL: plan})[LEVEL].timings[LEVEL].cycles
    bound = Bound(target_graph).of(LEVEL).cycles
    return {"network": short(network), "frames": frames, "cores": cores, "cycles": cycles, "bound": bound}


def judge(row: dict[str, Any], one: int) -> dict[str, Any]:
    """A row with its shares of the goals.  one: cycles on one core."""
    shares = {"linear": one / row["cycles"] / row["cores"], "of_bound": row["bound"] / row["cycles"]}
    return {**row, **shares, "reached": shares["linear"] >= LINEAR or shares["of_bound"] >= NEAR_BOUND}


def main(
    networks: Annotated[str, typer.Option(help="Networks, with commas between.")] = "resnet50,made:bert_base",
    frames: Annotated[str, typer.Option(help="Numbers of frames of a run.")] = "24,1",
    cores: Annotated[str, typer.Option(help="Numbers of cores; those above 1 are compared with one core.")] = "1,2,4,8,16,24",
    machine: Annotated[str, typer.Option(help="The machine, with overrides.")] = "ascend910b",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per program.")] = False,
) -> None:
    """Speed-up of networks on several cores over one core."""
    for network in networks.split(","):
        for count in map(int, frames.split(",")):
            one = measure(network, machine, 1, count)
            others = (measure(network, machine, number, count) for number in map(int, cores.split(",")) if number > 1)
            for row in (judge(row, one["cycles"]) for row in (one, *others)):
                print(json.dumps(row) if as_json else text(row), flush=True)


def text(row: dict[str, Any]) -> str:
    goal = "reached" if row["reached"] else "missed"
    return (
        f"{row['network']} of {row['frames']} frames on {row['cores']} cores: {row['cycles']:,} cycles,"
        f" {row['linear']:.2f} of linear, {row['of_bound']:.2f} of the bound's speed, goal {goal}"
    )


if __name__ == "__main__":
    typer.run(main)
