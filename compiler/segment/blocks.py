"""Blocks: which rows of which tensors every block of a segment computes, loads and keeps, and what stays in L1.

Rows are followed backwards with `demand`, the hull taken over consumers.  What two blocks both need of a tensor, its halo, is made in
both of them; or, where an operator caches the halo of what it reads, in the first one, and stays in L1: the tensor's buffer is a ring
of rows, and a block makes or loads only what its predecessors did not.

Rows are int64 [.., 2], (start, stop), empty where start >= stop.
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
from compiler.target.target_op import TargetOp, rounded

Share = tuple[int, int]  # (i, m): part i of m
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class BlockAllocation(NamedTuple):
    """A storage of which a segment keeps [plane, plane + planes) of the block's rows in L1.

    makers, readers, contiguous: see `run.Allocation`.
    rows: int64 [blocks, 2], what a block's readers and makers touch.  fresh: those of them that a block has to load; where the halo is not
    cached, all of them.  highest: rows of the highest block.  loaded: rows that are loaded for all blocks of an image.
    held: it lies whole in L1 beyond the segment (`segment.persistent`); then `highest` are the rows of all images.
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
        """Whether some of it is written inside the segment."""
        return self.makers > 0

    def high(self, slots: int, images: int) -> int:
        """Rows of one buffer: of the highest block, or of a ring that holds `slots` consecutive blocks.

        A ring of whole images has the rows of each one behind the other, and no image that goes on at the ring's beginning.
        """
        if not self.cached:
            return self.highest
        ring = int(_ring_rows(self.rows, slots, images > 1))
        if not self.contiguous or images == 1:
            return ring
        first, last = span(self.rows)
        return rounded(ring, last - first)

    @property
    def made_again(self) -> bool:
        """Whether a block makes or loads rows of a ring that are there: the first one of a core's run does, for all images."""
        if not self.cached:
            return False
        before = np.maximum.accumulate(self.rows[:-1, 1])
        return bool(((self.fresh[1:, 0] < before) & (self.fresh[1:, 1] > self.fresh[1:, 0])).any())


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a segment of operators [start, stop).

    computed[k, t]: output rows of operator start + k in block t; own[k, t]: those of them that go to DDR (empty where the output
    does not leave the segment, or is held); rows that nobody reads are in neither.
    highest: per operator, rows of its highest block, at least 1.
    sizes: int64 [operators, count + 1], rows that blocks compute, and those that go to DDR in all blocks of an image.
    inside[k]: some operator of the segment reads the output, or it is held.
    carried[k]: its halo is cached, so that block t reads rows that block t - 1 made, and makes its own after it.  streamed, fed: see `cut`.
    until: see `run.worked`.
    """

    start: int
    stop: int
    count: int
    streamed: int
    computed: Ints
    own: Ints
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
        """Storages, as bits (see `cut`)."""
        return sum([1 << allocation.storage for allocation in self.allocations.values() if allocation.held])

    def rows(self, k: int) -> int:
        """Output rows of operator k's highest block, at least 1."""
        return self.highest[k]

    @cached_property
    def heights(self) -> tuple[dict[int, int], ...]:
        """Per operator, how many blocks compute so many rows; those that compute none are not counted."""
        rows = self.sizes[:, :-1].tolist()
        return tuple([{each: high.count(each) for each in dict.fromkeys(high) if each} for high in rows])

    @cached_property
    def stored(self) -> tuple[int, ...]:
        """Per operator, rows that go to DDR in all blocks of an image."""
        return tuple(self.sizes[:, -1].tolist())


def dealt(iterations: int, share: Share) -> range:
    """Part i of m nearly equal runs of a segment's iterations (every block of every image)."""
    i, m = share
    return range(iterations * i // m, iterations * (i + 1) // m)


def runs(blocks: int, images: int, cores: int) -> tuple[int, ...]:
    """Blocks with which some core begins: they find nothing cached."""
    return tuple(sorted({0} | {dealt(blocks * images, (i, cores)).start % blocks for i in range(cores)}))


@lru_cache(maxsize=1024)
def needed(target_graph: TargetGraph) -> tuple[Rows, ...]:
    """Rows of every operator's output that anybody reads, the host included: a stride may step over the last ones, a slice over most."""
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
    """`needed`, int64 [kernels, 2]."""
    found = np.array(needed(target_graph), np.int64)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=1 << 14)
