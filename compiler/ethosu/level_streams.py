"""Streams of the levels of a machine: of each, those of the plans whose cycles are the fewest at its share and latency of DRAM.

Plans of all levels are candidates of each, in the SRAM that it is granted.  Constants of all are held to little more
than those of one level: a candidate that would take more room is none.  Levels with the least SRAM come first, so what is there already
fits the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from compiler.ethosu.constant_pool import ConstantPool
from compiler.ethosu.machine_clock import memories_of
from compiler.ethosu.network_parts import CompiledNetwork, LaidOutNetwork, emit_network, lay_out_parts
from compiler.ethosu.plan_mapping import PlanNames, map_plan
from compiler.ethosu.segments import StreamPlan
from compiler.ethosu.weight_blobs import BlobKey, WeightBlob
from compiler.frontend.tflite.network import TfliteNetwork
from compiler.plan.plan import Plan
from simulator.ethosu.stream_cycles import stream_times
from simulator.npu.errors import InfeasibleError
from simulator.npu.level import Level
from simulator.npu.machine import Machine

GROWTH = 1.05
"""Constants of the streams of all levels, as a multiple of those of the first; words come on top."""
_FAR_AHEAD = 3
"""Operations before its own during which weights are copied, where they are copied early."""


@dataclass(frozen=True, eq=False)
class LevelStreams:
    """Streams of a model.  variants: different ones, the first that of the level with the least of SRAM, then of DRAM.

    levels: the variant of each.  cycles: of each level, with its variant.
    """

    variants: tuple[CompiledNetwork, ...]
    levels: Mapping[str, int]
    cycles: Mapping[str, int]

    def of(self, level: str) -> CompiledNetwork:
        """The streams of a level."""
        return self.variants[self.levels[level]]


class _Candidate(NamedTuple):
    """A layout, and its streams by themselves."""

    laid_out: LaidOutNetwork
    compiled: CompiledNetwork


def compile_levels(network: TfliteNetwork, names: PlanNames, plans: Mapping[str, Plan], machine: Machine) -> LevelStreams:
    """Streams of all levels of a machine.  Raises `UnsupportedError` without an operator for the part, `InfeasibleError` without room."""
    order = sorted(plans, key=lambda level: -machine.contention[level].share if level in machine.contention else 0.0)
    return select_streams([map_plan(network, plans[level], names) for level in order], machine)


def select_streams(mapped: Sequence[tuple[TfliteNetwork, StreamPlan]], machine: Machine) -> LevelStreams:
    """Streams of all levels.  mapped: plans, each with the network in its order; the last is tried with early copies of weights, too.

    Raises as `compile_levels`.
    """
    levels, candidates = machine.contention, _candidates(mapped, machine)
    chosen, pools = list[_Candidate](), list[ConstantPool]()
    variants, cycles = dict[str, int](), dict[str, int]()
    for level in sorted(levels, key=lambda name: (granted_sram(machine, levels[name]), levels[name].share, name)):
        times = {number: compiled_cycles(item.compiled, machine, levels[level]) for number, item in enumerate(candidates)}
        ranked = sorted(times, key=lambda number: (times[number], moved_bytes(candidates[number].compiled)))
        for number in ranked:
            grown = _grown_pools(chosen, pools, candidates[number])
            if candidates[number].compiled.fast <= granted_sram(machine, levels[level]) and grown is not None:
                break
        else:
            sram = granted_sram(machine, levels[level])
            raise InfeasibleError(f"level {level}: {sram:,} bytes of SRAM are granted: no stream fits; expected more, or smaller segments")
        if candidates[number] not in chosen:
            chosen.append(candidates[number])
            pools = grown
        variants[level], cycles[level] = chosen.index(candidates[number]), times[number]
    emitted = tuple(emit_network(candidate.laid_out, pools, chosen[0].laid_out.borders) for candidate in chosen)
    return LevelStreams(emitted, {level: variants[level] for level in levels}, {level: cycles[level] for level in levels})


def compiled_cycles(compiled: CompiledNetwork, machine: Machine, level: Level) -> int:
    """Cycles of all streams of a model at a level, behind each other."""
    memories = memories_of(machine, level)
    return sum(stream_times(part.stream.words, memories).cycles for part in compiled.parts)


def moved_bytes(compiled: CompiledNetwork) -> int:
    """Bytes of DRAM of one inference, as plans have them."""
    return sum(part.stream.planned.total for part in compiled.parts)


def granted_sram(machine: Machine, level: Level) -> int:
    """Bytes of SRAM at a level."""
    return level.l1_bytes or machine.buffers_bytes.L1


def _candidates(mapped: Sequence[tuple[TfliteNetwork, StreamPlan]], machine: Machine) -> list[_Candidate]:
    """Layouts of all plans in each SRAM that a level grants, but for those without room."""
    ahead = [(ordered, replace(plan, ahead=_FAR_AHEAD, copies=True)) for ordered, plan in mapped[-1:]]
    unique = {(tuple(operator.outputs for operator in ordered.operators), plan): ordered for ordered, plan in (*mapped, *ahead)}
    candidates, blobs, refusal = list[_Candidate](), dict[BlobKey, WeightBlob](), None
    depths = dict[bytes, set[int]]()
    for sram in sorted({granted_sram(machine, level) for level in machine.contention.values()}):
        for (_, stream_plan), ordered in unique.items():
            try:
                laid_out = lay_out_parts(ordered, stream_plan, sram, blobs, depths)
            except InfeasibleError as error:
                refusal = error
                continue
            candidates.append(_Candidate(laid_out, emit_network(laid_out)))
            for part in laid_out.parts:
                for digest, channels in part.layout.weight_depths:
                    depths.setdefault(digest, set()).add(channels)
    if refusal is not None and not candidates:
        raise refusal
    return candidates


def _grown_pools(chosen: Sequence[_Candidate], pools: Sequence[ConstantPool], candidate: _Candidate) -> list[ConstantPool] | None:
    """Constants of streams that are chosen, and of one more; None where they take too much room, or tensors would lie elsewhere."""
    if not chosen:
        fresh = [ConstantPool() for _ in candidate.laid_out.parts]
        emit_network(candidate.laid_out, fresh)
        return fresh
    first = chosen[0].laid_out
    if candidate in chosen:
        return list(pools)
    if len(candidate.laid_out.parts) != len(first.parts) or candidate.laid_out.borders.keys() != first.borders.keys():
        return None
    grown = [pool.copy() for pool in pools]
    emit_network(candidate.laid_out, grown, first.borders)
    first_pools = _grown_pools((), (), chosen[0])
    assert first_pools is not None
    return grown if sum(pool.size for pool in grown) <= GROWTH * sum(pool.size for pool in first_pools) else None
