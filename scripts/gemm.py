"""Matrix products as programs, to compare the clock with other simulators: A [m, k] times B [k, n] alone.

Programs are for the timing simulator only: operands are read from where the loads put them, as in simulators whose scratchpad feeds the
array, so there are no moves between L1 and L0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.npu import isa
from simulator.npu.isa import WORDS, Op
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Engine, Memory
from simulator.npu.program import Code, DdrBuffer, MemoryMap, Program

ATOM = 16  # MMAD counts m, k (in float16) and n in these
_ITEM_BYTES = DataType.float16.size_bytes


def array_machine(
    rows: int, columns: int, dataflow: str, pipelined: bool, ddr_bytes_per_cycle: int = 64, latency_cycles: int = 100
) -> Machine:
    """Machine with one core around a systolic array and no other bottleneck: room for whole matrices, free issue, long queues."""
    values = load_machine("tiny").model_dump()
    values |= {
        "name": f"array-{rows}x{columns}",
        "cores": 1,
        "buffers_bytes": dict.fromkeys(values["buffers_bytes"], 1 << 28),
        "issue_cycles": 0,
        "queue_depth": 1 << 20,
        "matrix": {
            "kind": "systolic",
            "rows": rows,
            "columns": columns,
            "dataflow": dataflow,
            "pipelined": pipelined,
            "passes": {"float16": 1},
            "startup_cycles": 0,
        },
    }
    values["ddr"] |= {"bytes_per_cycle": ddr_bytes_per_cycle, "latency_cycles": latency_cycles, "outstanding": 64}
    for path in values["paths"]:
        if "DDR" in (path["source"], path["destination"]):
            path["bytes_per_cycle"] = ddr_bytes_per_cycle
    return Machine.model_validate(values)


def mmads(machine: Machine, m: int, k: int, n: int, tile: tuple[int, int, int]) -> Program:
    """MMADs in order, tiles of (m, k, n) in multiples of 16, the last tile of each axis smaller; k innermost."""
    rows = [
        _mmad(row, depth, column, accumulate=j > 0)
        for row in _tile_starts(m, tile[0])
        for column in _tile_starts(n, tile[2])
        for j, depth in enumerate(_tile_starts(k, tile[1]))
    ]
    return program(machine, rows)


def tile_by_tile(machine: Machine, m: int, k: int, n: int) -> Program:
    """Load, multiply and store: a tile of weights at a time, k innermost; operands are loaded once, results leave when their k is done.

    While A comes in, with the first column of tiles, each `rows` of it are multiplied as soon as they are there.
    """
    target_graph = machine.matrix
    assert target_graph.kind == "systolic"
    rows: list[Code] = []
    for j, tile_n in enumerate(_tile_starts(n, max(target_graph.columns, ATOM))):
        for i, tile_k in enumerate(_tile_starts(k, max(target_graph.rows, ATOM))):
            rows.append(_copy(Engine.MTE2, Memory.DDR, Memory.L1, tile_k * tile_n))
            for part in _tile_starts(m, max(target_graph.rows, ATOM)) if j == 0 else [m]:
                if j == 0:
                    rows.append(_copy(Engine.MTE2, Memory.DDR, Memory.L1, part * tile_k))
                rows += [*_flag(Engine.MTE2, Engine.CUBE), _mmad(part, tile_k, tile_n, accumulate=i > 0)]
        rows += [*_flag(Engine.CUBE, Engine.MTE3), _copy(Engine.MTE3, Memory.UB, Memory.DDR, m * tile_n)]
    return program(machine, rows)


def _tile_starts(length: int, tile: int) -> Iterator[int]:
    for start in range(0, length, tile):
        yield min(tile, length - start)


def record(op: Op, engine: Engine, source: int, target: int, coordinates: tuple[int, int, int], p: tuple[int, ...]) -> Code:
    row = np.zeros(WORDS, np.int32)
    row[: isa.P] = (op, engine, DataType.float16, 0, source, target, *coordinates, -1)
    row[isa.P : isa.P + len(p)] = p
    return row


def _mmad(m: int, k: int, n: int, accumulate: bool) -> Code:
    return record(Op.MMAD, Engine.CUBE, Memory.L0A, Memory.L0C, (0, 0, 0), (m, k // ATOM, n // ATOM, int(accumulate)))


def _copy(engine: Engine, source: Memory, target: Memory, items: int) -> Code:
    blocks = items * _ITEM_BYTES // BLOCK_BYTES
    return record(Op.COPY, engine, source, target, (0, 0, -1), (blocks, 1, blocks, blocks, 1, 0, 0))


def _flag(source: Engine, target: Engine) -> tuple[Code, Code]:
    set_ = record(Op.SET, source, 0, 0, (-1, -1, -1), (0, target, 0))
    return set_, record(Op.WAIT, target, 0, 0, (-1, -1, -1), (0, source, 0))


def program(machine: Machine, rows: list[Code]) -> Program:
    blocks = 1 << 20
    memory = MemoryMap(DataType.float16, (DdrBuffer("all", "scratch", 0, blocks),), blocks)
    result_program = Program(machine.digest, (np.stack(rows),), memory)
    result_program.verify(machine)
    return result_program
