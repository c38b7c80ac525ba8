"""What plans are measured to take is theirs for good: logs, warm starts and shared results count on it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

import simulator
from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.decode import decode, decode_all
from compiler.space.gene import FORMULA, Gene, Genome, block_counts
from compiler.space.initial import single_operators
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.timing import simulate_levels
from tests.models import SMALL_MODELS, small_model

HEADER = "# plan: cycles at each level.  Where a line changes and its plan does not, raise simulator.VERSION.\n"


def fused(target_graph: TargetGraph) -> Genome:
    """Runs of three operators in a few blocks in a sliding window, where that fits, else operators alone."""
    singles = single_operators(target_graph)
    assert not isinstance(singles, Infeasible)
    genes: list[Gene] = []
    while (start := genes[-1].stop if genes else 0) < len(target_graph.operators):
        stop = min(start + 3, len(target_graph.operators))
        counts = [count for count in block_counts(target_graph, start, stop) if count > 1][:3]
        tries = (Gene(start, stop, count, sliding=True, window=FORMULA, cached=-1) for count in counts)
        genes.append(next((gene for gene in tries if decode(target_graph, gene) is not None), singles[start]))
    return tuple(genes)


def measured() -> Iterator[str]:
    for machine in map(load_machine, ("edge", "ascend310")):
        for name in SMALL_MODELS:
            target_graph = make_unit(lower(small_model(name)), machine, DataType.float16)
            compiler = Compiler(target_graph)
            for genome in (single_operators(target_graph), fused(target_graph)):
                plan = Infeasible("", "") if isinstance(genome, Infeasible) else decode_all(target_graph, genome)
                program = plan if isinstance(plan, Infeasible) else compiler.compile(plan)
                if isinstance(program, Infeasible) or isinstance(plan, Infeasible):
                    continue
                timings = simulate_levels(program, machine, tuple(machine.contention))
                yield f"{name} {machine.name} {plan.digest[:12]}: " + ", ".join(f"{level} {t.cycles}" for level, t in timings.items())


def parsed(lines: list[str]) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in lines if ": " in line and not line.startswith("#"))


def test_equal_plans_take_what_they_took(golden: Callable[[str, str], None], request: pytest.FixtureRequest) -> None:
    now = [f"simulator.VERSION {simulator.VERSION}", *measured()]
    assert len(now) > 2 * len(SMALL_MODELS)
    path = request.config.rootpath / "tests/golden/measured.txt"
    before = path.read_text().splitlines() if path.is_file() else []
    version = next((found[1] for line in before if (found := re.fullmatch(r"simulator.VERSION (\S+)", line))), "")
    then, today = parsed(before), parsed(now)
    changed = [plan for plan, cycles in today.items() if plan in then and then[plan] != cycles]
    if changed and version == simulator.VERSION:
        pytest.fail(f"other cycles than before for {', '.join(changed)}: raise simulator.VERSION, then --update-golden")
    golden("measured.txt", HEADER + "\n".join(now) + "\n")
