"""A model with several plans: each is refused readably, or becomes a program of which everything holds."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan
from compiler.space.decode import decode, decode_all
from compiler.space.initial import layer_by_layer
from compiler.space.mutators import random_genome, repaired
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import check_program, make_case
from tests.plans import multiplying, random_plan, resized, with_cores

EDGE = load_machine("edge")
MACHINES = {
    "edge": EDGE,
    "ascend310": load_machine("ascend310"),
    "tiny": load_machine("tiny"),
    "edge-4-cores": with_cores(EDGE, 4),
    "edge-little-l1": resized(EDGE, L1=65536),
    "edge-odd-sizes": resized(EDGE, L1=65536 + 32 * 5, UB=65536 + 32 * 3, L0A=8192 + 32, L0B=16384 + 32, L0C=16384 + 32 * 7),
    "edge-one-pixel": multiplying(EDGE, float16=(1, 64, 16, 1), float32=(1, 32, 16, 1)),
    "edge-wide": multiplying(EDGE, float16=(32, 8, 32, 2), float32=(128, 128, 128, 64)),
    "edge-odd-products": multiplying(EDGE, float16=(12, 10, 24, 1), float32=(3, 5, 7, 2)),
    "edge-narrow-ports": load_machine("edge:paths.*DDR*.bytes_per_cycle=16,dma.load_ports=3,dma.store_ports=2"),
}
PLANS = 4


def searched_plan(target_graph: TargetGraph, rng: np.random.Generator) -> Plan | Infeasible | None:
    """A start of the search: random segments, cut until they fit."""
    genome = repaired(target_graph, random_genome(target_graph, rng), lambda gene: decode(target_graph, gene) is not None)
    return None if genome is None else decode_all(target_graph, genome)


PLAN_KINDS = (
    lambda target_graph, rng: layer_by_layer(target_graph),
    searched_plan,
    lambda target_graph, rng: random_plan(target_graph, rng, strips=True),
)


def hold(model: ModelProto, machine: Machine, dtype: DataType, seed: int) -> int:
    """Check `PLANS` plans; returns how many of them fitted."""
    case = make_case(model, machine, dtype, seed)
    rng = np.random.default_rng(seed)
    compiler, fitted = Compiler(case.target_graph), 0
    for i in range(PLANS):
        plan = PLAN_KINDS[min(i, 2)](case.target_graph, rng)
        if plan is None:
            continue
        program = plan if isinstance(plan, Infeasible) else compiler.compile(plan)
        if isinstance(program, Infeasible):
            assert program.where
            assert any(target_graph in program.reason for target_graph in (" B of ", "instructions")), program
            continue
        assert not isinstance(plan, Infeasible)
        check_program(case, program)
        # the cache of segments, and what was compiled before, change nothing
        assert Compiler(case.target_graph).compile(plan).digest == program.digest  # type: ignore[union-attr]
        fitted += 1
    return fitted
