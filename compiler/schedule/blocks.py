"""Blocks: which rows of which tensors every block of a segment computes, loads and keeps, and what stays in L1.

Rows are followed backwards with `demand`, the hull taken over consumers.  What two blocks both need of a tensor, its halo, is made in
both of them; or, where an operator caches the halo of what it reads, in the first one, and stays in L1: the tensor's buffer is a ring
of rows, and a block makes or loads only what its predecessors did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from compiler.ir.region import EMPTY, Rows, demand
from compiler.tile.spec import ConvSpec, MatMulSpec, Piece, Unit

Share = tuple[int, int]  # (i, m): part i of m


@dataclass(frozen=True)
class Load:
    """Planes of a storage that a segment brings from DDR into the storage's L1 buffer, for every block."""

    storage: int
    plane: int
    planes: int
    step: int  # position in the segment of the first kernel that reads it


@dataclass(frozen=True)
class Staged:
    """A storage of which a segment keeps [plane, plane + planes) of the block's rows in L1.

    rows: what a block's readers and makers touch, per block.  fresh: those of them that a block has to load; where the halo is not cached,
    all of them.
    """

    storage: int
    plane: int
    planes: int
    birth: int
    death: int
    produced: bool  # some of it is written inside the segment
    rows: tuple[Rows, ...]
    fresh: tuple[Rows, ...]
    cached: bool

    def high(self, slots: int, images: int) -> int:
        """Rows of one buffer: of the highest block, or of a ring that holds `slots` consecutive blocks."""
        return _ring_rows(self.rows, slots, images > 1) if self.cached else max(r.size for r in self.rows)

    def ring_row(self, image: int, row: int) -> int:
        """Where a row stands in an endless ring: images follow each other."""
        first, last = _span(self.rows)
        return image * (last - first) + row - first


@dataclass(frozen=True)
class Blocks:
    """The blocks of a segment of kernels [start, stop).

    computed[k][t]: output rows of kernel start + k in block t; own[k][t]: those of them that go to DDR (empty where the output
    does not leave the segment); rows that nobody reads are in neither.  inside[k]: some kernel of the segment reads the output.
    carried[k]: its halo is cached, so that block t reads rows that block t - 1 made, and makes its own after it.
    """

    start: int
    stop: int
    count: int
    computed: tuple[tuple[Rows, ...], ...]
    own: tuple[tuple[Rows, ...], ...]
    inside: tuple[bool, ...]
    carried: tuple[bool, ...]
    staged: dict[int, Staged]
    loads: tuple[Load, ...]


