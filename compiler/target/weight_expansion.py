"""Compressed weights of grouped convolutions: their layout in DDR without the zeros beside groups, and their expansion on chip.

Columns of a fractal (output channels) that belong to different groups have no lane of k in common.  So their blocks are overlaid: they
share one *overlaid* block.  The block of one column is the overlaid block with all other lanes set to zero.  This is the minimum, byte by
byte as uint8, of the overlaid block and a mask with 255 in the lanes of the column's group and 0 elsewhere; it is exact for every data
type.  For a depthwise convolution a fractal is one overlaid block, and the masks are the rows of an identity.

| what            | blocks                             | lies                                   |
|-----------------|------------------------------------|----------------------------------------|
| overlaid blocks | [groups][k1][overlaid]             | at the operator's `weights_at`         |
| masks           | [planes of a group's input][masks] | at `masks_at`, the same for all groups |

A rule decides this for each convolution, not a gene, because DDR has one form of the weights for all plans.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ir.layout import Placement
from compiler.ir.operators import Convolution
from compiler.target.constants import Bytes
from compiler.target.weights import in_type
from simulator.npu.parts import BLOCK_BYTES, DataType, Fractal

LEAST_SAVED = 2  # least ratio of blocks saved by the compressed layout
_NOBODY = -1


class Run(NamedTuple):
    """Columns [first, first + columns) of a group of fractals: overlaid block and mask of the first column, and steps to the next
    column's."""

    first: int
    columns: int
    overlaid: int
    overlaid_step: int
    mask: int
    mask_step: int


RUN_WORDS = len(Run._fields)


class Expansion(NamedTuple):
    """The compressed layout of an operator.

    overlaid: overlaid blocks per block of k.  masks: masks of each of the `planes` planes of a group's input.  taps: blocks of k of
    each plane.  resident: streamed weights stay in UB as overlaid blocks; else they come with every chunk.  room: most blocks of a UB slot
    in which fractals are expanded.  deep: most blocks of k that are loaded at a time if they are not resident.
    startup: start-up cycles of a VECTOR record."""

    overlaid: int
    masks: int
    planes: int
    taps: int
    runs: tuple[Run, ...]
    resident: bool = False
    room: int = 0
    deep: int = 0
    startup: int = 0
    masks_at: int = _NOBODY

    @property
    def mask_blocks(self) -> int:
        return self.planes * self.masks

    def part(self, first: int, columns: int) -> Expansion:
        """Expansion for some columns of a group; they need all overlaid blocks."""
        runs = []
        for run in self.runs:
            start, stop = max(run.first, first), min(run.first + run.columns, first + columns)
            if start < stop:
                skipped = start - run.first
                overlaid, mask = run.overlaid + skipped * run.overlaid_step, run.mask + skipped * run.mask_step
                runs.append(run._replace(first=start - first, columns=stop - start, overlaid=overlaid, mask=mask))
        return self._replace(runs=tuple(runs))


class _Columns(NamedTuple):
    """For the columns of a group of planes: the group of the convolution of each, as an index of the occurring groups, or -1.

    lanes: bool [occurring groups, lanes of the input]: lanes that the group reads.
    """

    owner: NDArray[np.int64]
    lanes: NDArray[np.bool_]


class Overlay(NamedTuple):
    """Expansion without addresses of masks.  block: overlaid block of every channel.  masks: bool [planes, masks, lanes of a plane]."""

    expansion: Expansion
    block: NDArray[np.int64]
    masks: NDArray[np.bool_]


def overlay_columns(
    conv: Convolution, x_place: Placement, y_place: Placement, lane_count: int, groups: int, fractal: Fractal
) -> Overlay | None:
    """Overlay of a convolution's columns; None if it saves little.  lane_count: lanes of the result.  groups: `effective_groups`.

    All groups of planes have the same pattern, except for missing channels; groups without a channel are not changed.
    """
    if conv.groups == 1:
        return None
    c_out, per_group = conv.weights.shape[:2]
    taps = int(np.prod(conv.weights.shape[2:]))
    columns, lanes = lane_count // groups, x_place.planes // groups * fractal.lanes
    owner = np.full(lane_count, _NOBODY)
    owner[np.asarray(y_place.lanes)] = np.arange(c_out) * conv.groups // c_out
    read = np.asarray(x_place.lanes).reshape(conv.groups, per_group)
    column_groups = [_columns(owner[g * columns : (g + 1) * columns], read, g * lanes, lanes) for g in range(groups)]
    template = max(column_groups, key=lambda group: int((group.owner >= 0).sum()))
    if not all(_has_template_groups(group, template) for group in column_groups):
        return None
    place, overlaid = _places(template.owner)
    masks = np.concatenate([template.lanes, np.zeros((1, lanes), np.bool_)]) if (template.owner < 0).any() else template.lanes
    by_plane = masks.reshape(len(masks), -1, fractal.lanes).swapaxes(0, 1)
    planes = by_plane.shape[0]
    if (overlaid * groups * planes * taps + planes * len(masks)) * LEAST_SAVED > groups * columns * planes * taps:
        return None
    runs = _runs(place, np.where(template.owner < 0, len(masks) - 1, template.owner))
    index = place[np.asarray(y_place.lanes) % columns]
    return Overlay(Expansion(overlaid, len(masks), planes, taps, runs), index, by_plane)


