"""Blocks that a segment moves from and to DDR, and how fast they go, each in one closed form: windows ask here as features do."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from numba import njit

from compiler.ops.conv import ConvSpec
from compiler.segment.blocks import Blocks
from compiler.segment.operator_run import Load
from compiler.segment.strips import row_blocks_stored
from compiler.target.target_graph import TargetGraph
from simulator.npu.cycles import cost_tables
from simulator.npu.machine import Machine
from simulator.npu.parts import Engine, Memory


@lru_cache(maxsize=64)  # exact fractions, which every segment's features and every window ask for
def ddr_rates(machine: Machine, cores: int, share: float = 1) -> tuple[float, float]:
    """(read, write) bytes per cycle of so many cores together at a share of what is deliverable, where one of the two has it for itself."""
    port = float(machine.ddr.deliverable) * share
    read, write = (cores * float(machine.dma_bytes_per_cycle(engine)) for engine in (Engine.MTE2, Engine.MTE3))
    return min(port, read), min(port, write)


def shared_rates(machine: Machine) -> tuple[float, float]:
    """(read, write) bytes per cycle of a core from and to the shared memory; infinite where there is none: nothing moves."""
    rate = cost_tables(machine).rate
    read, write = (float(rate[path]) for path in ((Memory.SHARED, Memory.L1), (Memory.UB, Memory.SHARED)))
    return read or math.inf, write or math.inf


def load_row_blocks(target_graph: TargetGraph, load: Load) -> int:
    """Blocks that a load brings for a row."""
    return target_graph.storages[load.storage].row_blocks * load.planes


def loaded_blocks(target_graph: TargetGraph, blocks: Blocks, load: Load) -> int:
    """Blocks that it brings for all blocks of an image."""
    return blocks.allocations[load.storage].loaded * load_row_blocks(target_graph, load)


def stored_blocks(target_graph: TargetGraph, blocks: Blocks, k: int) -> int:
    """Blocks that operator k of a segment hands out in all blocks of an image."""
    spec = target_graph.operators[blocks.start + k]
    return blocks.stored[k] * row_blocks_stored(target_graph, spec)[1] * spec.y.planes


class StoredWeights(NamedTuple):
    """A product's weights in DDR, in blocks.  overlaid: whether they are expanded on chip, with so many blocks of `masks`; kept: see
    `Expansion`."""

    blocks: int
    overlaid: bool
    masks: int
    kept: bool


def stored_weights(spec: ConvSpec) -> StoredWeights:
    e = spec.expansion
    masks, kept = (0, False) if e is None else (e.mask_blocks, e.kept)
    return StoredWeights(spec.stored_weight_blocks, e is not None, masks, kept)


@njit(cache=True)
def weight_loads(w: StoredWeights, resident: bool, chunks_n: int, loads: float, every_block: float) -> float:
    """How often all of them are loaded.  chunks_n: of streamed ones, along n.  loads, every_block: see `fetched_blocks`."""
    if resident or w.kept:
        return loads
    return every_block * (chunks_n if w.overlaid else 1)


@njit(cache=True)
def fetched_blocks(
    weights: StoredWeights, bias: int, right: int, resident: bool, once: bool, chunks_n: int, loads: float, every_block: float
) -> tuple[float, float]:
    """A product's (weights and bias, right operand) in blocks.

    loads: of what stays, resident weights or a bias that comes `once`.  every_block: of what comes with each of a segment's blocks.
    A right operand that stays is a tensor, and among the segment's loads.
    """
    streamed = 0.0 if resident else float(right) * every_block
    own = weights.blocks * weight_loads(weights, resident, chunks_n, loads, every_block) + weights.masks * loads
    return own + bias * (loads if once else every_block), streamed
