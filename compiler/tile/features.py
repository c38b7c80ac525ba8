"""Features of a segment (and, summed, of a program) without lowering it: what the cost model sees.

Extensive features (cycles of each engine, bytes moved, instructions) add up over segments and are given as log2(1 + x); intensive ones are
means weighted by operators.  Cycles are uncontended estimates from `simulator.npu.cycles`' tables; those of engines, instructions and
products are what the core with most of the segment's iterations or channels has, bytes are all cores'. What stages keep,
move and emit: `tile.stage_features`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.derive.plan import ConvTiling, Infeasible, SegmentPlan, Tiling, VectorTiling, Window
from compiler.ir.graph import Pool
from compiler.schedule.blocks import Blocks, cut
from compiler.schedule.memory import slot_counts
from compiler.schedule.run import streamed_rights
from compiler.tile.channels import channel_parts, largest
from compiler.tile.siblings import as_made
from compiler.tile.space import tables, writes_l1
from compiler.tile.spec import (
    AnySpec,
    ConvSpec,
    LayerNormSpec,
    MatMulSpec,
    PoolSpec,
    ReflowSpec,
    ResampleSpec,
    SoftmaxSpec,
    Unit,
    VectorSpec,
)
from compiler.tile.stage_features import STAGE_MEANS, STAGE_SUMS, stage_features
from compiler.tile.strips import row_blocks_stored, strips
from compiler.tile.whole_rows import work
from simulator.npu.machine import BLOCK_BYTES, DataType, Machine, Memory

FEATURE_SET = "schedule-6"
# one operator after the other, each as long as its busiest engine or what it reads itself, where DDR is so many times slower
_SERIAL = {"serial_cycles": 1, "serial_half_cycles": 2, "serial_quarter_cycles": 4}
_EXTENSIVE = (
    "cube_cycles", "ideal_cube_cycles", "mte1_cycles", "fixpipe_cycles", "vector_cycles", "mte3_on_chip_cycles",
    "load_bytes", "weight_bytes", "store_bytes", "residual_bytes", "instructions", "products", "iterations", "busiest_cycles",
    "read_cycles", "write_cycles", "drain_cycles", *_SERIAL,
)  # fmt: skip
_INTENSIVE = ("operators", "segments", "l1_blocks_log2", "window", "prefetch", "streamed_share", "row_share", "cores", "sliding")
_OF_A_CORE = (
    "cube_cycles", "ideal_cube_cycles", "mte1_cycles", "fixpipe_cycles", "vector_cycles", "mte3_on_chip_cycles", "instructions", "products",
    "iterations", "drain_cycles", *_SERIAL,
)  # fmt: skip
FEATURES: tuple[str, ...] = (*_EXTENSIVE, *STAGE_SUMS, *STAGE_MEANS, *_INTENSIVE)
_ENGINES = ("cube_cycles", "mte1_cycles", "fixpipe_cycles", "vector_cycles")
_BUSY_OF_ONE = (*_ENGINES, "mte3_on_chip_cycles")
_AT = {name: i for i, name in enumerate(FEATURES)}
_STAGES = slice(len(_EXTENSIVE), len(_EXTENSIVE) + len(STAGE_SUMS) + len(STAGE_MEANS))
_A_CORES, _BUSY = [_AT[name] for name in _OF_A_CORE], [_AT[name] for name in _ENGINES]
_OF_ONE = [_AT[name] for name in (*STAGE_MEANS, *_INTENSIVE)]


def raw_features(unit: Unit, plan: SegmentPlan, start: int) -> NDArray[np.float64]:
    """float64 [len(FEATURES)] of one segment, not yet scaled: add them up for a program, then `scaled`."""
    made = as_made(unit, plan, start)
    if isinstance(made, Infeasible):
        raise ValueError(str(made))
    unit, plan, start = made
    stop = start + len(plan.operators)
    parts = channel_parts(unit, start, stop, plan.channels)
    if isinstance(parts, Infeasible):
        raise ValueError(f"{parts}: {plan.channels} cores were to share its channels")
    if len(parts) == 1:
        out = _of_strips(unit, plan, start)
    else:
        sums = np.array([_of_strips(part, plan, start) for part in parts])
        several = sums.sum(0)
        first = parts.index(largest(parts, start, stop))
        several[_OF_ONE] = sums[first, _OF_ONE]
        several[_A_CORES] = sums[:, _A_CORES].max(0)
        out = several.tolist()
    ddr, cores = unit.machine.ddr, len(plan.cores)
    read = out[_AT["load_bytes"]] + out[_AT["weight_bytes"]] + out[_AT["residual_bytes"]]
    out[_AT["read_cycles"]] = read / min(ddr.bytes_per_cycle, cores * ddr.read_cap_bytes_per_cycle)
    out[_AT["write_cycles"]] = out[_AT["store_bytes"]] / min(ddr.bytes_per_cycle, cores * ddr.write_cap_bytes_per_cycle)
    moved = out[_AT["read_cycles"]] + out[_AT["write_cycles"]]
    out[_AT["busiest_cycles"]] = max(moved, *(out[at] for at in _BUSY))
    out[_AT["cores"]] = float(cores * len(plan.operators))
    found = np.array(out)
    found.flags.writeable = False
    return found


def _of_strips(unit: Unit, plan: SegmentPlan, start: int) -> list[float]:
    """What adds up over a segment's strips, and what the one in their middle has."""
    cut = strips(unit, start, start + len(plan.operators), plan.columns)
    if isinstance(cut, Infeasible):
        raise ValueError(f"{cut}: {plan.columns} strips")
    if len(cut) == 1:
        return _sums(unit, plan, start)
    sums = np.array([_sums(strip, plan, start) for strip in cut])
    several = sums.sum(0)
    several[_OF_ONE] = sums[len(cut) // 2, _OF_ONE]
    out: list[float] = several.tolist()
    return out


def _sums(unit: Unit, plan: SegmentPlan, start: int) -> list[float]:
    """What adds up over the cores that share a segment's channels, and over its strips, and what each of them has.

    A list: single numbers of an array cost several times as much.
    """
    streamed = streamed_rights(unit, start, plan.made_tilings)
    blocks = cut(unit, start, start + len(plan.operators), plan.blocks, plan.caching, plan.dealt, streamed)
    images, cores = unit.storages[0].n, plan.dealt
    total = np.zeros(len(FEATURES))
    stored = 0
    for k, (standing, tiling) in enumerate(zip(_standings(unit, blocks), plan.made_tilings, strict=True)):
        total += _of_operator(standing, tiling, images, cores)
        y = unit.kernels[start + k].y
        stored += blocks.stored[k] * row_blocks_stored(unit, unit.kernels[start + k])[1] * y.planes
    out: list[float] = total.tolist()
    out[_AT["store_bytes"]] = float(stored * BLOCK_BYTES * images)
    for load in blocks.loads:
        size = blocks.staged[load.storage].loaded * unit.storages[load.storage].row_blocks
        out[_AT["load_bytes"]] += size * load.planes * BLOCK_BYTES * images
    out[_AT["l1_blocks_log2"]] = float(_kept(unit, blocks, plan.prefetch, plan.window))
    iterations = plan.blocks * images
    out[_AT["iterations"]] = float(iterations)
    share = -(-iterations // cores) / iterations
    for at in _A_CORES:
        out[at] *= share
    operators = len(plan.operators)
    out[_AT["operators"]] = float(operators)
    out[_AT["segments"]] = 1.0
    out[_AT["window"]] = float((iterations if plan.window == "all" else min(plan.window, iterations)) * operators)
    out[_AT["sliding"]] = float(plan.sliding * operators)
    out[_AT["prefetch"]] = float(plan.prefetch * operators)
    return out


@lru_cache(maxsize=4096)
def _kept(unit: Unit, blocks: Blocks, prefetch: int, window: Window) -> int:
    """Blocks of L1 that hold tensors."""
    kept = 0
    for storage, count in slot_counts(unit, blocks, prefetch, window).items():
        staged = blocks.staged[storage]
        high = staged.high(count, unit.storages[0].n) * (1 if staged.cached else count)
        kept += staged.planes * high * unit.storages[storage].row_blocks
    return kept


@dataclass(frozen=True)
class _Standing:
    """What an operator's features depend on of the model and of its segment; the last three fields are where that was found.

    what: the operator, as `_what` says.  heights: (rows, blocks that compute so many).  reads: which operands the segment has in L1, and
    which of those it makes.  strips: see `Unit`.
    """

    what: object
    heights: tuple[tuple[int, int], ...]
    inside: bool
    reads: tuple[tuple[bool, bool], ...]
    strips: int
    unit: Unit = field(compare=False)
    blocks: Blocks = field(compare=False)
    k: int = field(compare=False)


@lru_cache(maxsize=4096)
def _standings(unit: Unit, blocks: Blocks) -> tuple[_Standing, ...]:
    staged = blocks.staged
    found = []
    for k, spec in enumerate(unit.kernels[blocks.start : blocks.stop]):
        reads = tuple((read.storage in staged, read.storage in staged and staged[read.storage].produced) for read in spec.reads)
        heights = tuple(blocks.heights[k].items())
        found.append(_Standing(_what(unit, spec), heights, blocks.inside[k], reads, unit.strips, unit, blocks, k))
    return tuple(found)


@lru_cache(maxsize=1 << 14)
def _what(unit: Unit, spec: AnySpec) -> object:
    """The same for convolutions that cost the same, wherever in a model they are and whichever part of one they are; else itself."""
    if not isinstance(spec, ConvSpec) or isinstance(spec, MatMulSpec):
        return _only(unit.machine, unit.dtype, spec)
    sizes = spec.in_h, spec.in_w, spec.out_h, spec.out_w, spec.groups, spec.c1, spec.k1, spec.n1, spec.lanes, *spec.window
    rows = [unit.storages[piece.storage].row_blocks for piece in (*spec.reads, spec.y)]
    return _only(unit.machine, unit.dtype, (*sizes, spec.y.planes, *(read.planes for read in spec.reads), *rows))


@lru_cache(maxsize=1 << 14)
def _only(*what: object) -> object:
    """One object for all that are equal: it is looked up by identity, tens of numbers and a machine are not."""
    return object()


@lru_cache(maxsize=1 << 14)
def _of_operator(standing: _Standing, tiling: Tiling, images: int, cores: int) -> NDArray[np.float64]:
    """float64 [len(FEATURES)], what one operator adds; most segments that a search looks at have some that were looked at before."""
    out = [0.0] * len(FEATURES)
    unit, blocks, k = standing.unit, standing.blocks, standing.k
    rows = _operator(out, unit, _rates(unit.machine, unit.dtype), tiling, blocks, k, images, cores)
    out[_STAGES] = stage_features(unit, blocks, k, tiling, images)
    out[_AT["row_share"]] += rows / unit.kernels[blocks.start + k].out_h
    ddr, busiest = unit.machine.ddr, max(out[_AT[name]] for name in _BUSY_OF_ONE)
    read = out[_AT["weight_bytes"]] + out[_AT["residual_bytes"]] + out[_AT["load_bytes"]]
    read /= min(ddr.bytes_per_cycle / cores, ddr.read_cap_bytes_per_cycle)  # as if one core did all: its share of a segment is taken later
    for name, slower in _SERIAL.items():
        out[_AT[name]] = max(busiest, read * slower)
    found = np.array(out)
    found.flags.writeable = False
    return found


def operator_cycles(unit: Unit, blocks: Blocks, k: int, tiling: Tiling) -> float:
    """Cycles of the busiest engine that operator k of a segment needs for all blocks of an image; transfers are not among them."""
    out = [0.0] * len(FEATURES)
    _operator(out, unit, _rates(unit.machine, unit.dtype), tiling, blocks, k, 1)
    return max(out[_AT[name]] for name in _BUSY_OF_ONE)


def _operator(out: list[float], unit: Unit, t: _Rates, tiling: Tiling, blocks: Blocks, k: int, images: int, cores: int = 1) -> int:
    """Adds operator k of the segment to the features; returns the rows that it computes."""
    spec = unit.kernels[blocks.start + k]
    rows = blocks.heights[k]
    if isinstance(spec, ConvSpec):
        assert isinstance(tiling, ConvTiling)
        _conv(out, unit, t, spec, tiling, rows, blocks, k, images, cores)
    else:
        assert isinstance(tiling, VectorTiling)
        _vector(out, unit, t, spec, tiling, rows, blocks, k, images)
    return _over(rows, 1)


class _Rates(NamedTuple):
    """What a machine takes for a data type, as plain numbers: bytes per cycle of paths, cycles of start-ups (see `CostTables`)."""

    lanes: int
    l1_l0a: int
    l1_l0b: int
    l0c_ub: int
    ub_l1: int
    l1_ub: int
    start_a: int
    start_out: int
    start_product: int
    start_vector: int
    axes: list[list[int]]
    step: int
    macs: float
    vector_cycles: list[int]


@lru_cache(maxsize=64)
def _rates(machine: Machine, dtype: DataType) -> _Rates:
    t, moves = tables(machine), tables(machine).rate
    return _Rates(
        lanes=dtype.lanes,
        l1_l0a=int(moves[Memory.L1, Memory.L0A]),
        l1_l0b=int(moves[Memory.L1, Memory.L0B]),
        l0c_ub=int(moves[Memory.L0C, Memory.UB]),
        ub_l1=int(moves[Memory.UB, Memory.L1]),
        l1_ub=int(moves[Memory.L1, Memory.UB]),
        start_a=int(t.startup[Memory.L1, Memory.L0A]),
        start_out=int(t.startup[Memory.L0C, Memory.UB]),
        start_product=int(t.scalars[0]),
        start_vector=int(t.scalars[1]),
        axes=t.matrix[dtype].tolist(),
        step=int(t.step_cycles[dtype]),
        macs=machine.macs_per_cycle[dtype.name],
        vector_cycles=t.vector_cycles.tolist(),
    )


def _over(rows: dict[int, int], pixels: int, tile: int = 1) -> int:
    """Tiles of so many pixels in all blocks; rows: how many blocks have so many rows, of `pixels` each."""
    return sum(count * -(-r * pixels // tile) for r, count in rows.items())


def _window_rows(rows: dict[int, int], tile: int, stride: int, kernel: int, most: int) -> int:
    """Rows of the input that all tiles of a pooling read, of at most so many rows each; rows: as in `_over`."""
    found = 0
    for high, count in rows.items():
        whole, rest = divmod(high, tile)
        found += count * whole * min(most, (tile - 1) * stride + kernel)
        if rest:
            found += count * min(most, (rest - 1) * stride + kernel)
    return found


def _conv(
    out: list[float],
    unit: Unit,
    t: _Rates,
    s: ConvSpec,
    tiling: ConvTiling,
    rows: dict[int, int],
    blocks: Blocks,
    k: int,
    images: int,
    cores: int,
) -> None:
    resident = tiling.weights == "resident"
    n1, k1 = (s.n1, s.k1) if resident else (min(tiling.chunk_n1, s.n1), min(tiling.chunk_k1, s.k1))
    blocks_of_image = sum(rows.values())
    pixels = _over(rows, s.out_w)
    tiles_m = _over(rows, s.out_w, tiling.tile_m)
    chunks_n, chunks_k = -(-s.n1 // n1), -(-s.k1 // k1)
    tiles_n, tiles_k = -(-n1 // tiling.tile_n1), -(-k1 // tiling.tile_k1)
    padded = _over(rows, s.out_w, 16) * 16
    products = float(tiles_m * tiles_n * tiles_k) * s.groups * chunks_n * chunks_k * images
    lanes, axes = t.lanes, t.axes
    steps_m = sum(count * _steps(-(-r * s.out_w // 16) * 16, tiling.tile_m, axes[0]) for r, count in rows.items())
    steps_k = chunks_k * _steps(k1 * lanes, tiling.tile_k1 * lanes, axes[1])
    steps_n = chunks_n * _steps(n1 * 16, tiling.tile_n1 * 16, axes[2])
    cube = float(steps_m * steps_k * steps_n) * s.groups * t.step * images
    ideal = float(pixels) * (s.k1 * lanes) * (s.n1 * 16) / t.macs
    m_outer = tiling.order == "m"
    times_a = 1 if tiles_k == 1 and m_outer else tiles_n
    times_b = blocks_of_image if tiles_k == 1 and not m_outer else tiles_m
    a = float(padded) * s.k1 * s.groups * 32 / t.l1_l0a * times_a * chunks_n
    b = float(times_b) * s.n1 * s.k1 * s.groups * 512 / t.l1_l0b
    stores = float(tiles_m) * tiles_n * chunks_n * s.groups * images
    out[_AT["cube_cycles"]] += cube + products * t.start_product
    out[_AT["ideal_cube_cycles"]] += ideal * s.groups * images
    out[_AT["mte1_cycles"]] += (a + b) * images + products * t.start_a
    fix = float(pixels) * s.n1 * s.groups * 64 / t.l0c_ub * images
    out[_AT["fixpipe_cycles"]] += fix + stores * t.start_out
    every_block, once = blocks_of_image * images, tiling.constants == "resident"
    loads = cores / unit.strips  # what stays is loaded in the first strip: a share of it in each, so that they add up
    weights = s.weight_blocks * (loads if resident else every_block) + s.bias_blocks * (loads if once else every_block)
    out[_AT["weight_bytes"]] += weights * BLOCK_BYTES
    if isinstance(s, MatMulSpec) and not resident:
        out[_AT["load_bytes"]] += float(s.pixels) * s.reads[1].planes * BLOCK_BYTES * every_block
    if s.residual is not None:
        out[_AT["residual_bytes"]] += float(pixels) * s.y.planes * BLOCK_BYTES * images * (s.residual.storage not in blocks.staged)
    if blocks.inside[k] and not writes_l1(unit.machine):
        out[_AT["mte3_on_chip_cycles"]] += float(pixels) * s.y.planes * BLOCK_BYTES / max(1, t.ub_l1) * images
    out[_AT["instructions"]] += products * 3 + stores * 2
    out[_AT["products"]] += products
    out[_AT["drain_cycles"]] += tiling.tile_m * tiling.tile_n1 * 64 / t.l0c_ub * blocks_of_image * images
    out[_AT["streamed_share"]] += not resident


def _steps(length: int, tile: int, axis: list[int]) -> int:
    """Steps of all tiles along one axis (`CostTables.matrix`), the last one what is left."""
    unit, least, fill = axis
    whole, rest = divmod(length, tile)
    last = max(-(-rest // unit), least) + fill if rest else 0
    return whole * (max(-(-tile // unit), least) + fill) + last


def _vector(
    out: list[float],
    unit: Unit,
    t: _Rates,
    s: PoolSpec | VectorSpec | SoftmaxSpec | LayerNormSpec | ReflowSpec | ResampleSpec,
    tiling: VectorTiling,
    rows: dict[int, int],
    blocks: Blocks,
    k: int,
    images: int,
) -> None:
    size = float(_over(rows, 1)) * s.out_w * s.y.planes * images
    across = -(-s.out_w // (tiling.tile_columns or s.out_w))
    tiles = float(_over(rows, 1, tiling.tile_rows)) * across * -(-s.y.planes // tiling.tile_planes) * images
    read = size * len(s.reads)
    repeats, calls = size / 8, tiles
    if isinstance(s, PoolSpec):
        pool = s.kernel
        assert isinstance(pool, Pool)
        taps = pool.kernel[0] * pool.kernel[1]
        groups = -(-s.out_w // 8)
        if s.out_w == 1 and pool.kernel[1] >= s.in_w and (s.out_h == 1 or s.in_w > 1):
            outputs = float(_over(rows, 1)) * -(-s.y.planes // tiling.tile_planes) * images
            repeats, calls = work(min(tiling.tile_planes, s.y.planes), min(pool.kernel[0], s.in_h) * s.in_w)
            repeats, calls = outputs * repeats, outputs * calls
        else:
            calls = tiles * taps * min(tiling.tile_planes * groups, tiling.tile_rows * groups)
            repeats = size / s.out_w * groups * taps
        # whole rows, or what every tile's windows cover of them
        columns = s.in_w if across == 1 else across * ((tiling.tile_columns - 1) * pool.stride[1] + pool.kernel[1])
        read = float(_window_rows(rows, tiling.tile_rows, pool.stride[0], pool.kernel[0], s.in_h)) * columns * s.y.planes * images
    elif isinstance(s, VectorSpec):
        read = size * (len(s.reads) - sum(s.pixels))
        calls = tiles * max(1, len(s.steps)) * (tiling.tile_planes if (s.steps[:, 3] >= 0).any() else 1)
        repeats = size / 8 * sum(max(1, t.vector_cycles[step]) for step in s.steps[:, 0].tolist())
    elif isinstance(s, SoftmaxSpec):
        repeats, calls = size / 8 * 8, tiles * 10 * max(1, tiling.tile_planes // s.group_planes)
    elif isinstance(s, LayerNormSpec):
        repeats, calls = size / 8 * (9 if unit.dtype == DataType.float16 else 6), tiles * (30 + s.y.planes)
    elif isinstance(s, ResampleSpec):
        runs = len(s.columns) + len(s.rows)
        repeats, calls = size / 4 * (1 + s.weighted), tiles * max(1, runs) * tiling.tile_planes
        read = size * s.in_h * s.in_w / (s.out_h * s.out_w)
    out[_AT["vector_cycles"]] += repeats + calls * t.start_vector
    staged = s.reads[0].storage in blocks.staged
    out[_AT["load_bytes"]] += 0.0 if staged else read * BLOCK_BYTES
    if staged:
        out[_AT["mte1_cycles"]] += read * BLOCK_BYTES / t.l1_ub
    if blocks.inside[k]:
        out[_AT["mte3_on_chip_cycles"]] += size * BLOCK_BYTES / t.ub_l1
    out[_AT["instructions"]] += calls + tiles * 2
    out[_AT["drain_cycles"]] += tiles


def expected_cycles(raw: NDArray[np.float64], share: float = 1.0) -> NDArray[np.float64]:
    """Of one raw vector, or [n] of [n, F], at a share of the DDR bandwidth; a guess before anything is measured.

    The geometric mean of what it takes where operators overlap as far as engines and DDR let them, and of one operator after the other:
    how far they do is what nobody knows yet.
    """
    engines = raw[..., _BUSY].max(-1)
    moving = (raw[..., _AT["read_cycles"]] + raw[..., _AT["write_cycles"]]) / share
    bound = np.maximum(engines, moving) + raw[..., _AT["drain_cycles"]]
    return np.asarray(np.sqrt(bound * np.maximum(bound, _serial(raw, 1 / share))))


def _serial(raw: NDArray[np.float64], slower: float) -> NDArray[np.float64]:
    """One operator after the other, between the ratios that features are of; beyond them as between the last two."""
    names, known = list(_SERIAL), list(_SERIAL.values())
    i = min(max(int(np.searchsorted(known, slower)), 1), len(known) - 1)
    low, high = raw[..., _AT[names[i - 1]]], raw[..., _AT[names[i]]]
    return np.asarray(low + (high - low) * (slower - known[i - 1]) / (known[i] - known[i - 1]))


def scaled(raw: NDArray[np.float64] | Sequence[NDArray[np.float64]]) -> NDArray[np.float32]:
    """float32 [F] of one raw vector or [n, F] of several: extensive ones as log2(1 + x), intensive ones per operator."""
    x = np.array(raw, np.float64)
    operators = np.maximum(1.0, x[..., _AT["operators"]])
    out = x.copy()
    sums = len(_EXTENSIVE) + len(STAGE_SUMS)
    means = slice(sums, sums + len(STAGE_MEANS))
    out[..., :sums] = np.log2(1.0 + x[..., :sums])
    out[..., means] = np.log2(1.0 + x[..., means] / operators[..., None])
    out[..., _AT["l1_blocks_log2"]] = np.log2(1.0 + x[..., _AT["l1_blocks_log2"]] / np.maximum(1.0, x[..., _AT["segments"]]))
    for name in ("window", "prefetch", "streamed_share", "row_share", "cores", "sliding"):
        out[..., _AT[name]] = x[..., _AT[name]] / operators
    return out.astype(np.float32)


class Seen(NamedTuple):
    """What the cost model of one level sees.  columns: float32 [n, more than F].  expected: float64 [n], the guess that it corrects."""

    columns: NDArray[np.float32]
    expected: NDArray[np.float64]


_CYCLES = [_AT[name] for name in _EXTENSIVE if name.endswith("_cycles")]


def seen(features: NDArray[np.float32], share: float) -> Seen:
    """Of `scaled` features float32 [n, F], at a share of the DDR bandwidth.

    What engines take is told again in shares of the guess: trees cut one column at a time, so of cycles alone they learn how large a
    segment is long before they learn what it waits for.
    """
    logs = features[:, : len(_EXTENSIVE)].astype(np.float64)
    raw = np.exp2(logs) - 1.0
    expected = 1.0 + expected_cycles(raw, share)
    moving = (raw[:, _AT["read_cycles"]] + raw[:, _AT["write_cycles"]]) / share
    fill = raw[:, _AT["read_cycles"]] / np.maximum(1.0, raw[:, _AT["iterations"]]) / share
    parts = np.column_stack([logs[:, _CYCLES], np.log2(1.0 + moving), np.log2(1.0 + fill)]) - np.log2(expected)[:, None]
    return Seen(np.column_stack([features, parts.astype(np.float32)]), expected)
