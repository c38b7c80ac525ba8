"""Streams of the levels of a machine: of each, those of the plans whose cycles are the fewest at its share and latency of DRAM.

Plans of all levels are candidates of each, in the SRAM that it is granted; of those, layouts that move many more bytes than another are
none.  Constants of all are held to little more than those of one level: a candidate that would take more room is none.  Levels with the
least SRAM come first, so what is there already fits the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from compiler.ethosu.constant_pool import ConstantPool
from compiler.ethosu.early_copies import copy_early
from compiler.ethosu.machine_clock import memories_of
from compiler.ethosu.network_layout import NetworkLayout
from compiler.ethosu.network_parts import CompiledNetwork, LaidOutNetwork, LoweredParts, emit_network, lay_out_parts, lower_parts
from compiler.ethosu.plan_mapping import PlanNames, map_plan
from compiler.ethosu.segments import StreamPlan
from compiler.ethosu.store_places import CONSTANTS
from compiler.ethosu.weight_blobs import BlobKey, WeightBlob
from compiler.frontend.tflite.network import TfliteNetwork
from compiler.plan.plan import Plan
from simulator.ethosu.operation_work import COPY
from simulator.ethosu.stream_cycles import DecodedStream, decode_stream, stream_times
from simulator.npu.errors import InfeasibleError
from simulator.npu.level import Level
from simulator.npu.machine import Machine

GROWTH = 1.05
"""Constants of the streams of all levels, as a multiple of those of the first; words come on top."""
_MORE_BYTES = 1.02
"""Bytes of a layout that is a candidate, as a multiple of those of the one that moves the fewest in the same SRAM."""


@dataclass(frozen=True, eq=False)
class LevelStreams:
    """Streams of a model.  variants: different ones, the first that of the level with the least of SRAM, then of DRAM.

    levels: the variant of each.  cycles: of each level, with its variant.  decoded: streams of each variant.
    """

    variants: tuple[CompiledNetwork, ...]
    levels: Mapping[str, int]
    cycles: Mapping[str, int]
    decoded: tuple[tuple[DecodedStream, ...], ...]

    def of(self, level: str) -> CompiledNetwork:
        """The streams of a level."""
        return self.variants[self.levels[level]]


class StreamCounters(NamedTuple):
    """Of an inference: cycles, those of blocks, and those in which the port of DRAM is taken."""

    cycles: int
    compute: int
    moving: int


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A layout, and its streams by themselves with their constants."""

    laid_out: LaidOutNetwork
    pools: Sequence[ConstantPool]
    compiled: CompiledNetwork

    @cached_property
    def decoded(self) -> tuple[DecodedStream, ...]:
        return tuple(decode_stream(part.stream.words) for part in self.compiled.parts)


def compile_levels(network: TfliteNetwork, names: PlanNames, plans: Mapping[str, Plan], machine: Machine) -> LevelStreams:
    """Streams of all levels of a machine.  Raises `UnsupportedError` without an operator for the part, `InfeasibleError` without room."""
    order = sorted(plans, key=lambda level: -machine.contention[level].share if level in machine.contention else 0.0)
    return select_streams([map_plan(network, plans[level], names) for level in order], machine)


def select_streams(mapped: Sequence[tuple[TfliteNetwork, StreamPlan]], machine: Machine) -> LevelStreams:
    """Streams of all levels.  mapped: plans, each with the network in its order.  Raises as `compile_levels`."""
    levels, candidates = machine.contention, _candidates(mapped, machine)
    chosen, emitted = list[_Candidate](), list[CompiledNetwork]()
    pools: Sequence[ConstantPool] = ()
    variants, cycles = dict[str, int](), dict[str, int]()
    for level in sorted(levels, key=lambda name: (granted_sram(machine, levels[name]), levels[name].share, name)):
        sram = granted_sram(machine, levels[level])
        times = {
            candidate: stream_counters(candidate.decoded, machine, levels[level]).cycles
            for candidate in candidates
            if candidate.compiled.fast <= sram
        }
        for candidate in sorted(times, key=lambda item: (times[item], moved_bytes(item.compiled))):
            added = None if candidate in chosen else _emitted_beside(chosen, pools, candidate)
            if added or candidate in chosen:
                break
        else:
            raise InfeasibleError(f"level {level}: {sram:,} bytes of SRAM are granted: no stream fits; expected more, or smaller segments")
        if added:
            chosen.append(candidate)
            emitted.append(added[0])
            pools = added[1]
        variants[level], cycles[level] = chosen.index(candidate), times[candidate]
    emitted = [_with_constants(compiled, pools) for compiled in emitted]
    decoded = tuple(candidate.decoded for candidate in chosen)
    return LevelStreams(tuple(emitted), {level: variants[level] for level in levels}, {level: cycles[level] for level in levels}, decoded)


