"""Speed of the timing simulator: instructions and simulated cycles per second, compared with ONNXim's published rate.

Programs of 10 thousand to 10 million instructions, on 1, 2, 4 and 8 cores; the largest take 1.3 GB of records.

    python scripts/bench_simulator.py [--json] [--max-instructions N] [--repeats N]

The programs are those of a tiled, double-buffered convolution (40% flags): loads, im2col and weight moves, MMADs, FIXPIPE, stores.
`simulate` is the event loop; `prepare` (pricing and flag matching, once per program for all levels) is shown separately.  Seconds are CPU
time, so other load has little effect.  Below the table: the spread of the cost per instruction, largest over smallest, over sizes with one
number of cores and over numbers of cores with one size.  The last line is a whole network: ResNet-50 (random weights) compiled layer by
layer for `edge` in float16, the mean over the machine's levels.

ONNXim steps its memory and network cycle by cycle, this simulator from event to event: the ratio compares the time of a sweep, not the
detail of the models.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from compiler.build import compile_plan, default_plan  # noqa: E402
from compiler.model import ModelSpec, lower_model  # noqa: E402
from simulator.npu import isa  # noqa: E402
from simulator.npu.isa import WORDS, Op  # noqa: E402
from simulator.npu.level import NO_CONTENTION, SHARE_UNIT, Level  # noqa: E402
from simulator.npu.machine import Machine  # noqa: E402
from simulator.npu.machine_file import load_machine  # noqa: E402
from simulator.npu.parts import DataType, Engine, Memory  # noqa: E402
from simulator.npu.program import Code, DdrBuffer, MemoryMap, Program  # noqa: E402
from simulator.timing import prepare, simulate  # noqa: E402
from tuner.zoo.names import resolve_model  # noqa: E402

# cycles per second that ONNXim (IEEE CAL 2024) reached on this class of host at 4 cores
ONNXIM_CYCLES_PER_SECOND = (31_000, 66_000)
SIZES, CORES = (10_000, 100_000, 1_000_000, 10_000_000), (1, 2, 4, 8)
_TILE = 40  # instructions of one tile, 16 of them flags


def _record(
    op: Op, engine: Engine, source: int = 0, target: int = 0, d: int = -1, s0: int = -1, s1: int = -1, p: tuple[int, ...] = ()
) -> Code:
    row = np.zeros(WORDS, np.int32)
    row[: isa.P] = (op, engine, DataType.float16, 0, source, target, d, s0, s1, -1)
    row[isa.P : isa.P + len(p)] = p
    return row


def _tile(core: int, parity: int) -> list[Code]:
    """One tile: 64 pixels x 64 channels, k = 128, in buffers of its parity (flag id = parity, too)."""

    def flag(op: Op, engine: Engine, target: Engine) -> Code:
        return _record(op, engine, p=(core, target, parity))

    def copy(engine: Engine, source: Memory, target: Memory, source_block: int, target_block: int, blocks: int) -> Code:
        return _record(Op.COPY, engine, source, target, target_block, source_block, p=(blocks, 1, 0, 0, 1, 0, 0))

    mte2, mte1, cube, fixpipe, mte3 = Engine.MTE2, Engine.MTE1, Engine.CUBE, Engine.FIXPIPE, Engine.MTE3
    l1, l0, l0c, ub = parity * 1024, parity * 512, parity * 1024, parity * 512
    rows = [flag(Op.WAIT, mte2, mte1)]
    rows += [copy(mte2, Memory.DDR, Memory.L1, i * 256, l1 + i * 256, 256) for i in range(4)]
    rows += [flag(Op.SET, mte2, mte1), flag(Op.WAIT, mte1, mte2), flag(Op.WAIT, mte1, cube)]
    for i in range(4):
        im2col = (8, 8, 8, 64, 1, 1, 1, 1, 1, 1, 0, 0, 8, 0, 64, 64, i * 2, 2, 16)
        rows.append(_record(Op.IM2COL, mte1, Memory.L1, Memory.L0A, l0 + i * 128, l1, p=im2col))
        rows.append(copy(mte1, Memory.L1, Memory.L0B, l1 + 512 + i * 128, l0 + i * 128, 128))
    rows += [flag(Op.SET, mte1, cube), flag(Op.SET, mte1, mte2), flag(Op.WAIT, cube, mte1), flag(Op.WAIT, cube, fixpipe)]
    for i in range(8):
        k, n = divmod(i, 2)
        rows.append(
            _record(Op.MMAD, cube, Memory.L0A, Memory.L0C, l0c + n * 256, l0 + k * 128, l0 + k * 128 + n * 64, p=(64, 2, 2, int(k > 0)))
        )
    rows += [flag(Op.SET, cube, mte1), flag(Op.SET, cube, fixpipe), flag(Op.WAIT, fixpipe, cube), flag(Op.WAIT, fixpipe, mte3)]
    for n in range(2):
        rows.append(_record(Op.FIXPIPE, fixpipe, Memory.L0C, Memory.UB, ub + n * 128, l0c + n * 256, p=(64, 64, 2, 64, 0, 1)))
    rows += [flag(Op.SET, fixpipe, cube), flag(Op.SET, fixpipe, mte3), flag(Op.WAIT, mte3, fixpipe)]
    rows += [copy(mte3, Memory.UB, Memory.DDR, ub + n * 128, 2048 + core * 256 + n * 128, 128) for n in range(2)]
    rows.append(flag(Op.SET, mte3, fixpipe))
    return rows


def tiled_program(machine: Machine, instructions: int) -> Program:
    """About `instructions` in all, split over the machine's cores."""
    streams = []
    for core in range(machine.cores):
        body = np.stack(_tile(core, 0) + _tile(core, 1))
        assert len(body) == 2 * _TILE
        # buffers are free at first; at the end whoever waits for a free one takes the last SET
        free = ((Engine.MTE1, Engine.MTE2), (Engine.CUBE, Engine.MTE1), (Engine.FIXPIPE, Engine.CUBE), (Engine.MTE3, Engine.FIXPIPE))
        first = [_record(Op.SET, a, p=(core, b, parity)) for a, b in free for parity in (0, 1)]
        last = [_record(Op.WAIT, b, p=(core, a, parity)) for a, b in free for parity in (0, 1)]
        repeats = max(1, instructions // machine.cores // len(body))
        stream = np.empty((len(first) + repeats * len(body) + len(last), WORDS), np.int32)
        stream[: len(first)], stream[-len(last) :] = first, last
        stream[len(first) : -len(last)].reshape(repeats, len(body), WORDS)[...] = body
        streams.append(stream)
    blocks = 2048 + machine.cores * 256
    memory = MemoryMap(DataType.float16, (DdrBuffer("all", "scratch", 0, blocks),), blocks)
    return Program(machine.digest, tuple(streams), memory)


def measure(machine: Machine, instructions: int, repeats: int) -> dict[str, Any]:
    """Best of `repeats` runs of one program."""
    program = tiled_program(machine, instructions)
    if instructions <= 100_000:
        program.verify(machine)
    prepare_s, run_s = [], []
    for _ in range(repeats):
        begin = time.process_time()
        prepared = prepare(program, machine)
        middle = time.process_time()
        timing = simulate(prepared, machine, Level.of_units(SHARE_UNIT // 2))
        run_s.append(time.process_time() - middle)
        prepare_s.append(middle - begin)
    n, cycles = timing.instructions, timing.cycles
    return {
        "cores": machine.cores,
        "size": instructions,
        "instructions": n,
        "cycles": cycles,
        "prepare_s": min(prepare_s),
        "simulate_s": min(run_s),
        "instructions_per_s": n / min(run_s),
        "ns_per_instruction": 1e9 * min(run_s) / n,
        "instructions_per_s_with_prepare": n / (min(run_s) + min(prepare_s)),
        "cycles_per_s": cycles / min(run_s),
        "times_onnxim": [cycles / min(run_s) / rate for rate in reversed(ONNXIM_CYCLES_PER_SECOND)],
    }


def flatness(rows: list[dict[str, Any]], column: str, label: str) -> float:
    """Largest over smallest cost of an instruction over `column` at equal `label` (columns of the rows); the largest of these ratios."""
    costs: dict[int, list[float]] = {}
    for row in rows:
        costs.setdefault(row[label], []).append(row["ns_per_instruction"])
    assert all(len(group) == len({row[column] for row in rows}) for group in costs.values())
    return max(max(group) / min(group) for group in costs.values())


def measure_network(network: str, machine: Machine, repeats: int) -> dict[str, Any]:
    """A network, layer by layer: the best of `repeats` preparations, and the mean over the levels of the best simulation at each."""
    path, seed = resolve_model(Path(f"light:{network}"), None)
    opened = lower_model(ModelSpec(path, machine, DataType.float16, random_weights=seed))
    program = compile_plan(opened.compiler, default_plan(opened.target_graph))
    prepare_s, cycles = [], {}
    run_s: dict[str, list[float]] = {level: [] for level in machine.contention}
    for _ in range(repeats):
        begin = time.process_time()
        prepared = prepare(program, machine)
        prepare_s.append(time.process_time() - begin)
        for level, seconds in run_s.items():
            begin = time.process_time()
            cycles[level] = simulate(prepared, machine, machine.contention[level]).cycles
            seconds.append(time.process_time() - begin)
    return {
        "network": network,
        "machine": machine.name,
        "instructions": program.instructions,
        "cycles": cycles,
        "prepare_s": min(prepare_s),
        "simulate_s": sum(map(min, run_s.values())) / len(run_s),
    }


def main(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    max_instructions: Annotated[int, typer.Option(help="Of the largest program.")] = 10_000_000,
    repeats: Annotated[int, typer.Option(help="Of every measurement, of which the fastest counts.")] = 3,
) -> None:
    """Instructions and cycles that the timing simulator does per second."""
    edge = load_machine("edge")
    simulate(tiled_program(edge, 1000), edge, NO_CONTENTION)  # compile
    sizes = [size for size in SIZES if size <= max_instructions]
    rows = [measure(edge.model_copy(update={"cores": cores}), size, repeats) for cores in CORES for size in sizes]
    flat = {"over_sizes": flatness(rows, column="size", label="cores"), "over_cores": flatness(rows, column="cores", label="size")}
    network = measure_network("resnet50", edge, repeats)
    if as_json:
        host = {"host": platform.processor() or platform.machine(), "cpus": os.cpu_count()}
        print(json.dumps(host | {"rows": rows, "flatness": flat, "network": network}))
        return
    print("cores instructions  ns/instr   M instr/s  (with prepare)   M cycles/s   times ONNXim (31-66 thousand cycles/s)")
    for r in rows:
        simulate_rate, total_rate, cycles = (
            r[key] / 1e6 for key in ("instructions_per_s", "instructions_per_s_with_prepare", "cycles_per_s")
        )
        low, high = r["times_onnxim"]
        front = f"{r['cores']:5d} {r['instructions']:12,d} {r['ns_per_instruction']:9.1f}"
        print(f"{front} {simulate_rate:11.1f} {total_rate:15.1f} {cycles:12.1f}   {low:,.0f}-{high:,.0f}")
    slowest = min(r["instructions_per_s"] for r in rows) / 1e6
    over_sizes, over_cores = flat["over_sizes"], flat["over_cores"]
    print(f"slowest {slowest:.1f} M instr/s; cost per instruction differs {over_sizes:.2f}x over sizes, {over_cores:.2f}x over cores")
    simulate_rate, total_rate = 1e3 * network["simulate_s"], 1e3 * (network["simulate_s"] + network["prepare_s"])
    print(
        f"resnet50: {network['instructions']:,} instructions, {simulate_rate:.1f} ms per simulation at one level, "
        f"{total_rate:.1f} ms with preparation"
    )


if __name__ == "__main__":
    typer.run(main)
