"""Grids: cores that divide the rows and the output channels of one operator.  Values, races and times on every grid; refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from compiler.build import check_plan
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan, SegmentPlan, validate_plan
from compiler.planner.segmentation import SegmentationSearch, estimate_predictor
from compiler.space.decode import decode, plan_of
from compiler.space.encode import encode
from compiler.space.gene import Gene, block_counts
from compiler.space.knobs import part_counts
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.errors import BadInputError
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Memory
from simulator.npu.program import Program
from tests.compiled import Case, check_program, make_case
from tests.compiler.segment.test_core_channels import layers
from tests.compiler.space.test_mutators import assert_legal, mutated
from tests.plans import with_cores

EDGE = load_machine("edge")
RESULT = {"engine": "MTE3", "source": "L0C", "destination": "DDR", "bytes_per_cycle": 24}
L2 = {"bytes": 1 << 16, "line_bytes": 512, "fill_bytes_per_cycle": 16}


def machine_of(cores: int, direct: bool) -> Machine:
    """direct: with an L2, and with results that go from L0C to DDR."""
    raw = with_cores(EDGE, cores).model_dump(mode="json")
    return Machine.model_validate(raw | ({"paths": [*raw["paths"], RESULT], "l2": L2} if direct else {}))


def product(m: int, k: int, n: int) -> ModelProto:
    weights = (np.random.default_rng(m + k + n).standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [m, k]), ("y", [m, n])))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def on_grid(case: Case, gene: Gene, parts: int) -> Program | None:
    """The program of an operator in the fewest blocks that give each core rows; None without one."""
    share = len(gene.cores) // parts
    counts = block_counts(case.target_graph, gene.start, gene.stop)
    blocks = next((count for count in counts if count >= share), None)
    plan = None if blocks is None else decode(case.target_graph, gene._replace(blocks=blocks, split="channels", parts=parts))
    if plan is None:
        return None
    assert (plan.channels, plan.dealt) == (parts, share)
    program = Compiler(case.target_graph).compile(plan_of(case.target_graph, [plan]))
    assert not isinstance(program, Infeasible)
    return program


def macs(program: Program) -> int:
    products = [code[np.isin(code[:, isa.OP], isa.PRODUCT_OPS)] for code in program.streams]
    return sum(int(isa.macs(code).sum()) for code in products)


@settings(max_examples=12, deadline=None)
@given(st.integers(8, 90), st.integers(8, 80), st.integers(64, 260), st.sampled_from([4, 6, 8]), st.booleans(), st.sampled_from(DataType))
def test_products_on_every_grid(m: int, k: int, n: int, cores: int, direct: bool, dtype: DataType) -> None:
    case = make_case(product(m, k, n), machine_of(cores, direct), dtype if dtype.is_float else DataType.float16)
    gene, done = Gene(0, 1, cores=tuple(range(cores))), 0
    for parts in part_counts(cores):
        program = on_grid(case, gene, parts)
        if program is None:
            assert -(-n // 16) < parts
            continue
        done += 1
        check_program(case, program)
        working = sum(len(code) > 0 for code in program.streams)
        assert working == cores
        results = [(code[:, isa.OP] == Op.FIXPIPE) & (code[:, isa.DST] == Memory.DDR) for code in program.streams]
        assert any(rows.any() for rows in results) == direct
        # rows and columns are padded on each core, and nothing is computed twice
        assert macs(program) <= (m + 16 * cores * 16) * (k + 32) * (n + 16 * parts)
    assert done


@settings(max_examples=10, deadline=None)
@given(st.integers(8, 90), st.integers(2, 6), st.sampled_from([80, 128, 260]), st.sampled_from([0, 2, 4]), st.booleans(), st.booleans())
def test_products_on_grids_in_input_passes(m: int, passes: int, n: int, parts: int, direct: bool, half: bool) -> None:
    """Each pass adds its sums to those of the pass before, in float32, for the channels of its core."""
    case = make_case(product(m, 16 * passes, n), machine_of(4, direct), DataType.float16 if half else DataType.float32)
    plan = decode(case.target_graph, Gene(0, 1, 2, cores=(0, 1, 2, 3), split="channels", parts=parts, input_passes=passes))
    assert plan is not None
    assert (plan.input_passes, plan.channels) == (passes, parts or 4)
    program = Compiler(case.target_graph).compile(plan_of(case.target_graph, [plan]))
    assert not isinstance(program, Infeasible)
    check_program(case, program)


@pytest.mark.parametrize("parts", part_counts(8))
def test_every_operator_that_can_be_cut(parts: int) -> None:
    """Dense, depthwise and grouped convolutions, poolings, sums, a Gemm: each alone on a grid, the others on one core."""
    case, grids = make_case(layers(), machine_of(8, parts == 4), DataType.float16), 0
    target_graph, segments = case.target_graph, []
    for k in range(len(target_graph.operators)):
        gene = Gene(k, k + 1, cores=tuple(range(8)))
        wide = [gene._replace(blocks=count, split="channels", parts=parts) for count in block_counts(target_graph, k, k + 1)]
        plan = next((plan for g in wide if g.blocks >= 8 // parts and (plan := decode(target_graph, g)) is not None), None)
        grids += plan is not None and plan.parts == parts
        segments.append(plan or decode(target_graph, Gene(k, k + 1)))
    assert grids >= 3
    assert None not in segments
    program = Compiler(target_graph).compile(plan_of(target_graph, [segment for segment in segments if segment is not None]))
    assert not isinstance(program, Infeasible)
    check_program(case, program)


def test_moves_reach_grids() -> None:
    """Random moves keep genes legal on eight cores, and come to grids, with input passes too; what a gene says, its plan has."""
    u, grids, passes = make_case(product(96, 64, 256), with_cores(EDGE, 8), DataType.float16).target_graph, 0, 0
    for seed in range(300):
        genome = mutated(u, np.random.default_rng(seed), 12)
        assert_legal(u, genome)
        for gene in genome:
            plan = decode(u, gene)
            grids += gene.parts > 0
            passes += plan is not None and plan.parts > 0 and plan.input_passes > 1
            assert plan is None or (plan.parts, plan.channels) == (gene.parts, gene.channels) or len(plan.cores) == 1
            assert encoded_again(u, gene, plan)
    assert grids > 10
    assert passes > 0


def encoded_again(u: TargetGraph, gene: Gene, plan: SegmentPlan | None) -> bool:
    """Whether a gene of the plan has the plan's grid."""
    again = None if plan is None else encode(u, plan, gene.start)
    return plan is None or (again is not None and again.parts == plan.parts)


