"""Samples that contracts try plug-ins with: a small model, its programs and its segments, measured by the simulator."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from compiler.api import load
from compiler.cost.features import scale_features
from compiler.ops.lower_graph import Packed
from compiler.space.gene import Gene, Genome
from compiler.space.initial import single_operators
from tuner.cost_model.interface import TrainingRows, conditions_of
from tuner.measure.evaluator import Evaluator
from tuner.measure.npu_target import Npu
from tuner.measure.request import Request
from tuner.measure.runner_api import Bench, Encoded, Reading
from tuner.search.explore import first_genes
from tuner.search.table import SegmentTable

WIDTHS = (4, 16, 24, 16, 32)  # channels from one convolution to the next


def sample_model() -> ModelProto:
    """A chain of four convolutions with ReLU."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for i, (width_in, width_out) in enumerate(pairwise(WIDTHS)):
        weights.append(numpy_helper.from_array(rng.standard_normal((width_out, width_in, 3, 3), dtype=np.float32) / 10, f"w{i}"))
        nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"c{i}"], name=f"conv{i}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"x{i + 1}"], name=f"relu{i}"))
    outer_ports = [(f"x{i}", WIDTHS[i]) for i in (0, len(WIDTHS) - 1)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size, 24, 24]) for name, size in outer_ports]
    graph = helper.make_graph(nodes, "sample", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@lru_cache(maxsize=2)
def sample_unit(machine: str) -> Packed:
    """Target graph with its weights."""
    return load(sample_model(), machine=machine).packed[0]


def sample_programs(machine: str) -> list[Encoded]:
    """A segment, a stage and a program, in the form that a runner gets."""
    target_graph, constants = sample_unit(machine)
    programs: list[Encoded] = []

    def record(program: Encoded, level: str) -> Reading:
        if not any(program.container == earlier.container for earlier in programs):
            programs.append(program)
        return Reading(len(level))

    target = Npu(target_graph, tuple(target_graph.machine.contention), records=True)
    target.bench, target.constants = Bench(record), constants
    evaluator = Evaluator(target_graph, target.levels, target)
    genome = singles(machine)
    evaluator.measure(Request("segment", genome[:1]))
    evaluator.measure(Request("stage", genome[1:3]))
    evaluator.measure(Request("program", genome))
    return programs


def singles(machine: str) -> Genome:
    """Segments of every single operator."""
    genome = single_operators(sample_unit(machine).target_graph)
    assert isinstance(genome, tuple), "the sample fits every machine that operators of 24 rows fit"
    return genome


@lru_cache(maxsize=2)
def sample_rows(machine: str) -> TrainingRows:
    """Segments at two levels of the machine (one, if it has no more), as a run trains with them; arrays that cannot be written."""
    target_graph = sample_unit(machine).target_graph
    levels = tuple(target_graph.machine.contention)[:2]
    evaluator = Evaluator(target_graph, levels)
    genes: list[Gene] = first_genes(target_graph, SegmentTable(evaluator.structures, len(levels)), True)
    measured = [(gene, evaluator.measure(Request("segment", (gene,)))) for gene in genes]
    fits = [
        (gene, measurement.features, measurement.cycles)
        for gene, measurement in measured
        if measurement.features is not None and measurement.cycles is not None
    ]
    features = scale_features(np.stack([raw for _, raw, _ in fits]))
    groups = [f"{gene.start}..{gene.stop}" for gene, _, _ in fits]
    rows = TrainingRows.at_levels(features, np.stack([cycles for _, _, cycles in fits]), groups, conditions_of(target_graph, levels))
    for array in rows[:4]:
        array.flags.writeable = False
    return rows
