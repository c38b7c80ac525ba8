"""Nodes of a segment, (operator, iteration), one after the other: loads, constants, the operator's kernel, and the way out to DDR."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, typeof, types

from compiler.instructions.addressing import place_of
from compiler.instructions.builders import DDR, MTE2, MTE3, Ints, TilePlace, block_at, copy, copy_rows, general, together
from compiler.instructions.node_context import MADE_BY_READER, PARITIES, Node, Work
from compiler.ops.registry import EMITTERS, JOBS
from compiler.segment.dataflow import LOAD_PIECE_BLOCKS
from simulator.addresses import Reference, by_reference, call_kernel, kernel_address, pointer_to, record_type
from simulator.npu.isa import BLOCK
from simulator.npu.program import Code


@general
@njit(cache=True)
def _copies(out: Code, at: int, dtype: int, tag: int, engine: int, source: TilePlace, target: TilePlace, length: int, planes: int) -> int:
    """A strided copy in pieces of a few planes, so that what waits for it can start before all of it has arrived."""
    done = 0
    while done < length:
        run, rows = together(source, done, target, done, length - done)
        step = max(1, LOAD_PIECE_BLOCKS // (run * rows))
        for p in range(0, planes, step):
            if at >= out.shape[0]:
                return -1
            s, d = block_at(source, p, done), block_at(target, p, done)
            at = copy_rows(out, at, dtype, tag, engine, source, target, s, d, run, rows, min(step, planes - p))
        done += run * rows
    return at


@general
@njit(cache=True)
def _fetch(out: Code, at: int, dtype: int, tag: int, memory: int, source: int, target: int, blocks: int, piece: int) -> int:
    """Contiguous constants from DDR, in pieces."""
    for i in range(0, blocks, piece):
        if at >= out.shape[0]:
            return -1
        at = copy(out, at, dtype, tag, MTE2, DDR, memory, source + i, target + i, min(piece, blocks - i), 1, 0, 0, 1, 0, 0)
    return at


@general
@njit(cache=True)
def _load(out: Code, at: int, w: Work, i: int, t: int, image: int, iteration: int, member: int) -> int:
    storage, plane, allocation, column, width, planes, tag, dtype = w.loads[i]
    first, last = w.fresh[i, t]
    if last <= first:
        return at
    source = place_of(w.allocations, storage, plane, -1, column, width, first, t, image, iteration, member)
    target = place_of(w.allocations, storage, plane, allocation, column, width, first, t, image, iteration, member)
    return _copies(out, at, dtype, tag, MTE2, source, target, (last - first) * width, planes)


@general
@njit(cache=True)
def _store(out: Code, at: int, w: Work, k: int, t: int, image: int, iteration: int, member: int) -> int:
    """What stays in L1 for the segment and leaves it as well."""
    storage, plane, allocation, _, _, column, width, planes = w.jobs.writes[k]
    first, last = w.own[k, t]
    source = place_of(w.allocations, storage, plane, allocation, column, width, first, t, image, iteration, member)
    target = place_of(w.allocations, storage, plane, -1, column, width, first, t, image, iteration, member)
    return _copies(out, at, w.jobs.dtypes[k], w.jobs.tags[k], MTE3, source, target, (last - first) * width, planes)


_ADDRESSES = np.zeros(len(EMITTERS), np.int64)  # of those that this process has needed


def write_nodes(out: Code, nodes: Ints, work: Work, rows: Ints, begun: Any) -> int:
    """`emit_nodes` with the emitters that these operators need; others are not compiled."""
    for number in set(work.jobs.kind[:, 0].tolist()):
        if not _ADDRESSES[number]:
            given = types.int64, Reference(typeof(work)), typeof(Node(0, 0, 0, 0, False, 0)), record_type(JOBS[number])
            _ADDRESSES[number] = kernel_address(EMITTERS[number], (typeof(out), *given, typeof(rows[0])))
    return int(emit_nodes(out, nodes, work, rows, begun, _ADDRESSES))


@njit(cache=True)
def emit_nodes(out: Code, nodes: Ints, w: Work, rows: Ints, begun: Any, emitters: Ints) -> int:
    """Records of nodes, int64 [n, 2] of (operator, iteration), from row 0 on; returns how many, or -1 where there is no room.

    rows: int64 [n, 2], filled with the rows behind a node's loads and behind its last record.  begun: bool [operators], whose constants are
    there already; kept up to date.  emitters: addresses of those that are needed, by number.
    """
    w = by_reference(w)
    blocks = w.computed.shape[1]
    parity = np.zeros(PARITIES, np.int64)
    loaded = np.full(w.loads.shape[0], -1, np.int64)
    at = 0
    for n in range(nodes.shape[0]):
        k, iteration = nodes[n, 0], nodes[n, 1]
        image, t = iteration // blocks % w.images, iteration % blocks
        begin = at
        for i in range(w.loads.shape[0]):
            if w.readers[i, k] and loaded[i] < iteration:
                loaded[i] = iteration
                for member in range(w.together):
                    at = _load(out, at, w, i, t, image, iteration, member)
                    if at < 0:
                        return -1
        rows[n, 0] = at
        if w.computed[k, t, 1] > w.computed[k, t, 0]:
            begins = not begun[k]
            if begins:
                begun[k] = True
                for c in range(w.jobs.constants.shape[0]):
                    owner, memory, source, target, size, piece = w.jobs.constants[c]
                    if owner == k:
                        at = _fetch(out, at, w.jobs.dtypes[k], w.jobs.tags[k], memory, source, target, size, piece)
                        if at < 0:
                            return -1
            for member in range(w.together):
                node = Node(k, t, image, iteration, begins and member == 0, member)
                if w.jobs.made[k] != MADE_BY_READER:
                    emitter, record = w.jobs.kind[k]
                    at = call_kernel(emitters[emitter], (out, at, w, node, pointer_to(w.jobs.records, record), parity))
                if at < 0:
                    return -1
        if w.jobs.writes[k, 2] >= 0 and w.own[k, t, 1] > w.own[k, t, 0]:
            for member in range(w.together):
                at = _store(out, at, w, k, t, image, iteration, member)
                if at < 0:
                    return -1
        for row in range(begin, at):
            out[row, BLOCK] = iteration  # (strip * images + image) * blocks + block of the image
        rows[n, 1] = at
    return at