def plan_with(**keys: object) -> tuple[Case, Plan]:
    case = make_case(product(64, 32, 128), machine_of(8, False), DataType.float16)
    segment = decode(case.target_graph, Gene(0, 1, 2, cores=tuple(range(8)), split="channels", parts=4))
    assert segment is not None
    raw = plan_of(case.target_graph, [segment]).model_dump(mode="json")
    raw["segments"][0] |= keys
    return case, validate_plan(raw, "p.json")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"parts": 3}, "parts: 3 of 8 cores with split: channels; accepted: 0, or with split: channels a divisor of the number of cores"),
        ({"parts": 1}, "parts: 1 of 8 cores"),
        ({"split": "rows"}, "parts: 4 of 8 cores with split: rows"),
        ({"cores": [0, 1, 2]}, "parts: 4 of 3 cores"),
        ({"staged": ["y"]}, "parts: 4 beside staged; accepted: one of the two"),
    ],
)
def test_grids_that_cannot_be(keys: dict[str, object], why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        plan_with(**keys)


def test_a_grid_larger_than_the_product() -> None:
    case = make_case(product(64, 32, 40), machine_of(8, False), DataType.float16)
    assert decode(case.target_graph, Gene(0, 1, 2, cores=tuple(range(8)), split="channels", parts=4)) is None
    _, plan = plan_with()
    other = plan.model_copy(update={"model": case.target_graph.graph.digest})
    check_plan(case.target_graph, other, "p.json")
    program = Compiler(case.target_graph).compile(other)
    assert isinstance(program, Infeasible)
    assert "3 runs of channels that can be made apart, for 4 parts" in str(program)


def test_a_part_for_each_core_is_no_grid() -> None:
    _, plan = plan_with(parts=8)
    assert plan.segments[0].parts == 0
    assert "parts" not in plan.to_json()


def test_channels_without_small_divisors() -> None:
    """37 blocks of channels have no input passes that the planner takes; weights are loaded for every block."""
    case = make_case(product(64, 592, 600), load_machine("tiny"), DataType.float16)
    search = SegmentationSearch(case.target_graph, ["none"], estimate_predictor(case.target_graph))
    assert search.cheapest(0) is not None
