"""Packing of constants into the machine's layouts: weights in [N1][K1][16] blocks per group, biases in the type of sums, per-lane vectors.

A tensor's lane map decides which column of the packed matrix belongs to which channel, so a channel shuffle or a concatenation
costs nothing here but an index.

float32 to float16, rounded to nearest, ties to even: as numpy converts, several times faster, which matters to 144 million weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.ir.layout import Placement
from compiler.ir.operators.base import Floats
from compiler.ir.operators.conv import Convolution
from compiler.target.constants import Bytes
from simulator.npu.parts import DataType, Fractal

_U = np.uint32
_SIGN, _MAGNITUDE, _FRACTION, _ONE = _U(0x8000), _U(0x7FFF_FFFF), _U(0x7F_FFFF), _U(1)
_LEAST_NORMAL = _U(0x3880_0000)  # 2**-14
_BIAS = _U((127 - 15) << 23)  # difference of the exponents' biases
_INFINITE, _WIDE_INFINITE = _U(0x7C00), _U(0x7F80_0000)


def halves(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """The values in float16; infinite beyond its range."""
    assert values.dtype == np.float32
    contiguous = np.ascontiguousarray(values)
    out = np.empty(contiguous.shape, np.float16)
    _round(contiguous.reshape(-1).view(np.uint32), out.reshape(-1).view(np.uint16))
    return out


@njit(cache=True)
def _round(bits: NDArray[np.uint32], out: NDArray[np.uint16]) -> None:
    """Round float32 bits to float16 bits, without a branch, so that the loop is vectorised."""
    for i in range(bits.size):
        size = bits[i] & _MAGNITUDE
        normal = (size - _BIAS + _U(0xFFF) + ((size >> _U(13)) & _ONE)) >> _U(13)
        shift = min(_U(126) - (size >> _U(23)), _U(31))  # of the fraction with its leading one, below the least normal number
        significand = (size & _FRACTION) | (_FRACTION + _ONE)
        small = (significand + ((_ONE << (shift - _ONE)) - _ONE) + ((significand >> shift) & _ONE)) >> shift
        rounded = min(normal if size >= _LEAST_NORMAL else small, _INFINITE)
        quiet = _INFINITE + ((size & _FRACTION) >> _U(13))
        quiet += _U(quiet == _INFINITE)  # no number: its fraction is not to be lost
        out[i] = np.uint16((quiet if size > _WIDE_INFINITE else rounded) | ((bits[i] >> _U(16)) & _SIGN))


_IN_CACHE = 1 << 18  # values that are converted, and then put into blocks, before they leave it


def in_type(values: NDArray[Any], dtype: DataType) -> NDArray[Any]:
    """Values as the machine holds them; infinite beyond its range (reported when the model is opened)."""
    return halves(values) if dtype is DataType.float16 else values


def effective_groups(conv: Convolution, x_place: Placement, y_place: Placement, result: DataType, fractal: Fractal) -> int:
    """Largest number of equal groups, of whole planes (input) and of whole fractals and planes (output), that contains every weight.

    Depthwise convolutions become block-diagonal products of a fractal's channels.  Groups that do not fill planes are merged.  A shuffle
    between two convolutions makes them dense.  So the structure of the lanes decides, not the attribute `group`.
    """
    block_lanes, planes = max(fractal.columns, result.lanes), x_place.planes
    blocks = y_place.planes * result.lanes // block_lanes
    c_out, c_in_group = conv.weights.shape[:2]
    if conv.groups == 1 or blocks == 1 or planes == 1:
        return 1
    out_block = np.asarray(y_place.lanes) // block_lanes
    in_plane = np.asarray(x_place.lanes) // fractal.lanes
    connected = np.zeros((blocks, planes), bool)
    per_group = c_out // conv.groups
    for group in range(conv.groups):
        rows = np.unique(out_block[group * per_group : (group + 1) * per_group])
        columns = np.unique(in_plane[group * c_in_group : (group + 1) * c_in_group])
        connected[np.ix_(rows, columns)] = True
    for count in range(min(blocks, planes), 1, -1):
        if blocks % count or planes % count:
            continue
        within_group = np.arange(blocks)[:, None] // (blocks // count) == np.arange(planes)[None, :] // (planes // count)
        if not (connected & ~within_group).any():
            return count
    return 1


def needed_blocks(
    conv: Convolution, x_place: Placement, y_place: Placement, lane_count: int, groups: int, fractal: Fractal
) -> NDArray[np.int64]:
    """int64 [n1, k1] for all groups of planes together: 1 if the block has a weight in any group.  lane_count: lanes of the result.

    A row n1 of padding only has its first block marked, because that block sets its sums.
    """
    columns, planes = lane_count // fractal.columns // groups, x_place.planes // groups
    needed = np.zeros((columns, planes), np.int64)
    c_out = len(y_place.lanes)
    read = (np.asarray(x_place.lanes) // fractal.lanes).reshape(conv.groups, -1)[np.arange(c_out) * conv.groups // c_out]
    needed[(np.asarray(y_place.lanes) // fractal.columns % columns)[:, None], read % planes] = 1
    needed[~needed.any(1), 0] = 1
    return np.repeat(needed, int(np.prod(conv.weights.shape[2:])), axis=1)


def dense_weights(weights: NDArray[Any], groups: int, fill: int = 0) -> NDArray[Any]:
    """Weights as [c_out, c_in, kh, kw], with `fill` between groups."""
    if groups == 1:
        return weights
    c_out, c_in_group, kh, kw = weights.shape
    per_group = c_out // groups
    dense = np.full((c_out, c_in_group * groups, kh, kw), fill, weights.dtype)
    for group in range(groups):
        rows = slice(group * per_group, (group + 1) * per_group)
        dense[rows, group * c_in_group : (group + 1) * c_in_group] = weights[rows]
    return dense


def pack_conv(
    dense: NDArray[Any], x_place: Placement, y_place: Placement, lane_count: int, groups: int, dtype: DataType, fractal: Fractal,
    pixel_lanes: int, out: Bytes, fill: int = 0,
) -> None:  # fmt: skip
    """Blocks [groups][N1][K1][16] of C0 values into `out`; K1 over (c1, ky, kx), or over kernel positions for four-lane images.

    dense: see `dense_weights`.  lane_count: lanes of the result.  dtype: type of the weights on the machine.  fill: value of missing
    weights.
    """
    (_, c0, n0, *_), kind = fractal, dtype.storage
    kh, kw = dense.shape[2:]
    if pixel_lanes == 4:  # k runs over pixels of four lanes, without planes
        positions = -(-kh * kw * 4 // c0) * c0 // 4
        packed = np.full((lane_count, positions, 4), fill, kind)
        columns = np.asarray(x_place.lanes)
        values = in_type(dense, dtype).reshape(len(y_place.lanes), len(columns), kh * kw)
        packed[np.asarray(y_place.lanes)[:, None], : kh * kw, columns[None, :]] = values
        blocks = packed.reshape(lane_count // n0, n0, positions * 4 // c0, c0)
        out.view(kind).reshape(lane_count // n0, -1, n0, c0)[:] = blocks.transpose(0, 2, 1, 3)
        return
    # lanes in the order of channels need no copy of the weights
    identity = (
        lane_count == len(y_place.lanes)
        and x_place.planes * c0 == len(x_place.lanes)
        and _is_range(y_place.lanes)
        and _is_range(x_place.lanes)
    )
    if identity:
        physical = dense
    else:
        physical = np.full((lane_count, x_place.planes * c0, kh, kw), fill, np.float32)
        physical[np.ix_(np.asarray(y_place.lanes), np.asarray(x_place.lanes))] = dense
    n_group, planes = lane_count // groups, x_place.planes // groups
    packed = out.view(kind).reshape(groups, n_group // n0, planes, kh * kw, n0, c0)
    step = max(1, _IN_CACHE // (n0 * planes * c0 * kh * kw))
    for group in range(groups):
        part = physical[group * n_group : (group + 1) * n_group, group * planes * c0 : (group + 1) * planes * c0]
        for i in range(0, n_group // n0, step):
            rows = in_type(part[i * n0 : (i + step) * n0], dtype)
            packed[group, i : i + step] = rows.reshape(-1, n0, planes, c0, kh * kw).transpose(0, 2, 4, 1, 3)


def _is_range(lanes: tuple[int, ...]) -> bool:
    return lanes == tuple(range(len(lanes)))


def pack_channel_vector(values: NDArray[Any], y_place: Placement, lane_count: int, dtype: DataType) -> Bytes:
    """[N1 * 16] by lane: biases and scales.  lane_count: lanes of the result."""
    out = np.zeros(lane_count, dtype.storage)
    out[np.asarray(y_place.lanes)] = values
    return out.view(np.uint8)


def pack_lanes(values: Floats, placement: Placement, dtype: DataType, padding: float = 0.0) -> Bytes:
    """[planes] blocks of C0 values by lane; padding lanes hold `padding`."""
    out = np.full(placement.planes * dtype.lanes, padding, dtype.storage)
    out[np.asarray(placement.lanes)] = in_type(values, dtype)
    return out.view(np.uint8)


def pack_pixels(values: Floats, dtype: DataType) -> Bytes:
    """[h][w] blocks, the same value in every lane."""
    flat = in_type(values, dtype).reshape(-1, 1)
    return np.ascontiguousarray(np.repeat(flat, dtype.lanes, axis=1)).view(np.uint8).reshape(-1)


def pack_tensor(values: Floats, placement: Placement, dtype: DataType) -> Bytes:
    """[n][planes][h][w] blocks of a tensor [n, c, h, w], by lane; padding lanes hold zero."""
    n, _, h, w = values.shape
    out = np.zeros((n, placement.planes, h, w, dtype.lanes), dtype.storage)
    planes, inner = np.divmod(np.asarray(placement.lanes), dtype.lanes)
    out[:, planes, :, :, inner] = in_type(values, dtype).transpose(1, 0, 2, 3)
    return out.view(np.uint8).reshape(-1)
