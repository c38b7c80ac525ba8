"""A segment becomes instructions: sequential records with real addresses, not yet synchronised.

`lower_segment` is what the compiler does most often, once per distinct segment plan; everything per instruction happens in numba.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numba import njit

from compiler.derive.plan import ConvTiling, Infeasible, SegmentPlan, VectorTiling
from compiler.emit.ahead import order_ahead
from compiler.emit.conv import PARITIES, PIXELS_K, PIXELS_N, WEIGHTS, ConvJob, emit_conv
from compiler.emit.pixelwise import LayerNormJob, SoftmaxJob, emit_layer_norm, emit_softmax
from compiler.emit.records import DDR, L1, MTE2, MTE3, UB, Code, Ints, Place, before_wrap, block_at, copy
from compiler.emit.resample import ResampleJob, emit_resample
from compiler.emit.vector import PoolJob, ReflowJob, VectorJob, emit_pool, emit_reflow, emit_vector
from compiler.ir.graph import Pool, Resample
from compiler.ir.region import demand
from compiler.schedule.blocks import Blocks, Share, cut, dealt
from compiler.schedule.memory import TO_L1, named, place, slot_counts, softmax_planes, way_out
from compiler.schedule.window import edges, interleaved, lanes, load_cycles, load_readers, node_cycles, record_cycles, sequence, slide
from compiler.tile.channels import channel_parts
from compiler.tile.spec import (
    AnySpec,
    ConvSpec,
    LayerNormSpec,
    MatMulSpec,
    Piece,
    PoolSpec,
    ReflowSpec,
    ResampleSpec,
    SoftmaxSpec,
    Unit,
    VectorSpec,
)
from compiler.tile.stages import LOAD_PIECE_BLOCKS, WEIGHT_PIECE_BLOCKS
from simulator.npu.isa import BLOCK, ENGINE, WORDS, Activation, float_bits
from simulator.npu.machine import Engine, Memory

_LARGEST_FACTOR = 60000.0  # of 1 / deviation in float16, whose largest number is 65504
CAPACITY = 1 << 19  # records of one segment; more is refused as infeasible


@dataclass(frozen=True, eq=False)
class Lowered:
    """Records (TAG holds the kernel's index, BLOCK the iteration) and the most that each buffer held, in bytes."""

    code: Code
    peak_bytes: dict[str, int]


@dataclass
class _Emitter:
    """State while one segment is written."""

    unit: Unit
    plan: SegmentPlan
    blocks: Blocks
    l1: dict[str, int]
    ub: dict[str, int]
    slots: dict[int, int]  # of staged storages
    out: Code
    at: int = 0
    rows: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))  # per node written, rows behind its loads and behind its last
    jobs: dict[int, ConvJob] = field(default_factory=dict)  # per convolution, what is the same in all of its blocks
    begun: set[int] = field(default_factory=set)  # kernels that have had rows, and so have their constants


def lower_segment(
    unit: Unit, plan: SegmentPlan, start: int, flip: bool = False, scratch: Code | None = None, share: Share = (0, 1)
) -> Lowered | Infeasible:
    """Lower one core's share of the segment whose first kernel is `start`.

    flip: see `schedule.memory.place`.  scratch: records to write into (int32 [CAPACITY, 32]), reused between calls.
    share: (i, m), the i-th of m nearly equal runs of the iterations (every block of every image), each of which loads all weights; or,
    where the plan splits channels, all iterations of the i-th of m runs of output channels.
    """
    if plan.split == "channels":
        parts = channel_parts(unit, start, start + len(plan.operators), share[1])
        if isinstance(parts, Infeasible):
            return Infeasible(named(plan), f"{parts.where}: {parts.what}")
        unit, share = parts[share[0]], (0, 1)
    blocks = cut(unit, start, start + len(plan.operators), plan.blocks, plan.caching, share[1])
    places = place(unit, plan, blocks, flip)
    if isinstance(places, Infeasible):
        return places
    slots = slot_counts(unit, blocks, plan.prefetch, plan.window)
    emitter = _Emitter(unit, plan, blocks, places.l1, places.ub, slots, scratch if scratch is not None else new_scratch())
    images = unit.storages[unit.kernels[start].y.storage].n
    iterations = dealt(images * plan.blocks, share)
    if not _emit(emitter, sequence(blocks.stop - start, iterations)):
        return Infeasible(named(plan), f"needs more than {CAPACITY:,} instructions")
    code = _slid(emitter, iterations) if plan.sliding and iterations else emitter.out[: emitter.at]
    if plan.ahead_kib:
        code = code[order_ahead(code, unit.machine, unit.memory.constant_blocks, plan.ahead_kib)]
    return Lowered(code.copy(), places.peak_bytes)


