"""Compiler of one target graph: the stages from plan to program (`compiler.compiler_stages`), and caches of their results.

Shares that are not in the cache are drafted first, then written and scheduled in groups of about 4,096 records: the code and tables of one
step then stay in the processor's caches.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from compiler.codegen.lower_segment import DraftShare, Records, draft_segment, lower_draft, new_scratch
from compiler.codegen.shared_memory import find_disagreement
from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.schedule.equal_shares import EqualShares, ExampleShare
from compiler.schedule.segment_accesses import Footprint, Ints
from compiler.schedule.shared_memory_allocator import SharedPlaces, allocate_residents, resolve_addresses
from compiler.schedule.stream_writer import Schedule
from compiler.schedule.synchronize import Synchroniser
from compiler.segment.l1_limits import fits_l1, least_l1
from compiler.segment.memory_plan import segment_label
from compiler.segment.persistent import PersistentLayout, place_program
from compiler.segment.reorder import permute_to
from compiler.target.level_limits import l1_grants, within_l1
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.grant import Grant
from simulator.npu.parts import BLOCK_BYTES, Memory
from simulator.npu.program import Code, Program, on_chip_ends
from simulator.npu.shared_traffic import NO_TRAFFIC, SharedTraffic, shared_traffic
from simulator.npu.transfers import NO_TRANSFERS, Transfers, find_transfers

_DRAFTS = 1 << 11  # cached drafts
_TOGETHER = 1 << 12  # records of a group of shares that are lowered together: as many as the processor's caches hold
_KINDS = 4  # unequal shares of a segment that others are compared with
_Key = tuple[TargetGraph, int, bool, str, int, int, PersistentLayout | None]


@dataclass(frozen=True, eq=False)
class LoweredShare:
    """Share of one core in a segment.  staged: its ranges in the shared memory.  stored: its records; None if the compiler keeps none.

    l1_end: end in bytes of the L1 range that it uses; 0 if every level of the machine grants all of L1.  shared: its traffic with the
    shared memory.  transfers: those from and to DDR, on which the traffic of an L2 depends; none without one.
    """

    footprint: Footprint
    peak_bytes: dict[str, int]
    staged: Ints
    stored: Code | None
    l1_end: int = 0
    shared: SharedTraffic = NO_TRAFFIC
    transfers: Transfers = NO_TRANSFERS

    @property
    def code(self) -> Code:
        """Records of the share (see `codegen.lower_segment`).  Raises `ValueError` if the compiler keeps none."""
        if self.stored is None:
            raise ValueError("a compiler that keeps no records has none to link")
        return self.stored

    @cached_property
    def records(self) -> int:
        """Number of records."""
        return len(self.footprint.engine)

    @cached_property
    def moved(self) -> Ints:
        """int64: bytes read from DDR, bytes written to DDR, and the fields of `SharedTraffic`."""
        return np.array([self.footprint.read_bytes, self.footprint.written_bytes, *self.shared], np.int64)

    @cached_property
    def peaks(self) -> Ints:
        """int64: `peak_bytes` of L1, L0A, L0B, L0C and UB."""
        return np.array([self.peak_bytes[name] for name in ("L1", "L0A", "L0B", "L0C", "UB")], np.int64)

    @property
    def nbytes(self) -> int:
        return self.footprint.nbytes + self.transfers.nbytes + (0 if self.stored is None else self.stored.nbytes)


class ScheduledShare(NamedTuple):
    """One core's share of a segment in a program.  place: its index in the plan.  flip: see `segment.memory_plan.place_segment`."""

    segment: int
    core: int
    lowered: LoweredShare
    place: int
    flip: bool


class _Share(NamedTuple):
    """Share of a segment to lower, for core `core` of the machine.  place: index of that core in the plan."""

    target_graph: TargetGraph
    plan: SegmentPlan
    start: int
    flip: bool
    place: int
    core: int
    held: PersistentLayout | None
    key: _Key

    @classmethod
    def of(
        cls, target_graph: TargetGraph, plan: SegmentPlan, start: int, flip: bool, place: int, core: int, held: PersistentLayout | None
    ) -> _Share:
        return cls(target_graph, plan, start, flip, place, core, held, (target_graph, start, flip, plan.key, place, len(plan.cores), held))

    @property
    def segment_key(self) -> tuple[Any, ...]:
        """Key without the end of memory and the core."""
        return (*self.key[:2], self.key[3], *self.key[5:])


