"""Weights that VECTOR expands from overlaid blocks: buffers in UB, and the job of `weight_expansion_emitter`."""

from __future__ import annotations

from compiler.ops.product_shape import ProductShape
from compiler.ops.weight_expansion_emitter import ExpansionJob, overlaid_steps
from compiler.plan.plan import ConvTiling
from compiler.target.capabilities import least_ub_blocks
from compiler.target.target_op import UbBuffers, round_up
from compiler.target.weight_expansion import Expansion
from simulator.npu.fractal_sizes import COLUMNS
from simulator.npu.isa import REPEAT_BLOCKS
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType

EXPANDED_BLOCKS = 512  # blocks of a slot of expanded weights in UB, 16 KiB: MTE3 empties a small slot sooner, and fewer zeros are written
_SLOT_OF_UB, _OVERLAID_OF_UB = 8, 4  # a slot of expanded weights takes at most 1/8 of UB; resident overlaid weights take at most 1/4


def fit_expansion(expansion: Expansion, groups: int, machine: Machine) -> Expansion | None:
    """The expansion with its fields for UB set.  None if its slots do not fit UB, or if VECTOR does not compute in bytes."""
    if DataType.uint8 not in machine.data_types:
        return None
    ub, stored = least_ub_blocks(machine), groups * expansion.planes * expansion.taps * expansion.overlaid
    room = min(EXPANDED_BLOCKS, ub // _SLOT_OF_UB // COLUMNS * COLUMNS)
    piece = overlaid_steps(expansion.overlaid, expansion.planes * expansion.taps) * expansion.overlaid
    if 2 * (expansion.mask_blocks + min(stored, piece) + room) > ub // 4 * 3:
        return None
    deep = max(1, ub // _OVERLAID_OF_UB // expansion.overlaid)  # two slots take half of UB
    fits_ub, startup = expansion.mask_blocks + stored <= ub // _OVERLAID_OF_UB, machine.vector.startup_cycles
    return expansion._replace(resident=fits_ub, room=room, deep=deep, startup=startup)


def expansion_buffers(spec: ProductShape, tiling: ConvTiling) -> tuple[UbBuffers, ...]:
    """Buffers for expanding weights, all at once or chunk by chunk."""
    e = spec.expansion
    if e is None:
        return ()
    resident = tiling.weights == "resident"
    arriving, expanded = _slot_blocks(spec, resident, tiling.chunk_n1, tiling.chunk_k1)
    buffers = [UbBuffers("arriving", 2, round_up(arriving, 8)), UbBuffers("expanded", 2, expanded)]
    if resident:
        return tuple(buffers)
    overlaid_blocks = e.mask_blocks + (spec.stored_weight_blocks if e.resident else 0)
    return UbBuffers("overlaid", 1, round_up(overlaid_blocks, 8), True), *buffers[int(e.resident) :]


def _slot_blocks(spec: ProductShape, resident: bool, chunk_n1: int, chunk_k1: int) -> tuple[int, int]:
    """(blocks of a slot of overlaid weights, blocks of a slot of expanded weights).  Weights that are expanded at once lie behind
    their masks."""
    e, size = spec.expansion, spec.groups * spec.n1 * spec.k1
    assert e is not None
    if resident:
        arriving = e.mask_blocks + min(spec.stored_weight_blocks, overlaid_steps(e.overlaid, spec.k1) * e.overlaid)
    else:
        arriving = e.overlaid * min(chunk_k1, spec.k1)
        size = min(chunk_n1, spec.n1) * min(chunk_k1, spec.k1)
    return arriving, min(e.room, size * spec.fractal.weight_blocks)


def expansion_job(
    spec: ProductShape, tiling: ConvTiling, overlaid: tuple[int, ...] = (), arriving: tuple[int, ...] = (), expanded: tuple[int, ...] = ()
) -> ExpansionJob:
    """Expansion in the UB buffers of `expansion_buffers`.  Consecutive operators use the slots of arriving weights in opposite order."""
    e = spec.expansion
    if e is None:
        return ExpansionJob()
    resident, (first, second) = tiling.weights == "resident", two_slots(arriving)
    _, room = _slot_blocks(spec, resident, tiling.chunk_n1, tiling.chunk_k1)
    if spec.tag % 2:
        first, second = second, first
    masks_at = first if resident else two_slots(overlaid)[0]
    if resident:
        first, second = first + e.mask_blocks, second + e.mask_blocks
        if spec.stored_weight_blocks <= overlaid_steps(e.overlaid, spec.k1) * e.overlaid:
            second = first
    elif e.resident:
        first = second = masks_at + e.mask_blocks
    slots = masks_at, first, second, *two_slots(expanded), room
    across = int(e.overlaid < REPEAT_BLOCKS)
    tile = int(spec.is_packed and resident), tiling.tile_n1, tiling.tile_k1
    return ExpansionJob(e.overlaid, e.masks, e.planes, e.taps, across, *slots, int(e.resident and not resident), e.startup, *tile)


def two_slots(slots: tuple[int, ...]) -> tuple[int, int]:
    """Addresses of two slots; a single slot counts twice."""
    return (slots[0], slots[-1]) if slots else (0, 0)
