"""Strips: a segment cut along columns, for rows that are too wide for L1.

A strip of an operator is an operator: some columns of the result, and the columns of the input that they need.  So a strip of a segment is
a segment of a target graph with narrow tensors, in blocks of rows of its own.  Only reads and writes of DDR need to know that rows go on
there.  Columns that two strips need, the halo, are computed or loaded in both: a block keeps rows for its neighbour in a ring, and
a strip's neighbour comes when all of these are gone.

Padding on the left or the right is in the first or last strip only, because regions say so (`ir.region`).

Strips are used only where rows do not fit or weights would not stay: each row of a strip is a burst of its own, and its halo is computed or
loaded again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from compiler.ir.operators import COLUMNS
from compiler.ir.region import EMPTY, Rows, demand
from compiler.plan.plan import Infeasible
from compiler.segment.blocks import share_rows
from compiler.target.storage import StorageSpec, TensorSlice
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import Strip, TargetOp

Columns = Rows  # the same interval along the other axis


def strips(target_graph: TargetGraph, start: int, stop: int, count: int) -> tuple[TargetGraph, ...] | Infeasible:
    """Split operators [start, stop) into strips, one target graph each, of the columns that leave them; or the reason against it."""
    return (target_graph,) if count == 1 else _strips(target_graph, start, stop, count)


@lru_cache(maxsize=256)
def _strips(target_graph: TargetGraph, start: int, stop: int, count: int) -> tuple[TargetGraph, ...] | Infeasible:
    for k in range(start, stop):
        refusal = _refusal(target_graph, k, stop, count)
        if refusal:
            return Infeasible(target_graph.operators[k].name, refusal)
    graphs = []
    for index in range(count):
        strip = _strip(target_graph, start, stop, index, count)
        if isinstance(strip, Infeasible):
            return strip
        graphs.append(strip)
    return tuple(graphs)


def widest(target_graph: TargetGraph, start: int, stop: int, count: int) -> TargetGraph | Infeasible:
    """Target graph in which every tensor and operator is as wide as in its widest strip: if it fits, all fit."""
    return target_graph if count == 1 else _widest(target_graph, start, stop, count)


@lru_cache(maxsize=256)
def _widest(target_graph: TargetGraph, start: int, stop: int, count: int) -> TargetGraph | Infeasible:
    cut = _strips(target_graph, start, stop, count)
    if isinstance(cut, Infeasible):
        return cut
    operators = list(target_graph.operators)
    for k in range(start, stop):
        cuts = [strip.operators[k] for strip in cut]
        in_w, out_w = (max(getattr(spec, side) for spec in cuts) for side in ("in_w", "out_w"))
        operators[k] = replace(cuts[count // 2], in_w=in_w, out_w=out_w)
    storages = tuple(max(cuts, key=lambda storage: storage.row_blocks) for cuts in zip(*(strip.storages for strip in cut), strict=True))
    return replace(target_graph, storages=storages, operators=tuple(operators), strips=count)


def row_blocks_read(target_graph: TargetGraph, spec: TargetOp, operand: int) -> tuple[int, int]:
    """Range (first, count) of blocks that an operator reads of every row of operand i."""
    storage = target_graph.storages[spec.reads[operand].storage]
    if spec.strip is None or spec.pixels_only[operand]:
        return 0, storage.row_blocks
    if operand:
        return spec.strip.first_made, spec.out_w
    return spec.strip.read, -(-spec.in_w // spec.pixels_per_block)


def row_blocks_made(target_graph: TargetGraph, spec: TargetOp) -> tuple[int, int]:
    """Range (first, count) of blocks that an operator writes of every row of its result."""
    return (0, target_graph.storages[spec.y.storage].row_blocks) if spec.strip is None else (spec.strip.first_made, spec.out_w)


def row_blocks_stored(target_graph: TargetGraph, spec: TargetOp) -> tuple[int, int]:
    """Range (first, count) of blocks that an operator stores of every row of its result, if it does."""
    return (0, target_graph.storages[spec.y.storage].row_blocks) if spec.strip is None else (spec.strip.first_owned, spec.strip.owned)


def leaves_segment(target_graph: TargetGraph, index: int, stop: int) -> bool:
    """Whether the result of operator `index` leaves a segment that ends in front of `stop`."""
    return index in target_graph.escapes or any(reader >= stop for reader in target_graph.consumers[index])


def _refusal(target_graph: TargetGraph, index: int, stop: int, count: int) -> str:
    """Reason why an operator cannot be cut into strips, or ''."""
    spec = target_graph.operators[index]
    if spec.strip_refusal:
        return spec.strip_refusal
    if leaves_segment(target_graph, index, stop) and spec.out_w < count:
        return f"{count} strips of {spec.out_w} columns: expected as many columns as strips, or more"
    return ""


def _strip(target_graph: TargetGraph, start: int, stop: int, index: int, count: int) -> TargetGraph | Infeasible:
    """Strip `index` of `count`."""
    operators, storages, touched = list(target_graph.operators), list(target_graph.storages), dict[int, Columns]()
    produced, main = dict[int, Columns](), dict[int, Columns]()

    def touch(piece: TensorSlice, columns: Columns) -> None:
        touched[piece.storage] = touched.get(piece.storage, EMPTY).hull(columns)

    for k in range(stop - 1, start - 1, -1):
        spec = target_graph.operators[k]
        stored = Columns(*share_rows(0, spec.out_w, index, count)) if leaves_segment(target_graph, k, stop) else EMPTY
        produced[k] = stored
        for reader in target_graph.consumers[k]:
            if reader < stop:
                produced[k] = produced[k].hull(_read(target_graph, reader, spec.y, main[reader], produced[reader]))
        produced[k] = produced[k] if produced[k].size else Columns(0, 1)  # without readers no row of it is computed
        main[k] = demand(spec.operator, produced[k], spec.in_w, COLUMNS)
        main[k] = Columns(main[k].start // spec.pixels_per_block * spec.pixels_per_block, main[k].stop)
        touch(spec.y, produced[k])
        for piece in dict.fromkeys(spec.reads):
            touch(piece, _read(target_graph, k, piece, main[k], produced[k]))
        place = Strip(main[k].start // spec.pixels_per_block, produced[k].start, stored.start, stored.size)
        narrow = spec.narrowed(place, main[k], produced[k])
        if isinstance(narrow, Infeasible):
            return narrow
        operators[k] = narrow
    for number, columns in touched.items():
        storages[number] = _storage(target_graph.storages[number], columns)
    return replace(target_graph, storages=tuple(storages), operators=tuple(operators), strips=count)


def _read(target_graph: TargetGraph, reader: int, piece: TensorSlice, main: Columns, produced: Columns) -> Columns:
    """Columns of a slice that a reader needs for columns `produced` of its result, and `main` of its main input."""
    spec = target_graph.operators[reader]
    columns = EMPTY
    for i, read in enumerate(spec.reads):
        if not read.overlaps(piece):
            continue
        if spec.pixels_only[i]:
            columns = columns.hull(Columns(0, target_graph.storages[read.storage].w))
        else:
            columns = columns.hull(produced if i else main)
    return columns


def _storage(storage: StorageSpec, columns: Columns) -> StorageSpec:
    """Part of a storage in a strip: full blocks."""
    pixels = storage.w // storage.row_blocks
    first, stop = columns.start // pixels, -(-columns.stop // pixels)
    pitch = storage.ddr_row_blocks
    return replace(storage, w=(stop - first) * pixels, row_blocks=stop - first, first=first, pitch=pitch)
