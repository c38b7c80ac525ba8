"""Limits of a contention level on a target graph: equal DDR addresses and operators, less room on the chip.

Plans are decoded and laid out within one of the granted sizes, or the whole memory, so that a plan for a smaller grant stays within it
to the last block.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from compiler.target.target_graph import TargetGraph
from simulator.npu.grant import Grant
from simulator.npu.machine import Machine


@lru_cache(maxsize=64)
def memory_grants(machine: Machine) -> tuple[Grant, ...]:
    """Grants of memories by level, on all cores: the whole machine first, then descending."""
    grants = {machine.granted(level)._replace(cores=machine.cores) for level in machine.contention} - {machine.full_grant}
    return machine.full_grant, *sorted(grants, reverse=True)


@lru_cache(maxsize=64)
def l1_grants(machine: Machine) -> tuple[int, ...]:
    """Sizes of L1 in bytes that levels grant, ascending; the last is the whole L1."""
    return tuple(sorted({grant.l1_bytes for grant in memory_grants(machine)}))


@lru_cache(maxsize=512)
def limited_to(target_graph: TargetGraph, grant: Grant) -> TargetGraph:
    """The target graph on a machine reduced to a grant; the argument itself for the whole machine."""
    if grant == target_graph.machine.full_grant:
        return target_graph
    values = target_graph.machine.model_dump()
    values["buffers_bytes"]["L1"], values["cores"] = grant.l1_bytes, grant.cores
    if target_graph.machine.shared is not None:
        values["shared"]["bytes"] = grant.shared_bytes
    del values["contention"]  # levels do not matter for a part of a machine
    return replace(target_graph, machine=Machine.model_validate(values))


def within_l1(target_graph: TargetGraph, l1_bytes: int) -> TargetGraph:
    """The target graph within a size of L1."""
    return limited_to(target_graph, target_graph.machine.full_grant._replace(l1_bytes=l1_bytes))


def at_level(target_graph: TargetGraph, level: str) -> TargetGraph:
    """The target graph within the grant of a level."""
    return limited_to(target_graph, target_graph.machine.granted(level))
