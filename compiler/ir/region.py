"""Regions: which rows of its inputs an operator needs for given rows of its output.

One axis for now, rows: blocks are cut along them and keep the whole width, so that a block of a plane is contiguous.
Halo, block splits, residual branches and recomputation all follow from `demand`, taken backwards with the hull over consumers.
"""

from __future__ import annotations

from typing import NamedTuple

from compiler.ir.graph import Conv, Kernel, Pool, Reflow, Resample


class Rows(NamedTuple):
    """A half-open interval of rows; empty where start >= stop."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return max(0, self.stop - self.start)

    def hull(self, other: Rows) -> Rows:
        """The smallest interval that holds both; an empty one does not count."""
        if not self.size:
            return other
        if not other.size:
            return self
        return Rows(min(self.start, other.start), max(self.stop, other.stop))


EMPTY = Rows(0, 0)


def _window(kernel: Kernel) -> tuple[int, int, int, int]:
    """Rows of a window, its stride, dilation and padding at the top."""
    if isinstance(kernel, Conv):
        return kernel.weights.shape[2], kernel.stride[0], kernel.dilation[0], kernel.pads[0]
    if isinstance(kernel, Pool):
        return kernel.kernel[0], kernel.stride[0], 1, kernel.pads[0]
    return 1, 1, 1, 0


def has_halo(kernel: Kernel) -> bool:
    """Whether neighbouring output rows need some of the same input rows."""
    if isinstance(kernel, Resample):
        bounds = kernel.rows.bounds
        return bool((bounds[1:, 0] < bounds[:-1, 1]).any())
    size, stride, dilation, _ = _window(kernel)
    return (size - 1) * dilation + 1 > stride


def demand(kernel: Kernel, out: Rows, in_height: int) -> Rows:
    """Rows of the main input that output rows `out` need, clipped to the tensor: [a*s - p, (b-1)*s - p + (k-1)*d + 1)."""
    if not out.size:
        return EMPTY
    if isinstance(kernel, Reflow):
        return _reflowed(kernel, out)
    if isinstance(kernel, Resample):
        bounds = kernel.rows.bounds[out.start : out.stop]
        first, last = int(bounds[:, 0].min()), int(bounds[:, 1].max())
        return Rows(first, last) if first < last else Rows(0, 1)  # all of it is filled: still a row, so that there is one to name
    size, stride, dilation, pad = _window(kernel)
    start = out.start * stride - pad
    stop = (out.stop - 1) * stride - pad + (size - 1) * dilation + 1
    # a window that lies wholly in the padding still names the nearest row, so that there is something to read
    start = min(max(0, start), in_height - 1)
    return Rows(start, max(start + 1, min(in_height, stop)))


def _reflowed(kernel: Reflow, out: Rows) -> Rows:
    """Rows of x that hold the pixels of rows of y; the nearest row where there are none."""
    (height, width), columns = kernel.of, kernel.size[1]
    start = min(max(0, out.start * columns - kernel.before) // width, height - 1)
    stop = -(-(out.stop * columns - kernel.before) // width)
    return Rows(start, max(start + 1, min(height, stop)))
