"""Nodes of a segment, (operator, iteration), one after the other: loads, constants, the operator's kernel, and the way out to DDR."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.emit.conv import PARITIES, WEIGHTS, emit_conv
from compiler.emit.jobs import CONV, LAYER_NORM, POOL, REFLOW, SOFTMAX, VECTOR, Jobs
from compiler.emit.pixelwise import emit_layer_norm, emit_softmax
from compiler.emit.places import Homes, place_of
from compiler.emit.pool import emit_pool
from compiler.emit.records import DDR, MTE2, MTE3, Ints, Place, block_at, copy, copy_rows, dense, general, together
from compiler.emit.resample import emit_resample
from compiler.emit.vector import emit_reflow, emit_vector
from compiler.ir.region import demanded
from compiler.segment.stages import LOAD_PIECE_BLOCKS
from simulator.npu.isa import BLOCK
from simulator.npu.program import Code


class Work(NamedTuple):
    """What the nodes of a segment have in common.

    readers: bool [loads, operators].  loads: int64 [loads, 7] of (storage, plane, home, first block of a row, blocks of a row, planes,
    tag); fresh: int64 [loads, blocks, 2], their rows.  computed, own: see `segment.blocks.Blocks`.  reach, bounds: see
    `segment.run.Run`.
    """

    dtype: int
    images: int
    homes: Homes
    jobs: Jobs
    readers: Any
    loads: Ints
    fresh: Ints
    computed: Ints
    own: Ints
    reach: Ints
    bounds: Ints


@general
@njit(cache=True)
def _copies(out: Code, at: int, dtype: int, tag: int, engine: int, source: Place, target: Place, length: int, planes: int) -> int:
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
def _load(out: Code, at: int, w: Work, i: int, t: int, image: int, iteration: int) -> int:
    storage, plane, home, column, width, planes, tag = w.loads[i]
    first, last = w.fresh[i, t]
    if last <= first:
        return at
    source = place_of(w.homes, storage, plane, -1, column, width, first, t, image, iteration)
    target = place_of(w.homes, storage, plane, home, column, width, first, t, image, iteration)
    return _copies(out, at, w.dtype, tag, MTE2, source, target, (last - first) * width, planes)


@general
@njit(cache=True)
def _store(out: Code, at: int, w: Work, k: int, t: int, image: int, iteration: int) -> int:
    """What stays in L1 for the segment and leaves it as well."""
    storage, plane, home, _, _, column, width, planes = w.jobs.writes[k]
    first, last = w.own[k, t]
    source = place_of(w.homes, storage, plane, home, column, width, first, t, image, iteration)
    target = place_of(w.homes, storage, plane, -1, column, width, first, t, image, iteration)
    return _copies(out, at, w.dtype, w.jobs.tags[k], MTE3, source, target, (last - first) * width, planes)


@general
@njit(cache=True)
def _read(w: Work, k: int, i: int, row: int, t: int, image: int, iteration: int) -> Place:
    """Where operand i of an operator lies from a row on."""
    storage, plane, home, column, width, one_pixel = w.jobs.reads[w.jobs.read_start[k] + i]
    return place_of(w.homes, storage, plane, home, column, width, 0 if one_pixel else row, t, image, iteration)


@general
@njit(cache=True)
def _result(w: Work, k: int, row: int, t: int, image: int, iteration: int) -> Place:
    """Where an operator's result goes first, from a row on."""
    storage, plane, home, column, width, _, _, _ = w.jobs.writes[k]
    return place_of(w.homes, storage, plane, home, column, width, row, t, image, iteration)


