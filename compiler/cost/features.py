"""Features of a segment (and, summed, of a program) without lowering: the input of the cost model.

Extensive features (cycles of each engine, bytes moved, instructions) add up over segments and are scaled as log2(1 + x); intensive features
are means weighted by operators.  Cycles are uncontended estimates from the tables of `simulator.npu.cycles`.  Cycles of engines, and
numbers of instructions and products, are those of the core with most iterations or channels; bytes are sums over all cores.  Features of
stages are in `cost.stage_features`.  The top of `tests/compiler/cost/test_counted.py` separates exact counts of records from estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.cost import closed_form
from compiler.cost.closed_form import SERIAL, cost_of
from compiler.cost.ddr_traffic import ddr_rates, loaded_blocks, shared_rates, stored_blocks
from compiler.cost.level_conditions import LATENCY, SHARE
from compiler.cost.product_features import PRODUCT_FEATURES, ProductStanding, product_features
from compiler.cost.stage_features import STAGE_MEANS, STAGE_SUMS, stage_features
from compiler.ops.base import Heights, VectorTiles, as_vector_op
from compiler.ops.conv import product_of
from compiler.ops.cost_class import CostClass, cost_class_of
from compiler.ops.tile_counts import nonempty_pieces
from compiler.plan.plan import ConvTiling, Infeasible, SegmentPlan, Tiling, VectorTiling, Window
from compiler.segment.memory_plan import slot_counts
from compiler.segment.segment import Segment, StripBlocks
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp
from simulator.npu.cycles import cost_tables
from simulator.npu.level import NO_CONTENTION, Level
from simulator.npu.parts import BLOCK_BYTES, Engine, Memory

Each = NDArray[np.float64] | np.float64  # [n], one per row of features, or a scalar for all rows

FEATURE_SET = "schedule-10"
_EXTENSIVE = (
    "cube_cycles", "ideal_cube_cycles", "mte1_cycles", "fixpipe_cycles", "vector_cycles", "mte3_on_chip_cycles",
    "load_bytes", "weight_bytes", "store_bytes", "residual_bytes", "instructions", "products", "iterations", "busiest_cycles",
    "read_cycles", "write_cycles", "drain_cycles", "shared_read_bytes", "shared_write_bytes", "shared_cycles", *SERIAL,
)  # fmt: skip
_INTENSIVE = ("operators", "segments", "l1_blocks_log2", "window", "prefetch", "streamed_share", "row_share", "cores", "sliding")
_OF_A_CORE = (
    "cube_cycles", "ideal_cube_cycles", "mte1_cycles", "fixpipe_cycles", "vector_cycles", "mte3_on_chip_cycles", "instructions", "products",
    "iterations", "drain_cycles", *SERIAL,
)  # fmt: skip
FEATURES: tuple[str, ...] = (*_EXTENSIVE, *STAGE_SUMS, *STAGE_MEANS, *_INTENSIVE)
_ENGINES = ("cube_cycles", "mte1_cycles", "fixpipe_cycles", "vector_cycles")
_AT = {name: i for i, name in enumerate(FEATURES)}
_STAGES = slice(len(_EXTENSIVE), len(_EXTENSIVE) + len(STAGE_SUMS) + len(STAGE_MEANS))
_A_CORES, _BUSY = [_AT[name] for name in _OF_A_CORE], [_AT[name] for name in _ENGINES]
_OF_ONE, _BUSY_OF_ONE = [_AT[name] for name in (*STAGE_MEANS, *_INTENSIVE)], [*_BUSY, _AT["mte3_on_chip_cycles"]]
_SERIAL = [_AT[name] for name in SERIAL]
_OF_PRODUCT = [_AT[name] for name in PRODUCT_FEATURES]
_OF_VECTOR = [
    _AT[name]
    for name in (
        "mte1_cycles", "vector_cycles", "mte3_on_chip_cycles", "load_bytes", "shared_read_bytes", "instructions", "drain_cycles",
        "row_share", *SERIAL,
    )
]  # fmt: skip


def raw_features(target_graph: TargetGraph, plan: SegmentPlan, start: int) -> NDArray[np.float64]:
    """Features of one segment before scaling, float64 [len(FEATURES)]; features of a program are their sum, then `scale_features`."""
    segment = Segment.of(target_graph, plan, start)
    if isinstance(segment, Infeasible):
        raise ValueError(str(segment))
    plan = segment.plan
    if len(segment.parts) == 1:
        out = _of_strips(segment, 0)
    else:
        sums = np.array([_of_strips(segment, part) for part in range(len(segment.parts))])
        totals = sums.sum(0)
        totals[_OF_ONE] = sums[segment.largest_index, _OF_ONE]
        totals[_A_CORES] = sums[:, _A_CORES].max(0)
        out = totals.tolist()
    # all parts of a segment share the rates of DDR and of the shared memory
    cores = len(plan.cores)
    read_rate, write_rate = ddr_rates(target_graph.machine, cores)
    read = out[_AT["load_bytes"]] + out[_AT["weight_bytes"]] + out[_AT["residual_bytes"]]
    out[_AT["read_cycles"]] = read / read_rate + (0.0 if target_graph.machine.l2 is None else _fetch_cycles(segment, read, cores))
    out[_AT["write_cycles"]] = out[_AT["store_bytes"]] / write_rate
    shared_in, shared_out = (cores * rate for rate in shared_rates(target_graph.machine))
    shared = out[_AT["shared_read_bytes"]] / shared_in + out[_AT["shared_write_bytes"]] / shared_out
    out[_AT["shared_cycles"]] = shared
    out[_AT["busiest_cycles"]] = max(out[_AT["read_cycles"]] + out[_AT["write_cycles"]] + shared, *(out[column] for column in _BUSY))
    out[_AT["cores"]] = float(cores * len(plan.operators))
    features = np.array(out)
    features.flags.writeable = False
    return features


def _fetch_cycles(segment: Segment, read: float, cores: int) -> float:
    """Cycles in which an L2 fetches from DDR what the segment reads, each byte once.  read: bytes that cores read."""
    start, stop, *_ = segment.outline
    machine, storages = segment.parts[0].machine, segment.parts[0].storages
    loaded = {load.storage for part in range(len(segment.parts)) for strip in segment.strips(part) for load in strip.blocks.loads}
    products = [spec for part in segment.parts for spec in map(product_of, part.operators[start:stop]) if spec is not None]
    blocks = sum(spec.stored_weight_blocks + spec.bias_blocks for spec in products)
    blocks += sum(storages[index].n * storages[index].planes * storages[index].plane_blocks for index in loaded)
    rate = min(float(machine.ddr.deliverable), cores * float(machine.dma_bytes_per_cycle(Engine.MTE2)))
    return min(float(blocks * BLOCK_BYTES), read) / rate


def _of_strips(segment: Segment, part: int) -> list[float]:
    """Features of a part: sums over all strips; intensive features are taken from the middle strip."""
    strips = segment.strips(part)
    if len(strips) == 1:
        return _sums(segment, strips[0])
    sums = np.array([_sums(segment, strip) for strip in strips])
    totals = sums.sum(0)
    totals[_OF_ONE] = sums[len(strips) // 2, _OF_ONE]
    out: list[float] = totals.tolist()
    return out


def _sums(segment: Segment, strip: StripBlocks) -> list[float]:
    """Features of a strip; features in `_OF_A_CORE` are those of the core with most iterations.

    The features are a list, because access to single numbers of an array takes several times as long.
    """
    plan, groups, together, cores = segment.plan, strip.target_graph.images, strip.target_graph.together, segment.outline.dealt
    images = groups * together
    traffic = _segment_bytes(strip, plan.shared, plan.staged)
    pairs = zip(traffic.contexts, plan.tilings, strict=True)
    operator_rows = [_of_operator(context, tiling, groups, together, cores) for context, tiling in pairs]
    out: list[float] = np.array(operator_rows).sum(0).tolist()
    out[_AT["store_bytes"]] = float(traffic.stored[False] * BLOCK_BYTES * images)
    out[_AT["shared_write_bytes"]] = float(traffic.stored[True] * BLOCK_BYTES * images)
    for load, from_shared in traffic.loaded:
        out[_AT["shared_read_bytes" if from_shared else "load_bytes"]] += load * BLOCK_BYTES * images
    out[_AT["l1_blocks_log2"]] = float(_tensor_blocks_in_l1(strip, plan.prefetch, plan.window))
    iterations = plan.blocks * groups
    out[_AT["iterations"]] = float(iterations)
    # the core with most iterations
    share = -(-iterations // cores) / iterations
    if share < 1:
        for column in _A_CORES:
            out[column] *= share
    operators = len(plan.operators)
    out[_AT["operators"]] = float(operators)
    out[_AT["segments"]] = 1.0
    out[_AT["window"]] = float((iterations if plan.window == "all" else min(plan.window, iterations)) * operators)
    out[_AT["sliding"]] = float(plan.sliding * operators)
    out[_AT["prefetch"]] = float(plan.prefetch * operators)
    return out


@lru_cache(maxsize=4096)
def _tensor_blocks_in_l1(strip: StripBlocks, prefetch: int, window: Window) -> int:
    """Number of blocks of L1 that hold tensors."""
    target_graph, blocks = strip
    l1_blocks = 0
    for storage, count in slot_counts(target_graph, blocks, prefetch, window).items():
        allocation = blocks.allocations[storage]
        high = allocation.high(count, target_graph.storages[0].n) * (1 if allocation.cached else count)
        l1_blocks += allocation.planes * high * target_graph.storages[storage].row_blocks * target_graph.together
    return l1_blocks


class _OpContext(NamedTuple):
    """Inputs of an operator's features, from its model and its segment.  kind: cost class.  heights: (rows, number of blocks) pairs.

    inside: whether the result stays in L1.  reads: per operand, whether it is in L1, and whether the segment computes it there.
    shared: per operand, whether the shared memory has it instead of DDR.  staged: whether the shared memory has the weights.
    """

    kind: CostClass
    heights: Heights
    inside: bool
    reads: tuple[tuple[bool, bool], ...]
    shared: tuple[bool, ...]
    staged: bool
    strips: int

    @property
    def on_chip(self) -> tuple[bool, ...]:
        return tuple([produced for _, produced in self.reads])


class _SegmentBytes(NamedTuple):
    """Traffic of a segment that does not depend on tilings.  contexts: context of every operator.

    stored: blocks stored per image (DDR, shared memory).  loaded: per load, number of blocks, and whether the shared memory has them.
    """

    contexts: tuple[_OpContext, ...]
    stored: tuple[int, int]
    loaded: tuple[tuple[int, bool], ...]


@lru_cache(maxsize=4096)
def _segment_bytes(strip: StripBlocks, shared: tuple[str, ...] = (), staged: tuple[str, ...] = ()) -> _SegmentBytes:
    target_graph, blocks = strip
    contexts, stored = [], [0, 0]
    in_shared = [storage.name in shared for storage in target_graph.storages]
    for k, spec in enumerate(target_graph.operators[blocks.start : blocks.stop]):
        heights = tuple(blocks.heights[k].items())
        shares = tuple([in_shared[read.storage] for read in spec.reads])
        place = blocks.inside[k], strip.residence(k), shares, spec.name in staged, target_graph.strips
        contexts.append(_OpContext(cost_class_of(target_graph, spec), heights, *place))
        stored[in_shared[spec.y.storage]] += stored_blocks(target_graph, blocks, k)
    loaded = [(loaded_blocks(target_graph, blocks, load), in_shared[load.storage]) for load in blocks.loads]
    return _SegmentBytes(tuple(contexts), (stored[0], stored[1]), tuple(loaded))


@lru_cache(maxsize=1 << 14)
def _of_operator(context: _OpContext, tiling: Tiling, groups: int, together: int, cores: int) -> NDArray[np.float64]:
    """Features of one operator, float64 [len(FEATURES)]; cached, because segments of a search share many operators.

    groups: number of groups of `together` images.
    """
    features = np.zeros(len(FEATURES))
    kind, machine = context.kind, context.kind.target_graph.machine
    # computed for a single core; a core's share of the segment follows later
    read_rate = ddr_rates(machine, cores)[0] / cores
    if isinstance(tiling, ConvTiling):
        features[_OF_PRODUCT] = _product(context, tiling, groups, together, cores, read_rate)
    else:
        features[_OF_VECTOR] = _vector(context, tiling, groups * together, read_rate)
    features[_STAGES] = stage_features(kind, context.heights, context.on_chip, context.inside, tiling, groups * together, together)
    features.flags.writeable = False
    return features


def operator_cycles(strip: StripBlocks, index: int, tiling: Tiling) -> float:
    """Cycles of the busiest engine of operator `index` of a segment for all blocks of an image, without transfers."""
    features = _of_operator(_segment_bytes(strip).contexts[index], tiling, 1, 1, 1)
    return float(max(features[_BUSY_OF_ONE]))


def _product(
    context: _OpContext, tiling: ConvTiling, groups: int, together: int, cores: int, read_rate: float
) -> NDArray[np.float64]:  # fmt: skip
    product, residual_in, right_in = product_of(context.kind.spec), -1, -1
    if len(context.reads) > 1:
        second = int(Memory.L1 if context.reads[1][0] else Memory.SHARED if context.shared[1] else Memory.DDR)
        residual_in = second if product is not None and product.residual is not None else -1
        right_in = second if product is not None and product.right is not None else -1
    where = ProductStanding(context.inside, residual_in, right_in, context.staged, cores, context.strips, groups, together, read_rate)
    return product_features(context.kind, tiling, context.heights, where)


def _tiles(spec: TargetOp, tiling: VectorTiling, heights: Heights) -> list[tuple[int, int, int, int]]:
    """Tiles of an image as (planes, rows, columns, count): full tiles, and smaller tiles at the end of each axis."""
    across = tiling.tile_columns or spec.out_w
    deep, wide = nonempty_pieces(spec.y.planes, as_vector_op(spec).planes_of_tile(tiling)), nonempty_pieces(spec.out_w, across)
    high: dict[int, int] = {}
    for rows, count in heights:
        for size, times in nonempty_pieces(rows, tiling.tile_rows if across >= spec.out_w else 1):
            high[size] = high.get(size, 0) + count * times
    return [(p, h, w, a * b * c) for p, a in deep for h, b in high.items() for w, c in wide]


def _vector(context: _OpContext, tiling: VectorTiling, images: int, read_rate: float) -> tuple[float, ...]:
    """Features of an operator on VECTOR, [len(_OF_VECTOR)]."""
    target_graph, spec, rows = context.kind.target_graph, context.kind.spec, context.heights
    cost, cycles = (
        cost_of(target_graph.machine, int(target_graph.type_of(spec.y)), False),
        cost_tables(target_graph.machine).vector_cycles.tolist(),
    )
    high = sum([height * count for height, count in rows])
    size = float(high) * spec.out_w * spec.y.planes * images
    across = -(-spec.out_w // (tiling.tile_columns or spec.out_w))
    tile_shapes = _tiles(spec, tiling, rows)
    tiles = float(sum([count for *_, count in tile_shapes]) * images)
    work = as_vector_op(spec).work(
        VectorTiles(tiling, rows, tile_shapes, images, size, tiles, across, target_graph.type_of(spec.y), cycles)
    )
    calls, reads = work.calls, work.reads
    vector = work.repeats + calls * cost.vector_startup
    near = [blocks for blocks, (in_l1, _) in zip(reads, context.reads, strict=True) if in_l1]
    far = zip(reads, context.reads, context.shared, strict=True)
    shared = sum([blocks for blocks, (in_l1, _), in_shared in far if in_shared and not in_l1], 0.0) * BLOCK_BYTES
    load = (sum(reads) - sum(near)) * BLOCK_BYTES - shared
    mte1 = closed_form.path_cycles(sum(near, 0.0) * BLOCK_BYTES, cost.in_rate, len(near) * tiles, cost.in_startup)
    mte3 = closed_form.path_cycles(size * BLOCK_BYTES, cost.back_rate, tiles, cost.back_startup) if context.inside else 0.0
    serial = closed_form.serial_cycles(max(vector, mte1, mte3), load / read_rate)
    instructions = calls + tiles * (len(near) + 1)
    return mte1, vector, mte3, load, shared, instructions, tiles, high / spec.out_h, *serial


def expected_cycles(raw: NDArray[np.float64], level: Level = NO_CONTENTION) -> NDArray[np.float64]:
    """Estimated cycles at a contention level before any measurement: float64 [n] for raw features [n, F], or a scalar for one vector.

    The estimate is the geometric mean of two cases: in the first, only engines and DDR limit the overlap of operators; in the second,
    operators run one after the other.  The real overlap is not known yet.
    """
    return _expected(raw, np.float64(level.share), np.float64(level.latency_cycles))


def _expected(raw: NDArray[np.float64], share: Each, latency: Each) -> NDArray[np.float64]:
    engines = raw[..., _BUSY].max(-1)
    shared = raw[..., _AT["shared_cycles"]]
    bound = np.maximum(engines, _moving(raw, share) + shared) + raw[..., _AT["drain_cycles"]]
    return np.asarray(np.sqrt(bound * np.maximum(bound, _serial(raw, 1 / share) + _waits(raw, latency) + shared)))


def _waits(raw: NDArray[np.float64], latency: Each) -> NDArray[np.float64]:
    """Cycles of the level's latency if every block waits for its first data."""
    return np.asarray(raw[..., _AT["iterations"]] * latency)


