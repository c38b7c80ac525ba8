"""Lowering of a convolution: groups, fractals, and the layout of its weights in DDR.

Groups are joined to the largest equal groups of whole 16-channel blocks.  On CUBE, up to 15/16 of the products of a depthwise convolution
are therefore zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from compiler.ir.im2col import unencodable_window
from compiler.ir.layout import Placement
from compiler.ir.operators import Convolution
from compiler.ops.base import Lowering
from compiler.ops.expanded_weights import fit_expansion
from compiler.target import weights
from compiler.target.capabilities import l0_of
from compiler.target.constants import Bytes
from compiler.target.weight_expansion import overlay_columns, pack_masks, pack_overlaid
from compiler.target.zero_blocks import EVERYWHERE
from simulator.npu.errors import UnsupportedError
from simulator.npu.parts import BLOCK_BYTES, DataType, Memory

ChannelVectorsAt = Callable[[Any, Placement, int, Lowering], int]
"""(operator, place of its result, lanes of the result, lowering) -> DDR block of FIXPIPE's vectors per channel."""


def pack_product(
    index: int, op: Convolution, lowering: Lowering, values: NDArray[Any], dtype: DataType, fill: int, channel_vectors_at: ChannelVectorsAt
) -> dict[str, Any]:
    """Pack the weights of a convolution, and return the fields of its target operator.

    values: weights in `dtype`, the type of multiplication.  fill: value of missing weights.  Raises `UnsupportedError`.
    """
    if why := unencodable_window(op):
        raise UnsupportedError(f"operator {op.name!r}: {why}")
    x, y = lowering.layout.placements[op.x], lowering.layout.placements[op.y]
    fractal, c0, result = lowering.machine.fractal(lowering.type_of(op.x)), lowering.type_of(op.x).lanes, lowering.type_of(op.y)
    # sizes: an image of four lanes has four channels to a pixel, so a block of k has several taps
    lanes = 4 if lowering.layout.storages[x.storage].pixel_lanes == 4 else c0
    groups = 1 if lanes == 4 else weights.effective_groups(op, x, y, result, fractal)
    taps, n = op.weights.shape[2] * op.weights.shape[3], y.planes * result.lanes
    if op.groups == 1 and result.lanes > fractal.columns and y.planes > 1:
        n = -(-(max(y.lanes) + 1) // fractal.columns) * fractal.columns  # FIXPIPE fills the upper half of the last plane up
    k1, n1 = -(-taps * 4 // c0) if lanes == 4 else x.planes // groups * taps, n // fractal.columns // groups

    # layout of the weights in DDR: compressed if that saves enough, and pays on this machine
    pattern = None if fill else overlay_columns(op, x, y, n, groups, fractal)
    expansion = None if pattern is None else fit_expansion(pattern.expansion, groups, lowering.machine)

    def pack(out: Bytes) -> None:
        """Write the weights."""
        if expansion is not None and pattern is not None:
            pack_overlaid(values, op, x, y, pattern, groups, dtype, fractal, out)
        else:
            weights.pack_conv(weights.dense_weights(values, op.groups, fill), x, y, n, groups, dtype, fractal, lanes, out, fill)

    if expansion is not None and pattern is not None:
        expansion = expansion._replace(masks_at=lowering.constants.add(f"{op.name}/masks", pack_masks(pattern, dtype)))
    blocks = groups * k1 * (n1 * fractal.weight_blocks if expansion is None else expansion.overlaid)
    needed = EVERYWHERE
    # machines without L0A (`codegen.legalize_buffers`) and fills other than zero multiply whole tiles
    if op.groups > 1 and not fill and lowering.machine.has(Memory.L0A):
        needed = weights.needed_blocks(op, x, y, n, groups, fractal)
    return lowering.fields(index, op) | {
        "fractal": fractal,
        "l0": l0_of(lowering.machine),
        "groups": groups,
        "c1": x.planes // groups,
        "k1": k1,
        "n1": n1,
        "lanes": lanes,
        "weights_at": lowering.constants.reserve(f"{op.name}/weights", blocks * BLOCK_BYTES, pack),
        "expansion": expansion,
        "needed": EVERYWHERE if needed.all() else needed,
        "bias_at": channel_vectors_at(op, y, n, lowering),
    }