class Compiler:
    """Compiler of plans of one target graph.  It caches lowered segments by (plan, place), so a mutated plan lowers only its changed
    segments.

    records: False if only times are needed: records are two thirds of a segment's memory, and programs cannot be linked without them.
    transfers: whether shares have transfers also on a machine without an L2: a clock may have one.
    """

    def __init__(self, target_graph: TargetGraph, cache_bytes: int = 512 << 20, records: bool = True, transfers: bool = False) -> None:
        self.target_graph, self.records = target_graph, records
        self._transfers = transfers or target_graph.machine.l2 is not None
        self.synchroniser = Synchroniser(target_graph)
        # data in the shared memory are named by addresses of DDR that no record shows
        self._equal_shares = None if target_graph.machine.shared else EqualShares(target_graph, self.synchroniser.footprints)
        self._grants = any(
            target_graph.machine.granted(level) != target_graph.machine.full_grant for level in target_graph.machine.contention
        )
        self._least: dict[tuple[TargetGraph, int, str, int], int] = {}
        self._scratch = new_scratch(_TOGETHER)
        self._cache = OrderedDict[_Key, LoweredShare | Infeasible]()
        self._cached_bytes = 0
        self._cache_bytes = cache_bytes
        self._drafts = OrderedDict[
            tuple[TargetGraph, int, str, int, int, PersistentLayout | None], DraftShare
        ]()  # drafts of shares that were lowered with one flip

    def segment(self, plan: SegmentPlan, start: int) -> LoweredShare | Infeasible:
        """Sequential records of the first core's share of the segment whose first operator is `start`."""
        return self._lowered(_Share.of(self.target_graph, plan, start, False, 0, 0, None))

    def _lowered(self, share: _Share) -> LoweredShare | Infeasible:
        lowered = self._cache.get(share.key)
        if lowered is None:
            return self._lower([share])[share.key]
        self._cache.move_to_end(share.key)
        return lowered

    def _lower(self, shares: Sequence[_Share]) -> dict[_Key, LoweredShare | Infeasible]:
        """Step by step, each for all of them before the next one: a step's code and tables stay in the processor's caches meanwhile."""
        drafts = list[DraftShare | Infeasible]()
        for k, share in enumerate(shares):
            # the share before is mostly another core's of the same segment
            sibling = drafts[-1] if k and shares[k - 1].segment_key == share.segment_key else None
            drafts.append(self._draft(share, sibling))
        written, used, lowered = list[tuple[_Share, Records | Infeasible]](), 0, dict[_Key, LoweredShare | Infeasible]()
        examples = defaultdict[tuple[int, str, bool], list[ExampleShare]](list)
        for share, draft in zip(shares, drafts, strict=True):
            records: Records | Infeasible = draft if isinstance(draft, Infeasible) else lower_draft(draft, share.flip, self._scratch[used:])
            written.append((share, records))
            used += 0 if isinstance(records, Infeasible) else len(records.code)
            if used >= _TOGETHER:
                lowered |= self._store_in_cache(written, examples)
                written, used = [], 0
        return lowered | self._store_in_cache(written, examples)

    def _draft(self, share: _Share, sibling: DraftShare | Infeasible | None) -> DraftShare | Infeasible:
        """Draft of a share.  sibling: of another core's share of the same segment."""
        key = share.key[:2] + share.key[3:]
        draft = self._drafts.pop(key, None)  # draft of the same share with the other flip
        if draft is not None:
            return draft
        sibling = sibling if isinstance(sibling, DraftShare) else None
        new_draft = draft_segment(share.target_graph, share.plan, share.start, share.place, share.held, sibling)
        if isinstance(new_draft, DraftShare):
            self._drafts[key] = new_draft
            if len(self._drafts) > _DRAFTS:
                self._drafts.popitem(last=False)
        return new_draft

    def _store_in_cache(
        self, written: Sequence[tuple[_Share, Records | Infeasible]], examples: Mapping[tuple[int, str, bool], list[ExampleShare]]
    ) -> dict[_Key, LoweredShare | Infeasible]:
        """Store lowered shares in the cache; the oldest ones are dropped if it is full.  examples: unequal shares of each segment."""
        lowered_shares = {
            share.key: self._kept(records, share.plan, examples[share.start, share.plan.key, share.flip]) for share, records in written
        }
        for key, lowered in lowered_shares.items():
            self._cache[key] = lowered
            self._cached_bytes += _nbytes(lowered)
            while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
                self._cached_bytes -= _nbytes(self._cache.popitem(last=False)[1])
        return lowered_shares

    def _kept(self, records: Records | Infeasible, plan: SegmentPlan, examples: list[ExampleShare]) -> LoweredShare | Infeasible:
        if isinstance(records, Infeasible):
            return records
        machine = self.target_graph.machine
        l1_end = on_chip_ends(records.code)[0] if self._grants else 0
        footprint, order, transfers = self._footprint(records.code, plan, examples)
        shared = NO_TRAFFIC if machine.shared is None else shared_traffic([records.code])
        code = records.code.take(order, 0) if self.records else None
        return LoweredShare(footprint, records.peak_bytes, records.staged, code, l1_end, shared, transfers)

    def _footprint(self, code: Code, plan: SegmentPlan, examples: list[ExampleShare]) -> tuple[Footprint, Ints, Transfers]:
        """Footprint of a share, the order of its records, and `LoweredShare.transfers`; from an equal share if there is one."""
        if self._equal_shares is not None:
            for share in examples:
                if (footprint := self._equal_shares.footprint(code, share)) is not None:
                    return footprint, share.order, share.transfers.moved_to(code, share.order)
        overtake = plan.overtake and not (plan.shared or plan.staged)  # copies to the shared memory have one order on all cores
        footprint, order = self.synchroniser.footprints.listed(code, plan.lookahead, overtake, plan.urgent)
        transfers = find_transfers(code.take(order, 0)) if self._transfers else NO_TRANSFERS
        if len(plan.cores) > 1 and len(examples) < _KINDS:
            examples.append(ExampleShare(code.copy(), order, footprint, transfers))
        return footprint, order, transfers

    def compile(self, plan: Plan) -> Program | Infeasible:
        """Program of a whole plan: the same plan gives the same bytes."""
        parts = self.parts(plan)
        return parts if isinstance(parts, Infeasible) else self.link(parts)

    def link(self, parts: Sequence[ScheduledShare]) -> Program:
        """Program of parts in the given order.  Parts of a single segment give the program that a task measures."""
        codes, segments = [part.lowered.code for part in parts], [part.segment for part in parts]
        streams = self.synchroniser.write(self.schedule(parts), codes, segments)
        places = places_of(parts)
        for stream in streams:
            resolve_addresses(stream, places)
        machine = self.target_graph.machine
        idle = np.zeros((0, isa.WORDS), np.int32)
        return Program(machine.digest, (*streams, *(idle for _ in range(machine.cores - len(streams)))), self.target_graph.memory)

    def schedule(self, parts: Sequence[ScheduledShare], by: Synchroniser | None = None) -> Schedule:
        """Schedule of the program of `link`, valid until the next call.  by: another synchroniser of the same target graph."""
        footprints, cores, segments = [p.lowered.footprint for p in parts], [p.core for p in parts], [p.segment for p in parts]
        return (by or self.synchroniser).schedule(footprints, cores, segments, places_of(parts))

    def parts(self, plan: Plan) -> list[ScheduledShare] | Infeasible:
        """Lowered shares of all segments, or why the first segment does not fit.  Any topological order of the operators is accepted."""
        target_graph = permute_to(self.target_graph, [name for segment in plan.segments for name in segment.operators])
        if isinstance(target_graph, Infeasible):
            return target_graph
        segments = with_starts(plan)
        conflict = find_disagreement(target_graph, segments)
        return conflict if conflict is not None else self._fitting(_join_parts(self.by_segment(target_graph, segments)))

    def some(self, segments: Sequence[tuple[SegmentPlan, int]]) -> list[ScheduledShare] | Infeasible:
        """Segments in a topological order, each with its first operator, on the cores of their plans: a stage of a plan."""
        return self._fitting(_join_parts(self.by_segment(self.target_graph, segments)))

    def by_segment(
        self, target_graph: TargetGraph, segments: Iterable[tuple[SegmentPlan, int]]
    ) -> Iterator[list[ScheduledShare] | Infeasible]:
        """Lowered shares as in `parts`, one entry per segment.  A segment that does not fit does not affect later segments.

        target_graph: the compiler's, possibly in another order.  Every segment fits the smallest L1 that a level grants and that can hold
        it.
        """
        segments = list(segments)
        target_graph, holding = self.within(target_graph, segments)
        if isinstance(holding, Infeasible):
            yield from [holding] * len(segments)
            return
        shares, lowered = self._plan_shares(target_graph, [(plan, start, plan.cores) for plan, start in segments], holding)
        ends = self._ends()
        for index, segment_shares in enumerate(shares):
            parts = self._parts(index, segment_shares, lowered, ends)
            if isinstance(parts, Infeasible):
                parts = Infeasible(f"segment {index}, {parts.where.removeprefix('segment ')}", parts.reason)
            else:
                for part in parts:
                    ends[part.core] = part.flip
            yield parts

    def within(
        self, target_graph: TargetGraph, segments: Sequence[tuple[SegmentPlan, int]]
    ) -> tuple[TargetGraph, Sequence[PersistentLayout | None] | Infeasible]:
        """Target graph limited to the smallest L1 that a level grants and that can hold each segment together with the tensors held
        meanwhile."""
        if not self._grants:
            return target_graph, place_program(target_graph, segments)
        least = max((self._least_l1(target_graph, *segment) for segment in segments), default=target_graph.machine.full_grant.l1_bytes)
        for size in [size for size in l1_grants(target_graph.machine) if size >= least]:
            less = within_l1(target_graph, size)
            holding = place_program(less, segments)
            if size == target_graph.machine.full_grant.l1_bytes or (
                not isinstance(holding, Infeasible) and _all_fit(less, segments, holding)
            ):
                return less, holding
        raise AssertionError("the last grant is all of L1")

    def alone(self, plan: SegmentPlan, start: int) -> list[ScheduledShare] | Infeasible:
        """Shares of a segment as it is measured for itself: on cores from 0 on, from the bottom of L1."""
        if plan.same_end:
            plan = plan.model_copy(update={"same_end": False})
        target_graph = within_l1(self.target_graph, self._least_l1(self.target_graph, plan, start))
        (shares,), lowered = self._plan_shares(target_graph, [(plan, start, range(len(plan.cores)))], [None])
        return self._fitting(self._parts(0, shares, lowered, self._ends()))

    def _least_l1(self, target_graph: TargetGraph, plan: SegmentPlan, start: int) -> int:
        """`segment.l1_limits.least_l1`, cached."""
        if not self._grants:
            return target_graph.machine.full_grant.l1_bytes
        key = (target_graph, start, plan.key, len(plan.cores))
        if key not in self._least:
            self._least[key] = least_l1(target_graph, plan, start)
        return self._least[key]

    def _fitting(self, parts: list[ScheduledShare] | Infeasible) -> list[ScheduledShare] | Infeasible:
        """Parts, where their tensors fit the shared memory."""
        if isinstance(parts, Infeasible):
            return parts
        need, capacity = places_of(parts).need, self.target_graph.machine.buffer_blocks(Memory.SHARED)
        if need > capacity:
            return Infeasible("shared memory", f"needs {need * BLOCK_BYTES:,} B, the machine has {capacity * BLOCK_BYTES:,}")
        return parts

    def _plan_shares(
        self,
        target_graph: TargetGraph,
        segments: Sequence[tuple[SegmentPlan, int, Sequence[int]]],
        holding: Sequence[PersistentLayout | None],
    ) -> tuple[list[list[_Share] | Infeasible], dict[_Key, LoweredShare | Infeasible]]:
        """Shares of a program's segments by segment, and the shares that are lowered now, if all fit and have work.

        Neighbours on a core use opposite ends of its memories, unless the plan says `same_end`.  If a share has no work, later shares use
        other ends than assumed here; those are lowered when they are needed.
        """
        by_segment, missing, ends = list[list[_Share] | Infeasible](), list[_Share](), self._ends()
        for (plan, start, cores), held in zip(segments, holding, strict=True):
            if max(cores) >= len(ends):
                by_segment.append(Infeasible(segment_label(plan), f"core {max(cores)}: the machine has cores 0..{len(ends) - 1}"))
                continue
            segment_shares = [
                _Share.of(target_graph, plan, start, ends[core] == plan.same_end, place, core, held) for place, core in enumerate(cores)
            ]
            missing += [share for share in segment_shares if share.key not in self._cache]
            for share in segment_shares:
                ends[share.core] = share.flip
            by_segment.append(segment_shares)
        return by_segment, self._lower(missing)

    def _ends(self) -> list[bool]:
        """Per core, whether its previous part starts from the top of memory.  True before the first part, which starts from the bottom."""
        return [True] * self.target_graph.machine.cores

    def _parts(
        self,
        index: int,
        shares: Sequence[_Share] | Infeasible,
        known_shares: Mapping[_Key, LoweredShare | Infeasible],
        ends: Sequence[bool],
    ) -> list[ScheduledShare] | Infeasible:
        """Lowered shares of a segment that have work.  known_shares: some that are lowered.  ends: see `_ends`."""
        if isinstance(shares, Infeasible):
            return shares
        parts = []
        for share in shares:
            flip = ends[share.core] == share.plan.same_end
            if flip != share.flip:
                share = _Share.of(*share[:3], flip, *share[4:7])
            lowered = known_shares[share.key] if share.key in known_shares else self._lowered(share)
            if isinstance(lowered, Infeasible):
                return lowered
            if lowered.records:
                parts.append(ScheduledShare(index, share.core, lowered, share.place, flip))
        return parts


