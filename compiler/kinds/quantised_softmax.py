"""Softmax of bytes over the channels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators import QuantisedSoftmax
from compiler.ir.quantised.tables import exponentials
from compiler.kinds.base import Lowering, OnVector, VectorTiles, VectorWork, first_of, streamed
from compiler.kinds.quantised_softmax_emitter import ONES, PIXEL, PLANE, QuantisedSoftmaxJob
from compiler.kinds.typed import ROUNDER
from compiler.plan.plan import VectorTiling
from compiler.records.converting import WIDE
from compiler.records.ways import end_to_end
from compiler.unit.operators import Fetch, Given
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import Op, float_bits
from simulator.npu.parts import BLOCK_BYTES, DataType, Memory

_NOWHERE = -1024.0  # added to a byte, below all of them by more than the table is long
_MOST = 1 << 22  # of a value that is rounded


@dataclass(frozen=True, eq=False)
class QuantisedSoftmaxSpec(OnVector):
    """channels: lanes of a group's channels in their order, counted from its first plane.  padded: planes of a group that have others.

    times: 1 / scale of the result, rounded down.  constants_at: DDR blocks, so many of them.
    """

    word: ClassVar[str] = "quantised_softmax"

    groups: int
    channels: tuple[int, ...]
    padded: tuple[int, ...]
    times: float
    constants_at: int
    constants: int

    @classmethod
    def lower(cls, index: int, op: QuantisedSoftmax, into: Lowering) -> Self:
        if into.machine.vector.lookup_cycles is None:
            raise UnsupportedError(
                f"operator {op.name!r}: exponentials from a table; machine {into.machine.name} has no look-up (vector.lookup_cycles)"
            )
        place, lanes = into.layout.placements[op.y], into.type_of(op.y).lanes
        deep, each = place.planes // op.groups, into.channels(op.y) // op.groups
        first, *others = (np.array(place.lanes[i * each : (i + 1) * each]) - i * deep * lanes for i in range(op.groups))
        if any(not np.array_equal(first, other) for other in others):
            raise UnsupportedError(f"operator {op.name!r}: its groups have their channels in different lanes; equal ones are supported")
        times = np.floor(np.float32(1) / op.y_q.single(op.name)[0])
        entries = exponentials(float(op.x_q.single(op.name)[0]), each)
        with np.errstate(over="ignore"):
            if times >= _MOST or not np.isfinite(entries[-1] * times):
                raise UnsupportedError(
                    f"operator {op.name!r}: over {each} channels with a scale of {op.y_q.scale[0]:.3g}; a larger one is supported"
                )
        mask = np.full((deep, lanes), _NOWHERE, np.float32)
        mask.reshape(-1)[first] = 0
        padded = tuple(np.flatnonzero(mask.any(axis=1)).tolist())
        parts = [
            np.ascontiguousarray(entries.view(np.uint8).reshape(-1, 4).T[::-1]).reshape(-1),
            np.eye(ONES, dtype=np.float32).view(np.uint8).reshape(-1),
            np.full(ONES, 256, np.float32).view(np.uint8),
            mask[list(padded)].view(np.uint8).reshape(-1),
        ]
        constants = np.concatenate(parts)
        return cls(
            **into.fields(index, op),
            groups=op.groups,
            channels=tuple(first.tolist()),
            padded=padded,
            times=float(times),
            constants_at=into.constants.add(f"{op.name}/constants", constants),
            constants=len(constants) // BLOCK_BYTES,
        )

    @property
    def group_planes(self) -> int:
        return self.y.planes // self.groups

    def described(self) -> dict[str, object]:
        return {"groups": self.groups, "channels": len(self.channels), "gaps": list(self.padded)}

    @property
    def planes_together(self) -> int:
        return self.group_planes

    def planes_of_tile(self, tiling: VectorTiling) -> int:
        """A group."""
        return self.group_planes

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        return (PLANE * self.group_planes + PIXEL) * rows * columns

    def constant_blocks(self, planes: int) -> int:
        return self.constants

    def set_aside(self, rows: int) -> int:
        return self.constants

    def slot_tiling(self, rows: int, slot_blocks: int, dtype: DataType) -> VectorTiling:
        pixels = slot_blocks // (PLANE * self.group_planes + PIXEL)
        return VectorTiling(tile_planes=self.group_planes, tile_rows=max(1, min(rows, pixels // self.out_w)))

    @property
    def steps_of_tile(self) -> int:
        return 24 + 2 * len(self.channels)

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("constants", ("p",)),)

    def work(self, tiles: VectorTiles) -> VectorWork:
        repeats = calls = 0.0
        deep, most = self.group_planes, self.planes_together
        for planes, tall, wide, count in tiles.made:
            size, groups = tall * wide, planes / most
            line, of_line = end_to_end(size, 1)
            plane, of_plane = end_to_end(WIDE * size, 1)
            steps = [
                (Op.VCONVERT, 9 * deep * plane, 8 * deep * of_plane),  # bytes and their four blocks take turns
                (Op.VLUT, 4 * deep * line, 4 * deep * of_line),
                (Op.VADDS, 9 * deep * plane + 3 * line, (6 + 4 * deep) * of_plane),
                (Op.VMAX, WIDE * deep * line, WIDE * deep * of_line),
                (Op.VMADD, len(self.channels) * line, len(self.channels) * of_line),
                (Op.VLANE_MAX, len(self.channels) * line, len(self.channels) * of_line),
                (Op.VDIV, deep * plane, WIDE * of_plane),
            ]
            repeats += count * tiles.images * groups * sum([each * tiles.cycles[op] for op, each, _ in steps])
            calls += count * tiles.images * groups * sum([instructions for _, _, instructions in steps])
        return VectorWork(repeats, calls, [tiles.size])

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return self.group_planes

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        part = super().channel_part(first, last, dtype)
        return None if part is None else replace(part, groups=(last - first) * self.groups // self.y.planes)

    def job(self, given: Given) -> QuantisedSoftmaxJob:
        assert isinstance(given.tiling, VectorTiling)
        assert isinstance(self.operator, QuantisedSoftmax)
        zero = self.operator.y_q.single(self.name)[1]
        return QuantisedSoftmaxJob(
            **self.common(given),
            source=int(given.storages[self.reads[0].storage].dtype),
            deep=self.group_planes,
            width=self.out_w,
            consts=first_of(given.constants),
            consts_at=self.constants_at if streamed(given) else -1,
            const_blocks=self.constants,
            below=float_bits(-255.0),
            high=float_bits(65536.0),
            times=float_bits(self.times),
            rounder=float_bits(ROUNDER),
            more=float_bits(zero - ROUNDER),
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [np.array(self.channels, np.int64), np.array(self.padded, np.int64)]

    def fetches(self, given: Given) -> list[Fetch]:
        return [] if streamed(given) else [Fetch(Memory.UB, self.constants_at, first_of(given.constants), self.constants)]
