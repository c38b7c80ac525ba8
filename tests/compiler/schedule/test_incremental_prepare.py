"""The short way to times, without records, is the long way to the last cycle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.schedule.incremental_prepare import Preparer
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene, Genome, block_counts
from compiler.space.mutators import random_genome, repaired
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.timing import prepare, simulate_levels
from simulator.timing_state import KIND_MASK
from tests.models import light_model
from tuner.measure.incremental_timer import Timer


def fitting_genome(target_graph: TargetGraph, seed: int) -> Genome:
    rng = np.random.default_rng(seed)
    genome = repaired(target_graph, random_genome(target_graph, rng), lambda gene: decode(target_graph, gene) is not None)
    assert genome is not None
    return genome


@pytest.mark.parametrize("machine_name", ["edge", "ascend310"])  # one core, and two of which one idles
@pytest.mark.parametrize("network", ["squeezenet", "shufflenet"])
def test_times_without_records_equal_the_linked_program(network: str, machine_name: str) -> None:
    machine = load_machine(machine_name)
    target_graph = make_unit(lower(light_model(network)), machine, DataType.float16)
    compiler = Compiler(target_graph)
    levels = tuple(machine.contention)
    for seed in range(4):
        genome = fitting_genome(target_graph, seed)
        segments = [plan for gene in genome if (plan := decode(target_graph, gene)) is not None]
        parts = compiler.parts(plan_of(target_graph, segments))
        assert not isinstance(parts, Infeasible)
        program = compiler.link(parts)
        used = 1 + max(part.core for part in parts)
        assert not any(len(stream) for stream in program.streams[used:])
        long = prepare(replace(program, streams=program.streams[:used]), machine)
        schedule = compiler.schedule(parts)
        short, *_ = Preparer().entries(schedule)
        assert short.slots == long.flag_slots
        assert short.transfers == long.transfers.sum()
        entries = [short.word[a:b] for a, b in short.queues]
        assert list(map(len, entries)) == np.diff(long.queue_start).tolist()
        assert [entry & KIND_MASK for entry in np.concatenate(entries).tolist()] == (long.word & KIND_MASK).tolist()
        assert np.array_equal(np.concatenate([short.engine[a:b] for a, b in short.streams]), long.engine)
        found, wanted = Timer(compiler, machine).times(parts, levels), simulate_levels(long, machine, levels)
        for level in levels:
            assert found[level].cycles == wanted[level].cycles
            assert found[level].load_store_cycles == wanted[level].load_store_cycles
            assert found[level].busy_cycles.tolist() == wanted[level].busy_cycles.sum(0).tolist()


def test_snapshots_do_not_outlive_moved_streams() -> None:
    """Streams of later cores move when there is more room for each; a row number of before means another instruction then."""
    machine = load_machine("ascend310")
    target_graph = make_unit(lower(light_model("squeezenet")), machine, DataType.float16)
    compiler = Compiler(target_graph, records=False)
    timer, plain, starts, count = Timer(compiler, machine), Timer(compiler, machine, resuming=False), [], len(target_graph.operators)
    for changed in range(count, 0, -1):  # more and more operators, from the last on, in as many blocks as there are
        blocks = [1 if k < changed else block_counts(target_graph, k, k + 1)[-1] for k in range(count)]
        genes = [gene for k in range(count) if decode(target_graph, gene := Gene(k, k + 1, blocks[k], cores=(1,))) is not None]
        parts = compiler.parts(plan_of(target_graph, [plan for gene in genes if (plan := decode(target_graph, gene)) is not None]))
        if len(genes) < count or isinstance(parts, Infeasible):
            continue
        schedule = timer.scheduled(parts)
        starts.append(schedule.stream_start)
        assert timer.simulated(schedule, ("none",))["none"].cycles == plain.times(parts, ("none",))["none"].cycles
    assert len(set(starts)) > 1


def test_a_schedule_does_not_remember_the_one_before() -> None:
    machine = load_machine("edge")
    compiler = Compiler(make_unit(lower(light_model("squeezenet")), machine, DataType.float16))
    plans = [
        plan_of(compiler.target_graph, [p for g in fitting_genome(compiler.target_graph, s) if (p := decode(compiler.target_graph, g))])
        for s in (0, 1)
    ]
    alone = [Compiler(compiler.target_graph).compile(plan) for plan in plans]
    after = [compiler.compile(plan) for plan in (*plans, *plans)]
    digests = [program.digest for program in (*alone, *after) if not isinstance(program, Infeasible)]
    assert len(digests) == 6
    assert digests[:2] * 3 == digests
    assert digests[0] != digests[1]
