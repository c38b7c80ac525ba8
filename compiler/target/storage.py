"""Storages of tensors in DDR, and slices of storages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simulator.npu.parts import DataType


class TensorSlice(NamedTuple):
    """Planes [plane, plane + planes) of a storage."""

    storage: int
    plane: int
    planes: int

    def overlaps(self, tensor: TensorSlice) -> bool:
        return self.storage == tensor.storage and self.plane < tensor.plane + tensor.planes and tensor.plane < self.plane + self.planes


@dataclass(frozen=True)
class StorageSpec:
    """A storage: [n][planes][h] rows of `row_blocks` blocks at DDR block `address`.

    dtype: data type of its values.
    ddr_planes: planes of the whole DDR storage if this is a run of its planes (`segment.channel_splits`), else 0; `planes`: its own planes.

    In a target graph of strips (`segment.strips`) row_blocks and w are those of the strip: blocks [first, first + row_blocks) of rows with
    `pitch` blocks in DDR; 0 if rows are whole.
    """

    name: str
    n: int
    planes: int
    h: int
    w: int
    row_blocks: int
    address: int
    dtype: DataType
    first: int = 0
    pitch: int = 0
    ddr_planes: int = 0

    @property
    def ddr_row_blocks(self) -> int:
        """Blocks from row to row in DDR."""
        return self.pitch or self.row_blocks

    @property
    def plane_blocks(self) -> int:
        return self.h * self.ddr_row_blocks

    @property
    def image_blocks(self) -> int:
        return (self.ddr_planes or self.planes) * self.plane_blocks
