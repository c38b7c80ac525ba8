"""A unit within what a level leaves of the machine: the same addresses in DDR and the same operators, less room on the chip.

Plans are decoded and laid out within one of the sizes that levels leave, the whole memory among them, so that what fits a smaller grant
stays within it to the last block.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from compiler.target.target_graph import TargetGraph
from simulator.npu.grant import Grant
from simulator.npu.machine import Machine


@lru_cache(maxsize=64)
def memory_grants(machine: Machine) -> tuple[Grant, ...]:
    """What levels leave of its memories, on all cores; the first is all of them, then descending."""
    grants = {machine.granted(level)._replace(cores=machine.cores) for level in machine.contention} - {machine.whole}
    return machine.whole, *sorted(grants, reverse=True)


@lru_cache(maxsize=64)
def l1_grants(machine: Machine) -> tuple[int, ...]:
    """Sizes of L1 in bytes that levels leave, ascending; the last is all of it."""
    return tuple(sorted({grant.l1_bytes for grant in memory_grants(machine)}))


@lru_cache(maxsize=512)
def limited_to(target_graph: TargetGraph, grant: Grant) -> TargetGraph:
    """The unit on a machine that has no more than this; that itself where it is all."""
    if grant == target_graph.machine.whole:
        return target_graph
    values = target_graph.machine.model_dump()
    values["buffers_bytes"]["L1"], values["cores"] = grant.l1_bytes, grant.cores
    if target_graph.machine.shared is not None:
        values["shared"]["bytes"] = grant.shared_bytes
    del values["contention"]  # of a part of a machine nobody asks what its levels leave
    return replace(target_graph, machine=Machine.model_validate(values))


def within_l1(target_graph: TargetGraph, l1_bytes: int) -> TargetGraph:
    """The unit within so much of L1."""
    return limited_to(target_graph, target_graph.machine.whole._replace(l1_bytes=l1_bytes))


def at_level(target_graph: TargetGraph, level: str) -> TargetGraph:
    """The unit within what a level leaves."""
    return limited_to(target_graph, target_graph.machine.granted(level))
