"""Interface of an operator kind, and the base class of VECTOR operators, whose defaults a kind may override.

A tile is some planes by some rows of the result, or some planes by some columns of one row.  A tile fills one of two slots of UB.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from compiler.instructions.tiles import UbTiles
from compiler.ir.layout import Layout
from compiler.ir.operators import Floats, Operator
from compiler.plan.plan import Tiling, VectorTiling
from compiler.target.capabilities import room_blocks
from compiler.target.constants import Constants
from compiler.target.loop_nest import Nest, Operand
from compiler.target.storage import StorageSpec, TensorSlice
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import EmitInputs, TargetOp, UbBuffers, round_up
from compiler.target.weights import pack_lanes
from simulator.kernel_addresses import record_row
from simulator.npu.isa import REPEAT_BLOCKS
from simulator.npu.machine import Machine
from simulator.npu.parts import FRACTALS, DataType, Memory


class Lowering(NamedTuple):
    """Context of lowering an operator.

    layout: places of tensors.  pieces: function from a tensor's name to its slice of a storage.  constants: collector of constants.
    """

    layout: Layout
    pieces: Callable[[str], TensorSlice]
    constants: Constants
    machine: Machine

    def fields(self, index: int, op: Operator) -> dict[str, Any]:
        """Fields that all target operators have."""
        shapes = self.layout.graph.shapes
        sizes = dict(zip(("in_h", "in_w", "out_h", "out_w"), (*shapes[op.inputs[0]][2:], *shapes[op.y][2:]), strict=True))
        reads = tuple(self.pieces(name) for name in op.operands)
        return {"index": index, "name": op.name, "operator": op, "reads": reads, "y": self.pieces(op.y), **sizes}

    def type_of(self, tensor: str) -> DataType:
        return self.layout.type_of(tensor)

    def channels(self, tensor: str) -> int:
        return self.layout.graph.shapes[tensor][1]

    def padded_planes(self, tensor: str) -> tuple[int, ...]:
        """Planes of a tensor with padding lanes, which hold no channel."""
        place, lanes = self.layout.placements[tensor], self.type_of(tensor).lanes
        held = Counter(lane // lanes for lane in place.lanes)
        return tuple(plane for plane in range(place.planes) if held[plane] < lanes)

    def pack(self, name: str, values: Floats, tensor: str, padding: float = 0.0) -> int:
        """DDR block of a new constant: a value for every channel of `tensor`, and `padding` in its padding lanes."""
        return self.constants.add(name, pack_lanes(values, self.layout.placements[tensor], self.type_of(tensor), padding=padding))


class LoweredSpec(Protocol):
    """The class of a kind's target operators, a `TargetOp`."""

    word: ClassVar[str]

    @classmethod
    def lower(cls, index: int, op: Any, lowering: Lowering) -> TargetOp:
        """An operator of the graph as target operator `index`.  Raises `UnsupportedError` if no instruction can express it."""


class OperatorKind(NamedTuple):
    """A kind of operator, a row of `ops.registry`.

    operator: class in the graph.  spec: class in the target graph.  job: type of `spec.job`, a NamedTuple of numbers.
    emitter: kernel (out, cursor, work, node, job, slot_state).  It writes the records of a node from row `cursor` on, and returns the next
    row, or -1 if `out` is too short.  `job` is a record that the kernel may change; `slot_state`: see `instructions.node_context`.
    """

    operator: type[Operator]
    spec: type[LoweredSpec]
    job: Any
    emitter: Any


Heights = tuple[tuple[int, int], ...]  # (rows of a block, number of blocks of an image with this height)


class VectorTiles(NamedTuple):
    """Tiles of an operator in a segment.

    heights: rows of the blocks.  output_tiles: (planes, rows, columns, count) per size of tile in one image.  size: blocks of the result
    in all images.  tiles: number of tiles in all images.  across: tiles per row.  cycles: cycles of a repeat, by opcode.
    """

    tiling: VectorTiling
    heights: Heights
    output_tiles: list[tuple[int, int, int, int]]
    images: int
    size: float
    tiles: float
    across: int
    dtype: DataType
    cycles: list[int]

    @property
    def rows(self) -> int:
        """Rows of the result, in all blocks of an image."""
        return sum([height * count for height, count in self.heights])


