"""Strips: a segment cut along columns, for rows that are too wide for L1.

A strip of an operator is an operator, too: it computes some columns of the result from the columns of the input that these need.  So a
strip of a segment is a segment of a target graph with narrow tensors, and has its own blocks of rows.  Only reads and writes of DDR need to
know that rows are longer there.  The halo, the columns that two strips need, is computed or loaded in both strips.  A ring keeps rows for
the next block, but cannot keep columns for the next strip: the next strip starts after the last block, when these rows are overwritten.

Only the first strip has padding on the left, and only the last strip has padding on the right, as regions are (`ir.region`).

Strips are used only if rows do not fit L1, or if weights would not stay: every row of a strip is a separate burst, and the halo is computed
or loaded again.
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

Columns = Rows  # interval of columns


def strips(target_graph: TargetGraph, start: int, stop: int, count: int) -> tuple[TargetGraph, ...] | Infeasible:
    """Target graph of each of `count` strips, which split the columns that leave operators [start, stop); or the reason against a split."""
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
    """Target graph in which every tensor and operator is as wide as in its widest strip: if it fits, all strips fit."""
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
    """Range (first, count) of blocks that an operator reads of every row of operand `operand`, an index."""
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
    """Range (first, count) of blocks that an operator stores of every row of its result, if the result is stored."""
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
    """Target graph of strip `index` of `count`; or the reason why it is impossible."""
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
        produced[k] = produced[k] if produced[k].size else Columns(0, 1)  # results without readers have no rows
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
    """Columns of a slice that a reader needs.  main: columns of its main input.  produced: columns of its result."""
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
    """Part of a storage that has all blocks of `columns`."""
    pixels = storage.w // storage.row_blocks
    first, stop = columns.start // pixels, -(-columns.stop // pixels)
    pitch = storage.ddr_row_blocks
    return replace(storage, w=(stop - first) * pixels, row_blocks=stop - first, first=first, pitch=pitch)