def _main_rows(spec: TargetOp, rows: Rows) -> Rows:
    """Rows of its main input that an operator reads for rows of its output."""
    return demand(spec.operator, rows, spec.in_h)


@lru_cache(maxsize=1 << 16)
def operand_rows(target_graph: TargetGraph, kernel: int) -> tuple[Rows, ...]:
    """Rows of every operand that an operator reads for the rows of its output that are needed."""
    spec, rows = target_graph.operators[kernel], needed(target_graph)[kernel]
    main = _main_rows(spec, rows)
    others = (reads(target_graph, kernel, read) for read in spec.reads[1:])
    return (main, *(Rows(*_wanted(False, other, serves, *main, *rows)) for _, other, serves in others))


@lru_cache(maxsize=1024)
def _begins(blocks: int, images: int, cores: int) -> Ints:
    """`runs`, int64 [runs]."""
    found = np.array(runs(blocks, images, cores), np.int64)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=1 << 14)
def cut(
    target_graph: TargetGraph, start: int, stop: int, count: int, halo: int = 0, cores: int = 1, streamed: int = 0, held: int = 0,
    fed: int = 0
) -> Blocks:  # fmt: skip
    """Rows and residences of operators [start, stop) in `count` blocks.

    halo: bit k is set where operator start + k caches the halo of what it reads.  cores: to how many the iterations are dealt.
    streamed: bit k is set where operator start + k fetches its right operand, a tensor, in chunks (`run.streamed_rights`).
    held, fed: see `run_of`; no row of a storage that is held is made twice, as in rings.
    """
    run = run_of(target_graph, start, stop, streamed, held, fed)
    ring = ring_storages(target_graph, start, stop, halo, streamed) if count > 1 else ()
    rings = tuple([storage in ring or bool(held >> storage & 1) for storage in run.allocations])
    # without rings it is all the same with which block a core begins
    return _laid_out(target_graph, start, stop, count, rings, cores if any(rings) else 1, streamed, held, fed)


@lru_cache(maxsize=4096)
def _laid_out(
    target_graph: TargetGraph, start: int, stop: int, count: int, rings: tuple[bool, ...], cores: int, streamed: int, held: int, fed: int
) -> Blocks:  # fmt: skip
    """rings: which of the storages that stay are kept in rings."""
    run = run_of(target_graph, start, stop, streamed, held, fed)
    begin = _begins(count, target_graph.storages[target_graph.operators[start].y.storage].n, cores)
    rows, sizes = np.zeros((3, stop - start, count, 2), np.int64), np.zeros((stop - start, count + 1), np.int64)
    touch, sums = np.zeros((2, len(run.allocations), count, 2), np.int64), np.zeros((len(run.allocations), 3), np.int64)
    whole, in_ring = _needed(target_graph)[start:stop], np.array(rings, np.bool_)
    _follow(run.reach, run.bounds, run.leaves, run.reader_start, run.readers, whole, run.allocated, in_ring, begin, rows, sizes)
    _touch(run.use_start, run.uses, run.made_start, run.made, in_ring, begin, rows, touch, sums)
    for k, spec in enumerate(target_graph.operators[start:stop] if held else ()):
        if held >> spec.y.storage & 1:
            rows[2, k], sizes[k, -1] = 0, 0
    rows.flags.writeable = touch.flags.writeable = sizes.flags.writeable = False
    kept, (all_touched, all_fresh) = sums.tolist(), touch
    allocations = {
        allocation.storage: (
            BlockAllocation(*allocation, touched, fresh, False, _rows_of_all(target_graph, allocation.storage), 0, True)
            if held >> allocation.storage & 1
            else BlockAllocation(*allocation, touched, fresh, bool(cached), highest, loaded)
        )
        for allocation, touched, fresh, (cached, highest, loaded) in zip(
            run.allocations.values(), all_touched, all_fresh, kept, strict=True
        )
    }
    highest = tuple([max(1, *high) for *high, _ in sizes.tolist()])
    carried = tuple([at >= 0 and bool(kept[at][0]) for at in run.allocated.tolist()])
    computed, _, own = rows
    until = worked(target_graph, start, stop, fed)
    return Blocks(start, stop, count, streamed, computed, own, highest, sizes, run.inside, carried, allocations, run.loads, fed, until)


