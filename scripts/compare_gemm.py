"""Products on 24 cores of `ascend910b`: measured on the part, the same schedule here, and what the compiler makes of them.

    python scripts/compare_gemm.py [--sizes 1536,3072] [--untuned] [--tuned PROGRAMS] [--machine M] [--derive] [--json]

The reference is the table of pto-isa, `kernels/manual/a2a3/gemm_performance`: m = n = k in float16, sums in float32 to DDR, at 1.85 GHz.
`vendor_plan` is that schedule on the simulator (`scripts/vendor_gemm.py`), with a cold L2 and with one that the same program has filled.
`untuned` is a MatMul by `compile`, `tuned` the best of so many programs, both from a cold L2.  Their results are float16.

Bytes: `requested` by the cores; `hbm`, what the HBM gives and takes until the end of the program; `dirty`, what it takes later.
`--derive` prints the values of the machine file that 1536 and 6144 decide, as they follow from the table and from the other values.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from onnx import ModelProto, TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import compiler  # noqa: E402
import tuner  # noqa: E402
from compiler.model import ModelSpec, lower_model  # noqa: E402
from scripts.vendor_gemm import BLOCK_M, BLOCK_N, GRID, L0_K, vendor_program  # noqa: E402
from simulator.npu.errors import BadInputError  # noqa: E402
from simulator.npu.level import NO_CONTENTION  # noqa: E402
from simulator.npu.machine import Machine  # noqa: E402
from simulator.npu.machine_file import load_machine  # noqa: E402
from simulator.npu.parts import Engine  # noqa: E402
from simulator.npu.program import Program  # noqa: E402
from simulator.timing import prepare, simulate  # noqa: E402

SHARES = {"cube": Engine.CUBE, "mte1": Engine.MTE1, "mte2": Engine.MTE2, "store": Engine.MTE3}


class Measured(NamedTuple):
    """Cycles, and percent of them in which an engine is busy, in the order of `SHARES`."""

    cycles: int
    busy: tuple[float, float, float, float]


SILICON = {
    1536: Measured(71_780, (54.5, 42, 72, 8)),
    3072: Measured(382_395, (79.0, 62, 91, 6)),
    6144: Measured(2_786_100, (86.7, 68, 95, 3)),
    7680: Measured(5_860_800, (80.6, 63, 98, 2)),
}
DERIVED_FROM = 1536, 6144


def time_program(program: Program, machine: Machine, warm: bool = False) -> dict[str, Any]:
    """Cycles, busy shares in percent, and bytes of a program."""
    prepared = prepare(program, machine, warm)
    timing = simulate(prepared, machine, NO_CONTENTION)
    busy = 100 * timing.busy_cycles.mean(0) / timing.cycles
    assert prepared.l2 is not None
    return {
        "cycles": timing.cycles,
        "busy": {name: round(float(busy[engine]), 1) for name, engine in SHARES.items()},
        "requested_bytes": timing.ddr_read_bytes + timing.ddr_write_bytes,
        "hbm_bytes": prepared.l2.read_bytes + prepared.l2.written_bytes,
        "dirty_bytes": prepared.l2.dirty_bytes,
    }


def product_model(m: int, k: int, n: int) -> ModelProto:
    """A MatMul of x [m, k] with a constant."""
    values = np.random.default_rng(0).standard_normal((k, n), np.float32)
    values /= np.float32(np.sqrt(k))
    constant = numpy_helper.from_array(values, "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [m, k]), ("y", [m, n])))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], [constant])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compare(size: int, machine: Machine, untuned: bool, programs: int) -> dict[str, Any]:
    """One size.  untuned: compile it, too.  programs: number of programs of a search; 0: none."""
    silicon = SILICON[size]
    vendor = vendor_program(machine, size, size, size)
    row: dict[str, Any] = {
        "size": size,
        "silicon": {"cycles": silicon.cycles, "busy": dict(zip(SHARES, silicon.busy, strict=True))},
        "vendor_plan": {state: time_program(vendor, machine, state == "warm") for state in ("cold", "warm")},
        "untuned": None,
        "tuned": None,
    }
    if untuned:
        compiled = compiler.compile(product_model(size, size, size), machine)
        row["untuned"] = time_program(compiled.measured["none"].programs[0], machine)
    if programs:
        opened = lower_model(ModelSpec.named(Path("product.onnx"), machine, "float16", {}, None), product_model(size, size, size))
        best = tuner.Search(opened.target_graph, candidates=programs, seed=0).run()
        chosen = compiler.compile(opened, plan=best.plan("none"))
        row["tuned"] = time_program(chosen.measured["none"].programs[0], machine)
    return row


def derive(machine: Machine) -> dict[str, float]:
    """Values that `DERIVED_FROM` decide, by key of the machine file."""
    products = {size: (size // GRID[0] // BLOCK_M) * (size // GRID[1] // BLOCK_N) * (size // L0_K) for size in DERIVED_FROM}
    blocks = {size: count * L0_K // size for size, count in products.items()}
    busy = {name: {size: SILICON[size].cycles * SILICON[size].busy[i] / 100 for size in DERIVED_FROM} for i, name in enumerate(SHARES)}
    count = sum(products.values())
    product = BLOCK_M * BLOCK_N * L0_K // int(machine.macs_per_cycle["float16"])
    rates = {path.destination: path.bytes_per_cycle for path in machine.paths if path.destination in ("L0A", "L0B")}
    moves = 2 * L0_K * (BLOCK_M / rates["L0A"] + BLOCK_N / rates["L0B"])
    stores = [4 * BLOCK_M * BLOCK_N * blocks[size] / busy["store"][size] for size in DERIVED_FROM]
    programs = {size: vendor_program(machine, size, size, size) for size in DERIVED_FROM}

    def misfit(rate: int) -> float:
        timed = _timed_at(machine, programs, {"paths.DDR->L1.bytes_per_cycle": rate})
        return sum((timed[size]["busy"]["mte2"] * timed[size]["cycles"] / 100 / busy["mte2"][size] - 1) ** 2 for size in DERIVED_FROM)

    rate = min(range(88, 106), key=misfit)
    without = _timed_at(machine, programs, {"paths.DDR->L1.bytes_per_cycle": rate, "launch_cycles": 0})
    weights = {size: SILICON[size].cycles ** -2 for size in DERIVED_FROM}
    gaps = {size: SILICON[size].cycles - without[size]["cycles"] for size in DERIVED_FROM}
    return {
        "matrix.startup_cycles": sum(busy["cube"].values()) / count - product,
        "paths.L1->L0*.startup_cycles": (sum(busy["mte1"].values()) / count - moves) / 2,
        "paths.L0C->DDR.bytes_per_cycle": sum(stores) / 2,
        "paths.DDR->L1.bytes_per_cycle": rate,
        "launch_cycles": sum(weights[size] * gaps[size] for size in DERIVED_FROM) / sum(weights.values()),
    }


def _timed_at(machine: Machine, programs: dict[int, Program], changes: dict[str, int]) -> dict[int, dict[str, Any]]:
    """The vendor's program of each size on a machine with other values."""
    other = load_machine(f"{machine.name}:" + ",".join(f"{key}={value}" for key, value in changes.items()))
    return {size: time_program(program, other) for size, program in programs.items()}