def _slid(e: _Emitter, iterations: range) -> Code:
    """What was written in sequence, in the order of the sliding window: written again, so that double buffers take turns in that order."""
    unit, blocks, window = e.unit, e.blocks, e.plan.window
    code = e.out[: e.at]
    cycles = node_cycles(e.rows, record_cycles(code, unit.machine), code[:, ENGINE])
    cycles = np.ascontiguousarray(cycles.reshape(len(iterations), blocks.stop - blocks.start, -1).swapaxes(0, 1))
    loads = load_cycles(unit, blocks, iterations), load_readers(unit, blocks)
    table = slide(cycles, edges(unit, blocks, e.slots), lanes(unit, blocks), None if window == "all" else window, *loads)
    fits = _emit(e, table.nodes + (0, iterations.start))
    assert fits, "the same records in another order"
    code = e.out[: e.at]
    return code[interleaved(e.rows, record_cycles(code, unit.machine), table)]


def new_scratch() -> Code:
    return np.empty((CAPACITY, WORDS), np.int32)


def _emit(e: _Emitter, nodes: Ints) -> bool:
    """Write nodes (operator, iteration), one after the other; False where there is no room."""
    unit, blocks = e.unit, e.blocks
    conv_parity, vector_parity = np.zeros(PARITIES, np.int64), np.zeros(1, np.int64)
    readers = load_readers(unit, blocks)
    loaded: set[tuple[int, int]] = set()
    e.begun.clear()
    e.at, e.rows = 0, np.zeros((len(nodes), 2), np.int64)
    for n, (k, iteration) in enumerate(nodes.tolist()):
        image, t = divmod(iteration, blocks.count)
        slot = {storage: iteration % count for storage, count in e.slots.items()}
        spec, begin = unit.kernels[blocks.start + k], e.at
        for index in np.flatnonzero(readers[:, k]).tolist():
            if (index, iteration) not in loaded:
                loaded.add((index, iteration))
                _emit_load(e, index, t, image, slot)
        e.rows[n, 0] = e.at
        if e.at >= 0 and blocks.computed[k][t].size:
            first = k not in e.begun
            e.begun.add(k)
            if isinstance(spec, ConvSpec):
                _emit_conv(e, spec, k, t, image, slot, first, conv_parity)
            else:
                _emit_vector(e, spec, k, t, image, slot, first, vector_parity)
        if e.at >= 0 and blocks.inside[k] and blocks.own[k][t].size:
            _emit_store(e, spec, k, t, image, slot)
        if e.at < 0:
            return False
        e.out[begin : e.at, BLOCK] = iteration  # image * blocks + block of the image
        e.rows[n, 1] = e.at
    return True


def _slot(e: _Emitter, storage: int, slot: dict[int, int]) -> int:
    found = e.l1.get(f"t{storage}.{slot[storage]}")
    return e.l1[f"t{storage}.0"] if found is None else found


def _in_l1(e: _Emitter, storage: int, plane: int, row: int, t: int, image: int, slot: dict[int, int]) -> Place:
    staged = e.blocks.staged[storage]
    row_blocks = e.unit.storages[storage].row_blocks
    if staged.cached:
        ring = _ring(e, storage)
        plane_blocks, first = ring * row_blocks, staged.ring_row(image, row) % ring
        base = e.l1[f"t{storage}.0"] + (plane - staged.plane) * plane_blocks
        return Place(L1, base + first * row_blocks, plane_blocks, (ring - first) * row_blocks, plane_blocks)
    plane_blocks = staged.rows[t].size * row_blocks
    base = _slot(e, storage, slot) + (plane - staged.plane) * plane_blocks + (row - staged.rows[t].start) * row_blocks
    return Place(L1, base, plane_blocks)


