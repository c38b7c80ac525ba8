"""Run of operators of a segment, independent of blocks: readers, outputs, residence in L1, loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.plan.plan import ConvTiling, Tiling
from compiler.target.storage import TensorSlice
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Load:
    """Planes [plane, plane + planes) of a storage that a segment loads from DDR into the storage's L1 buffer, for every block."""

    storage: int
    plane: int
    planes: int
    step: int  # position in the segment of the first operator that reads these planes


class Allocation(NamedTuple):
    """Planes [plane, plane + planes) of a storage that a segment keeps in L1 from operator `birth` to operator `death`.

    makers, readers: operators of the segment that write and read the storage, as bits.
    contiguous: whether the storage is a right operand: an operator reads all rows of an image at once, at consecutive addresses.
    """

    storage: int
    plane: int
    planes: int
    birth: int
    death: int
    makers: int
    readers: int
    contiguous: bool = False


@dataclass(frozen=True, eq=False)
class OperatorRun:
    """Operators [start, stop) and the storages that they keep in L1; arrays number operators from 0, and storages as `allocations`.

    reach: int64 [operators, 6], bounds: int64 [.., 2] (see `ir.reach`).  leaves: bool [operators], whether the segment stores the output.
    inside: per operator, whether the segment reads the output, or the output is persistent.
    allocated: int64 [operators], index of the output in `allocations`, or -1.  allocations: allocation by storage.
    readers: int64 [.., 4], (reader, *`reads`) for every reader of an output; operator k's rows begin at reader_start[k].
    uses: int64 [.., 4], (reader, *`reads`) for every read of a storage; storage i's rows begin at use_start[i].
    makers: int64 [..], operators that write a storage; storage i's operators begin at made_start[i].  loads: loads of every block, by step.
    """

    reach: Ints
    bounds: Ints
    leaves: NDArray[np.bool_]
    inside: tuple[bool, ...]
    allocated: Ints
    reader_start: Ints
    readers: Ints
    allocations: dict[int, Allocation]
    use_start: Ints
    uses: Ints
    made_start: Ints
    makers: Ints
    loads: tuple[Load, ...]


def reads(target_graph: TargetGraph, reader: int, piece: TensorSlice) -> tuple[bool, bool, int]:
    """Whether operator `reader` reads a slice, or planes of it, as its main input; whether it does as another operand; and a height.  The
    height is the number of rows of the slice if every block of the reader needs all of them, else 0."""
    return _reads(target_graph.operators[reader], piece, target_graph.storages[piece.storage].h)


@lru_cache(maxsize=1 << 16)
def _reads(spec: TargetOp, piece: TensorSlice, height: int) -> tuple[bool, bool, int]:
    # cached by operator, not by target graph: graphs of parts (`segment.core_channels`) share most of their operators
    first, *operands = spec.reads
    as_other = any(read.overlaps(piece) for read in operands)
    serves_all = as_other and (spec.right is not None or height < spec.out_h)
    return first.overlaps(piece), as_other, height if serves_all else 0


def streamed_rights(target_graph: TargetGraph, start: int, tilings: Sequence[Tiling], held: int = 0) -> int:
    """Operators from `start` on whose tilings want a right operand in chunks and that can have it, as bits (see `run_of`)."""
    operators = 0
    for k, tiling in enumerate(tilings):
        if isinstance(tiling, ConvTiling) and tiling.weights == "streamed" and can_stream(target_graph, start, k, held):
            operators |= 1 << k
    return operators


def can_stream(target_graph: TargetGraph, start: int, index: int, held: int = 0) -> bool:
    """Whether the right operand of operator `index` may come in chunks: the segment does not compute it, and it is not persistent."""
    spec = target_graph.operators[start + index]
    right = spec.right
    return (
        right is not None
        and not held >> right.storage & 1
        and not any(source >= start and target_graph.operators[source].y.overlaps(right) for source in target_graph.producers[spec.index])
    )


@lru_cache(maxsize=1 << 16)
def ring_storages(target_graph: TargetGraph, start: int, stop: int, halo: int, streamed: int = 0) -> frozenset[int]:
    """Storages in rings: operands of operators that cache their halo, and right operands, whose rings hold whole images."""
    operators = target_graph.operators[start:stop]
    readers = (spec for k, spec in enumerate(operators) if halo >> k & 1)
    rights = (spec.right.storage for k, spec in enumerate(operators) if spec.right is not None and not streamed >> k & 1)
    return frozenset(piece.storage for spec in readers for piece in spec.reads).union(rights)


