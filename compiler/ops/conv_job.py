"""Job of a convolution on one block, by subject: geometry, operands, epilogue, tiles, buffers, expansion of weights, block of rows."""

from __future__ import annotations

from typing import NamedTuple

from compiler.ops.weight_expansion_emitter import ExpansionJob


class ConvGeometry(NamedTuple):
    """Sizes of a convolution.  Planes and pitches are in blocks, n1 in 16 channels, k1 in blocks of C0.

    part_rows, part_columns: kernel rows and columns of one IM2COL (see `ir.im2col`).
    """

    in_w: int
    in_pitch: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    pad_left: int
    part_rows: int
    part_columns: int
    lanes: int
    out_w: int
    groups: int
    c1: int
    k1: int
    n1: int
    fractal_rows: int
    fractal_lanes: int
    fractal_columns: int
    weight_blocks: int
    sum_blocks: int


class ConvOperands(NamedTuple):
    """Operands of the products.  dtype: data type of the left operand; right_type: data type of the right operand of integers.

    weights_at: DDR block of the weights; weights_k1: k1 of the weights in DDR.
    right: kind of the right operand: WEIGHTS, or a tensor whose pixels are the columns (PIXELS_N) or the rows (PIXELS_K) of the matrix.
    right_planes, right_pixels: planes per group and pixels of this tensor.  A resident tensor lies in L1; else L1 gets chunks from DDR.
    pad: pad value around the image, see IM2COL.  missing: value of pixels behind the last pixel of the right operand.
    left_less, left_less_1: bytes of `left_type` that add up to the negated zero point of the left operand, 0 for none.
    zeros: number of bytes of `zeros_type` that add up to the negated zero point of the right operand; L1 has a block of weights of each.
    """

    dtype: int
    weights_at: int
    weights_k1: int
    right: int
    right_planes: int
    right_pixels: int
    right_type: int = 0
    pad: int = -1
    missing: int = -1
    left_less: int = 0
    left_less_1: int = 0
    left_type: int = 0
    zeros: int = 0
    zeros_type: int = 0


class ConvEpilogue(NamedTuple):
    """FIXPIPE, and the path of the result.  act, limit: activation, and its limit.  to: `BY_UB` or `DIRECT`.

    result_lanes, residual_lanes: C0 of result and residual.  engine: engine of FIXPIPE.  added: data type of the residual.  sums: data type
    of integer sums, else 0.  scale_after, scale_at: blocks from a channel's bias to its scale in UB and in DDR; scale_at is 0 without
    scales.  zero, low, high: zero point and limits of the result.  sum_factor, residual_factor, fixed, last: words F_OWN to F_LAST of
    FIXPIPE for a residual of bytes.  groups_share_bias: whether all groups have the same biases and scales.
    """

    act: int
    limit: int  # float32 bits
    to: int
    result_lanes: int
    residual_lanes: int
    engine: int
    added: int
    sums: int = 0
    scale_after: int = 0
    scale_at: int = 0
    zero: int = 0
    low: int = 0
    high: int = 0
    sum_factor: int = 0
    residual_factor: int = 0
    fixed: int = 0
    last: int = 0
    groups_share_bias: int = 0


class ConvTiles(NamedTuple):
    """Tiling.  resident: whether all weights stay in L1.  chunk_n1, chunk_k1: n1 and blocks of k of a chunk of weights.

    tile_m, tile_n1, tile_k1: rows, n1 and blocks of k of a tile.  n_outer: whether the loop over n is outside the loop over m.
    bias_at: DDR block of streamed biases, else -1.  slot_a to room_c: blocks of one slot and of all slots, for L0A, L0B and L0C.
    """

    resident: int
    chunk_n1: int
    chunk_k1: int
    tile_m: int
    tile_n1: int
    tile_k1: int
    n_outer: int
    bias_at: int
    slot_a: int
    room_a: int
    slot_b: int
    room_b: int
    slot_c: int
    room_c: int


class ConvBuffers(NamedTuple):
    """Addresses.  weights_0, weights_1: L1 blocks of the resident weights, or of the two slots of chunks.

    bias, bias_1: UB blocks of the biases, -1 without biases; chunks alternate between them.  out_0, out_1, res_0, res_1: UB blocks of the
    slots of results and of residuals.  zeros_at: L1 block of the constants of `ConvOperands.zeros`.
    """

    weights_0: int = 0
    weights_1: int = 0
    bias: int = 0
    bias_1: int = 0
    out_0: int = 0
    out_1: int = 0
    res_0: int = 0
    res_1: int = 0
    zeros_at: int = 0


class ConvBlock(NamedTuple):
    """Block of rows, set by the kernel.

    in_base: L1 block of plane 0 and the first input row.  in_rows: existing input rows from the first one on.  in_plane: blocks per plane.
    in_ring: rows of a ring, 0 without a ring.  In a ring, in_base is the ring's row 0, and the first input row is the ring's row in_first.
    pad_top: padding rows above the first input row.  out_rows: rows of the result.
    right_base: block of plane 0 and pixel 0 of the right tensor, in L1 or DDR.  right_plane: blocks per plane of the right tensor.
    images: images that are computed together.  in_image, out_image, res_image: blocks from image to image of input, result and residual.
    """

    in_base: int = 0
    in_rows: int = 0
    in_plane: int = 0
    in_ring: int = 0
    in_first: int = 0
    pad_top: int = 0
    out_rows: int = 0
    right_base: int = 0
    right_plane: int = 0
    images: int = 1
    in_image: int = 0
    out_image: int = 0
    res_image: int = 0


class ConvJob(NamedTuple):
    """Parameters of a convolution on one block.  dtype: data type of the result."""

    dtype: int
    tag: int
    geometry: ConvGeometry
    operands: ConvOperands
    epilogue: ConvEpilogue
    tiles: ConvTiles
    buffers: ConvBuffers = ConvBuffers()
    expansion: ExpansionJob = ExpansionJob()
    block: ConvBlock = ConvBlock()


WEIGHTS, PIXELS_N, PIXELS_K = range(3)
BY_UB, DIRECT = range(2)  # whether results pass UB, or FIXPIPE writes them where they belong
WEIGHT_PIECE_BLOCKS = 2048  # 64 KiB per COPY of weights: the first tile and other loads do not wait for the last weight
ROOM = 20  # upper bound of the records of a tile's product and of its result
