"""Dependences of a graph: for every tensor the parts that are read, and by which operators (docs/bounds.md, Assumptions).

A leaf is a tensor that an operator produces or that is an input of the model; Concat, Shuffle and layout copies are other names
for channels of leaves.  The needed part of a leaf is the largest part that one reader reads, a box of rows and columns of some channels;
parts of other readers outside that box are left out, so nothing is counted that no program touches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators import (
    COLUMNS,
    ROWS,
    Concat,
    Convolution,
    LayerNorm,
    Operator,
    QuantisedSoftmax,
    Reflow,
    Resample,
    Shuffle,
    Softmax,
    Vector,
)
from compiler.ir.operators.matmul import HeadedProduct
from compiler.ir.reach import RATIO, WINDOW
from compiler.target.target_graph import TargetGraph

Mask = NDArray[np.bool_]


class Box(NamedTuple):
    """Channels, rows and columns of a tensor, each bool [its size]."""

    channels: Mask
    rows: Mask
    columns: Mask

    @classmethod
    def full(cls, shape: tuple[int, int, int, int]) -> Box:
        return cls(*(np.ones(size, np.bool_) for size in shape[1:]))

    @property
    def pixels(self) -> int:
        return int(self.rows.sum()) * int(self.columns.sum())

    @property
    def values(self) -> int:
        """Values of an image."""
        return int(self.channels.sum()) * self.pixels

    def same(self, box: Box) -> bool:
        return self.same_pixels(box) and np.array_equal(self.channels, box.channels)

    def same_pixels(self, box: Box) -> bool:
        return np.array_equal(self.rows, box.rows) and np.array_equal(self.columns, box.columns)


class Touch(NamedTuple):
    """Read of a leaf by operator `reader`.  operand: its index among the operator's inputs.

    spread: any part of the reader's result, in pixels or in channels, needs at least as large a part of `box` (docs/bounds.md, Lemma 1).
    every: each pixel of the result needs all pixels of `box`.
    """

    reader: int
    operand: int
    box: Box
    spread: bool
    every: bool


@dataclass(frozen=True, eq=False)
class Leaf:
    """Tensor of the model.  needed: None without a reader.  touched: int64 [c], pixels of an image of every channel that are read."""

    name: str
    maker: int  # operator of the unit, or -1
    images: int
    size_bytes: int  # size of one value
    outside: bool  # the host reads it
    readings: tuple[Touch, ...]
    needed: Box | None
    touched: NDArray[np.int64]

    @property
    def touched_bytes(self) -> int:
        return int(self.touched.sum()) * self.images * self.size_bytes

    @property
    def needed_bytes(self) -> int:
        return 0 if self.needed is None else self.needed.values * self.images * self.size_bytes


@dataclass(frozen=True, eq=False)
class Needs:
    """Dependences.  produced: the leaf of every operator.  given: leaves that no operator produces.

    parts: for every tensor, tuples (leaf, channels of the leaf, channels of the tensor with the same values).
    """

    produced: tuple[Leaf, ...]
    given: tuple[Leaf, ...]
    parts: dict[str, list[tuple[str, NDArray[np.int64], NDArray[np.int64]]]]

    def read_by(self, operator: int) -> Iterator[tuple[Leaf, Touch]]:
        for leaf in (*self.produced, *self.given):
            for reading in leaf.readings:
                if reading.reader == operator:
                    yield leaf, reading


def needs_of(target_graph: TargetGraph) -> Needs:
    """Dependences of a target graph, backwards from the outputs: the needed part of a result determines the reads of its operator."""
    graph, shapes = target_graph.graph, target_graph.graph.shapes
    channels = _channels_of_leaves(target_graph)
    makers = {spec.operator.y: spec.index for spec in target_graph.operators}
    outside: dict[str, Mask] = {}
    for port in graph.outputs:
        for part, of_part, _ in channels[port.tensor]:
            outside.setdefault(part, np.zeros(shapes[part][1], np.bool_))[of_part] = True
    touches: dict[str, list[Touch]] = {}

    def closed(name: str) -> Leaf:
        shape, readings = shapes[name], touches.get(name, [])
        boxes = [reading.box for reading in readings]
        if name in outside:
            boxes.append(Box.full(shape)._replace(channels=outside[name]))
        touched = np.zeros(shape[1], np.int64)
        for box in boxes:
            touched[box.channels] = np.maximum(touched[box.channels], box.pixels)
        needed = max(boxes, key=lambda box: box.values, default=None)
        needed = None if needed is None or not needed.values else needed
        images = graph.constants[name].shape[0] if name in graph.constants else shape[0]
        size = target_graph.layout.type_of(name).size_bytes
        return Leaf(name, makers.get(name, -1), images, size, name in outside, tuple(readings), needed, touched)

    leaves: list[Leaf] = []
    # all readers of a result come before its operator in this order
    for spec in reversed(target_graph.operators):
        leaf = closed(spec.operator.y)
        leaves.append(leaf)
        if leaf.needed is None:
            continue
        for operand, name in enumerate(spec.operator.operands):
            box, spread, every = _reads(spec.operator, operand, leaf.needed, shapes[name])
            for part, of_leaf, of_tensor in channels[name]:
                mask = np.zeros(shapes[part][1], np.bool_)
                mask[of_leaf] = box.channels[of_tensor]
                if mask.any():
                    touches.setdefault(part, []).append(Touch(spec.index, operand, box._replace(channels=mask), spread, every))
    given = [closed(name) for name in shapes if name not in makers and name in touches]
    return Needs(tuple(reversed(leaves)), tuple(given), channels)


def _channels_of_leaves(target_graph: TargetGraph) -> dict[str, list[tuple[str, NDArray[np.int64], NDArray[np.int64]]]]:
    """`Needs.parts`."""
    sources = {name: (np.array([name] * shape[1], object), np.arange(shape[1])) for name, shape in target_graph.graph.shapes.items()}
    for op in target_graph.graph.operators:
        if isinstance(op, Concat):
            parts = [sources[name] for name in op.inputs]
            sources[op.y] = np.concatenate([names for names, _ in parts]), np.concatenate([channels for _, channels in parts])
        elif isinstance(op, Vector) and op.name in target_graph.layout.copies:
            sources[op.y] = sources[op.inputs[0]]
        elif isinstance(op, Shuffle):
            names, of_leaf = sources[op.x]
            sources[op.y] = names[list(op.order)], of_leaf[list(op.order)]
    return {
        name: [(leaf, of_leaf[places], places) for leaf in dict.fromkeys(names.tolist()) for places in [np.flatnonzero(names == leaf)]]
        for name, (names, of_leaf) in sources.items()
    }


def _reads(op: Operator, operand: int, output: Box, shape: tuple[int, int, int, int]) -> tuple[Box, bool, bool]:
    """Part of an input that the needed part of a result requires; whether it is `Touch.spread`, and `Touch.every`."""
    full, single_pixel = Box.full(shape), output.pixels == 1
    if isinstance(op, HeadedProduct):
        heads = np.repeat(output.channels.reshape(op.heads, -1).any(1), shape[1] // op.heads)
        right = operand > 0
        return (full._replace(channels=heads) if right else Box(heads, output.rows, output.columns)), True, right or single_pixel
    if operand == 0 and isinstance(op, Convolution | Softmax | QuantisedSoftmax):
        channels = np.repeat(output.channels.reshape(op.groups, -1).any(1), shape[1] // op.groups)
    else:
        mixed = isinstance(op, LayerNorm) or len(output.channels) != shape[1]
        channels = full.channels if mixed else output.channels
    if operand > 0:  # the operand has the result's size, or one pixel for all
        if shape[2:] != (len(output.rows), len(output.columns)):
            return full._replace(channels=channels), True, True
        return Box(channels, output.rows, output.columns), True, single_pixel
    if isinstance(op, Reflow):  # rows wrap: count the pixels, their positions do not matter
        rows = np.zeros(shape[2], np.bool_)
        rows[: max(0, min(shape[2] * shape[3], output.pixels - op.before)) // shape[3]] = True
        return Box(channels, rows, full.columns), False, False
    if (blocks := op.blocks_read(*output)) is not None:  # anywhere: count the pixels, their positions do not matter
        rows = np.zeros(shape[2], np.bool_)
        rows[: blocks[1] // shape[3]] = True
        return Box(blocks[0], rows, full.columns), False, False
    rows_read, columns_read = (
        _along(op, axis, wanted, size) for axis, wanted, size in ((ROWS, output.rows, shape[2]), (COLUMNS, output.columns, shape[3]))
    )
    even, every = rows_read.even and columns_read.even, rows_read.every and columns_read.every
    return Box(channels, rows_read.places, columns_read.places), even, every


class _Along(NamedTuple):
    """Positions of the input along an axis that the result requires; whether every part of the result needs as large a part; whether each
    position needs all.
    """

    places: Mask
    even: bool
    every: bool


def _along(op: Operator, axis: int, output: Mask, size: int) -> _Along:
    positions, read = np.flatnonzero(output), np.zeros(size, np.bool_)
    if isinstance(op, Resample):
        taps = (op.rows, op.columns)[axis].taps
        read[[source for i in positions.tolist() for source, _ in taps[i]]] = True
        return _Along(read, False, False)
    form, *numbers = op.reach(size, axis=axis)
    if form == RATIO:
        _, divisor, factor, before, _ = numbers
        read[np.maximum(0, positions * factor - before) // divisor] = True
        return _Along(read, False, False)
    assert form == WINDOW
    _, window, stride, dilation, pad = numbers
    places = positions[:, None] * stride - pad + np.arange(window)[None, :] * dilation
    inside = (places >= 0) & (places < size)
    read[places[inside]] = True
    every = bool((inside.sum(1) == read.sum()).all())
    if dilation > 1 and window > 1:
        return _Along(read, False, every)
    return _Along(read, _even(np.maximum(places[:, 0], 0), np.minimum(places[:, -1] + 1, size), read), every)


def _even(first: NDArray[np.int64], last: NDArray[np.int64], read: Mask) -> bool:
    """Whether each output position i of m reads all input positions [i n / m, (i + 1) n / m) of n (docs/bounds.md, Lemma 1).

    first, last: int64 [m], range of input positions that an output position reads.
    """
    output_size, count = len(first), int(read.sum())
    if not output_size or not count or (last <= first).any():
        return False
    before = np.concatenate([[0], np.cumsum(read)])  # [n + 1], number of read positions before each position
    bounds = np.arange(output_size + 1) * count
    return bool((before[first] <= bounds[:-1] // output_size).all() and (before[last] >= -(-bounds[1:] // output_size)).all())
