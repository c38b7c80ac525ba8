"""Products on 24 cores of `ascend910b`: measured on the part, the same schedule here, and what the compiler makes of them.

    python scripts/compare_gemm.py [--sizes 1536,1024x8192x4096] [--untuned] [--tuned PROGRAMS] [--machine M] [--derive] [--json]

A size is m = n = k, or m x k x n.  The reference is the table of pto-isa, `kernels/manual/a2a3/gemm_performance`: products in float16, sums
A size is m = n = k, or m x k x n.  The reference is the table of pto-isa, `kernels/manual/a2a3/gemm_performance`: float16, sums in float32
to DDR, at 1.85 GHz.  `vendor_plan` is that schedule on the simulator (`scripts/vendor_gemm.py`), with a cold L2 and with one that the same
program has filled; both only for sizes of the table.  `untuned` is a MatMul by `compile`, `tuned` the best of so many programs, both from a
cold L2.  Their results are float16.
`roofline`: cycles at the rates that the part achieves at 6144, CUBE's and the bytes that a core requests, and all bytes at the rate of HBM,
whichever takes longest, after the launch.
Bytes: `requested` by the cores; `hbm`, what the HBM gives and takes until the end of the program; `dirty`, what it takes later.
`least_requested`: the fewest over all grids of equal shares and all blocks whose sums fit L0C, with both operands streamed, or one's panel
of a block in L1.
`compulsory`: operands and results once.
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
from scripts.vendor_gemm import BLOCK_M, BLOCK_N, COLUMNS, GRID, L0_K, vendor_program  # noqa: E402
from simulator.npu.errors import BadInputError  # noqa: E402
from simulator.npu.level import NO_CONTENTION  # noqa: E402
from simulator.npu.machine import Machine  # noqa: E402
from simulator.npu.machine_file import load_machine  # noqa: E402
from simulator.npu.parts import DataType, Engine  # noqa: E402
from simulator.npu.program import Program  # noqa: E402
from simulator.timing import prepare, simulate  # noqa: E402

SHARES = {"cube": Engine.CUBE, "mte1": Engine.MTE1, "mte2": Engine.MTE2, "store": Engine.MTE3}


_ITEM = DataType.float16.size_bytes
_SUMS = COLUMNS * COLUMNS * DataType.float32.size_bytes  # bytes of a fractal of sums


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


def roofline(machine: Machine, m: int, k: int, n: int) -> float:
    """Cycles at rates that the part achieves: see the top."""
    size = max(DERIVED_FROM)
    running = SILICON[size].cycles - machine.launch_cycles
    requested = _ITEM * size**3 * (BLOCK_M + BLOCK_N) / (BLOCK_M * BLOCK_N)
    products, moves = m * k * n / size**3, least_requested_bytes(machine, m, k, n) / requested
    return machine.launch_cycles + max(running * products, running * moves, compulsory_bytes(m, k, n) / float(machine.ddr.deliverable))


def compulsory_bytes(m: int, k: int, n: int) -> int:
    return _ITEM * (m * k + k * n + m * n)


def least_requested_bytes(machine: Machine, m: int, k: int, n: int) -> int:
    """Fewest bytes that all cores request: see the top.  No grid has idle cores, where there is one without."""
    rows, columns, buffers = -(-m // COLUMNS), -(-n // COLUMNS), machine.buffers_bytes
    grids = [(parts, machine.cores // parts) for parts in range(1, machine.cores + 1) if machine.cores % parts == 0]
    grids = [grid for grid in grids if grid[0] <= rows and grid[1] <= columns] or grids
    requested = []
    for block_m in range(1, min(rows, buffers.L0C // _SUMS) + 1):
        block_n = min(columns, buffers.L0C // _SUMS // block_m)
        panel_m, panel_n = (side * COLUMNS * k * _ITEM < buffers.L1 for side in (block_m, block_n))
        for cores_m, cores_n in grids:
            # each part of the rows is multiplied by all columns, as often as its blocks say, and so are the columns
            of_rows, of_columns = _blocks(rows, cores_m, block_m) * n * k, _blocks(columns, cores_n, block_n) * m * k
            requested += [of_rows + of_columns] + panel_m * [of_rows + cores_n * m * k] + panel_n * [cores_m * n * k + of_columns]
    return _ITEM * (min(requested) + m * n)


def _blocks(count: int, parts: int, block: int) -> int:
    """Number of blocks in all parts of as equal a size as possible."""
    return sum(-(-((count + part) // parts) // block) for part in range(parts))


def compare(sizes: tuple[int, int, int], machine: Machine, untuned: bool, programs: int) -> dict[str, Any]:
    """One size.  untuned: compile it, too.  programs: number of programs of a search; 0: none."""
    silicon = SILICON.get(sizes[0]) if len(set(sizes)) == 1 else None
    row: dict[str, Any] = {
        "size": "x".join(map(str, sizes)) if silicon is None else sizes[0],
        "silicon": None,
        "vendor_plan": None,
        "roofline": round(roofline(machine, *sizes)),
        "least_requested_bytes": least_requested_bytes(machine, *sizes),
        "compulsory_bytes": compulsory_bytes(*sizes),
        "untuned": None,
        "tuned": None,
    }
    if silicon is not None:
        vendor = vendor_program(machine, *sizes)
        row["silicon"] = {"cycles": silicon.cycles, "busy": dict(zip(SHARES, silicon.busy, strict=True))}
        row["vendor_plan"] = {state: time_program(vendor, machine, state == "warm") for state in ("cold", "warm")}
    if untuned:
        compiled = compiler.compile(product_model(*sizes), machine)
        row["untuned"] = time_program(compiled.measured["none"].programs[0], machine)
    if programs:
        opened = lower_model(ModelSpec.named(Path("product.onnx"), machine, "float16", {}, None), product_model(*sizes))
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
    sizes: Annotated[
        str, typer.Option(help="Some of 1536, 3072, 6144, 7680, or m x k x n as 1024x8192x4096, with commas between.")
    ] = "1536,3072,6144,7680",
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
    for size in sizes.split(","):
        row = compare(_sides(size), machine, untuned, tuned)
        print(json.dumps(row) if as_json else _text(row), flush=True)


def _sides(size: str) -> tuple[int, int, int]:
    """m, k and n of a size of the command."""
    sides = size.split("x")
    if all(side.isdecimal() and int(side) for side in sides):
        if len(sides) == 3:
            m, k, n = map(int, sides)
            return m, k, n
        if len(sides) == 1 and int(size) in SILICON:
            return int(size), int(size), int(size)
    raise BadInputError(f"--sizes: {size}; accepted: {', '.join(map(str, SILICON))}, or m x k x n, as 1024x8192x4096")


def _text(row: dict[str, Any]) -> str:
    kinds = {"silicon": row["silicon"], "untuned": row["untuned"], "tuned": row["tuned"]}
    kinds |= {f"vendor, {state}": timed for state, timed in (row["vendor_plan"] or {}).items()}
    reference = (row["silicon"] or {"cycles": row["roofline"]})["cycles"]
    lines = [
        f"{row['size']} roofline {row['roofline']:,} cycles; at least {row['least_requested_bytes'] / 1e6:,.1f} MB requested,"
        f" {row['compulsory_bytes'] / 1e6:,.1f} HBM and dirty"
    ]
    for name, timed in kinds.items():
        if timed is not None:
            shares = " ".join(f"{engine} {share:4.1f}" for engine, share in timed["busy"].items())
            moved = (
                ""
                if name == "silicon"
                else "  {:8,.1f} MB requested {:7,.1f} HBM {:6,.1f} dirty".format(
                    *(timed[f"{kind}_bytes"] / 1e6 for kind in ("requested", "hbm", "dirty"))
                )
            )
            lines.append(f"{row['size']} {name:13} {timed['cycles']:9,} {timed['cycles'] / reference:5.3f}  {shares}{moved}")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