@general
@njit(cache=True)
def _table(w: Work, k: int, i: int, width: int) -> Ints:
    first, length = w.jobs.lists[k, i]
    return w.jobs.numbers[first : first + length].reshape(length // width, width)


@general
@njit(cache=True)
def _conv(out: Code, at: int, w: Work, k: int, j: Any, t: int, image: int, iteration: int, parity: Ints) -> int:
    start, stop = w.computed[k, t]
    home = w.jobs.reads[w.jobs.read_start[k], 2]
    height = w.reach[k, 1]
    first_row, _ = demanded(w.reach[k], w.bounds, start, stop)
    top = start * j.sh - w.reach[k, 5]
    if top >= height:  # every window lies in the padding below the image; above it is the same, and can be said
        top = -((stop - start - 1) * j.sh + (j.kh - 1) * j.dh + 1)
    source = _read(w, k, 0, first_row, t, image, iteration)
    j.in_ring = source.back // j.in_pitch
    j.in_first = j.in_ring - source.wrap // source.width if source.back else 0
    j.in_base = source.base - j.in_first * j.in_pitch
    j.in_rows = w.homes.rows[home, t, 1] - first_row
    j.in_plane = source.plane
    j.pad_top = max(0, -top)
    j.out_rows = stop - start
    residual = dense(DDR, -1, 0)
    if j.right != WEIGHTS:
        right = _read(w, k, 1, 0, t, image, iteration)
        j.right_base, j.right_plane = right.base, right.plane
    elif w.jobs.read_start[k + 1] - w.jobs.read_start[k] > 1:
        residual = _read(w, k, 1, start, t, image, iteration)
    return emit_conv(out, at, j, _result(w, k, start, t, image, iteration), residual, parity)


@general
@njit(cache=True)
def _compute(out: Code, at: int, w: Work, k: int, t: int, image: int, iteration: int, conv_parity: Ints, parity: Ints) -> int:
    """The rows of one block by the operator's kernel."""
    kind, i = w.jobs.kind[k]
    if kind == CONV:
        return _conv(out, at, w, k, w.jobs.conv[i], t, image, iteration, conv_parity)
    start, stop = w.computed[k, t]
    target = _result(w, k, start, t, image, iteration)
    if kind == VECTOR:
        chain = w.jobs.vector[i]
        chain.rows = stop - start
        begin = w.jobs.read_start[k]
        sources = np.empty((w.jobs.read_start[k + 1] - begin, 8), np.int64)
        for n in range(sources.shape[0]):
            p = _read(w, k, n, start, t, image, iteration)
            sources[n, 0], sources[n, 1], sources[n, 2], sources[n, 3], sources[n, 4] = p.memory, p.base, p.plane, p.wrap, p.back
            sources[n, 5], sources[n, 6], sources[n, 7] = p.width, p.gap, w.jobs.reads[begin + n, 5]
        return emit_vector(out, at, chain, sources, target, _table(w, k, 0, 6), parity)
    if kind == SOFTMAX:
        softmax = w.jobs.softmax[i]
        softmax.rows = stop - start
        return emit_softmax(out, at, softmax, _read(w, k, 0, start, t, image, iteration), target, _table(w, k, 0, 1)[:, 0], parity)
    if kind == LAYER_NORM:
        norm = w.jobs.layer_norm[i]
        norm.rows = stop - start
        return emit_layer_norm(out, at, norm, _read(w, k, 0, start, t, image, iteration), target, _table(w, k, 0, 1)[:, 0], parity)
    first, _ = demanded(w.reach[k], w.bounds, start, stop)
    source = _read(w, k, 0, first, t, image, iteration)
    if kind == POOL:
        pool = w.jobs.pool[i]
        pool.first_row, pool.rows, pool.in_first = start, stop - start, first
        return emit_pool(out, at, pool, source, target, parity)
    if kind == REFLOW:
        reflow = w.jobs.reflow[i]
        reflow.first_row, reflow.rows, reflow.in_first = start, stop - start, first * w.reach[k, 2]
        return emit_reflow(out, at, reflow, source, target, parity)
    resample = w.jobs.resample[i]
    resample.first_row, resample.rows, resample.in_first = start, stop - start, first
    columns, rows, bounds = _table(w, k, 0, 7), _table(w, k, 1, 7), _table(w, k, 2, 2)
    return emit_resample(out, at, resample, source, target, columns, rows, bounds, parity)


@njit(cache=True)
def emit_nodes(out: Code, nodes: Ints, w: Work, rows: Ints, begun: Any) -> int:
    """Records of nodes, int64 [n, 2] of (operator, iteration), from row 0 on; returns how many, or -1 where there is no room.

    rows: int64 [n, 2], filled with the rows behind a node's loads and behind its last record.  begun: bool [operators], whose constants are
    there already; kept up to date.
    """
    blocks = w.computed.shape[1]
    conv_parity, parity = np.zeros(PARITIES, np.int64), np.zeros(1, np.int64)
    loaded = np.full(w.loads.shape[0], -1, np.int64)
    at = 0
    for n in range(nodes.shape[0]):
        k, iteration = nodes[n, 0], nodes[n, 1]
        image, t = iteration // blocks % w.images, iteration % blocks
        begin = at
        for i in range(w.loads.shape[0]):
            if w.readers[i, k] and loaded[i] < iteration:
                loaded[i] = iteration
                at = _load(out, at, w, i, t, image, iteration)
                if at < 0:
                    return -1
        rows[n, 0] = at
        if w.computed[k, t, 1] > w.computed[k, t, 0]:
            if not begun[k]:
                begun[k] = True
                for c in range(w.jobs.constants.shape[0]):
                    owner, memory, source, target, size, piece = w.jobs.constants[c]
                    if owner == k:
                        at = _fetch(out, at, w.dtype, w.jobs.tags[k], memory, source, target, size, piece)
                        if at < 0:
                            return -1
            at = _compute(out, at, w, k, t, image, iteration, conv_parity, parity)
            if at < 0:
                return -1
        if w.jobs.writes[k, 2] >= 0 and w.own[k, t, 1] > w.own[k, t, 0]:
            at = _store(out, at, w, k, t, image, iteration)
            if at < 0:
                return -1
        for row in range(begin, at):
            out[row, BLOCK] = iteration  # (strip * images + image) * blocks + block of the image
        rows[n, 1] = at
    return at
