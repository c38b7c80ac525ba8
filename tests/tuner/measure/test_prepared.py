"""The short way to times, without records, is the long way to the last cycle."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from compiler.frontend import lower
from compiler.kinds.build import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Genome
from compiler.space.moves import random_genome, repaired
from compiler.unit.unit import Unit
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.timing import Timing, prepare, simulate_levels
from tests.models import light_model
from tuner.measure.prepared import prepared


def fitting_genome(unit: Unit, seed: int) -> Genome:
    rng = np.random.default_rng(seed)
    genome = repaired(unit, random_genome(unit, rng), lambda gene: decode(unit, gene) is not None)
    assert genome is not None
    return genome


def same(a: Timing, b: Timing) -> bool:
    return all(np.array_equal(getattr(a, field.name), getattr(b, field.name)) for field in fields(Timing))


@pytest.mark.parametrize("machine_name", ["edge", "ascend310"])  # one core, and two of which one idles
@pytest.mark.parametrize("network", ["squeezenet", "shufflenet"])
def test_times_without_records_are_those_of_the_linked_program(network: str, machine_name: str) -> None:
    machine = load_machine(machine_name)
    unit = make_unit(lower(light_model(network)), machine, DataType.float16)
    compiler = Compiler(unit)
    levels = tuple(machine.contention)
    for seed in range(4):
        genome = fitting_genome(unit, seed)
        segments = [plan for gene in genome if (plan := decode(unit, gene)) is not None]
        parts = compiler.parts(plan_of(unit, segments))
        assert not isinstance(parts, Infeasible)
        program = compiler.link(parts)
        used = 1 + max(part.core for part in parts)
        assert not any(len(stream) for stream in program.streams[used:])
        long = prepare(replace(program, streams=program.streams[:used]), machine)
        short = prepared(machine, compiler.schedule(parts), [part.lowered.footprint for part in parts])
        assert short.flag_slots == long.flag_slots
        for name in ("queue_start", "engine", "stream_start", "fixed_cycles", "transfers", "bus_units"):
            assert np.array_equal(getattr(short, name), getattr(long, name)), name
        a, b = simulate_levels(short, machine, levels), simulate_levels(long, machine, levels)
        assert all(same(a[level], b[level]) for level in levels)


def test_a_schedule_does_not_remember_the_one_before() -> None:
    machine = load_machine("edge")
    compiler = Compiler(make_unit(lower(light_model("squeezenet")), machine, DataType.float16))
    plans = [plan_of(compiler.unit, [p for g in fitting_genome(compiler.unit, s) if (p := decode(compiler.unit, g))]) for s in (0, 1)]
    alone = [Compiler(compiler.unit).compile(plan) for plan in plans]
    after = [compiler.compile(plan) for plan in (*plans, *plans)]
    digests = [program.digest for program in (*alone, *after) if not isinstance(program, Infeasible)]
    assert len(digests) == 6
    assert digests[:2] * 3 == digests
    assert digests[0] != digests[1]