def _moving(raw: NDArray[np.float64], share: Each) -> NDArray[np.float64]:
    """Busy cycles of DDR."""
    return np.asarray((raw[..., _AT["read_cycles"]] + raw[..., _AT["write_cycles"]]) / share)


def _serial(raw: NDArray[np.float64], slower: Each) -> NDArray[np.float64]:
    """Cycles if operators run one after the other, interpolated between ratios in `SERIAL`.  slower: ratio by which DDR is slower."""
    ratios = np.array(list(SERIAL.values()), np.float64)
    i = np.clip(np.searchsorted(ratios, slower), 1, len(ratios) - 1)
    serial = raw[..., _SERIAL]
    low, high = (np.take_along_axis(serial, np.broadcast_to(index, serial.shape[:-1])[..., None], -1)[..., 0] for index in (i - 1, i))
    return np.asarray(low + (high - low) * (slower - ratios[i - 1]) / (ratios[i] - ratios[i - 1]))


def scale_features(raw: NDArray[np.float64] | Sequence[NDArray[np.float64]]) -> NDArray[np.float32]:
    """Scaled features, float32 [F] or [n, F] like `raw`: extensive features as log2(1 + x), intensive features per operator."""
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


class ModelInput(NamedTuple):
    """Input of the cost model of one level.  columns: float32 [n, more than F].  expected: float64 [n], estimate to be corrected."""

    columns: NDArray[np.float32]
    expected: NDArray[np.float64]


