"""The layout of a segment in SRAM: order of its steps, blocks, weights that are copied, and addresses of rings.

The stripes are those of the plan where that fits, else twice as many, and so on.  Where no number of stripes fits, weights of the largest
steps come in runs of channels, or blocks read them in DRAM; in the end inputs are read where they are.  Of those the layout is taken that
reads the fewest bytes of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import lcm
from typing import NamedTuple

from compiler.ethosu.block_choice import Block, MapSide, choose_block
from compiler.ethosu.buffer_addresses import Placed, TimedBuffer, allocate
from compiler.ethosu.cascade import Action, CascadePlan, RunRows, schedule_cascade
from compiler.ethosu.ring_rows import count_ring_rows
from compiler.ethosu.segments import SegmentedNetwork
from compiler.ethosu.step import BlockStep
from compiler.ethosu.store_places import BRICK, row_bytes
from compiler.ethosu.weight_blobs import WeightBlob, encode_blob
from simulator.npu.errors import InfeasibleError

_DRAM_COST, _SRAM_COST = 8, 1
"""What a byte of weights counts beside one of inputs, in the choice of a block."""
RUN_BYTES, _RUN_SHARE = 48 << 10, 8
"""Weights in a run of channels that is copied by itself, and the most as a part of SRAM where there is little."""
_MOST_DOUBLINGS = 12


class StepWeights(NamedTuple):
    """Weights of a step.  blobs: one, or runs of channels.  copied: of each, whether it comes to SRAM first.  reads: of each in DRAM.

    turns: whether those that are copied have two places in turns.
    """

    blobs: tuple[WeightBlob, ...]
    copied: tuple[bool, ...]
    reads: int
    turns: bool = False

    @property
    def slots(self) -> dict[int, int]:
        """Bytes of places in SRAM, by their number: one for each blob that is copied, or two in turns."""
        sizes = dict[int, int]()
        for index, (blob, copied) in enumerate(zip(self.blobs, self.copied, strict=True)):
            if copied:
                sizes[self.slot(index)] = max(blob.nbytes, sizes.get(self.slot(index), 0))
        return sizes

    def slot(self, index: int) -> int:
        """Number of the place of a blob."""
        return index % 2 if self.turns else index

    @property
    def dram_bytes(self) -> int:
        """Bytes that are read in DRAM."""
        return sum(blob.nbytes for blob in self.blobs) * self.reads


class SegmentLayout(NamedTuple):
    """A segment in SRAM.  rings: addresses by store.  weights: by step.  weight_places: addresses by step and number of a slot."""

    plan: CascadePlan
    actions: tuple[Action, ...]
    ring_rows: Mapping[int, int]
    blocks: Mapping[int, Block]
    weights: Mapping[int, StepWeights]
    rings: Mapping[int, int]
    weight_places: Mapping[tuple[int, int], int]
    sram_bytes: int

    def weight_place(self, step: int, index: int) -> int:
        """The address of a blob in SRAM."""
        return self.weight_places[step, self.weights[step].slot(index)]


def lay_out_segment(network: SegmentedNetwork, segment: int, sram: int, held: tuple[Placed, ...], shrinks: bool = True) -> SegmentLayout:
    """A layout that fits.  held: what lies in SRAM meanwhile.  shrinks: whether it may be small.  Raises `InfeasibleError`."""
    least, best = 1 << 62, None
    for layout, small in _layouts(network, segment, sram, held):
        least = min(least, layout.sram_bytes)
        if small and not shrinks:
            break
        if layout.sram_bytes > sram:
            continue
        if not small:
            return layout
        cost = sum(weights.dram_bytes for weights in layout.weights.values())
        if best is None or cost < best[0]:
            best = cost, layout
    if best is None:
        first, last = network.plan.segments[segment][:2]
        raise InfeasibleError(f"operators {first} to {last - 1}: {least:,} bytes of SRAM, {sram:,} are there: expected smaller segments")
    return best[1]


def _layouts(network: SegmentedNetwork, segment: int, sram: int, held: tuple[Placed, ...]) -> Iterator[tuple[SegmentLayout, bool]]:
    """Layouts to try, and whether one is small: has weights of some steps in runs of channels or in DRAM, or reads inputs in DRAM."""
    first, last = network.steps_of[segment]
    rows = max((step.result.rows for step in network.lowered.steps[first:last]), default=1)
    stripes = network.plan.segments[segment].stripes
    counts = list(dict.fromkeys(max(1, min(stripes << power, rows)) for power in range(_MOST_DOUBLINGS)))
    none = frozenset[int]()
    drafts = list[_Draft]()
    for count in counts:
        yield _Draft(network, segment, count, none, sram, held, True).lay_out(none), False
        drafts.append(_Draft(network, segment, count, none, sram, held, False))
        yield drafts[-1].lay_out(none), False
    for direct in (False, True):
        for draft in drafts:
            if direct:
                draft = draft.with_direct_inputs()
            sized = sorted(draft.copied, key=lambda number: -sum(draft.copied[number].slots.values()))
            for count in range(0 if direct else 1, len(sized) + 1):
                layout = draft.lay_out(frozenset(sized[:count]))
                yield layout, True
                if layout.sram_bytes <= sram:
                    break


class _Draft:
    """A segment in so many stripes.  direct: stores that are read where they are.  ahead: whether rows are loaded early."""

    def __init__(
        self,
        network: SegmentedNetwork,
        segment: int,
        stripes: int,
        direct: frozenset[int],
        sram: int,
        held: tuple[Placed, ...],
        ahead: bool,
    ) -> None:
        lowered = network.lowered
        self.network, self.segment, self.stripes, self.sram, self.held = network, segment, stripes, sram, held
        self.plan = network.cascade(segment, stripes, direct)
        self.actions = schedule_cascade(self.plan, lowered.steps, lowered.stores, network.leaving(segment), ahead)
        self.ring_rows = count_ring_rows(self.plan, self.actions, lowered.steps, lowered.stores)
        self.steps = {number: lowered.steps[number] for number in range(self.plan.first, self.plan.last)}
        self.runs = {number: list[tuple[int, RunRows]]() for number in self.steps}
        for time, action in enumerate(self.actions):
            if isinstance(action, RunRows):
                self.runs[action.step].append((time, action))

    def with_direct_inputs(self) -> _Draft:
        """The draft whose inputs from DRAM have no rings."""
        return _Draft(self.network, self.segment, self.stripes, self.plan.loaded | self.plan.saved, self.sram, self.held, False)

    def lay_out(self, small: frozenset[int]) -> SegmentLayout:
        """Addresses.  small: steps whose weights are to take little room."""
        blocks, weights = dict[int, Block](), dict[int, StepWeights]()
        for number in self.steps:
            blocks[number], coded = self._weights(number, number in small)
            if coded:
                weights[number] = coded
        addresses, end = allocate([*self._rings(), *self._weight_buffers(weights)], self.held)
        rings = {key[1]: address for key, address in addresses.items() if key[0] == "ring"}
        places = {(key[1], key[2]): address for key, address in addresses.items() if key[0] == "weights"}
        return SegmentLayout(self.plan, self.actions, self.ring_rows, blocks, weights, rings, places, end)

    @cached_property
    def copied(self) -> dict[int, StepWeights]:
        """Weights that are copied as a whole, by step."""
        weights = {number: self._weights(number, False)[1] for number in self.steps}
        return {number: coded for number, coded in weights.items() if coded and coded.slots}

    def _weights(self, number: int, small: bool) -> tuple[Block, StepWeights | None]:
        """The block and the weights of a step.  Read where they are if one block has all rows and columns, unless the plan copies all."""
        step, runs = self.steps[number], len(self.runs[number])
        rows, channels = max((run.last - run.first for _, run in self.runs[number]), default=1), step.result.channels
        if step.weights is None:
            return choose_block(step, rows, channels, 0, self._sides(step)), None
        depths = frozenset(self.network.depths.get(self.network.lowered.digests[number], ()))
        if not depths and step.weights.size > RUN_BYTES:
            depths = frozenset(range(8, 1 + RUN_BYTES * channels // step.weights.size, 8))
        block = choose_block(step, rows, channels, _DRAM_COST, self._sides(step), depths)
        passes = -(-rows // block.rows) * -(-step.result.columns // block.columns)
        if passes * runs == 1 or (small and runs > 1):
            parts = self._blobs(number, block, RUN_BYTES if runs == 1 else step.weights.size)
            return block, StepWeights(parts, (False,) * len(parts), passes * runs)
        block = choose_block(step, rows, channels, _SRAM_COST, self._sides(step), depths)
        size = step.weights.size if runs > 1 else min(RUN_BYTES, self.sram // _RUN_SHARE) if small else RUN_BYTES
        parts = self._blobs(number, block, size)
        return block, StepWeights(parts, (True,) * len(parts), 1, runs == 1)

    def _sides(self, step: BlockStep) -> tuple[MapSide, MapSide]:
        """Places of the first input and of the result of a step."""
        inside, bricks = self.plan.rings | self.network.held, self.network.bricks
        source, result = (MapSide(store not in inside, store in bricks) for store in (step.reads[0].store, step.result.store))
        return source, result

    def _blobs(self, number: int, block: Block, size: int) -> tuple[WeightBlob, ...]:
        """All weights of a step in runs of about so many weights, of whole blocks and bricks."""
        channels, weights = self.steps[number].result.channels, self.steps[number].weights
        assert weights is not None
        unit = lcm(block.channels, BRICK)
        width = max(1, -(-channels // -(-weights.size // size) // unit)) * unit
        return tuple(self._blob(number, block, first, min(channels, first + width)) for first in range(0, channels, width))

    def _blob(self, number: int, block: Block, first: int, last: int) -> WeightBlob:
        key = (self.network.lowered.digests[number], block.channels, first, last)
        if key not in self.network.blobs:
            self.network.blobs[key] = encode_blob(self.steps[number], block, first, last)
        return self.network.blobs[key]

    def _weight_buffers(self, weights: Mapping[int, StepWeights]) -> Iterator[TimedBuffer]:
        """Places of weights: for all stripes, or from the operation before theirs on, beside which they are copied."""
        times = sorted(time for runs in self.runs.values() for time, _ in runs)
        for number, coded in weights.items():
            first, last = self.runs[number][0][0], self.runs[number][-1][0]
            before = times[max(0, times.index(first) - 1)]
            for index, size in coded.slots.items():
                span = (before, last) if len(self.runs[number]) == 1 else (0, len(self.actions))
                yield TimedBuffer(("weights", number, index), size, *span)

    def _rings(self) -> Iterator[TimedBuffer]:
        """Places of rings: for all stripes; of one stripe, as long as something reads or writes them."""
        times = dict[int, list[int]]()
        for time, action in enumerate(self.actions):
            stores = [action.store] if not isinstance(action, RunRows) else [
                view.store for view in (*self.steps[action.step].reads, self.steps[action.step].result)
            ]  # fmt: skip
            for store in stores:
                times.setdefault(store, []).append(time)
        for store, rows in self.ring_rows.items():
            spec = self.network.lowered.stores[store]
            span = (0, len(self.actions)) if self.stripes > 1 else (min(times[store]), max(times[store]))
            yield TimedBuffer(("ring", store), rows * row_bytes(spec, store in self.network.bricks), *span)
