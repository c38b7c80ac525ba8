"""Cycles of segments from schedules are those of the records of the linked program."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.segment_times import SegmentTimer
from compiler.space.decode import decode_all
from simulator.npu import isa
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.timing import simulate
from tests.compiler.schedule.test_incremental_prepare import fitting_genome
from tests.compiler.segment.test_grids import machine_of
from tests.models import light_model


@pytest.mark.parametrize("machine", [load_machine("edge"), load_machine("ascend310"), machine_of(2, True)], ids=["edge", "ascend310", "l2"])
def test_cycles_are_those_of_recorded_programs(machine: Machine) -> None:
    target_graph = make_unit(lower(light_model("squeezenet")), machine, DataType.float16)
    compiler, genome = Compiler(target_graph), fitting_genome(target_graph, 0)
    level = list(machine.contention)[-1]
    timer, checked = SegmentTimer(compiler, level), 0
    for seed in range(6):
        other = fitting_genome(target_graph, seed)
        cuts = {gene.start for gene in other} & {gene.start for gene in genome}
        cut = sorted(cuts)[len(cuts) // 2]  # the first half stays: the timer resumes behind it
        genome = (*[gene for gene in genome if gene.start < cut], *[gene for gene in other if gene.start >= cut])
        plan = decode_all(target_graph, genome)
        if isinstance(plan, Infeasible):
            continue
        program, cycles = compiler.compile(plan), timer.cycles(plan)
        assert not isinstance(program, Infeasible)
        assert not isinstance(cycles, Infeasible)
        recorded = simulate(program, machine, machine.contention[level], record=True).recorded
        assert recorded is not None
        ends = np.zeros(len(plan.segments), np.int64)
        for code, end in zip(program.streams, recorded.end, strict=True):
            np.maximum.at(ends, isa.segment_of(code[:, isa.TAG].astype(np.int64)), end)
        assert cycles.tolist() == np.diff(np.maximum.accumulate(ends), prepend=0).tolist()
        checked += len(plan.segments) > 1
    assert checked > 2