_CYCLES = [_AT[name] for name in _EXTENSIVE if name.endswith("_cycles")]


def model_input(features: NDArray[np.float32]) -> ModelInput:
    """Input of the cost model.  features: float32 [n, F + C], rows of scaled features and condition (`cost.level_conditions`).

    Cycles of engines are added as shares of the estimate: trees split one column at a time, so from cycles alone a tree learns the size of
    a segment long before the segment's bottleneck.
    """
    logs = features[:, : len(_EXTENSIVE)].astype(np.float64)
    raw = np.exp2(logs) - 1.0
    share, latency = features[:, SHARE].astype(np.float64), np.exp2(features[:, LATENCY].astype(np.float64)) - 1.0
    expected = 1.0 + _expected(raw, share, latency)
    fill = raw[:, _AT["read_cycles"]] / np.maximum(1.0, raw[:, _AT["iterations"]]) / share
    parts = np.column_stack([logs[:, _CYCLES], np.log2(1.0 + _moving(raw, share)), np.log2(1.0 + fill)]) - np.log2(expected)[:, None]
    waits = np.log2(1.0 + _waits(raw, latency) / expected)
    return ModelInput(np.column_stack([features, parts.astype(np.float32), waits.astype(np.float32)]), expected)


def estimate_cycles(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cycles of the closed-form estimate alone, float64 [n].  features: see `model_input`."""
    return model_input(features).expected
