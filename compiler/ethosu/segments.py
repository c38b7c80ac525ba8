"""Segments of a network: runs of operators with their stripes, and the cascade that each becomes."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from compiler.ethosu.cascade import CascadePlan
from compiler.ethosu.lowering import LoweredNetwork
from compiler.ethosu.weight_blobs import BlobKey, WeightBlob
from simulator.npu.errors import BadInputError


class StreamSegment(NamedTuple):
    """Operators [first, last) of a network, in so many stripes of rows."""

    first: int
    last: int
    stripes: int = 1


@dataclass(frozen=True)
class StreamPlan:
    """Segments in order.  held: tensors, by number, that lie whole in SRAM between segments."""

    segments: tuple[StreamSegment, ...]
    held: frozenset[int] = frozenset()


def single_operators(operators: int) -> StreamPlan:
    """Every operator by itself, from DRAM to DRAM."""
    return StreamPlan(tuple(StreamSegment(number, number + 1) for number in range(operators)))


@dataclass(frozen=True, eq=False)
class SegmentedNetwork:
    """A network and a plan of it, with what follows from both.

    blobs: weights that are coded already, by `BlobKey`.  depths: channels of blocks that are taken where they fit, by digests of weights.
    """

    lowered: LoweredNetwork
    plan: StreamPlan
    blobs: dict[BlobKey, WeightBlob] = field(default_factory=dict, repr=False)
    depths: Mapping[bytes, Set[int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        place = 0
        for segment in self.plan.segments:
            if segment.first != place or segment.last <= segment.first or segment.stripes < 1:
                raise BadInputError(f"segment {tuple(segment)}: expected operators from {place} on, and at least one stripe")
            place = segment.last
        if place != len(self.lowered.network.operators):
            raise BadInputError(f"segments up to operator {place}: expected {len(self.lowered.network.operators)}")

    @cached_property
    def steps_of(self) -> tuple[tuple[int, int], ...]:
        """First and last step of each segment."""
        operators = [step.operator for step in self.lowered.steps]
        bounds = [sum(operator < segment.first for operator in operators) for segment in self.plan.segments]
        return tuple(zip(bounds, [*bounds[1:], len(operators)], strict=True))

    @cached_property
    def writers(self) -> dict[int, set[int]]:
        """Segments that write a store; -1 stands for whoever gives the network its inputs."""
        writers = {self.lowered.homes[number].store: {-1} for number in self.lowered.network.inputs}
        for number, (first, last) in enumerate(self.steps_of):
            for step in self.lowered.steps[first:last]:
                writers.setdefault(step.result.store, set()).add(number)
        return writers

    @cached_property
    def readers(self) -> dict[int, set[int]]:
        """Segments that read a store; one behind the last stands for whoever takes the network's outputs."""
        readers = dict[int, set[int]]()
        for number in self.lowered.network.outputs:
            readers.setdefault(self.lowered.homes[number].store, set()).add(len(self.plan.segments))
        for number, (first, last) in enumerate(self.steps_of):
            for step in self.lowered.steps[first:last]:
                for view in step.reads:
                    readers.setdefault(view.store, set()).add(number)
        return readers

    @cached_property
    def held(self) -> frozenset[int]:
        """Stores that lie whole in SRAM between segments."""
        stores = {self.lowered.homes[number].store for number in self.plan.held if number in self.lowered.homes}
        return frozenset(stores & self.writers.keys() - self.lowered.outside)  # a fused table leaves a store that nobody writes

    @property
    def bricks(self) -> frozenset[int]:
        """Stores in bricks of 16 channels."""
        return self.lowered.bricks

    def lifetime(self, store: int) -> tuple[int, int]:
        """First and last segment that a store is needed in."""
        segments = self.writers.get(store, set()) | self.readers.get(store, set())
        return min(segments), max(segments)

    def leaving(self, segment: int) -> frozenset[int]:
        """Stores that a segment writes and something behind it reads."""
        return frozenset(
            store for store, writers in self.writers.items() if segment in writers and max(self.readers.get(store, {-1})) > segment
        )

    def cascade(self, segment: int, stripes: int, direct: frozenset[int] = frozenset()) -> CascadePlan:
        """The cascade of a segment.  direct: stores that are read where they are, though a ring could have them."""
        first, last = self.steps_of[segment]
        steps = self.lowered.steps[first:last]
        read, written = {view.store for step in steps for view in step.reads}, {step.result.store for step in steps}
        free = (read | written) - self.lowered.constant - self.held - direct
        private = {store for store in free if self.writers[store] == {segment}}
        leaving = self.leaving(segment)
        loaded, inside = free & read - written, private & read - leaving
        return CascadePlan(first, last, stripes, frozenset(loaded), frozenset(private & read & leaving), frozenset(inside))