def main(
    sizes: Annotated[str, typer.Option(help="Some of 1536, 3072, 6144, 7680, with commas between.")] = "1536,3072,6144,7680",
    untuned: Annotated[bool, typer.Option(help="Compile each product, too.")] = False,
    tuned: Annotated[int, typer.Option(min=0, help="Programs of a search for each product; 0: no search.")] = 0,
    derived: Annotated[bool, typer.Option("--derive", help="Print derived values of the machine file instead.")] = False,
    part: Annotated[str, typer.Option("--machine", help="The machine, with overrides.")] = "ascend910b",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Products on 24 cores: silicon, the vendor's schedule here, and the compiler's programs."""
    machine = load_machine(part)
    if machine.l2 is None:
        raise BadInputError(f"--machine: {part}: it has no l2; accepted: ascend910b, or a machine with one")
    if derived:
        for key, value in derive(machine).items():
            print(json.dumps({key: round(value, 2)}) if as_json else f"{key}: {value:.2f}")
        return
    for size in map(int, sizes.split(",")):
        if size not in SILICON:
            raise BadInputError(f"--sizes: {size}; accepted: {', '.join(map(str, SILICON))}")
        row = compare(size, machine, untuned, tuned)
        print(json.dumps(row) if as_json else _text(row), flush=True)


def _text(row: dict[str, Any]) -> str:
    silicon, lines = row["silicon"], []
    kinds = {"silicon": silicon, **{f"vendor, {state}": timed for state, timed in row["vendor_plan"].items()}}
    for name, timed in {**kinds, "untuned": row["untuned"], "tuned": row["tuned"]}.items():
        if timed is not None:
            shares = " ".join(f"{engine} {share:4.1f}" for engine, share in timed["busy"].items())
            moved = (
                "" if timed is silicon else f"  {timed['requested_bytes'] / 1e6:8,.1f} MB requested {timed['hbm_bytes'] / 1e6:7,.1f} HBM"
            )
            lines.append(f"{row['size']} {name:13} {timed['cycles']:9,} {timed['cycles'] / silicon['cycles']:5.3f}  {shares}{moved}")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
