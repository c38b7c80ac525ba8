"""ResNet-50 on the machine that SoMa evaluates: 16 TOPS, 8 MB on chip, 16 GB/s of DRAM, one image.

    python scripts/compare_soma.py [--network N] [--dtypes int8,float16] [--candidates N] [--seed S] [--json]

The reference is the output of SoMa's program (HPCA 2025, fusion and DRAM transfers by annealing in two stages) for its configuration with
these numbers, int8, at 1 GHz.  Its DRAM has full bandwidth and no latency, so DDR has efficiency 1 and latency 0 here.
Ours has 8 MiB of L1 and 8192 int8 multiplications per cycle; the paths to the matrix unit are those of `edge`.  Inputs and outputs are
integers, as SoMa's are.  In float16 every rate and size is doubled, so a value costs as much as an int8 value.

`once` (weights, input and output without padding) and the traffic beyond it are in cycles of DDR, at 16 bytes each.  `packed` is the time
of the same plan with `spread: false`, which puts each buffer at the first free place.  `stream` is the size of the program in bytes.  Exit
code 1 if int8 is slower than SoMa.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tuner  # noqa: E402
from compiler.model import ModelSpec, lower_model  # noqa: E402
from compiler.pipeline import Compiler  # noqa: E402
from compiler.plan.plan import Infeasible, Plan  # noqa: E402
from compiler.target.target_graph import TargetGraph  # noqa: E402
from scripts.integer_borders import with_integer_borders  # noqa: E402
from scripts.traffic import stream_bytes, traffic  # noqa: E402
from simulator.npu.machine import Machine  # noqa: E402
from simulator.npu.machine_file import load_machine  # noqa: E402
from simulator.npu.parts import DataType, Engine  # noqa: E402
from simulator.npu.program import Program  # noqa: E402
from simulator.timing import simulate  # noqa: E402
from tuner.zoo.load import load_network  # noqa: E402

SOMA_CYCLES = 1_624_151
DDR_BYTES, L1_BYTES = 16, 8 << 20  # per cycle; on the chip
MODELS = {"int8": ",quantised=qdq", "float16": ""}


def soma_machine(dtype: DataType) -> Machine:
    """Machine of one core; for a wider type, all sizes and rates are scaled by the width."""
    times = dtype.size_bytes
    values = load_machine("edge").model_dump()
    product = {"m0": 16, "k0": 32, "n0": 16, "cycles": 1}  # 8192 a cycle: 16.4 TOPS at 1 GHz
    values |= {
        "name": f"soma-{dtype.name}",
        "buffers_bytes": {name: size * times for name, size in values["buffers_bytes"].items()} | {"L1": L1_BYTES * times},
        "matrix": values["matrix"] | {"cycles_per_fractal": {}, "products": dict.fromkeys(("float16", "float32", "int8"), product)},
        "ddr": {"rate": "effective", "bytes_per_cycle": DDR_BYTES * times, "latency_cycles": 0, "outstanding": 8},
        "paths": [path | {"bytes_per_cycle": path["bytes_per_cycle"] * times} for path in values["paths"]],
        "contention": {"none": 1.0},
    }
    return Machine.model_validate(values)


def compare(network: str, dtype: str, candidates: int, seed: int) -> dict[str, Any]:
    """The best program and the parts of its traffic."""
    machine = soma_machine(DataType[dtype])
    source = ModelSpec.named(Path(network), machine, "float16", {}, None)  # what is not of integers
    lowered = lower_model(source, with_integer_borders(load_network(network + MODELS[dtype])), network)
    result = tuner.Search(lowered.target_graph, candidates=candidates, seed=seed).run()
    plan = result.plan("none")
    packed_plan = plan.model_copy(update={"segments": tuple(segment.model_copy(update={"spread": False}) for segment in plan.segments)})
    (program, cycles, busy_cycles), (_, packed_cycles, _) = _timed(result.target_graph, plan), _timed(result.target_graph, packed_plan)
    moved = traffic(result.target_graph, program)
    rate = int(machine.ddr.bytes_per_cycle)
    return {
        "dtype": dtype, "cycles": cycles, "soma": SOMA_CYCLES, "once": -(-moved.once // rate), "busy": busy_cycles,
        "traffic": {name: value // rate for name, value in vars(moved).items()}, "stream_bytes": stream_bytes(program),
        "segments": len(plan.segments), "packed": packed_cycles,
    }  # fmt: skip


def _timed(target_graph: TargetGraph, plan: Plan) -> tuple[Program, int, dict[str, int]]:
    """Program of a plan, its cycles, and the cycles of every engine."""
    program = Compiler(target_graph).compile(plan)
    assert not isinstance(program, Infeasible), program
    timing = simulate(program, target_graph.machine, target_graph.machine.contention["none"])
    return program, timing.cycles, {engine.name: int(timing.busy_cycles[:, engine].sum()) for engine in Engine}


def main(
    network: Annotated[str, typer.Option(help="light:NAME or made:NAME.")] = "light:resnet50",
    dtypes: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(MODELS)}.")] = "int8",
    candidates: Annotated[int, typer.Option(min=1, help="Measured programs of each search.")] = 384,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the searches.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
) -> None:
    """ResNet-50 on the machine on which SoMa has it; exit code 1 where int8 takes longer than SoMa."""
    if unknown := [name for name in dtypes.split(",") if name not in MODELS]:
        raise typer.BadParameter(f"{unknown[0]}: accepted: {', '.join(MODELS)}")
    rows = [compare(network, dtype, candidates, seed) for dtype in dtypes.split(",")]
    if as_json:
        print(json.dumps(rows))
    else:
        print("| data type | SoMa | cycles | over | once | padding | again | spills | CUBE busy | segments | packed | stream |")
        print(f"|---|{'---:|' * 11}")
        for r in rows:
            t = r["traffic"]
            cells = [r["soma"], r["cycles"], f"{r['cycles'] / r['soma']:.3f}", r["once"], t["zeros"] + t["lanes"]]
            cells += [t["weights_again"] + t["tensors_again"], t["spills"], r["busy"]["CUBE"], r["segments"]]
            cells += [r["packed"], r["stream_bytes"]]
            print(f"| {r['dtype']} | {' | '.join(f'{cell:,}' if isinstance(cell, int) else cell for cell in cells)} |")
    raise typer.Exit(1 if any(r["dtype"] == "int8" and r["cycles"] > r["soma"] for r in rows) else 0)


if __name__ == "__main__":
    typer.run(main)
