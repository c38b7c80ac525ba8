"""Segments of a program, each timed alone, beside the whole program, on a machine with an L2.

    python scripts/compare_segments.py [--networks LIST] [--machine M] [--json]

The plan is `compile`'s, without a search.  `cold`: segments begin with an empty L2; `warm`: with what operators before them have left
(`tuner/measure/l2_warmth.py`), as a search times them.
`gap_bytes`: difference of the bytes that each segment draws from DDR, alone and in the program, added up.
`draws`: cycles of the program with what its segments draw alone.
`sum`: cycles of the segments alone, one after the other.  Beyond `draws` it has what segments overlap in a program.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import numpy as np
import typer
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from compiler.autoplan import quick_genomes  # noqa: E402
from compiler.build import measure_plans  # noqa: E402
from compiler.l2_warmth import WarmInputs  # noqa: E402
from compiler.pipeline import Compiler  # noqa: E402
from compiler.plan.plan import Infeasible, Plan  # noqa: E402
from compiler.planner.segmentation import estimate_predictor  # noqa: E402
from compiler.space.decode import decode_all  # noqa: E402
from compiler.space.operator_order import ordered  # noqa: E402
from compiler.target.target_graph import TargetGraph  # noqa: E402
from scripts.studies import network_list, opened, short  # noqa: E402
from simulator import l2_traffic  # noqa: E402
from simulator.l2_traffic import L2Start  # noqa: E402
from simulator.npu.errors import BadInputError  # noqa: E402
from simulator.npu.level import NO_CONTENTION, SHARE_UNIT  # noqa: E402
from simulator.npu.machine import Machine  # noqa: E402
from simulator.npu.machine_file import load_machine  # noqa: E402
from simulator.npu.program import Program  # noqa: E402
from simulator.timing import simulate  # noqa: E402
from tuner.measure.npu_target import Npu  # noqa: E402

LEVEL = "none"


def compare(network: str, machine: Machine) -> dict[str, Any]:
    """Cycles of a network's program, and of its segments."""
    compiler = opened(network, machine, "float16").compiler
    target_graph = ordered(compiler.target_graph, "depth")
    plan = decode_all(target_graph, quick_genomes(compiler, target_graph, estimate_predictor(target_graph), [LEVEL])[LEVEL][0])
    assert not isinstance(plan, Infeasible), "it was simulated"
    return {"network": short(network), "segments": len(plan.segments)} | compare_plan(compiler, target_graph, plan)


def compare_plan(compiler: Compiler, target_graph: TargetGraph, plan: Plan) -> dict[str, Any]:
    """Cycles of a plan's program, sums of its segments, and bytes."""
    machine, program = target_graph.machine, measure_plans(compiler, {LEVEL: plan})[LEVEL].program
    assert machine.l2 is not None
    cycles, drawn = time_with_draws(program, machine, None)
    row: dict[str, Any] = {"program": cycles, "drawn_bytes": int(drawn.sum())}
    warm = WarmInputs(target_graph, machine.l2.bytes, machine.l2.line_bytes).start
    for kind, start in (("cold", lambda _: None), ("warm", warm)):
        cycles, alone = time_with_draws(program, machine, start)
        with mock.patch.object(WarmInputs, "start", staticmethod(start)):
            row[kind] = {"draws": cycles, "sum": sum_of_segments(target_graph, plan), "gap_bytes": int(np.abs(alone - drawn).sum())}
    return row


def time_with_draws(program: Program, machine: Machine, start: Callable[[Any], L2Start | None] | None) -> tuple[int, NDArray[np.float64]]:
    """Cycles of a program, and bytes that each of its segments draws.  start: the L2 before the transfers of a segment, as if it ran alone;
    None: what the segments before it have left."""
    count_traffic, bytes_of = l2_traffic.count_traffic, list[float]()

    def count(machine: Machine, blocks: int, access: Any, core: Any, segment: Any, place: Any, *conditions: Any) -> Any:
        drawn, traffic = np.empty(len(access), np.int64), np.zeros(3, np.int64)
        groups = [segment == number for number in np.unique(segment)]
        for rows in groups if start is not None else [segment >= 0]:
            before = None if start is None else start(access[rows])
            where = access[rows], core[rows], segment[rows], place[rows]
            drawn[rows], moved = count_traffic(machine, blocks, *where, *conditions, start=before)
            traffic += moved
        bytes_of.extend(drawn[rows].sum() / SHARE_UNIT for rows in groups)
        return drawn, l2_traffic.L2Traffic(*traffic.tolist())

    with mock.patch.object(l2_traffic, "count_traffic", count):
        return simulate(program, machine, NO_CONTENTION).cycles, np.array(bytes_of)


def sum_of_segments(target_graph: TargetGraph, plan: Plan) -> int:
    """Cycles of all segments, each alone, after one launch."""
    npu, cycles, start = Npu(target_graph, (LEVEL,)), target_graph.machine.launch_cycles, 0
    for segment in plan.segments:
        timed = npu.alone(segment, start)
        assert isinstance(timed, np.ndarray), "it was simulated in the program"
        cycles, start = cycles + int(timed[0, 0]), start + len(segment.operators)
    return cycles


def main(
    networks: Annotated[str, typer.Option(help="Networks, with commas between.")] = "resnet50,made:bert_base,layers=2",
    part: Annotated[str, typer.Option("--machine", help="The machine, with overrides.")] = "ascend910b",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per network.")] = False,
) -> None:
    """Segments alone beside the whole program."""
    machine = load_machine(part)
    if machine.l2 is None:
        raise BadInputError(f"--machine: {part}: it has no l2; accepted: ascend910b, or a machine with one")
    for network in network_list(networks):
        row = compare(network, machine)
        print(json.dumps(row) if as_json else _text(row), flush=True)


def _text(row: dict[str, Any]) -> str:
    lines = [f"{row['network']}: {row['segments']} segments, {row['program']:,} cycles, {row['drawn_bytes'] / 1e6:.1f} MB drawn"]
    for kind in ("cold", "warm"):
        over, total = (row[kind][key] / row["program"] - 1 for key in ("draws", "sum"))
        gap = row[kind]["gap_bytes"] / row["drawn_bytes"]
        lines.append(f"  {kind}: {gap:.1%} of the bytes off, {over:+.1%} cycles with these draws, {total:+.1%} as a sum of segments alone")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
