"""Blocks: the rows of every tensor that each block of a segment computes, loads and keeps, and the residence of tensors in L1.

`demand` maps rows backwards, from results to operands; a tensor with several consumers has the hull of their rows.  The halo of a tensor,
the rows that two blocks need, is computed in both blocks.  If an operator caches the halo of its input, the first block computes the halo,
and its rows stay in L1: the tensor's buffer is a ring of rows, and a block computes or loads only the rows that earlier blocks did not.

Rows are int64 [.., 2], (start, stop), empty if start >= stop.

Cached rows are not copied inside L1: a copy would cost a pass of MTE1 and a pass of MTE3.  Hazards in L1 are compared by single blocks of
32 bytes, since coarser granules delay loads of neighbouring rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.ir.reach import demanded
from compiler.ir.region import EMPTY, Rows, demand
from compiler.segment.operator_run import Load, reads, ring_storages, run_of, worked
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp, round_up

Share = tuple[int, int]  # (i, m): part i of m
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class BlockAllocation(NamedTuple):
    """Planes [plane, plane + planes) of a storage that a segment keeps in L1, for the rows of a block.

    birth, death, makers, readers, contiguous: see `operator_run.Allocation`.  cached: whether the buffer is a ring of rows.
    rows: int64 [blocks, 2], rows that a block's readers and makers touch.  fresh: int64 [blocks, 2], rows that a block has to load; all
    rows without a ring.  highest: number of rows of the highest block.  loaded: number of rows that all blocks of an image load.
    held: whether the storage is persistent (`segment.persistent`); then `highest` is the number of rows of all images.
    """

    storage: int
    plane: int
    planes: int
    birth: int
    death: int
    makers: int
    readers: int
    contiguous: bool
    rows: Ints
    fresh: Ints
    cached: bool
    highest: int
    loaded: int
    held: bool = False

    @property
    def produced(self) -> bool:
        """Whether the segment writes planes of the storage."""
        return self.makers > 0

    def high(self, slots: int, images: int) -> int:
        """Number of rows of one buffer: of the highest block, or of a ring that holds `slots` consecutive blocks.

        A ring for a right operand holds whole images one behind the other: no image wraps around the end of the ring.
        """
        if not self.cached:
            return self.highest
        ring = int(_ring_rows(self.rows, slots, images > 1))
        if not self.contiguous or images == 1:
            return ring
        first, last = row_span(self.rows)
        return round_up(ring, last - first)

    @property
    def made_again(self) -> bool:
        """Whether a block recomputes or reloads rows of a ring: the first block of a core's run does, in every image."""
        if not self.cached:
            return False
        before = np.maximum.accumulate(self.rows[:-1, 1])
        return bool(((self.fresh[1:, 0] < before) & (self.fresh[1:, 1] > self.fresh[1:, 0])).any())


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of a segment of operators [start, stop).

    count: number of blocks of an image.  computed: int64 [operators, count, 2], output rows that a block computes.
    ddr_rows: int64 [operators, count, 2], output rows that a block stores to DDR; empty if the output does not leave the segment, or is
    persistent.  Rows without a reader are in neither array.  highest: per operator, number of rows of its highest block, at least 1.
    sizes: int64 [operators, count + 1], number of computed rows of every block, and number of rows that all blocks of an image store.
    inside: per operator, whether an operator of the segment reads the output, or the output is persistent.
    carried: per operator, whether the output is a ring of rows: block t then depends on rows of block t - 1.
    streamed, fed: see `cut_blocks`.  until: see `operator_run.worked`.
    """

    start: int
    stop: int
    count: int
    streamed: int
    computed: Ints
    ddr_rows: Ints
    highest: tuple[int, ...]
    sizes: Ints
    inside: tuple[bool, ...]
    carried: tuple[bool, ...]
    allocations: dict[int, BlockAllocation]
    loads: tuple[Load, ...]
    fed: int
    until: tuple[int, ...]

    @property
    def held(self) -> int:
        """Persistent storages, as bits (see `cut_blocks`)."""
        return sum([1 << allocation.storage for allocation in self.allocations.values() if allocation.held])

    def rows(self, index: int) -> int:
        """Number of output rows of the highest block of operator `index`, at least 1."""
        return self.highest[index]

    @cached_property
    def heights(self) -> tuple[dict[int, int], ...]:
        """Per operator, number of rows -> number of blocks that compute this number of rows; blocks without rows are not counted."""
        rows = self.sizes[:, :-1].tolist()
        return tuple([{height: high.count(height) for height in dict.fromkeys(high) if height} for high in rows])

    @cached_property
    def stored(self) -> tuple[int, ...]:
        """Per operator, number of rows that all blocks of an image store to DDR."""
        return tuple(self.sizes[:, -1].tolist())


def share_iterations(iterations: int, share: Share) -> range:
    """Part i of m nearly equal runs of a segment's iterations (every block of every image)."""
    i, m = share
    return range(iterations * i // m, iterations * (i + 1) // m)


def run_starts(blocks: int, images: int, cores: int) -> tuple[int, ...]:
    """First block of every core's run: no row is cached when it begins."""
    return tuple(sorted({0} | {share_iterations(blocks * images, (i, cores)).start % blocks for i in range(cores)}))


@lru_cache(maxsize=1024)
def rows_needed(target_graph: TargetGraph) -> tuple[Rows, ...]:
    """Rows of every operator's output that operators or the host read: a stride may skip the last rows, a slice may skip most rows."""
    out = [EMPTY] * len(target_graph.operators)
    main = [EMPTY] * len(target_graph.operators)
    for spec in reversed(target_graph.operators):
        k = spec.index
        rows = Rows(0, spec.out_h) if k in target_graph.escapes else EMPTY
        for c in target_graph.consumers[k]:
            rows = rows.hull(Rows(*_wanted(*reads(target_graph, c, spec.y), *main[c], *out[c])))
        out[k] = rows
        main[k] = _main_rows(spec, rows)
    return tuple(out)


@lru_cache(maxsize=1024)
def _needed(target_graph: TargetGraph) -> Ints:
    """`rows_needed` as an array, int64 [operators, 2]."""
    rows = np.array(rows_needed(target_graph), np.int64)
    rows.flags.writeable = False
    return rows


@lru_cache(maxsize=1 << 14)
def _main_rows(spec: TargetOp, rows: Rows) -> Rows:
    """Rows of the main input that an operator reads for `rows` of its output."""
    return demand(spec.operator, rows, spec.in_h)


@lru_cache(maxsize=1 << 16)
def operand_rows(target_graph: TargetGraph, kernel: int) -> tuple[Rows, ...]:
    """Rows of every operand that an operator reads for the needed rows of its output."""
    spec, rows = target_graph.operators[kernel], rows_needed(target_graph)[kernel]
    main = _main_rows(spec, rows)
    operands = (reads(target_graph, kernel, read) for read in spec.reads[1:])
    return (main, *(Rows(*_wanted(False, as_other, serves, *main, *rows)) for _, as_other, serves in operands))


@lru_cache(maxsize=1024)
def _begins(blocks: int, images: int, cores: int) -> Ints:
    """`run_starts` as an array, int64 [runs]."""
    first_blocks = np.array(run_starts(blocks, images, cores), np.int64)
    first_blocks.flags.writeable = False
    return first_blocks


@lru_cache(maxsize=1 << 14)
def cut_blocks(
    target_graph: TargetGraph, start: int, stop: int, count: int, halo: int = 0, cores: int = 1, streamed: int = 0, held: int = 0,
    fed: int = 0
) -> Blocks:  # fmt: skip
    """Rows and residences of operators [start, stop) in `count` blocks.

    halo: bit k is set if operator start + k caches the halo of its input.  cores: number of cores that share the iterations.
    streamed: bit k is set if operator start + k fetches its right operand, a tensor, in chunks (`operator_run.streamed_rights`).
    held, fed: see `run_of`; as in a ring, no row of a persistent storage is computed twice.
    """
    run = run_of(target_graph, start, stop, streamed, held, fed)
    ring = ring_storages(target_graph, start, stop, halo, streamed) if count > 1 else ()
    rings = tuple([storage in ring or bool(held >> storage & 1) for storage in run.allocations])
    # without rings the first block of a core makes no difference
    return _laid_out(target_graph, start, stop, count, rings, cores if any(rings) else 1, streamed, held, fed)


@lru_cache(maxsize=4096)
def _laid_out(
    target_graph: TargetGraph, start: int, stop: int, count: int, rings: tuple[bool, ...], cores: int, streamed: int, held: int, fed: int
) -> Blocks:  # fmt: skip
    """Blocks of operators.  rings: per resident storage, whether its buffer is a ring."""
    run = run_of(target_graph, start, stop, streamed, held, fed)
    begin = _begins(count, target_graph.storages[target_graph.operators[start].y.storage].n, cores)
    rows, sizes = np.zeros((3, stop - start, count, 2), np.int64), np.zeros((stop - start, count + 1), np.int64)
    touch, sums = np.zeros((2, len(run.allocations), count, 2), np.int64), np.zeros((len(run.allocations), 3), np.int64)
    needed_rows, in_ring = _needed(target_graph)[start:stop], np.array(rings, np.bool_)
    _follow(run.reach, run.bounds, run.leaves, run.reader_start, run.readers, needed_rows, run.allocated, in_ring, begin, rows, sizes)
    _touch(run.use_start, run.uses, run.made_start, run.makers, in_ring, begin, rows, touch, sums)
    # persistent tensors are not stored
    for k, spec in enumerate(target_graph.operators[start:stop] if held else ()):
        if held >> spec.y.storage & 1:
            rows[2, k], sizes[k, -1] = 0, 0
    rows.flags.writeable = touch.flags.writeable = sizes.flags.writeable = False
    ring_sums, (all_touched, all_fresh) = sums.tolist(), touch
    allocations = {
        allocation.storage: (
            BlockAllocation(*allocation, touched, fresh, False, _rows_of_all(target_graph, allocation.storage), 0, True)
            if held >> allocation.storage & 1
            else BlockAllocation(*allocation, touched, fresh, bool(cached), highest, loaded)
        )
        for allocation, touched, fresh, (cached, highest, loaded) in zip(
            run.allocations.values(), all_touched, all_fresh, ring_sums, strict=True
        )
    }
    highest = tuple([max(1, *high) for *high, _ in sizes.tolist()])
    carried = tuple([place >= 0 and bool(ring_sums[place][0]) for place in run.allocated.tolist()])
    computed, _, stored = rows
    until = worked(target_graph, start, stop, fed)
    return Blocks(start, stop, count, streamed, computed, stored, highest, sizes, run.inside, carried, allocations, run.loads, fed, until)


def _rows_of_all(target_graph: TargetGraph, storage: int) -> int:
    """Number of rows of a plane in all images."""
    return target_graph.storages[storage].n * target_graph.storages[storage].h


@njit(cache=True)
def share_rows(start: int, stop: int, block: int, blocks: int) -> tuple[int, int]:
    """Rows of a block when rows [start, stop) are cut into `blocks` nearly equal parts."""
    size = max(0, stop - start)
    return start + size * block // blocks, start + size * (block + 1) // blocks


@njit(cache=True)
def _hull(start: int, stop: int, start_b: int, stop_b: int) -> tuple[int, int]:
    if stop <= start:
        return start_b, stop_b
    if stop_b <= start_b:
        return start, stop
    return min(start, start_b), max(stop, stop_b)


@njit(cache=True)
def _wanted(as_main: int, as_other: int, for_all: int, main: int, main_stop: int, out: int, out_stop: int) -> tuple[int, int]:
    """Rows of a slice that a reader needs for its output rows [out, out_stop) and rows [main, main_stop) of its main input.  as_main,
    as_other, for_all: see `operator_run.reads`."""
    if for_all and out_stop > out:
        if as_main:
            return _hull(main, main_stop, 0, for_all)
        return 0, for_all
    if as_main:
        if as_other:
            return _hull(main, main_stop, out, out_stop)
        return main, main_stop
    if as_other:
        return out, out_stop
    return 0, 0


@njit(cache=True)
def _follow(
    reach: Ints, bounds: Ints, leaves: Bools, reader_start: Ints, readers: Ints, needed_rows: Ints, allocated: Ints, rings: Bools,
    begin: Ints, rows: Ints, sizes: Ints,
) -> None:  # fmt: skip
    """Fill rows, int64 [3, operators, blocks, 2]: computed rows, rows of the main input, and stored rows; and `Blocks.sizes`."""
    computed, main, stored = rows[0], rows[1], rows[2]
    operators, count, _ = computed.shape
    for k in range(operators - 1, -1, -1):
        for t in range(count):
            a, b = 0, 0
            if leaves[k]:
                a, b = share_rows(needed_rows[k, 0], needed_rows[k, 1], t, count)
                stored[k, t, 0], stored[k, t, 1] = a, b
                sizes[k, count] += max(0, b - a)
            for i in range(reader_start[k], reader_start[k + 1]):
                c = readers[i, 0]
                first, last = main[c, t, 0], main[c, t, 1]
                first, last = _wanted(readers[i, 1], readers[i, 2], readers[i, 3], first, last, computed[c, t, 0], computed[c, t, 1])
                a, b = _hull(a, b, first, last)
            computed[k, t, 0], computed[k, t, 1] = a, b
        if allocated[k] >= 0 and rings[allocated[k]]:
            _once(computed[k], begin, computed[k])
        for t in range(count):
            sizes[k, t] = max(0, computed[k, t, 1] - computed[k, t, 0])
            main[k, t, 0], main[k, t, 1] = demanded(reach[k], bounds, computed[k, t, 0], computed[k, t, 1])


_NEVER = 1 << 30


@njit(cache=True)
def _once(wanted: Ints, begin: Ints, out: Ints) -> None:
    """Rows that every block computes if rows that later blocks of its run need are cached: a run computes no row twice.  begin: first block
    of every run."""
    blocks = wanted.shape[0]
    lowest = np.empty(blocks, np.int64)
    for r in range(begin.shape[0]):
        first, last = begin[r], begin[r + 1] if r + 1 < begin.shape[0] else blocks
        low = _NEVER
        for t in range(last - 1, first - 1, -1):
            if wanted[t, 1] > wanted[t, 0]:
                low = min(low, wanted[t, 0])
            lowest[t] = low
        high = 0
        for t in range(first, last):
            a, b = wanted[t, 0], wanted[t, 1]
            out[t, 0] = out[t, 1] = 0
            if b > a and b > high:
                out[t, 0], out[t, 1] = max(high, lowest[t]), b
                high = b


@njit(cache=True)
def _touch(
    use_start: Ints, uses: Ints, made_start: Ints, maker_of: Ints, rings: Bools, begin: Ints, rows: Ints, accesses: Ints, sums: Ints,
) -> None:  # fmt: skip
    """Fill accesses, int64 [2, storages, blocks, 2]: touched and fresh rows of every resident storage; and sums, int64 [storages, 3].

    sums: `cached`, `highest` and `loaded` of a `BlockAllocation`.  rows: see `_follow`.
    """
    computed, main, stored, touched, fresh = rows[0], rows[1], rows[2], accesses[0], accesses[1]
    storages, count, _ = touched.shape
    for s in range(storages):
        high: Any = np.int64(0)
        cached = False
        for t in range(count):
            a, b = 0, 0
            for i in range(use_start[s], use_start[s + 1]):
                k = uses[i, 0]
                first, last = main[k, t, 0], main[k, t, 1]
                first, last = _wanted(uses[i, 1], uses[i, 2], uses[i, 3], first, last, computed[k, t, 0], computed[k, t, 1])
                a, b = _hull(a, b, first, last)
            for i in range(made_start[s], made_start[s + 1]):
                k = maker_of[i]
                a, b = _hull(a, b, computed[k, t, 0], computed[k, t, 1])
                # a block may store rows that an earlier block computed
                a, b = _hull(a, b, stored[k, t, 0], stored[k, t, 1])
            touched[s, t, 0], touched[s, t, 1] = a, b
            fresh[s, t, 0], fresh[s, t, 1] = a, b
            if b > a:
                cached |= rings[s] and a < high  # some row is touched by two blocks
                high = b
                sums[s, 1] = max(sums[s, 1], b - a)
        if cached:
            _once(touched[s], begin, fresh[s])
        sums[s, 0] = cached
        for t in range(count):
            sums[s, 2] += max(0, fresh[s, t, 1] - fresh[s, t, 0])


@njit(cache=True)
def row_span(rows: Ints) -> tuple[int, int]:
    """First row of all blocks, and the end of the last row."""
    first, last = _NEVER, 0
    for t in range(rows.shape[0]):
        if rows[t, 1] > rows[t, 0]:
            first, last = min(first, rows[t, 0]), max(last, rows[t, 1])
    return first, last


@njit(cache=True)
def _ring_rows(rows: Ints, slots: int, repeats: bool) -> int:
    """Number of rows of a ring: from the first row that any of `slots` consecutive blocks, or a later block, reads to their last row.

    repeats: whether further images follow in the ring.
    """
    first, last = row_span(rows)
    blocks = rows.shape[0]
    images = 1 + (slots + blocks - 1) // blocks if repeats else 1
    lowest, highest = np.empty(blocks, np.int64), np.empty(blocks * images, np.int64)
    low, high = _NEVER, first
    for t in range(blocks - 1, -1, -1):
        if rows[t, 1] > rows[t, 0]:
            low = min(low, rows[t, 0])
        lowest[t] = min(low, last)
    for t in range(blocks):
        if rows[t, 1] > rows[t, 0]:
            high = max(high, rows[t, 1])
        for image in range(images):
            highest[image * blocks + t] = high + image * (last - first)
    ring_rows = 0
    for t in range(blocks):
        ring_rows = max(ring_rows, highest[min(t + slots, blocks * images) - 1] - lowest[t])
    return ring_rows