def _ring(e: _Emitter, storage: int) -> int:
    """Rows of a storage's ring, 0 where it has none."""
    staged = e.blocks.staged[storage]
    return staged.high(e.slots[storage], e.unit.storages[storage].n) if staged.cached else 0


def _in_ddr(e: _Emitter, storage: int, plane: int, row: int, image: int) -> Place:
    s = e.unit.storages[storage]
    return Place(DDR, s.image_at(image) + plane * s.plane_blocks + row * s.row_blocks, s.plane_blocks)


def _source(e: _Emitter, spec: AnySpec, i: int, row: int, t: int, image: int, slot: dict[int, int]) -> Place:
    piece = spec.reads[i]
    if piece.storage in e.blocks.staged and _covers(e, piece):
        return _in_l1(e, piece.storage, piece.plane, row, t, image, slot)
    return _in_ddr(e, piece.storage, piece.plane, row, image)


def _covers(e: _Emitter, piece: Piece) -> bool:
    staged = e.blocks.staged[piece.storage]
    return staged.plane <= piece.plane and piece.plane + piece.planes <= staged.plane + staged.planes


def _emit_load(e: _Emitter, index: int, t: int, image: int, slot: dict[int, int]) -> None:
    load = e.blocks.loads[index]
    rows = e.blocks.staged[load.storage].fresh[t]
    if not rows.size or e.at < 0:
        return
    ddr = _in_ddr(e, load.storage, load.plane, rows.start, image)
    l1 = _in_l1(e, load.storage, load.plane, rows.start, t, image, slot)
    size = rows.size * e.unit.storages[load.storage].row_blocks
    e.at = _copies(e.out, e.at, int(e.unit.dtype), e.blocks.start + load.step, MTE2, ddr, l1, size, load.planes)


def _emit_store(e: _Emitter, spec: AnySpec, k: int, t: int, image: int, slot: dict[int, int]) -> None:
    """What stays in L1 for the segment and leaves it as well."""
    rows = e.blocks.own[k][t]
    l1 = _in_l1(e, spec.y.storage, spec.y.plane, rows.start, t, image, slot)
    ddr = _in_ddr(e, spec.y.storage, spec.y.plane, rows.start, image)
    size = rows.size * e.unit.storages[spec.y.storage].row_blocks
    e.at = _copies(e.out, e.at, int(e.unit.dtype), spec.index, MTE3, l1, ddr, size, spec.y.planes)