def _columns(owner: NDArray[np.int64], read: NDArray[np.int64], first: int, lanes: int) -> _Columns:
    """Owners and lanes of columns.  owner: group of the convolution of each column.  read: input lanes of every group.  first, lanes: of
    the planes."""
    groups = list(dict.fromkeys(owner[owner >= 0].tolist()))
    names = np.full(len(read) + 1, _NOBODY)
    names[groups] = np.arange(len(groups))
    reads = np.zeros((len(groups), lanes), np.bool_)
    for number, group in enumerate(groups):
        reads[number, read[group] - first] = True
    return _Columns(names[owner], reads)


def _has_template_groups(columns: _Columns, template: _Columns) -> bool:
    """Whether columns belong to the same groups as the template's columns and read only lanes that the template reads."""
    present = columns.owner >= 0
    same = columns.owner[present] == template.owner[present]
    return bool(same.all()) and not (columns.lanes & ~template.lanes[: len(columns.lanes)]).any()


def _places(owner: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Overlaid block of every column, counted within its group, and the number of overlaid blocks."""
    place, used = np.zeros(len(owner), np.int64), np.zeros(max(1, owner.max() + 1), np.int64)
    for column, group in enumerate(owner.tolist()):
        if group >= 0:
            place[column] = used[group]
            used[group] += 1
    return place, int(used.max())


def _runs(place: NDArray[np.int64], mask: NDArray[np.int64]) -> tuple[Run, ...]:
    """Longest runs of columns whose overlaid blocks and masks have equal steps."""
    runs, column = list[Run](), 0
    pairs = list(zip(place.tolist(), mask.tolist(), strict=True))
    while column < len(pairs):
        (overlaid, first_mask), stop, step = pairs[column], column + 1, (0, 0)
        if stop < len(pairs):
            step = pairs[stop][0] - overlaid, pairs[stop][1] - first_mask
            if min(step) < 0:
                step = (0, 0)
        while stop < len(pairs) and pairs[stop] == (overlaid + (stop - column) * step[0], first_mask + (stop - column) * step[1]):
            stop += 1
        runs.append(
            Run(column, stop - column, overlaid, step[0] if stop > column + 1 else 0, first_mask, step[1] if stop > column + 1 else 0)
        )
        column = stop
    return tuple(runs)


def pack_overlaid(
    values: NDArray[Any], conv: Convolution, x_place: Placement, y_place: Placement, pattern: Overlay, groups: int, dtype: DataType,
    fractal: Fractal, out: Bytes,
) -> None:  # fmt: skip
    """Overlaid blocks [groups][planes][taps][overlaid] into `out`.

    values: [c_out, c_in of a group, kh, kw], as the machine multiplies them.
    """
    c_out, per_group = values.shape[:2]
    expansion, c0 = pattern.expansion, fractal.lanes
    out[:] = 0
    packed = out.view(dtype.storage).reshape(groups, expansion.planes, expansion.taps, expansion.overlaid, c0)
    read = np.asarray(x_place.lanes).reshape(conv.groups, per_group)[np.arange(c_out) * conv.groups // c_out]
    plane = read // c0
    packed[plane // expansion.planes, plane % expansion.planes, :, pattern.block[:, None], read % c0] = in_type(values, dtype).reshape(
        c_out, per_group, -1
    )


def pack_masks(pattern: Overlay, dtype: DataType) -> Bytes:
    """Masks [planes][masks] of a block each."""
    lanes = np.repeat(np.where(pattern.masks, 255, 0).astype(np.uint8), dtype.size_bytes, axis=2)
    assert lanes.shape[2] == BLOCK_BYTES
    return np.ascontiguousarray(lanes).reshape(-1)
