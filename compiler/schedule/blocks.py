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

from compiler.ir.region import EMPTY, Rows, demand, demanded
from compiler.schedule.run import Load, reads, ring_storages, run_of
from compiler.tile.spec import AnySpec, Unit

Share = tuple[int, int]  # (i, m): part i of m
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Staged:
    """A storage of which a segment keeps [plane, plane + planes) of the block's rows in L1.

    makers, readers: operators of the segment that write and read it, as bits.
    rows: int64 [blocks, 2], what a block's readers and makers touch.  fresh: those of them that a block has to load; where the halo is not
    cached, all of them.
    """

    storage: int
    plane: int
    planes: int
    birth: int
    death: int
    makers: int
    readers: int
    rows: Ints
    fresh: Ints
    cached: bool

    @property
    def produced(self) -> bool:
        """Whether some of it is written inside the segment."""
        return self.makers > 0

    def high(self, slots: int, images: int) -> int:
        """Rows of one buffer: of the highest block, or of a ring that holds `slots` consecutive blocks."""
        return int(_ring_rows(self.rows, slots, images > 1)) if self.cached else max(self.heights)

    @cached_property
    def heights(self) -> list[int]:
        """Rows of every block."""
        found: list[int] = np.maximum(self.rows[:, 1] - self.rows[:, 0], 0).tolist()
        return found

    @cached_property
    def made_again(self) -> bool:
        """Whether a block makes or loads rows of a ring that are there: the first one of a core's run does, for all images."""
        if not self.cached:
            return False
        before = np.maximum.accumulate(self.rows[:-1, 1])
        return bool(((self.fresh[1:, 0] < before) & (self.fresh[1:, 1] > self.fresh[1:, 0])).any())

    @cached_property
    def loaded(self) -> int:
        """Rows that are loaded for all blocks of an image."""
        return int(np.maximum(self.fresh[:, 1] - self.fresh[:, 0], 0).sum())


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a segment of kernels [start, stop).

    computed[k, t]: output rows of kernel start + k in block t; own[k, t]: those of them that go to DDR (empty where the output
    does not leave the segment); rows that nobody reads are in neither.  inside[k]: some kernel of the segment reads the output.
    carried[k]: its halo is cached, so that block t reads rows that block t - 1 made, and makes its own after it.  streamed: see `cut`.
    """

    start: int
    stop: int
    count: int
    streamed: int
    computed: Ints
    own: Ints
    inside: tuple[bool, ...]
    carried: tuple[bool, ...]
    staged: dict[int, Staged]
    loads: tuple[Load, ...]

    @cached_property
    def heights(self) -> list[dict[int, int]]:
        """Per operator, how many blocks compute so many rows; those that compute none are not counted."""
        sizes = np.maximum(self.computed[:, :, 1] - self.computed[:, :, 0], 0).tolist()
        found: list[dict[int, int]] = [{} for _ in sizes]
        for counts, row in zip(found, sizes, strict=True):
            for rows in row:
                if rows:
                    counts[rows] = counts.get(rows, 0) + 1
        return found

    @cached_property
    def stored(self) -> list[int]:
        """Per operator, rows that go to DDR in all blocks of an image."""
        found: list[int] = np.maximum(self.own[:, :, 1] - self.own[:, :, 0], 0).sum(1).tolist()
        return found

    def rows(self, k: int) -> int:
        """Output rows of operator k's highest block, at least 1."""
        return max(self.heights[k], default=1)


def dealt(iterations: int, share: Share) -> range:
    """Part i of m nearly equal runs of a segment's iterations (every block of every image)."""
    i, m = share
    return range(iterations * i // m, iterations * (i + 1) // m)


def runs(blocks: int, images: int, cores: int) -> tuple[int, ...]:
    """Blocks with which some core begins: they find nothing cached."""
    return tuple(sorted({0} | {dealt(blocks * images, (i, cores)).start % blocks for i in range(cores)}))


@lru_cache(maxsize=1024)
def needed(unit: Unit) -> tuple[Rows, ...]:
    """Rows of every kernel's output that anybody reads, the host included: a stride may step over the last ones, a slice over most."""
    out = [EMPTY] * len(unit.kernels)
    main = [EMPTY] * len(unit.kernels)
    for spec in reversed(unit.kernels):
        k = spec.index
        rows = Rows(0, spec.out_h) if k in unit.escapes else EMPTY
        for c in unit.consumers[k]:
            rows = rows.hull(Rows(*_wanted(*reads(unit, c, spec.y), *main[c], *out[c])))
        out[k] = rows
        main[k] = _main_rows(spec, rows)
    return tuple(out)


@lru_cache(maxsize=1024)
def _needed(unit: Unit) -> Ints:
    """`needed`, int64 [kernels, 2]."""
    found = np.array(needed(unit), np.int64)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=1 << 14)
