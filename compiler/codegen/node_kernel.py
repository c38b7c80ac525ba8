"""Nodes of a segment, (operator, iteration), in sequence: loads, constants, the operator's kernel, and stores to DDR."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, typeof, types

from compiler.instructions.addressing import place_of
from compiler.instructions.builders import DDR, MTE2, MTE3, Ints, TilePlace, block_at, compile_once, copy, copy_rows, joined_rows
from compiler.instructions.node_context import MADE_BY_READER, SLOT_STATES, Node, Work
from compiler.ops.conv_emitter import conv_rows, load_convolution
from compiler.ops.pool_emitter import fed_rows
from compiler.ops.registry import EMITTERS, JOBS
from compiler.segment.dataflow import LOAD_PIECE_BLOCKS
from simulator.kernel_addresses import Reference, by_reference, call_kernel, kernel_address, pointer_to, record_type
from simulator.npu.isa import BLOCK
from simulator.npu.program import Code


@compile_once
@njit(cache=True)
def _copies(
    out: Code, cursor: int, dtype: int, tag: int, engine: int, source: TilePlace, target: TilePlace, length: int, planes: int
) -> int:
    """A strided copy in pieces of a few planes, so that readers can start before all of it has arrived."""
    done = 0
    while done < length:
        run, rows = joined_rows(source, done, target, done, length - done)
        step = max(1, LOAD_PIECE_BLOCKS // (run * rows))
        for p in range(0, planes, step):
            if cursor >= out.shape[0]:
                return -1
            s, d = block_at(source, p, done), block_at(target, p, done)
            cursor = copy_rows(out, cursor, dtype, tag, engine, source, target, s, d, run, rows, min(step, planes - p))
        done += run * rows
    return cursor


@compile_once
@njit(cache=True)
def _fetch(out: Code, cursor: int, dtype: int, tag: int, memory: int, source: int, target: int, blocks: int, piece: int) -> int:
    """Contiguous constants from DDR, in pieces."""
    for i in range(0, blocks, piece):
        if cursor >= out.shape[0]:
            return -1
        cursor = copy(out, cursor, dtype, tag, MTE2, DDR, memory, source + i, target + i, min(piece, blocks - i), 1, 0, 0, 1, 0, 0)
    return cursor


@compile_once
@njit(cache=True)
def _load(out: Code, cursor: int, work: Work, load: int, block: int, image: int, iteration: int, member: int) -> int:
    storage, plane, allocation, column, width, planes, tag, dtype = work.loads[load]
    first, last = work.fresh[load, block]
    if last <= first:
        return cursor
    source = place_of(work.allocations, storage, plane, -1, column, width, first, block, image, iteration, member)
    target = place_of(work.allocations, storage, plane, allocation, column, width, first, block, image, iteration, member)
    return _copies(out, cursor, dtype, tag, MTE2, source, target, (last - first) * width, planes)


@compile_once
@njit(cache=True)
def _store(out: Code, cursor: int, work: Work, operator: int, block: int, image: int, iteration: int, member: int) -> int:
    """Store to DDR of a result that also stays in L1 for the segment."""
    storage, plane, allocation, _, _, column, width, planes = work.jobs.writes[operator]
    first, last = work.ddr_rows[operator, block]
    source = place_of(work.allocations, storage, plane, allocation, column, width, first, block, image, iteration, member)
    target = place_of(work.allocations, storage, plane, -1, column, width, first, block, image, iteration, member)
    return _copies(out, cursor, work.jobs.dtypes[operator], work.jobs.tags[operator], MTE3, source, target, (last - first) * width, planes)


_ADDRESSES = np.zeros(len(EMITTERS), np.int64)  # of the emitters that this process has used; 0 for the others


def write_nodes(out: Code, nodes: Ints, work: Work, rows: Ints, constants_loaded: Any) -> int:
    """`emit_nodes` with only the emitters that these operators need, so that others are not compiled."""
    node = Node(0, 0, 0, 0, False, 0)
    for number in set(work.jobs.kind[:, 0].tolist()):
        if not _ADDRESSES[number]:
            if EMITTERS[number] in (conv_rows, fed_rows):
                load_convolution(out, work, node, rows[0])
            arguments = types.int64, Reference(typeof(work)), typeof(node), record_type(JOBS[number])
            _ADDRESSES[number] = kernel_address(EMITTERS[number], (typeof(out), *arguments, typeof(rows[0])))
    return int(emit_nodes(out, nodes, work, rows, constants_loaded, _ADDRESSES))


@njit(cache=True)
def emit_nodes(out: Code, nodes: Ints, work: Work, rows: Ints, constants_loaded: Any, emitters: Ints) -> int:
    """Write the records of nodes, int64 [n, 2] of (operator, iteration), from row 0 on.  Returns their count; -1 if `out` is too short.

    rows: int64 [n, 2], filled with the row after each node's loads and the row after its last record.
    constants_loaded: bool [operators], updated: whether the operator's constants are loaded.
    emitters: address of each emitter, by number.
    """
    work = by_reference(work)
    blocks = work.computed.shape[1]
    slot_state = np.zeros(SLOT_STATES, np.int64)
    loaded = np.full(work.loads.shape[0], -1, np.int64)
    cursor = 0
    for index in range(nodes.shape[0]):
        operator, iteration = nodes[index, 0], nodes[index, 1]
        image, block = iteration // blocks % work.images, iteration % blocks
        begin = cursor  # loads that the node is the first to read
        for load in range(work.loads.shape[0]):
            if work.readers[load, operator] and loaded[load] < iteration:
                loaded[load] = iteration
                for member in range(work.together):
                    cursor = _load(out, cursor, work, load, block, image, iteration, member)
                    if cursor < 0:
                        return -1
        rows[index, 0] = cursor
        if work.computed[operator, block, 1] > work.computed[operator, block, 0]:
            begins = not constants_loaded[operator]  # constants are loaded before the operator's first node
            if begins:
                constants_loaded[operator] = True
                for fetch in range(work.jobs.constants.shape[0]):
                    owner, memory, source, target, size, piece = work.jobs.constants[fetch]
                    if owner == operator:
                        cursor = _fetch(
                            out, cursor, work.jobs.dtypes[operator], work.jobs.tags[operator], memory, source, target, size, piece
                        )
                        if cursor < 0:
                            return -1
            for member in range(work.together):
                node = Node(operator, block, image, iteration, begins and member == 0, member)
                if work.jobs.pool_roles[operator] != MADE_BY_READER:
                    emitter, record = work.jobs.kind[operator]
                    cursor = call_kernel(emitters[emitter], (out, cursor, work, node, pointer_to(work.jobs.records, record), slot_state))
                if cursor < 0:
                    return -1
        # a resident result that also leaves the segment
        if work.jobs.writes[operator, 2] >= 0 and work.ddr_rows[operator, block, 1] > work.ddr_rows[operator, block, 0]:
            for member in range(work.together):
                cursor = _store(out, cursor, work, operator, block, image, iteration, member)
                if cursor < 0:
                    return -1
        for row in range(begin, cursor):
            out[row, BLOCK] = iteration  # (strip * images + image) * blocks + block of the image
        rows[index, 1] = cursor
    return cursor
