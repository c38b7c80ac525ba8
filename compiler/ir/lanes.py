"""Lane orders as classes of tensors that must agree.

A class is free (channel i in lane i), or defined by a Concat or a Shuffle of other tensors, or by heads.  Uniting a free class with a
defined one makes the free one follow; two defined ones agree only if they are built alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.npu.tiles import COLUMNS

CHANNEL_BLOCK = (
    COLUMNS  # FIXPIPE writes so many channels at a time, two planes where C0 is half of it, so a tensor takes whole multiples of them
)


@dataclass(frozen=True)
class Pattern:
    """How a tensor's lanes come from its inputs' lanes; heads: each of order[0] equal runs of channels begins on a whole plane.
    groups: order is the lanes (`ir.group_order`).
    """

    kind: Literal["concat", "shuffle", "heads", "groups"]
    inputs: tuple[str, ...]
    order: tuple[int, ...] = ()


def heads_pattern(channels: int, heads: int, whole: int = CHANNEL_BLOCK) -> Pattern:
    """Lanes in which every head has planes of its own, the same for all counts of heads where their channels fill planes anyway."""
    return Pattern("heads", (), (heads if channels // heads % whole else 1,))


def heads_lanes(channels: int, heads: int, c0: int, whole: int = CHANNEL_BLOCK) -> tuple[tuple[int, ...], int]:
    """(lane of each channel, planes) where each of `heads` equal runs of channels has whole planes of its own.

    whole: channels that tensors take whole multiples of (`Patterns`).
    """
    size = channels // heads
    padded = -(-size // whole) * whole
    return tuple(g * padded + i for g in range(heads) for i in range(size)), heads * padded // c0


class Patterns:
    """Union-find over tensors, with at most one Pattern for each class.  block: channels that every tensor takes whole multiples of."""

    def __init__(self, channels: dict[str, int], block: int = CHANNEL_BLOCK) -> None:
        self.block = block
        self.channels = dict(channels)
        self.parent = {name: name for name in channels}
        self.pattern: dict[str, Pattern] = {}
        self.known: dict[tuple[str, int], tuple[tuple[int, ...], int]] = {}

    def add(self, name: str, channels: int) -> None:
        self.channels[name] = channels
        self.parent[name] = name

    def find(self, name: str) -> str:
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def define(self, name: str, pattern: Pattern) -> None:
        """Say what a tensor that is in no class yet looks like."""
        self.pattern[self.find(name)] = pattern

    def require(self, name: str, pattern: Pattern) -> bool:
        """Make a tensor look like `pattern`; False (and nothing changed) where it already looks otherwise."""
        known = self.pattern.get(self.find(name))
        if known is None:
            self.define(name, pattern)
        return known is None or self._alike(known, pattern)

    def unite(self, a: str, b: str) -> bool:
        """Make two tensors agree; False (and nothing changed) where they cannot."""
        ra, rb = self.find(a), self.find(b)
        if ra == rb:
            return True
        pa, pb = self.pattern.get(ra), self.pattern.get(rb)
        if pa is not None and pb is not None and not self._alike(pa, pb):
            return False
        if self._depends(ra, rb) or self._depends(rb, ra):
            return False
        self.parent[ra] = rb
        kept = pb if pb is not None else pa
        self.pattern.pop(ra, None)
        if kept is not None:
            self.pattern[rb] = kept
        return True

    def _alike(self, a: Pattern, b: Pattern) -> bool:
        return (a.kind, a.order, [self.find(x) for x in a.inputs]) == (b.kind, b.order, [self.find(x) for x in b.inputs])

    def _depends(self, root: str, on: str) -> bool:
        """Whether the class `root` is built, at any depth, from the class `on`."""
        seen, todo = set(), [root]
        while todo:
            pattern = self.pattern.get(todo.pop())
            for name in pattern.inputs if pattern is not None else ():
                found = self.find(name)
                if found == on:
                    return True
                if found not in seen:
                    seen.add(found)
                    todo.append(found)
        return False

    def lanes(self, name: str, c0: int) -> tuple[tuple[int, ...], int]:
        """(lane of each channel, planes of c0 lanes).  Only once nothing is united any more."""
        root = self.find(name)
        if (root, c0) in self.known:
            return self.known[root, c0]
        pattern = self.pattern.get(root)
        if pattern is None or pattern.kind == "groups":
            free = tuple(range(self.channels[root])) if pattern is None else pattern.order
            result = (free, -(-self.channels[root] // self.block) * (self.block // c0))
        elif pattern.kind == "heads":
            result = heads_lanes(self.channels[root], pattern.order[0], c0, self.block)
        elif pattern.kind == "shuffle":
            lanes, planes = self.lanes(pattern.inputs[0], c0)
            result = (tuple(lanes[i] for i in pattern.order), planes)
        else:
            joined: list[int] = []
            planes = 0
            for item in pattern.inputs:
                lanes, count = self.lanes(item, c0)
                joined += [lane + planes * c0 for lane in lanes]
                planes += count
            result = (tuple(joined), planes)
        self.known[root, c0] = result
        return result