def _main_rows(spec: AnySpec, rows: Rows) -> Rows:
    """Rows of its main input that an operator reads for rows of its output."""
    return demand(spec.kernel, rows, spec.in_h)


@lru_cache(maxsize=1 << 16)
def operand_rows(unit: Unit, kernel: int) -> tuple[Rows, ...]:
    """Rows of every operand that a kernel reads for the rows of its output that are needed."""
    spec, rows = unit.kernels[kernel], needed(unit)[kernel]
    main = _main_rows(spec, rows)
    others = (reads(unit, kernel, read) for read in spec.reads[1:])
    return (main, *(Rows(*_wanted(False, other, serves, *main, *rows)) for _, other, serves in others))


@lru_cache(maxsize=1024)
def _begins(blocks: int, images: int, cores: int) -> Ints:
    """`runs`, int64 [runs]."""
    found = np.array(runs(blocks, images, cores), np.int64)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=4096)
def cut(unit: Unit, start: int, stop: int, count: int, halo: int = 0, cores: int = 1, streamed: int = 0) -> Blocks:
    """Rows and residences of kernels [start, stop) in `count` blocks.

    halo: bit k is set where kernel start + k caches the halo of what it reads.  cores: to how many the iterations are dealt.
    streamed: bit k is set where kernel start + k fetches its right operand, a tensor, in chunks (`run.streamed_rights`).
    """
    run = run_of(unit, start, stop, streamed)
    begin = _begins(count, unit.storages[unit.kernels[start].y.storage].n, cores)
    ring = ring_storages(unit, start, stop, halo, streamed) if count > 1 else frozenset[int]()
    rings = np.array([storage in ring for storage in run.stays], np.bool_)
    rows = _rows(stop - start, len(run.stays), count)
    whole = _needed(unit)[start:stop]
    remakes = np.array([home >= 0 and bool(rings[home]) for home in run.homes], np.bool_)
    _follow(run.reach, run.bounds, run.leaves, run.reader_start, run.readers, whole, remakes, begin, *rows[:3])
    cached = np.empty(len(run.stays), np.bool_)
    _touch(run.use_start, run.uses, run.made_start, run.made, rings, begin, *rows, cached)
    for array in rows:
        array.flags.writeable = False
    kept = cached.tolist()
    staged = {
        stay.storage: Staged(*stay, touched, fresh, in_ring)
        for stay, touched, fresh, in_ring in zip(run.stays.values(), rows.touched, rows.fresh, kept, strict=True)
    }
    carried = tuple(home >= 0 and kept[home] for home in run.homes)
    return Blocks(start, stop, count, streamed, rows.computed, rows.own, run.inside, carried, staged, run.loads)


class _Rows(NamedTuple):
    """int64 [operators, blocks, 2], and [storages, blocks, 2] of those that stay."""

    computed: Ints
    main: Ints
    own: Ints
    touched: Ints
    fresh: Ints


def _rows(operators: int, storages: int, blocks: int) -> _Rows:
    return _Rows(*(np.zeros((size, blocks, 2), np.int64) for size in (operators, operators, operators, storages, storages)))


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
    remakes: Bools,
    begin: Ints,
    computed: Ints,
    main: Ints,
    own: Ints,
) -> None:
    """Fills computed, main (the rows of the main input) and own.  remakes: whose output is kept in a ring."""
    operators, count, _ = computed.shape
    for k in range(operators - 1, -1, -1):
        for t in range(count):
            a, b = 0, 0
            if leaves[k]:
                a, b = share(whole[k, 0], whole[k, 1], t, count)
                own[k, t, 0], own[k, t, 1] = a, b
            for i in range(reader_start[k], reader_start[k + 1]):
                c = readers[i, 0]
                first, last = main[c, t, 0], main[c, t, 1]
                first, last = _wanted(readers[i, 1], readers[i, 2], readers[i, 3], first, last, computed[c, t, 0], computed[c, t, 1])
                a, b = _hull(a, b, first, last)
            computed[k, t, 0], computed[k, t, 1] = a, b
        if remakes[k]:
            _once(computed[k], begin, computed[k])
        for t in range(count):
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
    computed: Ints,
    main: Ints,
    own: Ints,
    touched: Ints,
    fresh: Ints,
    cached: Bools,
) -> None:
    """Fills touched, fresh and cached of every storage that stays."""
    storages, count, _ = touched.shape
    for s in range(storages):
        high: Any = np.int64(0)
        cached[s] = False
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
                cached[s] |= rings[s] and a < high  # some row is touched by two blocks
                high = b
        if cached[s]:
            _once(touched[s], begin, fresh[s])


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
