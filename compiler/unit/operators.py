"""What every operator of a unit has, whatever its kind; each kind adds its own (`kinds`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from compiler.ir.graph import Kernel
from compiler.unit.storages import Piece, StorageSpec


class Strip(NamedTuple):
    """Where an operator of a strip stands in the whole tensors, in blocks of a row: the first one of its main input that it reads, the
    first one of its result that it makes, and [own, own + owned) of those that go to DDR."""

    read: int
    made: int
    own: int
    owned: int


@dataclass(frozen=True, eq=False)
class KernelSpec:
    """What every kernel has.  reads[0] is the main input; `signature` says what its cost depends on.

    index: its place in the unit.  named: its place in the unit that names the operators, where that is another (`segment.siblings`), or -1.
    strip: None where it has whole rows; else in_w and out_w are what the strip has of them.
    """

    index: int
    name: str
    kernel: Kernel
    reads: tuple[Piece, ...]
    y: Piece
    in_h: int
    in_w: int
    out_h: int
    out_w: int
    named: int = field(default=-1, kw_only=True)
    strip: Strip | None = field(default=None, kw_only=True)

    @property
    def tag(self) -> int:
        """The operator's number in records."""
        return self.index if self.named < 0 else self.named

    @property
    def macs(self) -> int:
        return 0

    def signature(self, storages: Sequence[StorageSpec]) -> dict[str, object]:
        """What its cost depends on, apart from its block and its tiling: the key under which tasks are shared.  storages: the unit's."""
        return {
            "type": type(self).__name__,
            "in": [self.in_h, self.in_w],
            "out": [self.out_h, self.out_w],
            "planes": [[piece.planes, storages[piece.storage].planes] for piece in (*self.reads, self.y)],
        }
