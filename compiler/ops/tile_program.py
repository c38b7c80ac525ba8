"""Tile programs: the computation of a tile on VECTOR as a table of steps, and the base class of operators with a program.

`tile_program_emitter` writes the records of all programs.  `count_steps` counts their instructions.  The extents of buffers give the size
of a slot of UB.

A *place* is a buffer in a slot of UB, a part of a buffer, or constants.  An `Extent` gives the size and the begin of a place.  A slot holds
buffers with blocks per plane and pixel first, then buffers with blocks per pixel, then buffers with blocks per plane.

| table     | int64          | columns                                                                                                     |
|-----------|----------------|-------------------------------------------------------------------------------------------------------------|
| steps     | [steps, 10]    | mode, opcode, data type, places of the result and of three operands (or -1), immediate bits, argument, loop |
| places    | [places, 9]    | 1 for constants, begin (an `Extent`), extent (without `alike`), data type; inputs are the first rows        |
| constants | [constants, 5] | DDR block, begin (blocks per plane, blocks), size (blocks, blocks per plane)                                |

loop: in the last step of a loop over groups of planes, the number of its steps; -1 in its other steps; 0 outside of loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from compiler.instructions.repeats import by_planes, repeats_across, repeats_along
from compiler.ops.base import OnVector, VectorTiles, VectorWork, first_or_zero, run_of_planes, streams_constants
from compiler.ops.tile_program_emitter import BESIDE, CONVERT, COPIED, EXTENT, FLAT, MASKED, PLANES, SPREAD, TWICE, WIDE_MASKED, TileJob
from compiler.plan.plan import VectorTiling
from compiler.target.target_op import EmitInputs, Fetch
from simulator.npu.isa import MAX_REPEATS, Op
from simulator.npu.parts import DataType, Memory


class Extent(NamedTuple):
    """Number of blocks.  tile: per plane and pixel.  line: per pixel.  plane: per plane.  alike: constant."""

    tile: int = 0
    line: int = 0
    plane: int = 0
    alike: int = 0

    def blocks(self, planes: int, pixels: int = 0) -> int:
        return self.tile * planes * pixels + self.line * pixels + self.plane * planes + self.alike


_EMPTY = Extent()


@dataclass(frozen=True, eq=False)
class TileProgram:
    """Tables of a program.  slot, constant_size: extents of a slot of UB and of all constants.

    inputs: number of inputs.  result: place that is stored.  together: planes of the result per plane of the program.  group: planes per
    iteration of a loop, 0 without a loop.  packed: whether a smaller tile has smaller distances between its buffers.
    """

    steps: NDArray[np.int64]
    places: NDArray[np.int64]
    constants: NDArray[np.int64]
    slot: Extent
    constant_size: Extent
    inputs: int
    result: int
    together: int
    group: int
    packed: bool

    def planes_of(self, place: int) -> int:
        """Planes of an operand per plane of the program."""
        tile, _, plane = self.places[place, EXTENT : EXTENT + 3].tolist()
        return int(tile or plane)

    @cached_property
    def operands(self) -> list[tuple[int, bool]]:
        """(planes per plane of the program, whether the input is one pixel) of every input."""
        return [(self.planes_of(i), not tile) for i, tile in enumerate(self.places[: self.inputs, EXTENT].tolist())]

    @property
    def masked(self) -> NDArray[np.bool_]:
        """bool [steps]: whether a step covers only one plane."""
        return np.isin(self.steps[:, 0], (MASKED, WIDE_MASKED))

    @property
    def masked_planes(self) -> list[int]:
        return np.unique(self.steps[self.masked, 8]).tolist()

    def part(self, first: int, last: int) -> TileProgram:
        """The program of planes [first, last)."""
        steps, constants = self.steps.copy(), self.constants.copy()
        constants[:, 0] += first * constants[:, 4]
        steps[self.masked, 8] -= first
        return replace(self, steps=steps[~self.masked | ((steps[:, 8] >= 0) & (steps[:, 8] < last - first))], constants=constants)


class ProgramWriter:
    """Builder of a program.  A place is known by its number, in the order of creation.  together: see `TileProgram`."""

    def __init__(self, together: int = 1) -> None:
        self.steps = list[list[int]]()
        self._together, self._inputs = together, 0
        self._buffers = list[Extent]()
        self._places = list[tuple[int, int, Extent, Extent, int]]()  # buffer or -1, 1 for constants, begin there, extent, data type
        self._constants = list[tuple[int, ...]]()

    def buffer(self, size: Extent, extent: Extent | None = None, dtype: DataType | None = None) -> int:
        """A place in a new buffer.  extent: extent of the place if smaller than `size`.  dtype: type of an input; inputs are made first."""
        self._buffers.append(size)
        self._inputs += dtype is not None
        return self._placed(len(self._buffers) - 1, 0, _EMPTY, size if extent is None else extent, dtype)

    def within(self, place: int, begin: Extent, extent: Extent) -> int:
        """A place in the buffer of place `place`."""
        return self._placed(self._places[place][0], 0, begin, extent)

    def constant(self, begin: Extent = _EMPTY, pitch: int = 0) -> int:
        """A place of constants: one block for all planes, or (pitch > 0) one block per plane, `pitch` blocks apart."""
        return self._placed(-1, 1, begin, Extent(plane=pitch))

    def _placed(self, buffer: int, base: int, begin: Extent, extent: Extent, dtype: DataType | None = None) -> int:
        self._places.append((buffer, base, begin, extent, -1 if dtype is None else int(dtype)))
        return len(self._places) - 1

    def fetch(self, source: int, size: Extent, begin: Extent = _EMPTY) -> None:
        """Load constants from DDR block `source`."""
        self._constants.append((source, begin.plane, begin.alike, size.alike, size.plane))

    def extent(self, place: int) -> Extent:
        return self._places[place][3]

    def is_buffer(self, place: int) -> bool:
        return place >= 0 and self._places[place][0] >= 0

    def step(self, mode: int, op: Op, dtype: DataType, target: int, *sources: int, imm: int = 0, argument: int = 0) -> None:
        """Append a step.  imm: bits of the immediate."""
        operands = (*sources, -1, -1, -1)[:3]
        self.steps.append([mode, int(op), int(dtype), target, *operands, imm, argument, 0])

    def loop(self, length: int) -> None:
        """Repeat the last steps for every group of planes."""
        for step in self.steps[-length:]:
            step[9] = -1
        self.steps[-1][9] = length

    def mask(self, op: Op, dtype: DataType, target: int, planes: Sequence[int], constant: int, mode: int = MASKED) -> None:
        """Append a step on each plane in `planes`."""
        for plane in planes:
            self.step(mode, op, dtype, target, target, constant, argument=plane)

    def program(self, result: int, constant_size: Extent = _EMPTY, group: int = 0, packed: bool = False) -> TileProgram:
        begins, slot = dict[int, Extent](), _EMPTY
        for number, size in sorted(enumerate(self._buffers), key=lambda buffer: (not buffer[1].tile, not buffer[1].line)):
            begins[number] = slot
            slot = _sum(slot, size)
        rows = [(base, *_sum(begins.get(buffer, _EMPTY), begin), *extent[:3], dtype) for buffer, base, begin, extent, dtype in self._places]
        return TileProgram(
            np.array(self.steps, np.int64).reshape(-1, 10),
            np.array(rows, np.int64),
            np.array(self._constants, np.int64).reshape(-1, 5),
            slot,
            constant_size,
            self._inputs,
            result,
            self._together,
            group,
            packed,
        )


def _sum(a: Extent, b: Extent) -> Extent:
    return Extent(*(x + y for x, y in zip(a, b, strict=True)))


@lru_cache(maxsize=1 << 14)
def count_steps(program: TileProgram, planes: int, pixels: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """((opcode, repeats) of every step, all instructions) of a tile of element-wise steps."""
    counts = []
    for mode, op, _, target, source, *_ in program.steps.tolist():
        extent = Extent(*program.places[target, EXTENT : EXTENT + 3].tolist())
        blocks = program.planes_of(target)
        if mode in (COPIED, TWICE):  # a repeat per plane; COPIED writes the two halves of a pixel separately
            halves = 2 if mode == COPIED else 1
            counts.append((op, halves * planes, halves * -(-planes // MAX_REPEATS)))
        elif mode == FLAT:
            counts.append((op, *repeats_along(extent.blocks(planes, pixels), 1)))
        elif mode == BESIDE or (mode == PLANES and by_planes(planes, pixels)):
            counts.append((op, *repeats_along(pixels * blocks, planes)))
        elif mode == PLANES:
            counts.append((op, *repeats_across(planes, pixels, 1)))
        elif mode == CONVERT:  # a repeat writes (or reads) two adjacent blocks per block
            repeats, instructions = repeats_along(planes * pixels, 1)
            counts.append((op, repeats * (max(blocks, program.planes_of(source)) // 2), instructions))
        else:
            counts.append((op, *repeats_along(pixels, planes * program.planes_of(source if mode == SPREAD else target))))
    return tuple([(op, repeats) for op, repeats, _ in counts]), sum([calls for *_, calls in counts])


@dataclass(frozen=True, eq=False)
class ProgramSpec(OnVector):
    """An operator whose tiles are a program."""

    program: TileProgram

    @property
    def pixels_only(self) -> tuple[bool, ...]:
        return tuple([pixel for _, pixel in self.program.operands])

    @property
    def planes_together(self) -> int:
        return self.program.group or self.program.together

    def planes_of_tile(self, tiling: VectorTiling) -> int:
        """Planes of a tile: whole groups."""
        deep = self.planes_together
        return min(self.y.planes, max(deep, tiling.tile_planes // deep * deep))

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        return self.program.slot.blocks(-(-planes // self.program.together), rows * columns)

    def constant_blocks(self, planes: int) -> int:
        return self.program.constant_size.blocks(-(-planes // self.program.together))

    def set_aside(self, rows: int) -> int:
        return self.constant_blocks(self.y.planes)

    @property
    def steps_of_tile(self) -> int:
        return len(self.program.steps)

    def work(self, tiles: VectorTiles) -> VectorWork:
        """Exact counts of element-wise steps."""
        repeats = calls = 0.0
        together, images = self.program.together, tiles.images
        for planes, tall, wide, count in tiles.output_tiles:
            steps, instructions = count_steps(self.program, planes // together, tall * wide)
            repeats += count * images * sum([tiles.cycles[op] * step_repeats for op, step_repeats in steps])
            calls += count * images * instructions
        # inputs of one pixel are loaded with every tile
        one = float(sum([planes * count for planes, *_, count in tiles.output_tiles]) * images)
        return VectorWork(
            repeats, calls, [(one if pixel else tiles.size) * in_planes / together for in_planes, pixel in self.program.operands]
        )

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return self.planes_together

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        program, together = self.program, self.program.together
        reads = []
        for read, (planes, _) in zip(self.reads, program.operands, strict=True):
            if read.planes * together != self.y.planes * planes:
                return None
            reads.append(run_of_planes(read, first // together * planes, last // together * planes))
        part = program.part(first // together, last // together)
        return replace(self, y=run_of_planes(self.y, first, last), reads=tuple(reads), program=part)

    def row_blocks(self, inputs: EmitInputs) -> int:
        """Blocks of a row of the result."""
        del inputs
        return self.out_w

    def job(self, inputs: EmitInputs) -> TileJob:
        assert isinstance(inputs.tiling, VectorTiling)
        program = self.program
        return TileJob(
            **self.common(inputs, self.row_blocks(inputs)),
            together=program.together,
            group=program.group,
            consts=first_or_zero(inputs.constants),
            streamed=int(streams_constants(inputs)),
            result=program.result,
            packed=int(program.packed),
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [self.program.steps, self.program.places, self.program.constants]

    def fetches(self, inputs: EmitInputs) -> list[Fetch]:
        if streams_constants(inputs):
            return []
        base, planes = first_or_zero(inputs.constants), self.y.planes // self.program.together
        return [
            Fetch(Memory.UB, source, base + begin_plane * planes + begin, alike + of_plane * planes)
            for source, begin_plane, begin, alike, of_plane in self.program.constants.tolist()
        ]
