"""Plans of a compiled model by name: layer by layer, as `compile` predicts it, and drawn ones."""

from __future__ import annotations

import numpy as np

from compiler.autoplan import quick_genomes
from compiler.build import plans_of_pieces
from compiler.model import LoweredModel
from compiler.plan.plan import Infeasible, Plan, joined
from compiler.planner.segmentation import estimate_predictor
from compiler.space.decode import decode, decode_all
from compiler.space.mutators import random_genome, repaired
from compiler.space.operator_order import ordered
from compiler.target.target_graph import TargetGraph
from simulator.npu.program import Program
from tests.plans import random_plan

LAYERWISE = "layer by layer"


def plan_names(genomes: int, predicted: bool = True) -> tuple[str, ...]:
    return (LAYERWISE, *(["predicted"] if predicted else []), *(f"genome {k}" for k in range(genomes)))


def programs_of(opened: LoweredModel, name: str, level: str, seed: int) -> dict[str, Program] | Infeasible:
    """Piece -> its program by a plan of one of the other names.  seed: of drawn ones."""
    plan = _plan(opened, name, level, seed)
    if isinstance(plan, Infeasible):
        return plan
    found = {}
    for piece, compiler, each in zip(opened.names, opened.compilers, plans_of_pieces(opened, plan, name), strict=True):
        program = compiler.compile(each)
        if isinstance(program, Infeasible):
            return program
        found[piece] = program
    return found


def _plan(opened: LoweredModel, name: str, level: str, seed: int) -> Plan | Infeasible:
    plans = {}
    for at, (piece, compiler) in enumerate(zip(opened.names, opened.compilers, strict=True)):
        rng = np.random.default_rng([seed, at, int(name.partition(" ")[2] or 0)])
        if name == "predicted":
            target_graph = ordered(compiler.target_graph, "depth")
            plan: Plan | Infeasible | None = decode_all(
                target_graph, quick_genomes(compiler, target_graph, estimate_predictor(target_graph), [level])[level][0]
            )
        else:
            plan = _random_plan(compiler.target_graph, rng)
        if plan is None or isinstance(plan, Infeasible):
            return plan or Infeasible(piece, "no plan drawn")
        plans[piece] = plan
    return joined(plans)


def _random_plan(target_graph: TargetGraph, rng: np.random.Generator) -> Plan | Infeasible | None:
    """A genome as a search begins with, or any legal plan: those that no search would try as well."""
    if rng.integers(2):
        return random_plan(target_graph, rng, strips=True)
    genome = repaired(target_graph, random_genome(target_graph, rng), lambda gene: decode(target_graph, gene) is not None)
    return None if genome is None else decode_all(target_graph, genome)
