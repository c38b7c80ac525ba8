"""A rule of the sanitizer that sees values, not blocks: lanes without a channel that a product sums have to add zero.

A tensor takes whole planes, so a product of two computed tensors sums lanes without a channel as well.  Only who made the program knows
how many lanes of a sum have one.  Integers are left out: FIXPIPE takes off what their zero points add.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.ir.operators import HeadedProduct
from compiler.target.target_graph import TargetGraph
from simulator.functional import Counters, execute
from simulator.instruction_effects import Bytes, Words
from simulator.npu import isa
from simulator.npu.isa import M_ACC, M_K, M_MPAD, M_N1, S0, S1, D
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, FRACTALS, DataType, Memory
from simulator.npu.program import Program


def summed_lanes(target_graph: TargetGraph) -> dict[int, int]:
    """Of a unit's products of two tensors, as `execute_checked` takes them."""
    products = [(spec.tag, spec.operator) for spec in target_graph.operators]
    return {tag: target_graph.graph.shapes[op.a][1] // op.heads for tag, op in products if isinstance(op, HeadedProduct)}


def execute_checked(
    program: Program, machine: Machine, ddr: Bytes, summed: Mapping[int, int], scramble_seed: int = 0
) -> tuple[Counters, tuple[str, ...]]:
    """`execute`, and a line for each operator that sums something else than zeros beyond its channels.

    summed: operator, as records name it -> lanes of its sums that have a channel, the first ones of every sum.
    """
    found = dict[int, str]()
    done = dict[tuple[int, int], int]()  # core and place in L0C -> blocks of the sum that are added up there

    def watch(core: int, memories: list[Bytes], record: Words) -> None:
        operator, dtype = int(isa.operator_of(record[isa.TAG])), DataType(record[isa.DTYPE])
        if operator not in summed or operator in found or not dtype.is_float:
            return
        k, lanes, columns = record[M_K], FRACTALS[dtype].lanes, FRACTALS[dtype].columns
        first = done.get((core, record[D]), 0) if record[M_ACC] else 0
        done[core, record[D]] = first + k
        beyond = np.arange(first * lanes, (first + k) * lanes) >= summed[operator]
        if not beyond.any():
            return
        shapes = ((k, record[M_MPAD], lanes), (record[M_N1], k, columns, lanes))
        left = np.ndarray(shapes[0], dtype.storage, memories[Memory.L0A], record[S0] * BLOCK_BYTES)
        right = np.ndarray(shapes[1], dtype.storage, memories[Memory.L0B], record[S1] * BLOCK_BYTES)
        rows = np.abs(left.astype(np.float32)).max(axis=1).reshape(-1)
        added = rows * np.abs(right.astype(np.float32)).max(axis=(0, 2)).reshape(-1)
        if not (added[beyond] == 0).all():
            lane = int(np.flatnonzero(beyond & (added != 0))[0]) + first * lanes
            where = f"segment {isa.segment_of(record[isa.TAG])}, operator {operator}"
            found[operator] = f"{where}: sums lane {lane}, of which {summed[operator]} have a channel; its products are not zero"

    counters = execute(program, machine, ddr, scramble_seed=scramble_seed, verify=False, watch=watch if summed else None)
    return counters, tuple(found.values())
