"""DDR traffic of a program by cause: counted from its records, block by block, over the buffers of its memory map."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.access import MAX_RANGES, accesses
from simulator.npu.isa import Op
from simulator.npu.parts import BLOCK_BYTES, DataType, Memory
from simulator.npu.program import Code, DdrBuffer, Program
from simulator.timing import Timing


@dataclass(frozen=True)
class Traffic:
    """DDR bytes of a program by cause; their sum is the simulator's total.

    once: weights, inputs and outputs of the model, each value once, without padding.  zeros: weights added by expanding grouped and
    depthwise convolutions, and padding channels of weights, once, with the masks of the expansion.  lanes: padding channels of inputs and
    outputs.  weights_again, tensors_again: repeated transfers of constants, and of inputs and outputs: for other blocks, as a halo, or for
    another operator.  spills: intermediate tensors, stored and loaded.
    """

    once: int
    zeros: int
    lanes: int
    weights_again: int
    tensors_again: int
    spills: int

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


def stream_bytes(program: Program) -> int:
    """Bytes of the records of all cores, which a machine fetches in addition to data."""
    return sum(code.nbytes for code in program.streams)


def moved_bytes(timing: Timing) -> int:
    """DDR bytes, loads and stores."""
    return timing.ddr_read_bytes + timing.ddr_write_bytes


def transfers(code: Code) -> Iterator[tuple[int, bool, tuple[int, ...]]]:
    """For every record that moves DDR data: its row, whether it stores, and its range (`simulator.npu.access`)."""
    out = np.zeros((MAX_RANGES, 8), np.int64)
    rows = np.flatnonzero((code[:, isa.OP] == Op.COPY) & ((code[:, isa.SRC] == Memory.DDR) | (code[:, isa.DST] == Memory.DDR)))
    for row in rows.tolist():
        for access in range(accesses(code, row, out)):
            if out[access, 0] == Memory.DDR:
                yield row, bool(out[access, 1]), tuple(out[access, 2:].tolist())


def accessed_blocks(span: tuple[int, ...]) -> NDArray[np.int64]:
    """Blocks of a range."""
    first, length, count, stride, groups, group_stride = span
    inner = np.arange(count)[:, None] * stride + np.arange(length)
    return (first + np.arange(groups)[:, None, None] * group_stride + inner).reshape(-1)


def touched(program: Program) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Loads and stores of each block of DDR, int64 [blocks] each."""
    loads, stores = np.zeros((2, program.memory.size_blocks), np.int64)
    for code in program.streams:
        for _, store, span in transfers(code):
            np.add.at(stores if store else loads, accessed_blocks(span), 1)
    return loads, stores


def traffic(target_graph: TargetGraph, program: Program) -> Traffic:
    """Traffic of a program by cause.  target_graph: of the program, in any order of its operators."""
    loads, stores = touched(program)
    logical = needed_constants(target_graph)
    totals = dict.fromkeys((field.name for field in fields(Traffic)), 0)
    for buffer in program.memory.buffers:
        region = slice(buffer.offset_blocks, buffer.offset_blocks + buffer.size_blocks)
        moved = int(loads[region].sum() + stores[region].sum()) * BLOCK_BYTES
        unique = int(np.count_nonzero(loads[region]) + np.count_nonzero(stores[region])) * BLOCK_BYTES
        if buffer.kind == "scratch":
            totals["spills"] += moved
        elif buffer.kind == "constant":
            needed = min(unique, logical.get(buffer.name, unique))
            totals["once"] += needed
            totals["zeros"] += unique - needed
            totals["weights_again"] += moved - unique
        else:  # an output that operators of the model read as well is stored once and loaded again
            first = int(np.count_nonzero(loads[region] if buffer.kind == "input" else stores[region])) * BLOCK_BYTES
            needed = min(first, _values(target_graph, buffer))
            totals["once"] += needed
            totals["lanes"] += first - needed
            totals["tensors_again"] += moved - first
    return Traffic(**totals)


def needed_constants(target_graph: TargetGraph) -> dict[str, int]:
    """Bytes of the weights and biases of products, by name of their buffers: in their stored types, without padding."""
    constants = {}
    for spec in target_graph.operators:
        operator: Any = spec.operator
        if getattr(operator, "weights", None) is not None:
            item, sums = target_graph.type_of(spec.reads[0]).size_bytes, DataType.float32.size_bytes
            constants[f"{operator.name}/weights"] = math.prod(operator.weights.shape) * item
            constants[f"{operator.name}/bias"] = len(operator.bias) * sums
            if getattr(spec, "expansion", None) is not None:
                constants[f"{operator.name}/masks"] = 0
    return constants


def _values(target_graph: TargetGraph, buffer: DdrBuffer) -> int:
    return math.prod(buffer.shape) * target_graph.memory.type_of(buffer).size_bytes
