"""Dataflow of an operator in stages: moves through the memories and computations, derived from a loop nest, and the tile of every stage.

The compute description (`Nest`) has the loops that index every operand, and the memory in which the computing unit reads the operand.
The machine decides the moves: the shortest route along its paths from the operand's memory to the unit's memory, and from the unit's memory
to the result's memory.  Stages on the same tensor in the same buffer are a group; loops tile the first stage of a group, and its later
stages keep the tile.

Features of a stage, for one block; a double-buffered stage has two live tiles, and one of them is being filled or drained:

| name        | meaning                                                                                   |
|-------------|-------------------------------------------------------------------------------------------|
| type        | `ENGINE SOURCE->BUFFER` of a move, CUBE or VECTOR of a computation                         |
| store_bit   | bits of an element in the buffer                                                          |
| store_num   | live elements of the stage in the buffer, both tiles if it is double-buffered              |
| compute_bit | bits of an element during the move or in a sum                                            |
| compute_num | elements moved, multiply-accumulates, or elements that VECTOR processes, in all            |
| emit_bit    | bits that one instruction on a full tile moves or computes                                 |
| emit_num    | instructions in all                                                                       |
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.instructions.repeats import repeats_along
from compiler.ir.im2col import Cut
from compiler.ops.conv_job import WEIGHT_PIECE_BLOCKS
from compiler.ops.tile_counts import count_panel_product, count_product, l0_slot_counts, nonempty_pieces, split_axis
from compiler.plan.plan import ConvTiling, Tiling, VectorTiling
from compiler.target.capabilities import L0
from compiler.target.loop_nest import Nest
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp
from compiler.target.zero_blocks import Ints, count_panels
from simulator.npu.machine import Machine
from simulator.npu.parts import SUM_BYTES, Memory

LOAD_PIECE_BLOCKS = 1024  # planes of a tensor are loaded in pieces of 32 KiB or of one plane; see `WEIGHT_PIECE_BLOCKS`


class Stage(NamedTuple):
    """Move of a tensor, or its computation if source == buffer.  of: stage or tensor where a move starts.  bits: bits of an element."""

    tensor: str
    of: str
    source: Memory
    buffer: Memory
    engine: str
    loops: tuple[str, ...]
    bits: int

    @property
    def name(self) -> str:
        return f"{self.tensor}.{self.buffer.name}"

    @property
    def type(self) -> str:
        moves = self.source != self.buffer
        return f"{self.engine} {self.source.name}->{self.buffer.name}" if moves else self.engine


def nest_of(
    target_graph: TargetGraph, spec: TargetOp, rows: int | None = None, in_l1: frozenset[int] = frozenset(), inside: bool = False
) -> Nest:
    """Loop nest of `rows` output rows (default: all).  in_l1: operands that the segment has in L1.  inside: the result stays in L1."""
    return spec.nest(target_graph.type_of(spec.y), target_graph.storages, spec.out_h if rows is None else rows, in_l1, inside)


@lru_cache(maxsize=256)
def route(machine: Machine, start: Memory, stop: Memory) -> tuple[tuple[Memory, Memory, str], ...]:
    """Shortest route as (source, destination, engine) moves; of several shortest routes, the route whose paths the machine lists first.

    Raises ValueError if there is no route.
    """
    ways: list[tuple[tuple[Memory, Memory, str], ...]] = [()]
    seen = {start}
    while ways:
        longer = []
        for way in ways:
            memory = way[-1][1] if way else start
            if memory == stop:
                return way
            for path in machine.paths:
                destination = Memory[path.destination]
                if path.source == memory.name and destination not in seen:
                    longer.append((*way, (memory, destination, str(path.engine))))
        seen |= {way[-1][1] for way in longer}
        ways = longer
    raise ValueError(f"machine {machine.name}: no way from {start.name} to {stop.name}")


def _unit_memory(machine: Machine, wanted: Memory) -> Memory:
    """Memory in which a unit reads or writes: `wanted`, or L1 on a machine without that memory."""
    return wanted if wanted == Memory.DDR or machine.has(wanted) else Memory.L1


def stages_of(machine: Machine, nest: Nest) -> tuple[Stage, ...]:
    """Moves of every operand, computations, and moves of the result, in the order of the data."""
    stages = []
    for operand in nest.reads:
        of = operand.tensor
        for source, buffer, engine in route(machine, operand.lies, _unit_memory(machine, operand.wanted)):
            stages.append(Stage(operand.tensor, of, source, buffer, engine, operand.loops, operand.bits))
            of = stages[-1].name
    write = nest.write
    memory = _unit_memory(machine, write.wanted)
    bits = 8 * SUM_BYTES if memory == Memory.L0C else write.bits
    of = "+".join(operand.tensor for operand in nest.reads if operand.wanted != Memory.UB or nest.unit == "VECTOR")
    stages += [Stage(write.tensor, of, memory, memory, nest.unit, write.loops, bits)] * nest.steps
    of = stages[-1].name if stages else of  # a tensor that is only moved has no stage yet
    for source, buffer, engine in route(machine, memory, write.lies):
        stages.append(Stage(write.tensor, of, source, buffer, engine, write.loops, write.bits))
        of = stages[-1].name
    return tuple(stages)


def group_stages(stages: tuple[Stage, ...]) -> dict[tuple[Memory, str], tuple[Stage, ...]]:
    """Groups of stages by (buffer, tensor); the first stage of a group is tiled by the loops."""
    out: dict[tuple[Memory, str], tuple[Stage, ...]] = {}
    for stage in stages:
        key = (stage.buffer, stage.tensor)
        out[key] = (*out.get(key, ()), stage)
    return out


def tile_loop(tensor: str, buffer: str, tiling: Tiling, extents: dict[str, int]) -> tuple[str, bool]:
    """Loop in which a stage has a new tile (`segment`: one tile for all blocks, `block`: one per block), and whether two tiles are live."""
    if not isinstance(tiling, ConvTiling):
        if not tensor.startswith(("x", "y", "counts")):  # a constant
            return "segment" if tiling.constants == "resident" else "p.outer", False
        return "w.outer" if tiling.tile_columns else "h.outer", tensor != "counts"
    partial = tiling.weights == "streamed" and tiling.chunk_k1 < extents["k"]
    return cube_tile_loop(tensor, buffer, tiling.weights, tiling.constants, partial, tiling.order)


def cube_tile_loop(tensor: str, buffer: str, weights: str, constants: str, partial: bool, order: str = "m") -> tuple[str, bool]:
    """`tile_loop` for a product.  partial: whether chunks of weights are parts of k."""
    resident = weights == "resident"
    if buffer in ("L0A", "L0B"):
        return "k.outer", True
    if tensor == "x":
        return "block", False
    if tensor == "w":
        return ("segment", False) if resident else ("k.chunk", True)
    if tensor == "bias":
        if constants == "streamed":
            return "g" if resident else "n.chunk", True
        return "segment", False
    if buffer == "L0C" and partial:
        return "n.chunk", False  # partial sums of all tiles of a chunk
    return ("n.outer" if order == "m" else "m.outer"), True


class Tile(NamedTuple):
    """Tile of a stage.  elements: size of one tile.  computed: elements or multiply-accumulates, emitted: instructions, of all tiles."""

    elements: int
    computed: int
    emitted: int


def tiles_of(nest: Nest, stages: tuple[Stage, ...], places: tuple[int, ...], tiling: Tiling) -> tuple[Tile, ...]:
    """Tile of every stage.  places: `cube_places` of the stages."""
    if isinstance(tiling, ConvTiling):
        assert nest.fractal is not None
        loops = tuple(nest.loops[name] for name in "gmnk")
        extents = (*loops, *nest.fractal[:4], nest.l0, nest.source_planes, nest.source_blocks, nest.cut, nest.needed)
        table = cube_tiles(extents, sizes_of(tiling)).tolist()
        return tuple([Tile(*table[row]) for row in places])
    return tuple([_vector_tile(nest, stage, tiling) for stage in stages])


def cube_places(stages: tuple[Stage, ...]) -> tuple[int, ...]:
    """Index of each stage of a product in `cube_tiles`."""
    return tuple([_CUBE_PLACES.get(stage.name, _RESULTS) for stage in stages])


_CUBE_PLACES = {name: index for index, name in enumerate(("x.L1", "x.L0A", "w.L1", "w.L0B", "bias.UB", "y.L0C"))}
_RESULTS = len(_CUBE_PLACES)
_CUBE_PLACES["bias.L1"] = _CUBE_PLACES["bias.UB"]


# extents of a product: g, m, n, k; rows, lanes, columns and weight blocks of a fractal; `Nest.l0`; source planes; source blocks;
# `Nest.cut`; `Nest.needed`
Extents = tuple[int, int, int, int, int, int, int, int, L0, int, int, Cut, Ints]
# whether weights are resident, whether n is the outer loop, whether constants are resident; chunks (n, k); tiles (m, n, k)
Sizes = tuple[bool, bool, bool, int, int, int, int, int]


def sizes_of(tiling: ConvTiling) -> Sizes:
    """Sizes of a tiling, for Numba kernels."""
    stay = tiling.weights == "resident", tiling.order == "n", tiling.constants == "resident"
    return *stay, tiling.chunk_n1, tiling.chunk_k1, tiling.tile_m, tiling.tile_n1, tiling.tile_k1


@njit(cache=True)
def cube_tiles(extents: Extents, sizes: Sizes) -> NDArray[np.int64]:
    """Tiles of a product, int64 [7, 3]: rows as in `_CUBE_PLACES`, then the tile of a moved result or residual; columns as in `Tile`."""
    g, m, n, k, fractal_rows, c0, n0, weight_blocks, l0, source_planes, source_blocks, cut, needed = extents
    resident, n_outer, once, chunk_n, chunk_k, tile_m, tile_n1, tile_k1 = sizes
    chunk_n, chunk_k = (n, k) if resident else (min(chunk_n, n), min(chunk_k, k))
    tile_n, tile_k = min(tile_n1, chunk_n), min(tile_k1, chunk_k)
    along_n, along_k = split_axis(n, chunk_n), split_axis(k, chunk_k)
    slot_counts = l0_slot_counts(l0, weight_blocks, tile_m, tile_n1, tile_k1)
    if needed.size:
        one = np.array((1, 0, 0))  # steps are not used
        beside = count_panels(needed, chunk_n, chunk_k, tile_n1, tile_k1, cut, 1, one, 1, one)
        tiles = count_panel_product(beside, fractal_rows, m, along_n, along_k, tile_m, tile_n1, tile_k1, n_outer, slot_counts)
    else:
        tiles = count_product(fractal_rows, m, along_n, along_k, tile_m, tile_n1, tile_k1, n_outer, cut, slot_counts)
    all_n = (n + chunk_n - 1) // chunk_n
    chunks = all_n * ((k + chunk_k - 1) // chunk_k)
    weights, bias, source = g * n * k * n0 * c0, g * n * n0, source_planes * source_blocks * c0
    per_copy, piece = max(1, LOAD_PIECE_BLOCKS // source_blocks), WEIGHT_PIECE_BLOCKS * c0
    sums = (m + tile_m - 1) // tile_m * tile_m * chunk_n * n0 if chunk_k < k else tile_m * tile_n * n0
    fixed, streamed = (weights, weights, (weights + piece - 1) // piece), (chunk_n * n0 * chunk_k * c0, weights, g * chunks)
    return np.array(
        (
            (source, source, (source_planes + per_copy - 1) // per_copy),
            (tile_m * tile_k * c0, g * tiles.moved_a * c0, g * tiles.loads_a),
            fixed if resident else streamed,
            (tile_n * n0 * tile_k * c0, g * tiles.moved_b * n0 * c0, g * tiles.loads_b),
            (bias, bias, 1) if once else (chunk_n * n0, bias, g * all_n),
            (sums, g * tiles.rows * tiles.blocks * n0 * c0, g * tiles.products),
            (tile_m * tile_n * n0, g * m * n * n0, g * tiles.results),
        ),
        np.int64,
    )


def _vector_tile(nest: Nest, stage: Stage, tiling: VectorTiling) -> Tile:
    p, h, w = (nest.loops[name] for name in "phw")
    c0 = nest.lanes
    planes, rows, columns = (
        nonempty_pieces(p, tiling.tile_planes),
        nonempty_pieces(h, tiling.tile_rows),
        nonempty_pieces(w, tiling.tile_columns or w),
    )
    (tile_p, _), (tile_h, _), (tile_w, _) = planes[0], rows[0], columns[0]
    tiles_p = sum(count for _, count in planes)
    tiles_h = sum(count for _, count in rows) * sum(count for _, count in columns)
    elements, tile = p * h * w * c0, tile_p * tile_h * tile_w * c0
    if stage.loops == ("p",):
        if stage.tensor.startswith("x"):  # an input of one pixel is loaded with every tile
            return Tile(tile_p * c0, tiles_h * p * c0, tiles_p * tiles_h)
        return Tile(p * c0, p * c0, 1) if tiling.constants == "resident" else Tile(tile_p * c0, p * c0, tiles_p)
    if stage.loops == ("h", "w"):
        return Tile(tile_h * tile_w * c0, tiles_p * h * w * c0, tiles_p * tiles_h)
    if stage.source == stage.buffer:
        # repeats of eight contiguous blocks, and the remainder
        calls = [repeats_along(a * b * c, na * nb * nc)[1] for a, na in planes for b, nb in rows for c, nc in columns]
        return Tile(tile, elements, sum(calls))
    if stage.tensor == "x0":  # with the halo of a window
        row = -(-nest.source_blocks // h) * c0
        return Tile(tile_p * tile_h * -(-row * tile_w // w), nest.source_elements, tiles_p * tiles_h)
    return Tile(tile, elements, tiles_p * tiles_h)


def live_elements(stage: Stage, tile: Tile, nest: Nest, tiling: Tiling) -> int:
    """Number of live elements of a stage in its buffer."""
    _, double = tile_loop(stage.tensor, stage.buffer.name, tiling, nest.loops)
    return tile.elements * (2 if double else 1)