def dealt(iterations: int, share: Share) -> range:
    """Part i of m nearly equal runs of a segment's iterations (every block of every image)."""
    i, m = share
    return range(iterations * i // m, iterations * (i + 1) // m)


def runs(blocks: int, images: int, cores: int) -> tuple[int, ...]:
    """Blocks with which some core begins: they find nothing cached."""
    return tuple(sorted({0} | {dealt(blocks * images, (i, cores)).start % blocks for i in range(cores)}))


def share(rows: Rows, block: int, blocks: int) -> Rows:
    """The rows of a block when `rows` are cut into `blocks` nearly equal parts."""
    return Rows(rows.start + rows.size * block // blocks, rows.start + rows.size * (block + 1) // blocks)


@lru_cache(maxsize=16)
def needed(unit: Unit) -> tuple[Rows, ...]:
    """Rows of every kernel's output that anybody reads, the host included: a stride may step over the last ones, a slice over most."""
    out = [EMPTY] * len(unit.kernels)
    main = [EMPTY] * len(unit.kernels)
    for spec in reversed(unit.kernels):
        k = spec.index
        rows = Rows(0, spec.out_h) if k in unit.escapes else EMPTY
        for c in unit.consumers[k]:
            rows = rows.hull(_wanted(_reads(unit, c, spec.y), main[c], out[c]))
        out[k] = rows
        main[k] = demand(spec.kernel, rows, spec.in_h)
    return tuple(out)


@lru_cache(maxsize=1 << 16)
def operand_rows(unit: Unit, kernel: int) -> tuple[Rows, ...]:
    """Rows of every operand that a kernel reads for the rows of its output that are needed."""
    spec, rows = unit.kernels[kernel], needed(unit)[kernel]
    main = demand(spec.kernel, rows, spec.in_h)
    return (main, *(_wanted((False, *_reads(unit, kernel, read)[1:]), main, rows) for read in spec.reads[1:]))


@lru_cache(maxsize=4096)
def cut(unit: Unit, start: int, stop: int, count: int, halo: int = 0, cores: int = 1) -> Blocks:
    """Rows and residences of kernels [start, stop) in `count` blocks.

    halo: bit k is set where kernel start + k caches the halo of what it reads.  cores: to how many the iterations are dealt.
    """
    begin = runs(count, unit.storages[unit.kernels[start].y.storage].n, cores)
    ring = _ring_storages(unit, start, stop, halo) if count > 1 else frozenset()
    kernels, whole = unit.kernels[start:stop], needed(unit)
    readers = [[c for c in unit.consumers[spec.index] if start <= c < stop] for spec in kernels]
    leaves = [spec.index in unit.escapes or len(readers[k]) < len(unit.consumers[spec.index]) for k, spec in enumerate(kernels)]
    computed: list[list[Rows]] = [[EMPTY] * count for _ in kernels]
    main: list[list[Rows]] = [[EMPTY] * count for _ in kernels]
    own: list[list[Rows]] = [[EMPTY] * count for _ in kernels]
    for k in range(len(kernels) - 1, -1, -1):
        spec = kernels[k]
        wanted = [(c - start, _reads(unit, c, spec.y)) for c in readers[k]]
        for t in range(count):
            rows = EMPTY
            if leaves[k]:
                rows = own[k][t] = share(whole[spec.index], t, count)
            for c, reads in wanted:
                rows = rows.hull(_wanted(reads, main[c][t], computed[c][t]))
            computed[k][t] = rows
        if readers[k] and spec.y.storage in ring:
            computed[k] = _fresh(computed[k], begin)
        main[k] = [demand(spec.kernel, rows, spec.in_h) for rows in computed[k]]
    inside = tuple(bool(r) for r in readers)
    staged, loads = _residence(unit, start, stop, count, computed, main, own, inside, ring, begin)
    carried = tuple(inside[k] and staged[spec.y.storage].cached for k, spec in enumerate(kernels))
    return Blocks(start, stop, count, tuple(map(tuple, computed)), tuple(map(tuple, own)), inside, carried, staged, loads)


@lru_cache(maxsize=1 << 16)
def _ring_storages(unit: Unit, start: int, stop: int, halo: int) -> frozenset[int]:
    """Storages that are kept in rings: where a reader caches its halo, and right operands, whose ring holds all of an image."""
    kernels = unit.kernels[start:stop]
    readers = (spec for k, spec in enumerate(kernels) if halo >> k & 1)
    rights = (spec.reads[1].storage for spec in kernels if isinstance(spec, MatMulSpec))
    return frozenset(piece.storage for spec in readers for piece in spec.reads).union(rights)


def _fresh(wanted: Sequence[Rows], begin: tuple[int, ...]) -> list[Rows]:
    """What every block has to make when all that its run still wants is kept: nothing twice in a run.  begin: first blocks of runs."""
    out: list[Rows] = []
    for first, last in zip(begin, (*begin[1:], len(wanted)), strict=True):
        lowest, low = [0] * (last - first), _NEVER
        for t in range(last - 1, first - 1, -1):
            if wanted[t].size:
                low = min(low, wanted[t].start)
            lowest[t - first] = low
        high = 0
        for t in range(first, last):
            rows = EMPTY
            if wanted[t].size and wanted[t].stop > high:
                rows = Rows(max(high, lowest[t - first]), wanted[t].stop)
                high = rows.stop
            out.append(rows)
    return out


_NEVER = 1 << 30


def _span(rows: Sequence[Rows]) -> tuple[int, int]:
    some = [r for r in rows if r.size]
    return min(r.start for r in some), max(r.stop for r in some)


@lru_cache(maxsize=1 << 14)
def _ring_rows(rows: tuple[Rows, ...], slots: int, again: bool) -> int:
    """Rows from the first that any of `slots` consecutive blocks, or a later one, reads to the last they make.  again: images follow."""
    first, last = _span(rows)
    low, high, lowest, highest = _NEVER, first, [0] * len(rows), [0] * len(rows)
    for t in range(len(rows) - 1, -1, -1):
        low = min(low, rows[t].start) if rows[t].size else low
        lowest[t] = min(low, last)
    for t, r in enumerate(rows):
        high = max(high, r.stop) if r.size else high
        highest[t] = high
    if again:
        for image in range(1, 1 + -(-slots // len(rows))):
            highest += [row + image * (last - first) for row in highest[: len(rows)]]
    return max(highest[min(t + slots, len(highest)) - 1] - lowest[t] for t in range(len(rows)))


@lru_cache(maxsize=1 << 16)
def _reads(unit: Unit, reader: int, piece: Piece) -> tuple[bool, bool, int]:
    """Whether kernel `reader` reads (some of) a piece as its main input, and as another operand; how many rows of it serve all rows."""
    spec = unit.kernels[reader]
    first, *others = spec.reads
    other = any(read.overlaps(piece) for read in others)
    height = unit.storages[piece.storage].h
    serves_all = other and (isinstance(spec, MatMulSpec) or height < spec.out_h)
    return first.overlaps(piece), other, height if serves_all else 0


def _wanted(reads: tuple[bool, bool, int], main: Rows, out: Rows) -> Rows:
    """Rows of a piece that a reader needs for its output rows; `main`: those of its main input."""
    as_main, as_other, for_all = reads
    if for_all and out.size:
        return main.hull(Rows(0, for_all)) if as_main else Rows(0, for_all)
    if as_main:
        return main.hull(out) if as_other else main
    return out if as_other else EMPTY


def _residence(
    unit: Unit,
    start: int,
    stop: int,
    count: int,
    computed: list[list[Rows]],
    main: list[list[Rows]],
    own: list[list[Rows]],
    inside: tuple[bool, ...],
    ring: frozenset[int],
    begin: tuple[int, ...],
) -> tuple[dict[int, Staged], tuple[Load, ...]]:
    """A storage is kept in L1 where the segment produces and reads it, or where a convolution reads it (CUBE is fed from L1 only)."""
    kernels = unit.kernels[start:stop]
    writes: dict[int, list[tuple[int, Piece]]] = {}
    reads: dict[int, list[tuple[int, Piece]]] = {}
    kept: set[int] = set()
    for k, spec in enumerate(kernels):
        for read in spec.reads:
            reads.setdefault(read.storage, []).append((k, read))
        if isinstance(spec, ConvSpec):
            kept.add(spec.reads[0].storage)
        if isinstance(spec, MatMulSpec):
            kept.add(spec.reads[1].storage)
        if inside[k]:
            writes.setdefault(spec.y.storage, []).append((k, spec.y))
            kept.add(spec.y.storage)
    staged: dict[int, Staged] = {}
    loads: list[Load] = []
    for storage in sorted(kept):
        made, used = writes.get(storage, []), reads.get(storage, [])
        pieces = [piece for _, piece in made + used]
        plane = min(p.plane for p in pieces)
        planes = max(p.plane + p.planes for p in pieces) - plane
        wanted = [(k, _reads(unit, start + k, piece)) for k, piece in used]
        touched = []
        for t in range(count):
            hull = EMPTY
            for k, reads_as in wanted:
                hull = hull.hull(_wanted(reads_as, main[k][t], computed[k][t]))
            for k, _ in made:
                # what a block hands out may have been made by an earlier one
                hull = hull.hull(computed[k][t]).hull(own[k][t])
            touched.append(hull)
        rows = tuple(touched)
        cached = storage in ring and _overlap(rows)
        new = _missing(storage, plane, planes, made, used)
        loads += new
        birth = min([k for k, _ in made] + [load.step for load in new])
        death = max(k for k, _ in used)
        fresh = tuple(_fresh(rows, begin)) if cached else rows
        staged[storage] = Staged(storage, plane, planes, birth, death, bool(made), rows, fresh, cached)
    return staged, tuple(sorted(loads, key=lambda load: (load.step, load.storage, load.plane)))


def _overlap(rows: Sequence[Rows]) -> bool:
    """Whether some row is touched by two blocks."""
    high = 0
    for r in rows:
        if r.size:
            if r.start < high:
                return True
            high = r.stop
    return False


def _missing(storage: int, plane: int, planes: int, made: list[tuple[int, Piece]], used: list[tuple[int, Piece]]) -> list[Load]:
    """Runs of planes that are read but not made here; those with the same first reader are loaded together."""
    step = [-1] * planes
    for k, piece in reversed(used):
        for p in range(piece.plane, piece.plane + piece.planes):
            step[p - plane] = k
    for _, piece in made:
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