def _rows_of_all(target_graph: TargetGraph, storage: int) -> int:
    """Rows of a plane of all images."""
    return target_graph.storages[storage].n * target_graph.storages[storage].h


@njit(cache=True)
def share(start: int, stop: int, block: int, blocks: int) -> tuple[int, int]:
    """The rows of a block when rows [start, stop) are cut into `blocks` nearly equal parts."""
    size = max(0, stop - start)
    return start + size * block // blocks, start + size * (block + 1) // blocks


@njit(cache=True)
def _hull(a: int, b: int, c: int, d: int) -> tuple[int, int]:
    if b <= a:
        return c, d
    if d <= c:
        return a, b
    return min(a, c), max(b, d)


@njit(cache=True)
def _wanted(as_main: int, as_other: int, for_all: int, main: int, main_stop: int, out: int, out_stop: int) -> tuple[int, int]:
    """Rows of a piece that a reader needs (see `run.reads`) for its output rows; `main`: those of its main input."""
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
    reach: Ints,
    bounds: Ints,
    leaves: Bools,
    reader_start: Ints,
    readers: Ints,
    whole: Ints,
    allocated: Ints,
    rings: Bools,
    begin: Ints,
    rows: Ints,
    sizes: Ints,
) -> None:
    """Fills rows, int64 [3, operators, blocks, 2]: computed, main (of the main input) and own; and sizes, int64 [operators, blocks + 1]:
    rows computed in every block, and rows handed out in all."""
    computed, main, own = rows[0], rows[1], rows[2]
    operators, count, _ = computed.shape
    for k in range(operators - 1, -1, -1):
        for t in range(count):
            a, b = 0, 0
            if leaves[k]:
                a, b = share(whole[k, 0], whole[k, 1], t, count)
                own[k, t, 0], own[k, t, 1] = a, b
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
    """What every block has to make when all that its run still wants is kept: nothing twice in a run.  begin: first blocks of runs."""
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
    use_start: Ints,
    uses: Ints,
    made_start: Ints,
    made: Ints,
    rings: Bools,
    begin: Ints,
    rows: Ints,
    held: Ints,
    sums: Ints,
) -> None:
    """Fills held, int64 [2, storages, blocks, 2]: what is touched of every storage that stays, and what is fresh; and sums, int64
    [storages, 3]: whether it is cached, rows of the highest block, rows loaded.  rows: as `_follow` fills them."""
    computed, main, own, touched, fresh = rows[0], rows[1], rows[2], held[0], held[1]
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
                k = made[i]
                a, b = _hull(a, b, computed[k, t, 0], computed[k, t, 1])
                # what a block hands out may have been made by an earlier one
                a, b = _hull(a, b, own[k, t, 0], own[k, t, 1])
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
def span(rows: Ints) -> tuple[int, int]:
    """The first row of all blocks, and the one behind the last."""
    first, last = _NEVER, 0
    for t in range(rows.shape[0]):
        if rows[t, 1] > rows[t, 0]:
            first, last = min(first, rows[t, 0]), max(last, rows[t, 1])
    return first, last


@njit(cache=True)
def _ring_rows(rows: Ints, slots: int, again: bool) -> int:
    """Rows from the first that any of `slots` consecutive blocks, or a later one, reads to the last they make.  again: images follow."""
    first, last = span(rows)
    blocks = rows.shape[0]
    images = 1 + (slots + blocks - 1) // blocks if again else 1
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
    most = 0
    for t in range(blocks):
        most = max(most, highest[min(t + slots, blocks * images) - 1] - lowest[t])
    return most
