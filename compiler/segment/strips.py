"""Segments cut along columns: what each of several strips makes of one, for rows that are too wide for L1.

A strip of an operator is an operator: some columns of the result, and of the input those that they need.  So a strip of a segment is a
segment of a unit whose tensors are that narrow, in blocks of rows of its own, and below only what reads and writes DDR needs to know that
rows go on there.  Columns that two strips need, the halo, are made or loaded in both: what a block keeps for its neighbour is a ring of
rows, and a strip's neighbour comes when all of its rows are gone.

What is padded on the left or the right is so in the first or last strip only, because regions say so (`ir.region`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from compiler.ir.operators import COLUMNS
from compiler.ir.region import EMPTY, Rows, demand
from compiler.plan.plan import Infeasible
from compiler.segment.blocks import share
from compiler.target.storage import StorageSpec, TensorSlice
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import Strip, TargetOp

Columns = Rows  # the same interval along the other axis


def strips(target_graph: TargetGraph, start: int, stop: int, count: int) -> tuple[TargetGraph, ...] | Infeasible:
    """`count` units, in each of which operators [start, stop) make a run of the columns of what leaves them; why not where that is so."""
    return (target_graph,) if count == 1 else _strips(target_graph, start, stop, count)


@lru_cache(maxsize=256)
def _strips(target_graph: TargetGraph, start: int, stop: int, count: int) -> tuple[TargetGraph, ...] | Infeasible:
    for k in range(start, stop):
        refusal = _refusal(target_graph, k, stop, count)
        if refusal:
            return Infeasible(target_graph.operators[k].name, refusal)
    found = []
    for at in range(count):
        strip = _strip(target_graph, start, stop, at, count)
        if isinstance(strip, Infeasible):
            return strip
        found.append(strip)
    return tuple(found)


def widest(target_graph: TargetGraph, start: int, stop: int, count: int) -> TargetGraph | Infeasible:
    """A unit in which every tensor and operator is as wide as in the strip where it is widest: what fits for it fits for all."""
    return target_graph if count == 1 else _widest(target_graph, start, stop, count)


@lru_cache(maxsize=256)
def _widest(target_graph: TargetGraph, start: int, stop: int, count: int) -> TargetGraph | Infeasible:
    cut = _strips(target_graph, start, stop, count)
    if isinstance(cut, Infeasible):
        return cut
    operators = list(target_graph.operators)
    for k in range(start, stop):
        mine = [strip.operators[k] for strip in cut]
        in_w, out_w = (max(getattr(spec, side) for spec in mine) for side in ("in_w", "out_w"))
        operators[k] = replace(mine[count // 2], in_w=in_w, out_w=out_w)
    storages = tuple(max(mine, key=lambda storage: storage.row_blocks) for mine in zip(*(strip.storages for strip in cut), strict=True))
    return replace(target_graph, storages=storages, operators=tuple(operators), strips=count)


def row_blocks_read(target_graph: TargetGraph, spec: TargetOp, operand: int) -> tuple[int, int]:
    """(first, count) of the blocks of every row of operand i that an operator reads."""
    storage = target_graph.storages[spec.reads[operand].storage]
    if spec.strip is None or spec.pixels_only[operand]:
        return 0, storage.row_blocks
    if operand:
        return spec.strip.made, spec.out_w
    return spec.strip.read, -(-spec.in_w // spec.pixels_per_block)


def row_blocks_made(target_graph: TargetGraph, spec: TargetOp) -> tuple[int, int]:
    """(first, count) of the blocks of every row of its result that an operator makes."""
    return (0, target_graph.storages[spec.y.storage].row_blocks) if spec.strip is None else (spec.strip.made, spec.out_w)


def row_blocks_stored(target_graph: TargetGraph, spec: TargetOp) -> tuple[int, int]:
    """(first, count) of the blocks of every row of its result that an operator hands out, where it does."""
    return (0, target_graph.storages[spec.y.storage].row_blocks) if spec.strip is None else (spec.strip.own, spec.strip.owned)


def leaves(target_graph: TargetGraph, k: int, stop: int) -> bool:
    """Whether the result of operator k leaves a segment that ends in front of `stop`."""
    return k in target_graph.escapes or any(reader >= stop for reader in target_graph.consumers[k])


def _refusal(target_graph: TargetGraph, k: int, stop: int, count: int) -> str:
    """What keeps an operator from being cut into strips, or ''."""
    spec = target_graph.operators[k]
    if spec.strip_refusal:
        return spec.strip_refusal
    if leaves(target_graph, k, stop) and spec.out_w < count:
        return f"{count} strips of {spec.out_w} columns: expected as many columns as strips, or more"
    return ""


def _strip(target_graph: TargetGraph, start: int, stop: int, at: int, count: int) -> TargetGraph | Infeasible:
    """Strip `at` of `count`."""
    operators, storages, touched = list(target_graph.operators), list(target_graph.storages), dict[int, Columns]()
    made, main = dict[int, Columns](), dict[int, Columns]()

    def touch(piece: TensorSlice, columns: Columns) -> None:
        touched[piece.storage] = touched.get(piece.storage, EMPTY).hull(columns)

    for k in range(stop - 1, start - 1, -1):
        spec = target_graph.operators[k]
        own = Columns(*share(0, spec.out_w, at, count)) if leaves(target_graph, k, stop) else EMPTY
        made[k] = own
        for reader in target_graph.consumers[k]:
            if reader < stop:
                made[k] = made[k].hull(_read(target_graph, reader, spec.y, main[reader], made[reader]))
        made[k] = made[k] if made[k].size else Columns(0, 1)  # nobody reads it, and no row of it is made
        main[k] = demand(spec.operator, made[k], spec.in_w, COLUMNS)
        main[k] = Columns(main[k].start // spec.pixels_per_block * spec.pixels_per_block, main[k].stop)
        touch(spec.y, made[k])
        for piece in dict.fromkeys(spec.reads):
            touch(piece, _read(target_graph, k, piece, main[k], made[k]))
        place = Strip(main[k].start // spec.pixels_per_block, made[k].start, own.start, own.size)
        narrow = spec.narrowed(place, main[k], made[k])
        if isinstance(narrow, Infeasible):
            return narrow
        operators[k] = narrow
    for number, columns in touched.items():
        storages[number] = _storage(target_graph.storages[number], columns)
    return replace(target_graph, storages=tuple(storages), operators=tuple(operators), strips=count)


def _read(target_graph: TargetGraph, reader: int, piece: TensorSlice, main: Columns, made: Columns) -> Columns:
    """Columns of a piece that a reader needs for columns `made` of its result, and `main` of its main input."""
    spec = target_graph.operators[reader]
    found = EMPTY
    for i, read in enumerate(spec.reads):
        if not read.overlaps(piece):
            continue
        if spec.pixels_only[i]:
            found = found.hull(Columns(0, target_graph.storages[read.storage].w))
        else:
            found = found.hull(made if i else main)
    return found


def _storage(storage: StorageSpec, columns: Columns) -> StorageSpec:
    """What a strip has of a storage: whole blocks."""
    pixels = storage.w // storage.row_blocks
    first, stop = columns.start // pixels, -(-columns.stop // pixels)
    pitch = storage.ddr_row_blocks
    return replace(storage, w=(stop - first) * pixels, row_blocks=stop - first, first=first, pitch=pitch)