def _all_fit(target_graph: TargetGraph, segments: Sequence[tuple[SegmentPlan, int]], holding: Sequence[PersistentLayout | None]) -> bool:
    """Whether every segment fits together with the tensors held meanwhile.  Segments without held tensors are known to fit."""
    pairs = zip(segments, holding, strict=True)
    return all(held is None or fits_l1(target_graph, plan, start, held) for (plan, start), held in pairs)


def needs_of(parts: Sequence[ScheduledShare]) -> Grant:
    """`Program.needs` of the program that `link` makes of them; 0 of L1 where no level grants less than all."""
    l1, cores = max([part.lowered.l1_end for part in parts], default=0), 1 + max([part.core for part in parts], default=0)
    return Grant(l1, places_of(parts).need * BLOCK_BYTES, cores)


def places_of(parts: Sequence[ScheduledShare]) -> SharedPlaces:
    """Addresses of tensors in the shared memory."""
    return allocate_residents([(part.segment, part.lowered.staged) for part in parts if len(part.lowered.staged)])


def with_starts(plan: Plan) -> list[tuple[SegmentPlan, int]]:
    """Segments, each with its first operator."""
    return list(zip(plan.segments, accumulate((len(segment.operators) for segment in plan.segments), initial=0), strict=False))


def _join_parts(segments: Iterable[list[ScheduledShare] | Infeasible]) -> list[ScheduledShare] | Infeasible:
    """All parts; the reason of the first segment that does not fit, if there is one."""
    parts = list[ScheduledShare]()
    for segment_parts in segments:
        if isinstance(segment_parts, Infeasible):
            return segment_parts
        parts += segment_parts
    return parts


def _nbytes(part: LoweredShare | Infeasible) -> int:
    return part.nbytes if isinstance(part, LoweredShare) else 0