class VectorWork(NamedTuple):
    """Work of VECTOR.  repeats: cycles of all repeats.  calls: instructions.  reads: blocks read, per operand."""

    repeats: float
    calls: float
    reads: list[float]


def run_of_planes(piece: TensorSlice, first: int, last: int) -> TensorSlice:
    """Planes [first, last) of a piece."""
    return TensorSlice(piece.storage, piece.plane + first, last - first)


def block_of_channels(spec: TargetOp, dtype: DataType) -> int:
    """Planes that hold the channels of one fractal, if these divide the planes of the result; else 1."""
    deep = -(-FRACTALS[dtype].columns // dtype.lanes)
    return deep if spec.y.planes % deep == 0 else 1


@dataclass(frozen=True, eq=False)
class OnVector(TargetOp):
    """An operator of the vector unit."""

    runs_on: ClassVar[Literal["CUBE", "VECTOR"]] = "VECTOR"

    # the footprint of a tile

    @property
    def planes_together(self) -> int:
        """Planes per unit of work: a tile has whole multiples of this number."""
        return 1

    def planes_of_tile(self, tiling: VectorTiling) -> int:
        """Planes of a tile."""
        return min(self.y.planes, tiling.tile_planes)

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        """Blocks of one slot of UB."""
        return planes * rows * columns

    def constant_blocks(self, planes: int) -> int:
        """Blocks of UB for the constants of `planes` planes."""
        return 0

    def pixel_constant_blocks(self, rows: int, columns: int) -> int:
        """Blocks of UB for the constants of rows x columns pixels, which are loaded with every tile."""
        return 0

    def weight_slots(self, tiling: Tiling) -> tuple[int, int]:
        return 0, 0

    def ub_buffers(self, tiling: Tiling, through_ub: bool, dtype: DataType) -> tuple[UbBuffers, ...]:
        assert isinstance(tiling, VectorTiling)
        resident = tiling.constants == "resident"
        planes, columns = self.planes_of_tile(tiling), min(tiling.tile_columns or self.out_w, self.out_w)
        slot = UbBuffers("out", 2, round_up(self.tile_blocks(planes, tiling.tile_rows, columns, dtype), 8))
        if size := self.pixel_constant_blocks(tiling.tile_rows, columns):
            return slot, UbBuffers("constants", 1, round_up(size, 8))
        size = self.constant_blocks(self.y.planes if resident else planes)
        return (slot, UbBuffers("constants", 1, round_up(size, 8), resident)) if size else (slot,)

    # tilings

    def set_aside(self, rows: int) -> int:
        """Blocks of UB that stay free for constants, in tilings for blocks of `rows` rows."""
        return self.y.planes

    def slot_tiling(self, rows: int, slot_blocks: int, dtype: DataType) -> VectorTiling:
        """The largest tile that fits a slot of `slot_blocks` blocks: whole planes, else some rows of `planes_together` planes."""
        deep = self.planes_together
        full_tile = max(1, self.tile_blocks(deep, max(1, rows), self.out_w, dtype))
        if full_tile <= slot_blocks:
            return VectorTiling(tile_planes=deep * max(1, min(self.y.planes // deep, slot_blocks // full_tile)), tile_rows=max(1, rows))
        fitting = bisect_right(range(1, rows + 1), slot_blocks, key=lambda tall: self.tile_blocks(deep, tall, self.out_w, dtype))
        return VectorTiling(tile_planes=deep, tile_rows=max(1, min(rows, fitting)))

    def columns_tiling(self, slot_blocks: int, max_blocks: int, dtype: DataType) -> VectorTiling | None:
        """Columns of one row that fit a slot of `slot_blocks` blocks, at least one; None if a whole row fits `max_blocks`."""
        planes = self.planes_together
        if self.out_w == 1 or self.tile_blocks(planes, 1, self.out_w, dtype) <= max_blocks:
            return None
        columns = bisect_right(range(1, self.out_w), slot_blocks, key=lambda c: self.tile_blocks(planes, 1, c, dtype))
        return VectorTiling(tile_planes=planes, tile_rows=1, tile_columns=max(1, columns))

    # job of the emitter

    @abstractmethod
    def job(self, inputs: EmitInputs) -> tuple[Any, ...]:
        """Parameters of the emitter."""

    def job_row(self, inputs: EmitInputs) -> tuple[type[tuple[Any, ...]], NDArray[np.int64]]:
        job = self.job(inputs)
        return type(job), record_row(job)

    # cost

    @property
    def steps_of_tile(self) -> int:
        """Number of consecutive computations on a tile."""
        return 1

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(name, loops) of every constant operand."""
        return ()

    def nest(
        self, dtype: DataType, storages: Sequence[StorageSpec], rows: int, l1_reads: frozenset[int] = frozenset(), inside: bool = False
    ) -> Nest:
        bits, plane = dtype.size_bits, ("p", "h", "w")
        reads = [
            Operand(
                f"x{i}",
                ("p",) if pixel else plane,
                storages[self.reads[i].storage].dtype.size_bits,
                Memory.L1 if i in l1_reads else Memory.DDR,
                Memory.UB,
            )
            for i, pixel in enumerate(self.pixels_only)
        ]
        reads += [Operand(name, loops, bits, Memory.DDR, Memory.UB) for name, loops in self.constant_operands]
        result = Operand("y", plane, bits, Memory.L1 if inside else Memory.DDR, Memory.UB)
        loops = {"p": self.y.planes, "h": rows, "w": self.out_w}
        main = self.reads[0]
        planes = main.planes * storages[main.storage].dtype.lanes // dtype.lanes  # in planes of the result's lane count
        source = planes, self.input_rows(rows) * storages[main.storage].row_blocks
        return Nest("VECTOR", loops, tuple(reads), result, dtype.lanes, *source, self.steps_of_tile)

    def work(self, tiles: VectorTiles) -> VectorWork:
        """Work of the vector unit for all tiles."""
        return VectorWork(tiles.size / 8, tiles.tiles, [tiles.size] * len(self.reads))

    # channel parts

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return block_of_channels(self, dtype)

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        if any(read.planes != self.y.planes for read in self.reads):
            return None
        reads = tuple(run_of_planes(read, first, last) for read in self.reads)
        return replace(self, y=run_of_planes(self.y, first, last), reads=reads)

    # common fields of jobs

    def common(self, inputs: EmitInputs, width: int | None = None) -> dict[str, Any]:
        """Fields that all jobs on VECTOR have.  width: blocks of a row of the result, if it is not `out_w`."""
        tiling, width = inputs.tiling, width or self.out_w
        assert isinstance(tiling, VectorTiling)
        columns = min(tiling.tile_columns or self.out_w, self.out_w, width)
        rows = tiling.tile_rows if columns == width else 1
        tiles = UbTiles(self.y.planes, width, self.planes_of_tile(tiling), rows, columns, *inputs.tiles[:2])
        return {"dtype": int(inputs.dtype), "tag": self.tag, "tiles": tiles}


def first_or_zero(slots: tuple[int, ...]) -> int:
    """The address of optional constants; 0 without any."""
    return slots[0] if slots else 0


def streams_constants(inputs: EmitInputs) -> bool:
    """Whether constants are loaded with every run of planes, not once per segment."""
    return inputs.tiling.constants == "streamed"


def as_vector_op(spec: TargetOp) -> OnVector:
    """Cast to an operator of VECTOR."""
    assert isinstance(spec, OnVector), spec.name
    return spec


UB_SLOT_BLOCKS = 1280  # default size of a slot of a VECTOR operator, 40 KiB; two slots are live


@lru_cache(maxsize=1 << 14)
def vector_tiling(target_graph: TargetGraph, spec: TargetOp, rows: int, slot_blocks: int = UB_SLOT_BLOCKS) -> VectorTiling:
    """The largest tile that fits a slot: whole planes, else rows of one plane, else columns of one row.  Two slots and the constants fit UB
    if any tiling does."""
    vector_op, ub, dtype = as_vector_op(spec), room_blocks(target_graph.machine, Memory.UB), target_graph.type_of(spec.y)
    max_slot = _slot_blocks(ub - vector_op.set_aside(1))
    tiling = vector_op.columns_tiling(min(slot_blocks, max_slot), max_slot, dtype)
    return tiling or vector_op.slot_tiling(rows, max(REPEAT_BLOCKS, min(slot_blocks, _slot_blocks(ub - vector_op.set_aside(rows)))), dtype)


def _slot_blocks(ub: int) -> int:
    """Blocks of one of two slots in UB: whole repeats."""
    return ub // (2 * REPEAT_BLOCKS) * REPEAT_BLOCKS