def compiled_cycles(compiled: CompiledNetwork, machine: Machine, level: Level) -> int:
    """Cycles of all streams of a model at a level, behind each other."""
    return stream_counters(tuple(decode_stream(part.stream.words) for part in compiled.parts), machine, level).cycles


@lru_cache(maxsize=32)
def stream_counters(streams: tuple[DecodedStream, ...], machine: Machine, level: Level) -> StreamCounters:
    """Counters of streams behind each other at a level."""
    counters, memories = [0, 0, 0], memories_of(machine, level)
    for stream in streams:
        times = stream_times(stream, memories)
        blocks, moving = (sum(getattr(operation, name) for operation in times.operations) for name in ("blocks", "dram"))
        for place, count in enumerate((times.cycles, blocks, moving)):
            counters[place] += count
    return StreamCounters(*counters)


def moved_bytes(compiled: CompiledNetwork) -> int:
    """Bytes of DRAM of one inference, as plans have them."""
    return sum(part.stream.planned.total for part in compiled.parts)


def granted_sram(machine: Machine, level: Level) -> int:
    """Bytes of SRAM at a level."""
    return level.l1_bytes or machine.buffers_bytes.L1


def _candidates(mapped: Sequence[tuple[TfliteNetwork, StreamPlan]], machine: Machine) -> list[_Candidate]:
    """Layouts of plans in each SRAM that a level grants that move few bytes, but for those without room."""
    lowered = dict[tuple[tuple[int, ...], ...], LoweredParts]()
    unique = dict[tuple[tuple[tuple[int, ...], ...], StreamPlan], None]()
    for network, plan in mapped:
        order = tuple(operator.outputs for operator in network.operators)
        if order not in lowered:
            lowered[order] = lower_parts(network)
        unique[order, plan] = None
    candidates, blobs, refusal = list[_Candidate](), dict[BlobKey, WeightBlob](), None
    depths = dict[bytes, set[int]]()
    for sram in sorted({granted_sram(machine, level) for level in machine.contention.values()}):
        layouts = list[LaidOutNetwork]()
        for order, plan in unique:
            try:
                layouts.append(lay_out_parts(lowered[order], plan, sram, blobs, depths))
            except InfeasibleError as error:
                refusal = error
                continue
            for layout in layouts[-1].layouts:
                for digest, channels in layout.weight_depths:
                    depths.setdefault(digest, set()).add(channels)
        few = _MORE_BYTES * min((laid_out.dram_bytes for laid_out in layouts), default=0)
        for laid_out in layouts:
            if laid_out.dram_bytes <= few:
                candidates.append(_candidate(laid_out))
                candidates.append(_candidate(with_early_copies(laid_out, candidates[-1].decoded, machine)))
    if refusal is not None and not candidates:
        raise refusal
    return candidates


def _candidate(layout: LaidOutNetwork) -> _Candidate:
    pools = [ConstantPool() for _ in layout.layouts]
    return _Candidate(layout, pools, emit_network(layout, pools))


def with_early_copies(laid_out: LaidOutNetwork, streams: Sequence[DecodedStream], machine: Machine) -> LaidOutNetwork:
    """The network with early copies, by the times that its streams take at the level with the least of DRAM."""
    scarcest = min(machine.contention.values(), key=lambda level: level.share)
    memories, layouts = memories_of(machine, scarcest), list[NetworkLayout]()
    for layout, stream in zip(laid_out.layouts, streams, strict=True):
        times = [times for times in stream_times(stream, memories).operations if times.name != COPY]
        layouts.append(copy_early(layout, sorted(times, key=lambda row: row.word), laid_out.sram, memories[CONSTANTS]))
    return replace(laid_out, layouts=tuple(layouts))


def _emitted_beside(
    chosen: Sequence[_Candidate], pools: Sequence[ConstantPool], candidate: _Candidate
) -> tuple[CompiledNetwork, Sequence[ConstantPool]] | None:
    """Streams with constants beside those of others, and all constants; None where they take too much room, or tensors lie elsewhere."""
    if not chosen:
        return candidate.compiled, candidate.pools
    first, lowered = chosen[0].laid_out.lowered, candidate.laid_out.lowered
    if len(lowered.parts) != len(first.parts) or lowered.borders.keys() != first.borders.keys():
        return None
    grown = [pool.copy() for pool in pools]
    compiled = emit_network(candidate.laid_out, grown, first.borders)
    return (compiled, grown) if sum(pool.size for pool in grown) <= GROWTH * sum(pool.size for pool in chosen[0].pools) else None


def _with_constants(compiled: CompiledNetwork, pools: Sequence[ConstantPool]) -> CompiledNetwork:
    """Streams with all constants, whose addresses stay as pools grow."""
    parts = (replace(part, stream=part.stream._replace(constants=pool.data())) for part, pool in zip(compiled.parts, pools, strict=True))
    return replace(compiled, parts=tuple(parts))
