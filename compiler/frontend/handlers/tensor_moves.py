"""Moves of tensors: digits of their channels and pixels to other places.

Blocks of channels move by a `Relayout`.  Where other channels than before share a block, the lanes change by a product with the identity
matrix, which exchanges channels and pixels: moves bring all other digits to the pixels, the product exchanges, moves bring the digits to
their places.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np

from compiler.frontend.handlers.views import Atom, C, P
from compiler.frontend.onnx_io.memory_budget import ByteBudget
from compiler.ir.lanes import CHANNEL_BLOCK
from compiler.ir.operators import Floats, MatMul, Operator, QuantisedMatMul, Shape
from compiler.ir.operators.relayout import Digit, Relayout, merge_digits, whole_digit
from compiler.ir.quantised.parameters import Quantisation
from simulator.npu.parts import DataType

MOST_EXCHANGED = 64  # channels that one product exchanges, where they can be divided


class SourceDigit(NamedTuple):
    """Digit of an arranged tensor: `size` steps of `stride` along axis N, C or P of its source; values outside [low, high) are filled.

    stride 0: the same values again; the axis does not matter then.
    """

    axis: int
    size: int
    stride: int
    low: int
    high: int

    @classmethod
    def of(cls, atom: Atom) -> SourceDigit:
        return cls(*atom, 0, atom.size)

    @property
    def whole(self) -> bool:
        return (self.low, self.high) == (0, self.size)


class Move(NamedTuple):
    """Arrangement of a tensor: digits of its channels and of its pixels, the slowest first.

    first: channel and pixel of the source for digits that are all 0.  width: pixels of a row.  fill: value of places without a source.
    """

    tensor: str
    channels: tuple[SourceDigit, ...]
    pixels: tuple[SourceDigit, ...]
    first: tuple[int, int] = (0, 0)
    width: int = 1
    fill: float = 0.0


class Arrangement(NamedTuple):
    """Tensor that was only arranged: digits of its channels and of its pixels, as atoms of the source."""

    source: str
    digits: dict[int, tuple[tuple[Atom, Atom], ...]]  # by axis: (atom, atom of the source)


class Emitter(Protocol):
    """State of a translation, as far as arrangements need it."""

    shapes: dict[str, Shape]
    types: dict[str, Quantisation]
    tensors: dict[str, Floats]
    moved: dict[Move, str]
    arranged: dict[str, Arrangement]
    copies: set[str]  # tensors that arrangements made
    budget: ByteBudget
    node: str

    def emit(self, op: Operator) -> str: ...
    def fresh(self, base: str) -> str: ...


def emit_move(state: Emitter, move: Move) -> str | None:
    """Emit an arrangement; returns its tensor."""
    channels = state.shapes[move.tensor][1]
    lane = move.channels[-1] if move.channels else None
    if lane is None and channels == 1:
        return _relayout(state, move, 1)
    if lane is not None and (lane.axis, lane.stride) == (C, 1):
        rest_digits = [source for source in (*move.channels[:-1], *move.pixels) if source.axis == C]
        deep = math.gcd(channels, move.first[0], lane.size, lane.low, lane.high, *(source.stride for source in rest_digits))
        group = SourceDigit(C, lane.size // deep, deep, lane.low // deep, lane.high // deep)
        return _relayout(state, move._replace(channels=(*move.channels[:-1], group)), deep)
    return _exchange(state, move)


def _relayout(state: Emitter, move: Move, deep: int) -> str:
    """Emit a move of groups of `deep` channels, the lanes of the result."""
    _, c, h, w = state.shapes[move.tensor]
    groups, pixels = (merge_digits([_digit(source, deep) for source in part]) for part in (move.channels, move.pixels))
    name = state.fresh(f"{state.node or move.tensor}.relayout")
    first = move.first[0] // deep, move.first[1]
    return _emit(state, Relayout(name, move.tensor, name, deep, groups, pixels, (c // deep, h, w), first, move.width, 0, move.fill))


def _emit(state: Emitter, op: Operator) -> str:
    state.copies.add(op.y)
    return state.emit(op)


def _digit(source: SourceDigit, deep: int) -> Digit:
    group, pixel = (source.stride // deep, 0) if source.axis == C else (0, source.stride)
    return Digit(source.size, group, pixel, source.low, source.high)


def _exchange(state: Emitter, move: Move) -> str | None:
    """Emit an arrangement whose lanes are another digit than those of the source; returns its tensor.

    Moves bring all digits but the lanes of the source to the pixels, the new lanes last; a product exchanges; moves bring them in place.
    """
    _, c, h, w = state.shapes[move.tensor]
    block = max([CHANNEL_BLOCK, *(DataType[q.dtype.name].lanes for q in state.types.values())])
    targets = [*move.channels, *move.pixels]
    of_channels = sorted((source for source in targets if source.axis == C and source.stride), key=lambda source: abs(source.stride))
    old = of_channels[0] if of_channels else None
    deep = math.gcd(c, *(source.stride for source in of_channels[1:]))
    if old is not None and old.stride == 1 and old.whole and old.size == deep and move.first[0] % deep == 0 and deep > 2 * MOST_EXCHANGED:
        part = max((d for d in range(CHANNEL_BLOCK, MOST_EXCHANGED + 1, CHANNEL_BLOCK) if deep % d == 0), default=deep)
        if part < deep:
            split = SourceDigit(C, deep // part, part, 0, deep // part), SourceDigit(C, part, 1, 0, part)
            to_channels, to_pixels = (
                tuple(piece for source in sources for piece in (split if source is old else (source,)))
                for sources in (move.channels, move.pixels)
            )
            return _exchange(state, move._replace(channels=to_channels, pixels=to_pixels))
    start = move.first[0] % deep
    if old is not None and not 0 <= start + old.stride * (old.size - 1) < deep:
        return None
    new = move.channels[-1] if move.channels else SourceDigit(P, 1, 1, 0, 1)
    if new is old:
        return None
    wide = -(-new.size // block) * block
    rest_digits = [source for source in targets if source is not old and source is not new and source.stride]
    if not math.isfinite(move.fill) or not state.budget.take(4 * deep * deep):
        return None
    # the lanes of the source alone, all other digits as pixels
    padded = SourceDigit(new.axis, wide, new.stride, new.low, new.high)
    gathered = tuple(source for source in (*rest_digits, padded) if source.size > 1)
    lies = c == deep and merge_digits([_digit(source, deep) for source in gathered]) == merge_digits([whole_digit(h * w, 0, 1)])
    x = move.tensor
    if not lies:
        x = _relayout(state, Move(x, (), gathered, (move.first[0] - start, move.first[1]), 1, move.fill), deep)
    y = _product(state, x, deep)
    # every digit in its place
    strides, stride = {}, 1
    for source in reversed(rest_digits):
        strides[id(source)] = stride
        stride *= source.size
    digits = []
    for source in targets:
        if source is new:
            continue
        if source is old or not source.stride:
            digits.append(Digit(source.size, 0, source.stride, source.low, source.high))
        else:
            digits.append(whole_digit(source.size, strides[id(source)], 0))
    count = max(0, len(move.channels) - 1)
    groups, pixels = merge_digits(digits[:count]), merge_digits(digits[count:])
    in_place = groups == merge_digits([whole_digit(stride, 1, 0)]) and pixels == merge_digits([whole_digit(deep, 0, 1)])
    if in_place and wide == new.size and move.width == 1 and start == 0:
        return y
    name = state.fresh(f"{state.node or move.tensor}.relayout")
    of = stride, deep, 1
    return _emit(state, Relayout(name, y, name, new.size, groups, pixels, of, (0, start), move.width, wide, move.fill))


def _product(state: Emitter, x: str, size: int) -> str:
    """Emit the exchange of the `size` channels of a tensor with its pixels."""
    n = state.shapes[x][0]
    q = state.types.get(x)
    identity = f"identity.{size}" + ("" if q is None else ".bytes")
    if identity not in state.tensors:
        values = np.eye(size, dtype=np.float32)[None, :, :, None]
        if q is not None:
            state.types[identity] = Quantisation.of(np.float32(1), None, np.dtype(np.int8))
            values = values.astype(np.int8)
        state.tensors[identity], state.shapes[identity] = values, (n, size, size, 1)
        state.copies.add(identity)
    name = state.fresh(f"{state.node or x}.exchange")
    if q is None:
        return _emit(state, MatMul(name, identity, x, name, 1, True))
    return _emit(state, QuantisedMatMul(name, identity, x, name, 1, True, state.types[identity], q, q))
