"""Counters of the variants of a model's streams, by which a controller chooses the level whose words run next.

They are the clock's, at the shares of levels: cycles of blocks count as compute, cycles in which DRAM's port is taken as loads and stores.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.ethosu.level_streams import LevelStreams, moved_bytes, stream_counters
from compiler.package.stack_files import VariantCounters
from simulator.npu.controller_table import VariantRow
from simulator.npu.level import Level
from simulator.npu.machine import Machine


def count_variants(streams: LevelStreams, machine: Machine) -> VariantCounters:
    """Counters of all variants.  Levels of one share count as the one of the least latency."""
    by_share = dict[int, Level]()
    for level in sorted(machine.contention.values(), key=lambda level: (-level.share_units, -level.latency_cycles)):
        by_share[level.share_units] = level
    rows = list[VariantRow]()
    for number, compiled in enumerate(streams.variants):
        counters = [stream_counters(streams.decoded[number], machine, level) for level in by_share.values()]
        names = (level for level, variant in streams.levels.items() if variant == number)
        columns = zip(("cycles", "compute_cycles", "load_store_cycles"), zip(*counters, strict=True), strict=True)
        rows.append(
            VariantRow(name=next(names), l1_bytes=compiled.fast, shared_bytes=0, cores=1, ddr_bytes=moved_bytes(compiled), **dict(columns))
        )
    return VariantCounters(tuple(rows), tuple(by_share), _costs(streams, machine), streams.levels)


def _costs(streams: LevelStreams, machine: Machine) -> Mapping[str, tuple[int, int]]:
    """Cycles of the fastest variant of each level, and of all that fit it."""
    costs = dict[str, tuple[int, int]]()
    for name, level in machine.contention.items():
        fits = [
            stream_counters(streams.decoded[number], machine, level).cycles
            for number, compiled in enumerate(streams.variants)
            if compiled.fast <= machine.granted(name).l1_bytes
        ]
        costs[name] = min(fits), sum(fits)
    return costs
