"""What is measured can be written: every program that is timed encodes, and decodes to the same bytes."""

from __future__ import annotations

from itertools import islice

import pytest

from compiler.frontend import lower
from compiler.ops.lower_graph import pack_unit
from scripts.bench_evaluate import genes, mutations
from simulator.npu.container_file import decode, encode
from simulator.npu.parts import DataType
from tests.corner_models import CORNER_MODELS, corner_model
from tests.everywhere import MACHINES
from tests.models import random_model
from tuner.measure.evaluator import Evaluator
from tuner.measure.npu_target import Npu
from tuner.measure.request import Measurement, Request
from tuner.measure.runner_api import Bench, Encoded, Reading


class Written:
    """A runner that times nothing: it reads what it is given."""

    def __init__(self) -> None:
        self.programs = set[bytes]()

    def __call__(self, program: Encoded, level: str) -> Reading:
        container = decode(program.container)
        assert encode(container) == program.container
        self.programs.add(program.container)
        return Reading(container.variants[0].cycles[level])


def evaluator_of(name: str, seed: int) -> tuple[Evaluator, Written]:
    model = corner_model(name) if name in CORNER_MODELS else random_model(seed)
    machine = list(MACHINES.values())[seed % len(MACHINES)]
    packed = pack_unit(lower(model), machine, DataType(seed % 2))
    target, written = Npu(packed.target_graph, ("none", "severe"), records=True), Written()
    target.bench, target.constants = Bench(written), packed.constants
    return Evaluator(packed.target_graph, target.levels, target), written


@pytest.mark.parametrize(("seed", "name"), [*enumerate(CORNER_MODELS), *((seed, f"random-{seed}") for seed in range(100, 106))])
def test_every_program_that_is_measured_can_be_written(seed: int, name: str) -> None:
    evaluator, written = evaluator_of(name, seed)
    target_graph, measurements = evaluator.target_graph, list[Measurement]()
    for gene in islice(genes(target_graph, seed, 2.0), 4):
        measurements.append(evaluator.measure(Request("segment", (gene,))))
    for genome in islice(mutations(target_graph, seed), 3) if len(target_graph.operators) > 1 else ():
        measurements.append(evaluator.measure(Request("program", genome)))
        measurements.append(evaluator.measure(Request("stage", genome[:2])))
    status = [measurement.status for measurement in measurements]
    assert set(status) <= {"ok", "infeasible"}
    assert status.count("ok") >= len(written.programs) > 0
