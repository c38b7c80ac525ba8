"""The layout of a segment in SRAM: order of its steps, blocks, weights that stay, and addresses of rings.

What does not fit is made smaller, in this order: more stripes; weights of the largest steps come in runs of channels, or are read from
DRAM by every block; inputs are read where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from compiler.ethosu.addresses import Buffer, Placed, allocate
from compiler.ethosu.block_choice import Block, choose_block
from compiler.ethosu.cascade import CascadePlan, CascadeSchedule, Run, schedule_cascade
from compiler.ethosu.places import row_bytes
from compiler.ethosu.segments import SegmentedNetwork
from compiler.ethosu.step import Step
from compiler.ethosu.weight_blobs import WeightBlob, encode_blob
from simulator.npu.errors import InfeasibleError

_DRAM_COST, _SRAM_COST = 8, 1
"""What a byte of weights counts beside one of inputs, in the choice of a block."""
_CHUNK_SHARE = 4
"""Part of SRAM that a run of channels may have, of which two are there at once."""


class StepWeights(NamedTuple):
    """Weights of a step.  copied: whether they come to SRAM before they are read.  blobs: one, or runs of channels."""

    blobs: tuple[WeightBlob, ...]
    copied: bool


class SegmentLayout(NamedTuple):
    """A segment that fits.  rings: addresses by store.  weights: by step.  weight_places: addresses by step and number of a blob."""

    plan: CascadePlan
    schedule: CascadeSchedule
    blocks: Mapping[int, Block]
    weights: Mapping[int, StepWeights]
    rings: Mapping[int, int]
    weight_places: Mapping[tuple[int, int], int]
    sram_bytes: int


def lay_out_segment(network: SegmentedNetwork, segment: int, sram: int, held: tuple[Placed, ...]) -> SegmentLayout:
    """The first layout that fits.  held: what lies in SRAM meanwhile.  Raises `InfeasibleError`."""
    stripes, rows = network.plan.segments[segment].stripes, _most_rows(network, segment)
    tries = [min(stripes << power, rows) for power in range(12)]
    least = 1 << 62
    for count in dict.fromkeys(tries):
        layout = _lay_out(network, segment, count, frozenset(), "copied", held)
        if layout.sram_bytes <= sram:
            return layout
        least = min(least, layout.sram_bytes)
    for style in ("copied", "direct"):
        for count in dict.fromkeys(tries):
            plan = network.cascade(segment, count)
            for direct in (frozenset[int](), plan.loaded, plan.loaded | plan.saved):
                layout = _lay_out(network, segment, count, direct, style if style == "direct" else "chunks", held, sram)
                if layout.sram_bytes <= sram:
                    return layout
                least = min(least, layout.sram_bytes)
    first, last = network.plan.segments[segment][:2]
    names = f"operators {first} to {last - 1}"
    raise InfeasibleError(f"{names}: {least:,} bytes of SRAM, {sram:,} are there: expected smaller segments")


def _most_rows(network: SegmentedNetwork, segment: int) -> int:
    first, last = network.steps_of[segment]
    return max((step.result.rows for step in network.lowered.steps[first:last]), default=1)


def _lay_out(
    network: SegmentedNetwork, segment: int, stripes: int, direct: frozenset[int], style: str, held: tuple[Placed, ...], sram: int = 0
) -> SegmentLayout:
    """style: of weights, `copied`, `chunks` where they are large, or `direct`."""
    lowered = network.lowered
    plan = network.cascade(segment, stripes, direct)
    schedule = schedule_cascade(plan, lowered.steps, lowered.stores, network.leaving(segment))
    runs = [(time, action) for time, action in enumerate(schedule.actions) if isinstance(action, Run)]
    blocks, weights, buffers = dict[int, Block](), dict[int, StepWeights](), list[Buffer]()
    whole = (0, len(schedule.actions))
    times = dict[int, tuple[int, int]]()
    for time, action in enumerate(schedule.actions):
        views = (lowered.steps[action.step].result.store, *(view.store for view in lowered.steps[action.step].reads)) if isinstance(action, Run) else (action.store,)
        for store in views:
            times[store] = (times.get(store, (time, time))[0], time)
    for number in range(plan.first, plan.last):
        step = lowered.steps[number]
        own = [(time, action) for time, action in runs if action.step == number]
        rows = max(action.last - action.first for _, action in own)
        blocks[number], kept = _weights_of(step, rows, len(own), style, sram)
        if kept is None:
            continue
        weights[number] = kept
        if kept.copied:
            before = max([time for time, _ in runs if time < own[0][0]], default=own[0][0])
            slots = kept.blobs if len(own) > 1 or len(kept.blobs) == 1 else kept.blobs[:2]
            for index, _ in enumerate(slots):
                size = max(blob.nbytes for blob in kept.blobs[index :: len(slots)])
                buffers.append(Buffer(("weights", number, index), size, *(whole if len(own) > 1 else (before, own[-1][0]))))
    for store, ring in schedule.ring_rows.items():
        size = ring * row_bytes(lowered.stores[store], store in network.bricks)
        buffers.append(Buffer(("ring", store), size, *(whole if stripes > 1 else times.get(store, whole))))
    addresses, end = allocate(buffers, held)
    rings = {key[1]: address for key, address in addresses.items() if key[0] == "ring"}  # type: ignore[index]
    places = dict[tuple[int, int], int]()
    for number, kept in weights.items():
        slots = sum(key[:2] == ("weights", number) for key in addresses)  # type: ignore[index]
        for index in range(len(kept.blobs) if slots else 0):
            places[number, index] = addresses["weights", number, index % slots]
    return SegmentLayout(plan, schedule, blocks, weights, rings, places, end)


def _weights_of(step: Step, rows: int, runs: int, style: str, sram: int) -> tuple[Block, StepWeights | None]:
    """The block and the weights of a step."""
    channels = step.result.channels
    if step.weights is None:
        return choose_block(step, rows, channels, 0), None
    block = choose_block(step, rows, channels, _DRAM_COST)
    once = runs == 1 and rows <= block.rows and step.result.columns <= block.columns
    if once or style == "direct":
        return block, StepWeights((_blob(step, block, 0, channels),), False)
    block = choose_block(step, rows, channels, _SRAM_COST)
    blob = _blob(step, block, 0, channels)
    count = -(-blob.nbytes * _CHUNK_SHARE // sram) if style == "chunks" and runs == 1 else 1
    if count == 1:
        return block, StepWeights((blob,), True)
    width = max(block.channels, -(-channels // count // block.channels) * block.channels)
    blobs = tuple(_blob(step, block, first, min(channels, first + width)) for first in range(0, channels, width))
    return block, StepWeights(blobs, True)


@lru_cache(maxsize=1024)
def _blob(step: Step, block: Block, first: int, last: int) -> WeightBlob:
    return encode_blob(step, block, first, last)
