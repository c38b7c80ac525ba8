"""The parts of the comparison with AccelForge that need no AccelForge: its workloads, what fits, machines, rows."""

from __future__ import annotations

import math

import pytest
import yaml

from compiler.frontend import load_model, lower
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.gene import Gene
from scripts.chains import CHAINS, products
from scripts.compare_bound import (
    PARTS,
    Doubled,
    compare,
    describe_row,
    least_traffic,
    plan_by_estimate,
    predicted,
    report_row,
    traffic_machines,
    tune_traffic,
)
from scripts.traffic import Traffic, traffic
from simulator.npu.parts import DataType
from tests.scripting import run_script
from tuner.config import load_config
from tuner.search.limits import SearchLimits


@pytest.mark.parametrize("name", CHAINS)
def test_einsums_are_those_of_the_model(name: str) -> None:
    """Ranks have sizes, every tensor that is read is made or given, and the model's input and weights are as large as the given ones."""
    chain, workload = CHAINS[name], yaml.safe_load(CHAINS[name].workload)["workload"]
    made, given = set[str](), dict[str, int]()
    for einsum in workload["einsums"]:
        for access in einsum["tensor_accesses"]:
            projection = access["projection"]
            ranks = [rank.upper() for rank in projection]  # the keys of a dictionary, or the variables themselves
            size = math.prod(3 if rank[0] in "RS" and rank not in chain.sizes else chain.sizes[rank] for rank in ranks)
            if access.get("output"):
                made.add(access["name"])
            elif access["name"] not in made:
                given[access["name"]] = size
    target_graph = make_unit(
        lower(load_model(chain.model(), random_weights=0)), traffic_machines(1 << 19, DataType.float16)[0], DataType.float16
    )
    (port,) = target_graph.layout.graph.inputs
    weights = [math.prod(op.weights.shape) for spec in target_graph.operators if (op := spec.operator) and hasattr(op, "weights")]
    assert sum(given.values()) == math.prod(target_graph.graph.shapes[port.tensor]) + sum(weights)


def test_the_best_mapping_that_fits() -> None:
    mappings = [(10, 500), (20, 300), (40, 350), (80, 100)]
    assert [least_traffic(mappings, size) for size in (5, 10, 79, 80)] == [None, 500, 300, 100]


def test_every_byte_on_the_chip_counts() -> None:
    for dtype in (DataType.float16, DataType.float32):
        machines = traffic_machines(1 << 16, dtype)
        assert len(machines) > 1
        assert {sum(size for _, size in machine.buffers_bytes) for machine in machines} == {dtype.size_bytes << 16}


def test_programs_for_speed_have_two_slots() -> None:
    chain = products(2, 64, 32)
    target_graph = make_unit(
        lower(load_model(chain.model(), random_weights=0)), traffic_machines(1 << 16, DataType.float16)[0], DataType.float16
    )
    rules = [kind(target_graph, ("none",), load_config(), {}) for kind in (SearchLimits, Doubled)]
    assert [each.permitted(Gene(0, 2, prefetch=1)).prefetch for each in rules] == [1, 2]
    assert [each.permitted(Gene(0, 2, prefetch=0)).prefetch for each in rules] == [0, 0]


def test_a_chain_that_fits_is_moved_once() -> None:
    chain = products(2, 64, 32)
    target_graph = make_unit(
        lower(load_model(chain.model(), random_weights=0)), traffic_machines(1 << 15, DataType.float16)[1], DataType.float16
    )
    found = tune_traffic(target_graph, 2)
    assert found is not None
    once = 2 * (2 * 64 * 32 + 2 * 32 * 32) + 4 * 2 * 32
    assert (found.total, found.once) == (once, once)
    assert predicted(target_graph) == found


@pytest.mark.parametrize(
    ("name", "ki", "division", "mapper", "how"),
    [
        ("MobileNet at 28", 32, 3, 680_320, ["recompute"]),  # halos of hidden channels, so that no pass keeps any
        ("MobileNet at 28", 64, 7, 78_208, ["recompute", "held"]),  # what is between the bodies lies whole in L1 beside passes
        ("bottleneck at 56", 64, 5, 2_894_080, ["strips"]),  # weights stay beside rows of a third of the columns
        ("bottleneck at 56", 32, 5, 3_258_112, ["strips", "strips of input passes"]),
        ("bottleneck at 28", 32, 4, 2_549_760, []),
    ],
)
def test_chains_in_small_memories_are_near_the_mapper(name: str, ki: int, division: int, mapper: int, how: list[str]) -> None:
    """mapper: elements that AccelForge's moves.  how: what of the plan that does it is found by rule."""
    graph = lower(load_model(CHAINS[name].model(), random_weights=0))
    target_graph = make_unit(graph, traffic_machines(ki * 1024, DataType.float32)[division], DataType.float32)
    plan = plan_by_estimate(target_graph)
    assert plan is not None
    program = Compiler(target_graph).compile(plan)
    assert not isinstance(program, Infeasible)
    assert traffic(target_graph, program).total <= 1.05 * 4 * mapper
    found = {
        "recompute": any(segment.passes > 1 and "recompute" in segment.halo for segment in plan.segments),
        "held": any(segment.held for segment in plan.segments),
        "strips": any(segment.columns > 1 and segment.input_passes == 1 for segment in plan.segments),
        "strips of input passes": any(segment.columns > 1 and segment.input_passes > 1 for segment in plan.segments),
    }
    assert [what for what, there in found.items() if there] == how


def test_a_row() -> None:
    ours = Traffic(once=200, zeros=20, lanes=10, weights_again=4, tensors_again=6, spills=60)
    row = report_row("c", 64, 100, ours, None, 2)
    assert (row["ours"], row["doubled"], sum(row[part] for part in PARTS)) == (150, None, row["ours"])
    assert describe_row(row) == "| c | 64 Ki | 100 | 150 | 1.50 |  | 1.00 | 0.15 | 0.02 | 0.03 | 0.30 |"
    assert describe_row(report_row("c", 64, None, None, None, 2)) == f"| c | 64 Ki | none fits | none fits |{'  |' * 7}"


def test_rows_without_a_mapper_are_over_the_bound() -> None:
    """An input, weights and a result of 24 channels once; ours pads these to 32."""
    (row,) = compare(None, "MobileNet at 56", [64], 0, DataType.float32)
    assert not row["judged"]
    assert row["bound"] == 2 * 56 * 56 * 24 + 2 * (2 * 24 * 144 + 9 * 144)
    assert row["padding"] >= 2 * 56 * 56 * 8
    assert row["bound"] < row["ours"]


def test_a_chain_that_there_is_not(tmp_path) -> None:
    done = run_script("compare_bound", "--venv", tmp_path, "--chains", "nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing: accepted: two products" in " ".join(done.stderr.replace("│", " ").split())