@lru_cache(maxsize=4096)
def run_of(target_graph: TargetGraph, start: int, stop: int, streamed: int = 0, held: int = 0, fed: int = 0) -> OperatorRun:
    """Analyse operators [start, stop).  A storage is kept in L1 if the segment writes and reads it, or if a convolution reads it.

    Convolutions read L1 because CUBE gets operands from L1 only.
    streamed: operators, as bits, that fetch their right operand themselves, in chunks.  held: persistent storages, as bits
    (`segment.persistent`): the segment neither loads nor stores them.  fed: fed pools, as bits (`segment.pool_fusion`): their input is not
    kept in L1, and the convolutions that feed a pool read their inputs until the pool is done.
    """
    operators = target_graph.operators[start:stop]
    until = worked(target_graph, start, stop, fed)
    readers = [[c for c in target_graph.consumers[spec.index] if start <= c < stop] for spec in operators]
    leaves = [
        spec.index in target_graph.escapes or len(accesses) < len(target_graph.consumers[spec.index])
        for spec, accesses in zip(operators, readers, strict=True)
    ]
    inside = tuple(bool(accesses) or bool(held >> spec.y.storage & 1) for spec, accesses in zip(operators, readers, strict=True))
    # reads and writes of every storage, and the storages that must be in L1
    used: dict[int, list[tuple[int, TensorSlice]]] = {}
    makers_of: dict[int, list[tuple[int, TensorSlice]]] = {}
    resident, rights = set[int](), set[int]()
    for k, spec in enumerate(operators):
        staged_reads = () if fed >> k & 1 else spec.reads[:1] if streamed >> k & 1 else spec.reads
        for read in staged_reads:
            used.setdefault(read.storage, []).append((k, read))
        if spec.runs_on == "CUBE":
            resident.add(spec.reads[0].storage)
        if spec.right is not None and not streamed >> k & 1:
            rights.add(spec.right.storage)
        if inside[k] and until[k] == k:
            makers_of.setdefault(spec.y.storage, []).append((k, spec.y))
            resident.add(spec.y.storage)
    stays, loads = {}, list[Load]()
    resident.update(rights, (storage for storage in used if held >> storage & 1))
    for storage in sorted(resident):
        accesses = makers_of.get(storage, []), used.setdefault(storage, [])
        if held >> storage & 1:
            stays[storage] = Allocation(storage, 0, target_graph.storages[storage].planes, 0, stop - start - 1, *_accessing(*accesses))
            continue
        stays[storage], missing = _stay(storage, *accesses)
        # convolutions that feed a pool read their inputs until the pool is done
        if fed:
            late_readers = {until[k] for k, _ in accesses[1]}
            allocation, late_bits = stays[storage], sum(1 << k for k in late_readers)
            stays[storage] = allocation._replace(death=max([allocation.death, *late_readers]), readers=allocation.readers | late_bits)
        stays[storage] = stays[storage]._replace(contiguous=storage in rights)
        loads += missing
    place = {storage: i for i, storage in enumerate(stays)}
    wanted = [[(k, *reads(target_graph, start + k, piece)) for k, piece in used[storage]] for storage in stays]
    makers = [[k for k, _ in makers_of.get(storage, [])] for storage in stays]
    bounds = [spec.operator.bounds() for spec in operators]
    first = accumulate(map(len, bounds), initial=0)
    return OperatorRun(
        np.array([spec.operator.reach(spec.in_h, offset) for spec, offset in zip(operators, first, strict=False)], np.int64),
        np.concatenate([np.zeros((0, 2), np.int64), *bounds]),
        np.array(leaves, np.bool_),
        inside,
        np.array([place[spec.y.storage] if inside[k] and until[k] == k else -1 for k, spec in enumerate(operators)], np.int64),
        *_listed(
            [[(c - start, *reads(target_graph, c, spec.y)) for c in accesses] for spec, accesses in zip(operators, readers, strict=True)], 4
        ),
        stays,
        *_listed(wanted, 4),
        *_listed(makers, 1),
        tuple(sorted(loads, key=lambda load: (load.step, load.storage, load.plane))),
    )


def worked(target_graph: TargetGraph, start: int, stop: int, fed: int) -> tuple[int, ...]:
    """Per operator of [start, stop), the operator that emits its records: the operator itself, or the pool that it feeds.  Operators count
    from `start`."""
    places = list(range(stop - start))
    for k in range(stop - start):
        if fed >> k & 1:
            for source in target_graph.producers[start + k]:
                places[source - start] = k
    return tuple(places)


def _listed(rows: Sequence[Sequence[int | tuple[int, ...]]], width: int) -> tuple[Ints, Ints]:
    """Start of every list, int64 [lists + 1], and the concatenated lists, int64 [.., width], or int64 [..] for width 1."""
    flat = np.array([row for group in rows for row in group], np.int64)
    return np.array([0, *accumulate(map(len, rows))], np.int64), flat.reshape(-1, width) if width > 1 else flat


def _stay(storage: int, writes: list[tuple[int, TensorSlice]], uses: list[tuple[int, TensorSlice]]) -> tuple[Allocation, list[Load]]:
    """Resident part of a storage, and its loads."""
    pieces = [piece for _, piece in writes + uses]
    plane = min(p.plane for p in pieces)
    planes = max(p.plane + p.planes for p in pieces) - plane
    loads = _missing(storage, plane, planes, writes, uses)
    birth = min([k for k, _ in writes] + [load.step for load in loads])
    return Allocation(storage, plane, planes, birth, max(k for k, _ in uses), *_accessing(writes, uses)), loads


def _accessing(writes: list[tuple[int, TensorSlice]], uses: list[tuple[int, TensorSlice]]) -> tuple[int, int]:
    """Operators that write and operators that read a storage, as bits."""
    makers, readers = (sum(1 << k for k in {k for k, _ in accesses}) for accesses in (writes, uses))
    return makers, readers


def _missing(
    storage: int, plane: int, planes: int, writes: list[tuple[int, TensorSlice]], uses: list[tuple[int, TensorSlice]]
) -> list[Load]:
    """Loads of planes that the segment reads but does not write; adjacent planes with the same first reader are one load."""
    step = [-1] * planes
    for k, piece in reversed(uses):
        for p in range(piece.plane, piece.plane + piece.planes):
            step[p - plane] = k
    for _, piece in writes:
        for p in range(piece.plane, piece.plane + piece.planes):
            step[p - plane] = -1
    out: list[Load] = []
    p = 0
    while p < planes:
        q = p
        while q < planes and step[q] == step[p]:
            q += 1
        if step[p] >= 0:
            out.append(Load(storage, plane + p, q - p, step[p]))
        p = q
    return out
