"""DDR traffic of a segment, in blocks, and its rates, each in one closed form: shared by sliding windows and features."""

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


@lru_cache(maxsize=64)  # exact fractions, needed by every segment's features and every window
def ddr_rates(machine: Machine, cores: int, share: float = 1) -> tuple[float, float]:
    """Rates of DDR, (read, write) bytes per cycle of `cores` cores, at a share of the deliverable rate; each alone on the port.

    On a machine with an L2 the rates are those of the cache; `cost.features` adds what it must fetch first.
    """
    loads_stores = Engine.MTE2, Engine.MTE3
    if machine.l2 is not None:
        read, write = (cores * machine.dma_ports(engine) * float(machine.fastest_ddr_path(engine)) for engine in loads_stores)
        return read, write
    port = float(machine.ddr.deliverable) * share
    read, write = (cores * float(machine.dma_bytes_per_cycle(engine)) for engine in loads_stores)
    return min(port, read), min(port, write)


def shared_rates(machine: Machine) -> tuple[float, float]:
    """Rates of a core's shared memory, (read, write) in bytes per cycle; infinite without a shared memory, where nothing moves."""
    rate = cost_tables(machine).rate
    read, write = (float(rate[path]) for path in ((Memory.SHARED, Memory.L1), (Memory.UB, Memory.SHARED)))
    return read or math.inf, write or math.inf


def load_row_blocks(target_graph: TargetGraph, load: Load) -> int:
    """Blocks of a load for one row."""
    return target_graph.storages[load.storage].row_blocks * load.planes


def loaded_blocks(target_graph: TargetGraph, blocks: Blocks, load: Load) -> int:
    """Blocks of a load for all blocks of an image."""
    return blocks.allocations[load.storage].loaded * load_row_blocks(target_graph, load)


def stored_blocks(target_graph: TargetGraph, blocks: Blocks, index: int) -> int:
    """Blocks that operator `index` of a segment stores in all blocks of an image."""
    spec = target_graph.operators[blocks.start + index]
    return blocks.stored[index] * row_blocks_stored(target_graph, spec)[1] * spec.y.planes


class StoredWeights(NamedTuple):
    """Weights of a product in DDR, in blocks.

    overlaid: whether they are expanded on chip.  masks: blocks of the masks that expand them.  resident: see `Expansion`.
    """

    blocks: int
    overlaid: bool
    masks: int
    resident: bool


def stored_weights(spec: ConvSpec) -> StoredWeights:
    expansion = spec.expansion
    masks, stays = (0, False) if expansion is None else (expansion.mask_blocks, expansion.resident)
    return StoredWeights(spec.stored_weight_blocks, expansion is not None, masks, stays)


@njit(cache=True)
def weight_loads(weights: StoredWeights, resident: bool, chunks_n: int, loads: float, every_block: float) -> float:
    """Number of loads of all weights.  chunks_n: number of chunks along n of streamed weights.  loads, every_block: see
    `fetched_blocks`."""
    if resident or weights.resident:
        return loads
    return every_block * (chunks_n if weights.overlaid else 1)


@njit(cache=True)
def fetched_blocks(
    weights: StoredWeights, bias: int, right: int, resident: bool, once: bool, chunks_n: int, loads: float, every_block: float
) -> tuple[float, float]:
    """Blocks that a product loads: (weights and bias, right operand).

    loads: number of loads of resident weights, and of a bias that is loaded `once`.  every_block: number of loads of data that
    every block loads again.  A resident right operand is not counted here: as a tensor it is among the segment's loads.
    """
    streamed = 0.0 if resident else float(right) * every_block
    fixed_blocks = weights.blocks * weight_loads(weights, resident, chunks_n, loads, every_block) + weights.masks * loads
    return fixed_blocks + bias * (loads if once else every_block), streamed
