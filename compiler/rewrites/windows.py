"""Rewrites of resampling: two resamplings become one; padding and skipping move into the following window."""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.im2col import unencodable_window
from compiler.ir.operators import Conv, Operator, Pool, Resample
from compiler.ir.taps import Tap, Taps, select_places
from compiler.rewrites.engine import GraphView, Match


def _outer(op: Operator, view: GraphView) -> tuple[Taps, Taps, float] | None:
    """Rows, columns and fill value of a resampling operator, also of a pool with a 1x1 window; None for other operators."""
    if isinstance(op, Resample):
        return op.rows, op.columns, op.fill
    if isinstance(op, Pool) and op.kernel == (1, 1) and not any(op.pads):
        _, _, h, w = view.shapes[op.x]
        return select_places(range(0, h, op.stride[0])), select_places(range(0, w, op.stride[1])), 0.0
    return None


def _is_plain(taps: Taps) -> bool:
    return all(weight == 1 for row in taps.taps for _, weight in row) and all(len(row) <= 1 for row in taps.taps)


def _composed(outer: Taps, inner: Taps) -> Taps | None:
    """Composition of two resamplings of one axis; None where weights would multiply or fill values mix with others."""
    if not _is_plain(outer) and (not _is_plain(inner) or inner.has_empty):
        return None
    out: list[tuple[Tap, ...]] = []
    for place_taps in outer.taps:
        out.append(tuple((source, weight * inner_weight) for place, inner_weight in place_taps for source, weight in inner.taps[place]))
    return Taps(tuple(out))


def merge_resamples(op: Operator, view: GraphView) -> Match | None:
    """Merge two consecutive Resample operators into one."""
    outer = _outer(op, view)
    inner = view.producers.get(op.inputs[0]) if outer is not None else None
    if outer is None or not isinstance(inner, Resample) or not view.only_use(inner.y):
        return None
    rows, columns = _composed(outer[0], inner.rows), _composed(outer[1], inner.columns)
    fills = {inner.fill} if inner.rows.has_empty or inner.columns.has_empty else set()
    fills |= {outer[2]} if outer[0].has_empty or outer[1].has_empty else set()
    if rows is None or columns is None or len(fills) > 1:
        return None
    return Match((inner, op), (Resample(op.name, inner.x, op.y, rows, columns, fills.pop() if fills else 0.0),))


def _margins(taps: Taps, size: int) -> tuple[int, int] | None:
    """(before, after) numbers of fill places, if the axis is otherwise the identity of length `size`; None if it is not."""
    sources = [tap[0] if tap else None for tap in taps.taps]
    before = next((i for i, tap in enumerate(sources) if tap is not None), 0)
    after = len(sources) - size - before
    expected = [None] * before + [(i, 1.0) for i in range(size)] + [None] * max(0, after)
    return (before, after) if sources == expected and _is_plain(taps) else None


def pad_into_conv(op: Operator, view: GraphView) -> Match | None:
    """Merge zero padding around an image into the following Conv."""
    inner = view.producers.get(op.x) if isinstance(op, Conv) else None
    if not isinstance(op, Conv) or not isinstance(inner, Resample) or not view.only_use(inner.y) or inner.fill != 0:
        return None
    if op.residual == inner.y:
        return None
    _, _, h, w = view.shapes[inner.x]
    rows, columns = _margins(inner.rows, h), _margins(inner.columns, w)
    if rows is None or columns is None:
        return None
    pad_top, pad_left, pad_bottom, pad_right = op.pads
    pads = (pad_top + rows[0], pad_left + columns[0], pad_bottom + rows[1], pad_right + columns[1])
    padded = replace(op, x=inner.x, pads=pads)
    return None if unencodable_window(padded) else Match((inner, op), (padded,))


def skip_into_conv(op: Operator, view: GraphView) -> Match | None:
    """Merge skipping of rows and columns (every s-th one) into the stride of the following 1x1 Conv."""
    inner = view.producers.get(op.x) if isinstance(op, Conv) else None
    if not isinstance(op, Conv) or not isinstance(inner, Pool) or not view.only_use(inner.y):
        return None
    if inner.kernel != (1, 1) or any(inner.pads) or op.weights.shape[2:] != (1, 1) or any(op.pads) or op.residual == inner.y:
        return None
    stride = (inner.stride[0] * op.stride[0], inner.stride[1] * op.stride[1])
    skipping = replace(op, x=inner.x, stride=stride)
    return None if unencodable_window(skipping) else Match((inner, op), (skipping,))
