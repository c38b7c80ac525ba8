"""Machines, ways of scheduling a segment in passes or of several images on them, and whether each of them that fits is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, parse_plan
from compiler.space.decode import decode, decode_all
from compiler.space.encode import encode
from compiler.space.gene import Gene, Genome
from simulator.npu.machine_file import load_machine
from tests.compiled import Case, check_program
from tests.lacking import without
from tests.plans import with_cores

EDGE = load_machine("edge")
MACHINES = {
    "edge": EDGE,
    "ascend310": load_machine("ascend310"),  # results come to L1 through UB
    "edge-2-cores": with_cores(EDGE, 2),
    "bare": without(EDGE, "UB", "L0A", "L0B"),
}


def fitting_ways(
    case: Case, gene: Gene, ways: Sequence[Mapping[str, Any]], divided: Callable[[int], Mapping[str, int]], around: Callable[[Gene], Genome]
) -> int:
    """How many of the ways fit; the plan of each that does comes back as it was, and its program has the right values.

    gene: the segment.  divided: number of a way -> its passes.  around: a genome that has the gene.
    """
    fitted = 0
    for at, way in enumerate(ways):
        mine = gene._replace(cores=tuple(range(case.target_graph.machine.cores)), **divided(at), **way)
        plan = decode(case.target_graph, mine)
        if plan is None:
            continue
        assert (plan.passes, plan.input_passes) == (mine.passes, mine.input_passes)
        again = encode(case.target_graph, plan, mine.start)
        assert again is not None
        assert decode(case.target_graph, again) == plan
        whole = decode_all(case.target_graph, around(mine))
        assert not isinstance(whole, Infeasible)
        assert parse_plan(whole.to_json()) == whole
        program = Compiler(case.target_graph).compile(whole)
        assert not isinstance(program, Infeasible), program
        check_program(case, program)
        fitted += 1
    return fitted
