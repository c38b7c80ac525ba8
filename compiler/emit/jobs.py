"""What every operator of a segment is to its kernel: a job with all that is the same in its blocks, as rows of tables.

| array     | dtype, shape             | meaning                                                                                   |
|-----------|--------------------------|-------------------------------------------------------------------------------------------|
| kind      | int64 [operators, 2]     | which kernel, and the job's row in its table                                              |
| tags      | int64 [operators]        | index of the kernel in the unit                                                           |
| reads     | int64 [reads, 6]         | operands (see `places`), which blocks of a row of them (first, count), and 1 where it is   |
|           |                          | one pixel per channel; from read_start on                                                 |
| writes    | int64 [operators, 8]     | where results go, which blocks of a row they are, and which of them DDR gets; their planes |
| constants | int64 [fetches, 6]       | operator, memory, block of DDR, block there, blocks, blocks of a piece: once per segment    |
| lists     | int64 [operators, 3, 2]  | where a job's tables lie in `numbers`, and how many numbers they have                      |
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.emit.conv import PIXELS_K, PIXELS_N, WEIGHTS, ConvJob
from compiler.emit.pixelwise import LayerNormJob, SoftmaxJob
from compiler.emit.places import operand
from compiler.emit.pool import PoolJob
from compiler.emit.records import L1, UB, Ints
from compiler.emit.resample import ResampleJob
from compiler.emit.vector import ReflowJob, VectorJob
from compiler.ir.graph import Pool, Resample
from compiler.kinds.chain import VectorSpec
from compiler.kinds.conv import ConvSpec
from compiler.kinds.matmul import MatMulSpec
from compiler.kinds.norm import LayerNormSpec
from compiler.kinds.pool import PoolSpec
from compiler.kinds.reflow import ReflowSpec
from compiler.kinds.resample import ResampleSpec
from compiler.kinds.softmax import SoftmaxSpec
from compiler.kinds.ub_footprint import tile_planes
from compiler.plan.plan import ConvTiling, SegmentPlan, VectorTiling
from compiler.segment.blocks import Blocks
from compiler.segment.memory import TO_L1, Places, way_out
from compiler.segment.stages import WEIGHT_PIECE_BLOCKS
from compiler.segment.strips import row_blocks_made, row_blocks_read, row_blocks_stored
from compiler.unit.operators import KernelSpec
from compiler.unit.unit import Unit
from simulator.npu.isa import Activation, float_bits
from simulator.npu.machine import Engine, Memory

Job = ConvJob | VectorJob | PoolJob | SoftmaxJob | LayerNormJob | ReflowJob | ResampleJob
CONV, VECTOR, POOL, SOFTMAX, LAYER_NORM, REFLOW, RESAMPLE = range(7)
_KINDS: tuple[Any, ...] = (ConvJob, VectorJob, PoolJob, SoftmaxJob, LayerNormJob, ReflowJob, ResampleJob)
_TYPES = [np.dtype([(name, np.int64) for name in kind._fields]) for kind in _KINDS]
_LARGEST_FACTOR = 60000.0  # of 1 / deviation in float16, whose largest number is 65504
_LOWEST = {16: -65504.0, 8: -3.4028234663852886e38}  # by lanes
_WHOLE = 1 << 30  # a piece that nothing is longer than


class Jobs(NamedTuple):
    """See the table at the top of this file; conv .. resample: a table of jobs for every kind."""

    kind: Ints
    tags: Ints
    read_start: Ints
    reads: Ints
    writes: Ints
    constants: Ints
    lists: Ints
    numbers: Ints
    conv: NDArray[Any]
    vector: NDArray[Any]
    pool: NDArray[Any]
    softmax: NDArray[Any]
    layer_norm: NDArray[Any]
    reflow: NDArray[Any]
    resample: NDArray[Any]


def jobs_of(unit: Unit, plan: SegmentPlan, blocks: Blocks, places: Places) -> Jobs:
    """Of all operators of a segment."""
    kinds, reads, writes, constants = [], list[tuple[int, ...]](), [], list[tuple[int, ...]]()
    tables: list[list[Job]] = [[] for _ in _KINDS]
    numbers, lists, used, read_start = list[NDArray[np.int64]](), [], 0, [0]
    for k, tiling in enumerate(plan.tilings):
        spec = unit.kernels[blocks.start + k]
        one_pixel = spec.pixels if isinstance(spec, VectorSpec) else (False,) * len(spec.reads)
        sources = [operand(blocks, piece) for piece in spec.reads]
        if blocks.streamed >> k & 1:
            sources[1] = (spec.reads[1].storage, spec.reads[1].plane, -1)  # chunks come from DDR, whatever else is in L1
        reads += [(*at, *row_blocks_read(unit, spec, i), one) for i, (at, one) in enumerate(zip(sources, one_pixel, strict=True))]
        read_start.append(len(reads))
        goes = operand(blocks, spec.y) if blocks.inside[k] else (spec.y.storage, spec.y.plane, -1)
        writes.append((*goes, *row_blocks_made(unit, spec), *row_blocks_stored(unit, spec), spec.y.planes))
        if isinstance(spec, ConvSpec):
            assert isinstance(tiling, ConvTiling)
            job: Job = _conv(unit, spec, blocks, k, tiling, places)
        else:
            assert isinstance(tiling, VectorTiling)
            job = _on_vector(unit, spec, k, tiling, places.ub)
        kind = _KINDS.index(type(job))
        kinds.append((kind, len(tables[kind])))
        tables[kind].append(job)
        constants += [(k, *fetch) for fetch in _constants(spec, k, tiling, places)]
        mine = [table.reshape(-1) for table in _tables(spec)]
        lists.append([(used + sum(map(len, mine[:i])), len(mine[i])) if i < len(mine) else (0, 0) for i in range(3)])
        numbers += mine
        used += sum(map(len, mine))
    return Jobs(
        np.array(kinds, np.int64),
        np.array([spec.tag for spec in unit.kernels[blocks.start : blocks.stop]], np.int64),
        np.array(read_start, np.int64),
        np.array(reads, np.int64),
        np.array(writes, np.int64),
        np.array(constants, np.int64).reshape(-1, 6),
        np.array(lists, np.int64),
        np.concatenate(numbers) if numbers else np.zeros(0, np.int64),
        *(np.array(table, of) for table, of in zip(tables, _TYPES, strict=True)),
    )


def _tables(spec: KernelSpec) -> list[NDArray[np.int64]]:
    """What a kernel reads beside its job."""
    if isinstance(spec, VectorSpec):
        return [spec.steps]
    if isinstance(spec, SoftmaxSpec | LayerNormSpec):
        return [np.array(spec.gaps, np.int64)]
    return [spec.columns, spec.rows, spec.bounds] if isinstance(spec, ResampleSpec) else []


def _constants(spec: KernelSpec, k: int, tiling: ConvTiling | VectorTiling, places: Places) -> list[tuple[int, ...]]:
    """(memory, block of DDR, block there, blocks, blocks of a piece) of what an operator needs from its first block on."""
    at, planes = places.ub.get(f"b{k}", 0), spec.y.planes
    if isinstance(spec, ConvSpec):
        assert isinstance(tiling, ConvTiling)
        if isinstance(spec, MatMulSpec):
            return []
        bias = [(UB, spec.bias_at, at, spec.bias_blocks, _WHOLE)] if tiling.constants == "resident" else []
        if tiling.weights != "resident":
            return [*bias]
        return [*bias, (L1, spec.weights_at, places.l1[f"w{k}.0"], spec.weight_blocks, WEIGHT_PIECE_BLOCKS)]
    if tiling.constants == "streamed":
        return []
    if isinstance(spec, SoftmaxSpec) and spec.gaps:
        return [(UB, spec.masks_at, at, planes, _WHOLE)]
    if isinstance(spec, LayerNormSpec):
        return [(UB, spec.constants_at, at, 3 * planes, _WHOLE)]
    if isinstance(spec, VectorSpec):
        found = ((2 * i + j, int(step[3 + j])) for i, step in enumerate(spec.steps) for j in (0, 1))
        return [(UB, source, at + offset * planes, planes, _WHOLE) for offset, source in found if source >= 0]
    return []


def _conv(unit: Unit, spec: ConvSpec, blocks: Blocks, k: int, tiling: ConvTiling, places: Places) -> ConvJob:
    machine, window, parts = unit.machine, spec.window, spec.parts
    resident = tiling.weights == "resident"
    w0 = places.l1.get(f"w{k}.0", 0)
    to = way_out(unit, blocks, k)
    path = machine.path(Memory.L0C, Memory.L1 if to == TO_L1 else Memory.UB)
    assert path is not None
    right, right_planes, right_pixels = WEIGHTS, 0, 0
    if isinstance(spec, MatMulSpec):
        right, right_planes, right_pixels = PIXELS_N if spec.transposed else PIXELS_K, spec.reads[1].planes // spec.groups, spec.pixels
    return ConvJob(
        dtype=int(unit.dtype),
        tag=spec.tag,
        in_w=spec.in_w,
        in_pitch=unit.storages[spec.reads[0].storage].row_blocks,
        kh=window.kh,
        kw=window.kw,
        sh=window.sh,
        sw=window.sw,
        dh=window.dh,
        dw=window.dw,
        pad_left=window.left,
        part_rows=parts.rows,
        part_columns=parts.columns,
        lanes=spec.lanes,
        out_w=spec.out_w,
        groups=spec.groups,
        c1=spec.c1,
        k1=spec.k1,
        n1=spec.n1,
        resident=int(resident),
        weights_0=w0,
        weights_1=places.l1.get(f"w{k}.1", w0),
        weights_at=spec.weights_at,
        chunk_n1=spec.n1 if resident else min(tiling.chunk_n1, spec.n1),
        chunk_k1=spec.k1 if resident else min(tiling.chunk_k1, spec.k1),
        tile_m=tiling.tile_m,
        tile_n1=tiling.tile_n1,
        tile_k1=tiling.tile_k1,
        n_outer=int(tiling.order == "n"),
        bias=places.ub.get(f"b{k}", places.ub.get(f"b{k}.0", -1)),
        bias_1=places.ub.get(f"b{k}.1", -1),
        bias_at=spec.bias_at if spec.bias_blocks and tiling.constants == "streamed" else -1,
        act=int(Activation[spec.activation]),
        limit=float_bits(spec.limit) if spec.activation == "clip" else 0,
        to=to,
        out_0=places.ub.get(f"o{k}.0", 0),
        out_1=places.ub.get(f"o{k}.1", 0),
        res_0=places.ub.get(f"r{k}.0", 0),
        res_1=places.ub.get(f"r{k}.1", 0),
        half_a=machine.buffer_blocks(Memory.L0A) // 2,
        half_b=machine.buffer_blocks(Memory.L0B) // 2,
        half_c=machine.buffer_blocks(Memory.L0C) // 2,
        planes_per_n1=16 // unit.dtype.lanes,
        fixpipe_engine=int(Engine[path.engine]),
        right=right,
        right_planes=right_planes,
        right_pixels=right_pixels,
    )


def _on_vector(unit: Unit, spec: KernelSpec, k: int, tiling: VectorTiling, ub: dict[str, int]) -> Job:
    head = {"dtype": int(unit.dtype), "tag": spec.tag, "planes": spec.y.planes}
    columns = min(tiling.tile_columns or spec.out_w, spec.out_w)
    tile = {"tile_rows": tiling.tile_rows, "tile_columns": columns, "slot_0": ub[f"o{k}.0"], "slot_1": ub[f"o{k}.1"]}
    planes, consts, streamed = tile_planes(spec, tiling), ub.get(f"b{k}", 0), tiling.constants == "streamed"
    if isinstance(spec, PoolSpec):
        return _pool(unit, spec, head | tile, planes, consts)
    if isinstance(spec, SoftmaxSpec):
        masks_at = spec.masks_at if streamed and spec.gaps else -1
        deep = spec.group_planes
        return SoftmaxJob(**head, **tile, group_planes=deep, width=spec.out_w, tile_planes=planes, masks=consts, masks_at=masks_at)
    if isinstance(spec, LayerNormSpec):
        bits = {"per_channel": 1.0 / spec.channels, "epsilon": spec.epsilon, "largest": _LARGEST_FACTOR}
        factors = {name: float_bits(value) for name, value in bits.items()}
        constants_at = spec.constants_at if streamed else -1
        return LayerNormJob(**head, **tile, width=spec.out_w, constants=consts, constants_at=constants_at, **factors)
    if isinstance(spec, ReflowSpec):
        return ReflowJob(**head, **tile, width=spec.out_w, before=spec.before, pixels=spec.in_h * spec.in_w, tile_planes=planes)
    if isinstance(spec, ResampleSpec):
        kernel = spec.kernel
        assert isinstance(kernel, Resample)
        filled = int(kernel.rows.has_empty or kernel.columns.has_empty)
        fill = float_bits(kernel.fill)
        widest = spec.input_columns(columns)
        return ResampleJob(
            **head, **tile, out_w=spec.out_w, in_w=spec.in_w, widest=widest, fill=fill, filled=filled, tile_planes=planes
        )  # fmt: skip
    assert isinstance(spec, VectorSpec)
    _, width = row_blocks_made(unit, spec)
    tile["tile_columns"] = min(columns, width)
    return VectorJob(
        **head, **tile, width=width, tile_planes=planes, consts=consts, fetches=int(streamed), keeps_input=int(spec.keeps_input)
    )  # fmt: skip


def _pool(unit: Unit, spec: PoolSpec, common: dict[str, int], planes: int, counts: int) -> PoolJob:
    pool = spec.kernel
    assert isinstance(pool, Pool)
    is_max = pool.mode == "max"
    scale = 0.0 if is_max or spec.counts_at >= 0 else 1.0 / (pool.kernel[0] * pool.kernel[1])
    return PoolJob(
        **common,
        out_w=spec.out_w,
        in_h=spec.in_h,
        in_w=spec.in_w,
        kh=pool.kernel[0],
        kw=pool.kernel[1],
        sh=pool.stride[0],
        sw=pool.stride[1],
        pad_top=pool.pads[0],
        pad_left=pool.pads[1],
        is_max=int(is_max),
        passes=spec.passes,
        fill=float_bits(_LOWEST[unit.dtype.lanes] if is_max else 0.0),
        scale=float_bits(scale) if scale else 0,
        counts_at=spec.counts_at,
        counts_pitch=spec.counts_pitch,
        counts=counts,
        tile_planes=planes,
    )