@njit(cache=True)
def _copies(out: Code, at: int, dtype: int, tag: int, engine: int, source: Place, target: Place, length: int, planes: int) -> int:
    """A strided copy in pieces of a few planes, so that what waits for it can start before all of it has arrived."""
    done = 0
    while done < length:
        run = before_wrap(target, done, before_wrap(source, done, length - done))
        step = max(1, LOAD_PIECE_BLOCKS // run)
        for p in range(0, planes, step):
            if at >= out.shape[0]:
                return -1
            s, d = block_at(source, p, done), block_at(target, p, done)
            some = min(step, planes - p)
            at = copy(out, at, dtype, tag, engine, source.memory, target.memory, s, d, run, some, source.plane, target.plane, 1, 0, 0)
        done += run
    return at


@njit(cache=True)
def _fetch(out: Code, at: int, dtype: int, tag: int, memory: int, source: int, target: int, blocks: int, piece: int) -> int:
    """Contiguous constants from DDR, in pieces."""
    for i in range(0, blocks, piece):
        if at >= out.shape[0]:
            return -1
        at = copy(out, at, dtype, tag, MTE2, DDR, memory, source + i, target + i, min(piece, blocks - i), 1, 0, 0, 1, 0, 0)
    return at


def _target(e: _Emitter, spec: AnySpec, k: int, t: int, image: int, slot: dict[int, int]) -> Place:
    row = e.blocks.computed[k][t].start
    if e.blocks.inside[k]:
        return _in_l1(e, spec.y.storage, spec.y.plane, row, t, image, slot)
    return _in_ddr(e, spec.y.storage, spec.y.plane, row, image)


def _emit_conv(e: _Emitter, spec: ConvSpec, k: int, t: int, image: int, slot: dict[int, int], first: bool, parity: Ints) -> None:
    tiling, unit, window = e.plan.tilings[k], e.unit, spec.window
    assert isinstance(tiling, ConvTiling)
    if first and not isinstance(spec, MatMulSpec):
        dtype = int(unit.dtype)
        e.at = _fetch(e.out, e.at, dtype, spec.index, UB, spec.bias_at, e.ub[f"b{k}"], spec.bias_blocks, 1 << 30)
        if tiling.weights == "resident" and e.at >= 0:
            w0 = e.l1[f"w{k}.0"]
            e.at = _fetch(e.out, e.at, dtype, spec.index, L1, spec.weights_at, w0, spec.weight_blocks, WEIGHT_PIECE_BLOCKS)
        if e.at < 0:
            return
    rows = e.blocks.computed[k][t]
    top = rows.start * window.sh - window.top
    if top >= spec.in_h:  # every window lies in the padding below the image; above it is the same, and can be said
        top = -((rows.size - 1) * window.sh + (window.kh - 1) * window.dh + 1)
        first_row = spec.in_h - 1
    else:
        first_row = max(0, top)
    source = _in_l1(e, spec.reads[0].storage, spec.reads[0].plane, first_row, t, image, slot)
    pitch = unit.storages[spec.reads[0].storage].row_blocks
    in_first = (source.back - source.wrap) // pitch if source.back else 0
    target = _target(e, spec, k, t, image, slot)
    residual = _NOWHERE if spec.residual is None else _source(e, spec, 1, rows.start, t, image, slot)
    job = e.jobs.get(k)
    if job is None:
        job = e.jobs[k] = _conv_job(e, spec, k, tiling)
    job = job._replace(
        in_base=source.base - in_first * pitch,
        in_rows=e.blocks.staged[spec.reads[0].storage].rows[t].stop - first_row,
        in_plane=source.plane,
        in_ring=source.back // pitch,
        in_first=in_first,
        pad_top=max(0, -top),
        out_rows=rows.size,
        target=target,
        residual=residual,
    )
    if isinstance(spec, MatMulSpec):
        right = _in_l1(e, spec.reads[1].storage, spec.reads[1].plane, 0, t, image, slot)
        job = job._replace(right_base=right.base, right_plane=right.plane)
    e.at = emit_conv(e.out, e.at, job, parity)


_NOWHERE = Place(DDR, -1, 0)


def _conv_job(e: _Emitter, spec: ConvSpec, k: int, tiling: ConvTiling) -> ConvJob:
    """The job of a convolution without the places and rows of a block."""
    unit, machine, window = e.unit, e.unit.machine, spec.window
    resident = tiling.weights == "resident"
    w0 = e.l1.get(f"w{k}.0", 0)
    to = way_out(unit, e.blocks, k)
    path = machine.path(Memory.L0C, Memory.L1 if to == TO_L1 else Memory.UB)
    assert path is not None
    right, right_planes, right_pixels = WEIGHTS, 0, 0
    if isinstance(spec, MatMulSpec):
        right, right_planes, right_pixels = PIXELS_N if spec.transposed else PIXELS_K, spec.reads[1].planes // spec.groups, spec.pixels
    return ConvJob(
        dtype=int(unit.dtype),
        tag=spec.index,
        in_base=0,
        in_rows=0,
        in_w=spec.in_w,
        in_pitch=unit.storages[spec.reads[0].storage].row_blocks,
        in_plane=0,
        in_ring=0,
        in_first=0,
        kh=window.kh,
        kw=window.kw,
        sh=window.sh,
        sw=window.sw,
        dh=window.dh,
        dw=window.dw,
        pad_top=0,
        pad_left=window.left,
        lanes=spec.lanes,
        out_rows=0,
        out_w=spec.out_w,
        groups=spec.groups,
        c1=spec.c1,
        k1=spec.k1,
        n1=spec.n1,
        resident=int(resident),
        weights_0=w0,
        weights_1=e.l1.get(f"w{k}.1", w0),
        weights_at=spec.weights_at,
        chunk_n1=spec.n1 if resident else min(tiling.chunk_n1, spec.n1),
        chunk_k1=spec.k1 if resident else min(tiling.chunk_k1, spec.k1),
        tile_m=tiling.tile_m,
        tile_n1=tiling.tile_n1,
        tile_k1=tiling.tile_k1,
        n_outer=int(tiling.order == "n"),
        bias=e.ub.get(f"b{k}", -1),
        act=int(Activation[spec.activation]),
        limit=float_bits(spec.limit) if spec.activation == "clip" else 0,
        to=to,
        target=_NOWHERE,
        residual=_NOWHERE,
        out_0=e.ub.get(f"o{k}.0", 0),
        out_1=e.ub.get(f"o{k}.1", 0),
        res_0=e.ub.get(f"r{k}.0", 0),
        res_1=e.ub.get(f"r{k}.1", 0),
        half_a=machine.buffer_blocks(Memory.L0A) // 2,
        half_b=machine.buffer_blocks(Memory.L0B) // 2,
        half_c=machine.buffer_blocks(Memory.L0C) // 2,
        planes_per_n1=16 // unit.dtype.lanes,
        fixpipe_engine=int(Engine[path.engine]),
        right=right,
        right_base=0,
        right_plane=0,
        right_planes=right_planes,
        right_pixels=right_pixels,
    )


def _emit_vector(e: _Emitter, spec: AnySpec, k: int, t: int, image: int, slot: dict[int, int], first: bool, parity: Ints) -> None:
    tiling, dtype = e.plan.tilings[k], int(e.unit.dtype)
    assert isinstance(tiling, VectorTiling)
    rows = e.blocks.computed[k][t]
    target = _target(e, spec, k, t, image, slot)
    slots = {"slot_0": e.ub[f"o{k}.0"], "slot_1": e.ub[f"o{k}.1"]}
    consts = e.ub.get(f"b{k}", 0)
    if isinstance(spec, PoolSpec):
        e.at = _pool(e, spec, k, t, image, slot, tiling, slots, consts, target, parity)
        return
    if isinstance(spec, SoftmaxSpec):
        if first and spec.gaps:
            e.at = _fetch(e.out, e.at, dtype, spec.index, UB, spec.masks_at, consts, spec.y.planes, 1 << 30)
        source = _source(e, spec, 0, rows.start, t, image, slot)
        softmax = SoftmaxJob(
            dtype,
            spec.index,
            spec.y.planes,
            spec.group_planes,
            rows.size,
            spec.out_w,
            softmax_planes(spec, tiling),
            min(tiling.tile_rows, rows.size),
            **slots,
            masks=consts,
        )
        e.at = emit_softmax(e.out, e.at, softmax, source, target, np.array(spec.gaps, np.int64), parity)
        return
    if isinstance(spec, LayerNormSpec):
        if first:
            e.at = _fetch(e.out, e.at, dtype, spec.index, UB, spec.constants_at, consts, 3 * spec.y.planes, 1 << 30)
        source = _source(e, spec, 0, rows.start, t, image, slot)
        norm = LayerNormJob(
            dtype,
            spec.index,
            spec.y.planes,
            rows.size,
            spec.out_w,
            min(tiling.tile_rows, rows.size),
            **slots,
            constants=consts,
            per_channel=float_bits(1.0 / spec.channels),
            epsilon=float_bits(spec.epsilon),
            largest=float_bits(_LARGEST_FACTOR),
        )
        e.at = emit_layer_norm(e.out, e.at, norm, source, target, np.array(spec.gaps, np.int64), parity)
        return
    if isinstance(spec, ReflowSpec):
        first_in = demand(spec.kernel, rows, spec.in_h).start
        reflow = ReflowJob(
            dtype,
            spec.index,
            spec.y.planes,
            rows.start,
            rows.size,
            spec.out_w,
            spec.before,
            spec.in_h * spec.in_w,
            first_in * spec.in_w,
            min(tiling.tile_planes, spec.y.planes),
            min(tiling.tile_rows, rows.size),
            **slots,
        )
        e.at = emit_reflow(e.out, e.at, reflow, _source(e, spec, 0, first_in, t, image, slot), target, parity)
        return
    if isinstance(spec, ResampleSpec):
        _resample(e, spec, k, t, image, slot, tiling, slots, target, parity)
        return
    assert isinstance(spec, VectorSpec)
    if first:
        for i, step in enumerate(spec.steps):
            for offset, at in ((2 * i, int(step[3])), (2 * i + 1, int(step[4]))):
                if at >= 0:
                    target_at = consts + offset * spec.y.planes
                    e.at = _fetch(e.out, e.at, dtype, spec.index, UB, at, target_at, spec.y.planes, 1 << 30)
    places = [(*_source(e, spec, i, 0 if one else rows.start, t, image, slot), int(one)) for i, one in enumerate(spec.pixels)]
    sources = np.array(places, np.int64)
    planes, tile_rows = min(tiling.tile_planes, spec.y.planes), min(tiling.tile_rows, rows.size)
    width = e.unit.storages[spec.y.storage].row_blocks
    vector = VectorJob(
        dtype, spec.index, spec.y.planes, rows.size, width, planes, tile_rows, **slots, consts=consts, keeps_input=int(spec.keeps_input)
    )
    e.at = emit_vector(e.out, e.at, vector, sources, target, spec.steps, parity)


def _resample(
    e: _Emitter,
    spec: ResampleSpec,
    k: int,
    t: int,
    image: int,
    slot: dict[int, int],
    tiling: VectorTiling,
    slots: dict[str, int],
    target: Place,
    parity: Ints,
) -> None:
    kernel, rows = spec.kernel, e.blocks.computed[k][t]
    assert isinstance(kernel, Resample)
    in_first = demand(kernel, rows, spec.in_h).start
    job = ResampleJob(
        dtype=int(e.unit.dtype),
        tag=spec.index,
        planes=spec.y.planes,
        first_row=rows.start,
        rows=rows.size,
        out_w=spec.out_w,
        in_first=in_first,
        in_w=spec.in_w,
        fill=float_bits(kernel.fill),
        filled=int(kernel.rows.has_empty or kernel.columns.has_empty),
        in_rows=spec.input_rows(min(tiling.tile_rows, rows.size)),
        tile_planes=min(tiling.tile_planes, spec.y.planes),
        tile_rows=min(tiling.tile_rows, rows.size),
        **slots,
    )
    source = _source(e, spec, 0, in_first, t, image, slot)
    e.at = emit_resample(e.out, e.at, job, source, target, spec.columns, spec.rows, spec.bounds, parity)


def _pool(
    e: _Emitter,
    spec: PoolSpec,
    k: int,
    t: int,
    image: int,
    slot: dict[int, int],
    tiling: VectorTiling,
    slots: dict[str, int],
    consts: int,
    target: Place,
    parity: Ints,
) -> int:
    pool, rows = spec.kernel, e.blocks.computed[k][t]
    assert isinstance(pool, Pool)
    first_in = max(0, rows.start * pool.stride[0] - pool.pads[0])
    first_in = min(first_in, spec.in_h - 1)
    source = _source(e, spec, 0, first_in, t, image, slot)
    is_max = pool.mode == "max"
    lowest = -65504.0 if e.unit.dtype.lanes == 16 else -3.4028234663852886e38
    scale = 0.0 if is_max or spec.counts_at >= 0 else 1.0 / (pool.kernel[0] * pool.kernel[1])
    job = PoolJob(
        dtype=int(e.unit.dtype),
        tag=spec.index,
        planes=spec.y.planes,
        first_row=rows.start,
        rows=rows.size,
        out_w=spec.out_w,
        in_first=first_in,
        in_h=spec.in_h,
        in_w=spec.in_w,
        kh=pool.kernel[0],
        kw=pool.kernel[1],
        sh=pool.stride[0],
        sw=pool.stride[1],
        pad_top=pool.pads[0],
        pad_left=pool.pads[1],
        is_max=int(is_max),
        fill=float_bits(lowest if is_max else 0.0),
        scale=float_bits(scale) if scale else 0,
        counts_at=spec.counts_at,
        counts=consts,
        tile_planes=min(tiling.tile_planes, spec.y.planes),
        tile_rows=min(tiling.tile_rows, rows.size),
        **slots,
    )
    return emit_pool(e.out, e.at, job, source, target, parity)
