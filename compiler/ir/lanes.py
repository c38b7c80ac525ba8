"""Lane orders as classes of tensors that must agree.

A class is free (channel i in lane i), or defined by a Concat or a Shuffle of other tensors, or by heads.  A free class united with a
defined one takes its pattern; two defined classes agree only if their patterns are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.npu.fractal_sizes import COLUMNS

CHANNEL_BLOCK = COLUMNS  # FIXPIPE writes `COLUMNS` channels at a time (two planes if C0 is half as many); tensors are padded to multiples


@dataclass(frozen=True)
class Pattern:
    """Rule for a tensor's lanes from the lanes of its inputs.

    concat: the planes of the inputs one after the other.  shuffle: channel i in the lane of the input's channel order[i].
    heads: each of the order[0] equal runs of channels begins on a whole plane.  groups: `order` is the list of lanes (`ir.group_order`).
    """

    kind: Literal["concat", "shuffle", "heads", "groups"]
    inputs: tuple[str, ...]
    order: tuple[int, ...] = ()


IN_ORDER = Pattern("heads", (), (1,))  # channel i in lane i


def heads_pattern(channels: int, heads: int, block: int = CHANNEL_BLOCK) -> Pattern:
    """Pattern in which every head has planes of its own; equal for all head counts whose heads fill whole planes anyway."""
    return Pattern("heads", (), (heads if channels // heads % block else 1,))


def heads_lanes(channels: int, heads: int, c0: int, block: int = CHANNEL_BLOCK) -> tuple[tuple[int, ...], int]:
    """(lane of each channel, planes) where each of `heads` equal runs of channels has whole planes of its own.

    block: number of channels that every tensor is padded to a multiple of (`Patterns`).
    """
    size = channels // heads
    padded = -(-size // block) * block
    return tuple(g * padded + i for g in range(heads) for i in range(size)), heads * padded // c0


class Patterns:
    """Union-find over tensors, with at most one Pattern per class.  block: channels that every tensor is padded to a multiple of."""

    def __init__(self, channels: dict[str, int], block: int = CHANNEL_BLOCK) -> None:
        self.block = block
        self.channels = dict(channels)
        self.parent = {name: name for name in channels}
        self.pattern: dict[str, Pattern] = {}
        self.cache: dict[tuple[str, int], tuple[tuple[int, ...], int]] = {}

    def add(self, name: str, channels: int) -> None:
        self.channels[name] = channels
        self.parent[name] = name

    def find(self, name: str) -> str:
        """Name of the class of a tensor."""
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def define(self, name: str, pattern: Pattern) -> None:
        """Set the pattern of a tensor that has none."""
        self.pattern[self.find(name)] = pattern

    def require(self, name: str, pattern: Pattern) -> bool:
        """Set the pattern of a tensor; False (and no change) where it has a different one."""
        current_pattern = self.pattern.get(self.find(name))
        if current_pattern is None:
            self.define(name, pattern)
        elif not self._are_equal(current_pattern, pattern):
            return pattern == IN_ORDER and self._put_in_order(name)
        return True

    def unite(self, lhs: str, rhs: str) -> bool:
        """Merge the classes of two tensors; False (and no change) where their patterns contradict each other."""
        lhs_root, rhs_root = self.find(lhs), self.find(rhs)
        if lhs_root == rhs_root:
            return True
        lhs_pattern, rhs_pattern = self.pattern.get(lhs_root), self.pattern.get(rhs_root)
        if lhs_pattern is not None and rhs_pattern is not None and not self._are_equal(lhs_pattern, rhs_pattern):
            unordered = {lhs_pattern: rhs, rhs_pattern: lhs}.get(IN_ORDER)
            if unordered is None or not self._put_in_order(unordered):
                return False
            lhs_pattern = rhs_pattern = IN_ORDER
        if self._depends(lhs_root, rhs_root) or self._depends(rhs_root, lhs_root):
            return False
        self.parent[lhs_root] = rhs_root
        pattern = rhs_pattern if rhs_pattern is not None else lhs_pattern
        self.pattern.pop(lhs_root, None)
        if pattern is not None:
            self.pattern[rhs_root] = pattern
        return True

    def _put_in_order(self, name: str) -> bool:
        """Fix channel i of a tensor to lane i; False (and no change) where that contradicts its pattern."""
        if not self._orderable(name):
            return False
        pending = [name]
        while pending:
            root = self.find(pending.pop())
            pattern = self.pattern.get(root)
            pending += pattern.inputs if pattern is not None else ()
            self.pattern[root] = IN_ORDER
        return True

    def _orderable(self, name: str) -> bool:
        """Whether channel i may be in lane i: of a tensor without a pattern, or of a concatenation of whole blocks of such tensors."""
        pattern = self.pattern.get(self.find(name))
        if pattern is None or pattern == IN_ORDER:
            return True
        aligned = all(self.channels[part] % self.block == 0 for part in pattern.inputs[:-1])
        return pattern.kind == "concat" and aligned and all(map(self._orderable, pattern.inputs))

    def _are_equal(self, lhs: Pattern, rhs: Pattern) -> bool:
        """Whether two patterns give the same lanes: inputs of one class have the same."""
        return (lhs.kind, lhs.order, [self.find(name) for name in lhs.inputs]) == (
            rhs.kind,
            rhs.order,
            [self.find(name) for name in rhs.inputs],
        )

    def _depends(self, root: str, base: str) -> bool:
        """Whether the pattern of class `root` uses class `base`, at any depth."""
        seen, pending = set(), [root]
        while pending:
            pattern = self.pattern.get(pending.pop())
            for name in pattern.inputs if pattern is not None else ():
                input_root = self.find(name)
                if input_root == base:
                    return True
                if input_root not in seen:
                    seen.add(input_root)
                    pending.append(input_root)
        return False

    def lanes(self, name: str, c0: int) -> tuple[tuple[int, ...], int]:
        """(lane of each channel, number of planes of c0 lanes).  Call it after the last `unite`: lanes are cached."""
        root = self.find(name)
        if (root, c0) in self.cache:
            return self.cache[root, c0]
        pattern = self.pattern.get(root)
        if pattern is None or pattern.kind == "groups":
            free = tuple(range(self.channels[root])) if pattern is None else pattern.order
            lanes_and_planes = (free, -(-self.channels[root] // self.block) * (self.block // c0))
        elif pattern.kind == "heads":
            lanes_and_planes = heads_lanes(self.channels[root], pattern.order[0], c0, self.block)
        elif pattern.kind == "shuffle":
            lanes, planes = self.lanes(pattern.inputs[0], c0)
            lanes_and_planes = (tuple(lanes[i] for i in pattern.order), planes)
        else:
            concat_lanes: list[int] = []
            planes = 0
            for part in pattern.inputs:
                lanes, count = self.lanes(part, c0)
                concat_lanes += [lane + planes * c0 for lane in lanes]
                planes += count
            lanes_and_planes = (tuple(concat_lanes), planes)
        self.cache[root, c0] = lanes_and_planes
        return lanes_and_planes
