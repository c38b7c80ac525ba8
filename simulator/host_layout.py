"""Values between the host and DDR: logical (n, c, h, w) on one side, the layout of a `DdrBuffer` on the other.

Storage is [N][C1][H][W][C0], where the lane of a logical channel is `lanes[c]` (plane lanes[c] // C0), or, where
`pixel_lanes` is 4, an image [N][H][pitch][4] with the pitch W rounded up to the pixels of a block.  Lanes that no channel takes are zero.
The host's own array has the axes in the buffer's `order`: a sequence [n, h, c] is order (0, 2, 1, 3).  Floats are float32 there, integers
of the buffer's own type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError
from simulator.npu.parts import BLOCK_BYTES, DataType
from simulator.npu.program import DdrBuffer


def load_input(ddr: NDArray[np.uint8], buffer: DdrBuffer, array: NDArray[Any], dtype: DataType) -> None:
    """Write `array` (as many values as `buffer.shape`, in its `order`) into its place in `ddr`.

    Floats may be of any width and are rounded to `dtype`; integers must be of `dtype`.  Raises `BadInputError`.
    """
    n, c, h, w = buffer.shape
    if array.dtype != dtype.storage and not (dtype.is_float and array.dtype.kind == "f"):
        raise BadInputError(f"input {buffer.name!r}: found {array.dtype}, expected {dtype.name}")
    if array.size != n * c * h * w:
        raise BadInputError(f"input {buffer.name!r}: found shape {list(array.shape)}, expected {list(buffer.onnx_shape or buffer.shape)}")
    values = array.reshape([buffer.shape[axis] for axis in buffer.order]).transpose(np.argsort(buffer.order))
    storage = _storage(ddr, buffer, dtype)
    storage[...] = 0
    lanes = np.asarray(buffer.lanes)
    with np.errstate(over="ignore"):  # beyond float16 is infinity, on the NPU too
        if buffer.pixel_lanes == 4:
            storage[:, :, :w, lanes] = values.transpose(0, 2, 3, 1)
        else:
            planes, inner = np.divmod(lanes, dtype.lanes)
            storage[:, planes, :, :, inner] = values.transpose(1, 0, 2, 3)


def read_output(ddr: NDArray[np.uint8], buffer: DdrBuffer, dtype: DataType) -> NDArray[Any]:
    """Values of a buffer as float32, or as its integers, with axes in the buffer's `order`."""
    w = buffer.shape[3]
    storage = _storage(ddr, buffer, dtype)
    lanes = np.asarray(buffer.lanes)
    if buffer.pixel_lanes == 4:
        values = storage[:, :, :w, lanes].transpose(0, 3, 1, 2)
    else:
        planes, inner = np.divmod(lanes, dtype.lanes)
        values = storage[:, planes, :, :, inner].transpose(1, 0, 2, 3)
    return np.ascontiguousarray(values.transpose(buffer.order), np.float32 if dtype.is_float else dtype.storage)


def read_blocks(buffer: DdrBuffer, dtype: DataType) -> NDArray[np.bool_]:
    """bool [size_blocks]: blocks of an output that `read_output` reads."""
    n, _, h, w = buffer.shape
    mask = np.zeros(buffer.size_blocks, bool)
    if buffer.pixel_lanes == 4:
        pixels = np.zeros((n, h, _pitch(w, dtype)), bool)
        pixels[:, :, :w] = True
        blocks = pixels.reshape(-1, dtype.lanes // 4).any(axis=1)
    else:
        planes = np.zeros((n, buffer.planes, h * w), bool)
        planes[:, np.asarray(buffer.lanes) // dtype.lanes] = True
        blocks = planes.ravel()
    mask[: blocks.size] = blocks
    return mask


def _pitch(width: int, dtype: DataType) -> int:
    """Pixels of a row in the four-lane layout, rounded up to whole blocks."""
    pixels = dtype.lanes // 4
    return -(-width // pixels) * pixels


def _storage(ddr: NDArray[np.uint8], buffer: DdrBuffer, dtype: DataType) -> NDArray[Any]:
    """A view [N][H][pitch][4] or [N][C1][H][W][C0] of the buffer."""
    n, c, h, w = buffer.shape
    if len(buffer.lanes) != c:
        raise BadInputError(f"buffer {buffer.name!r}: {len(buffer.lanes)} lanes for {c} channels")
    if buffer.pixel_lanes == 4:
        shape: tuple[int, ...] = (n, h, _pitch(w, dtype), 4)
        capacity = 4
    else:
        shape, capacity = (n, buffer.planes, h, w, dtype.lanes), buffer.planes * dtype.lanes
    if buffer.lanes and not 0 <= min(buffer.lanes) <= max(buffer.lanes) < capacity:
        raise BadInputError(f"buffer {buffer.name!r}: lanes {min(buffer.lanes)}..{max(buffer.lanes)}, expected 0..{capacity - 1}")
    storage = dtype.storage
    if int(np.prod(shape)) * storage.itemsize > buffer.size_blocks * BLOCK_BYTES:
        raise BadInputError(f"buffer {buffer.name!r}: layout {list(shape)} does not fit {buffer.size_blocks} blocks")
    return np.ndarray(shape, storage, ddr, buffer.offset_blocks * BLOCK_BYTES)
