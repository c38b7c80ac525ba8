"""Tensors that are held in L1 over cuts: right values, no race, less of DDR, and plans that say why they cannot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import compiler.planner.persistent_choice as holding_module
from compiler.bound.bound import Bound
from compiler.dump.plan import plan_lines
from compiler.dump.segments import segment_lines
from compiler.pipeline import Compiler, with_starts
from compiler.plan.plan import Infeasible, Plan, parse_plan
from compiler.planner.persistent_choice import choose_by_measure, choose_by_prediction
from compiler.segment.border_tensors import border_names
from compiler.segment.reorder import permute_to
from compiler.segment_times import SegmentTimer
from compiler.space.decode import decode_all
from compiler.space.encode import genome_of
from compiler.space.gene import Gene, Genome
from compiler.space.initial import single_operators
from compiler.space.persistent import cut_tensors, holding
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Memory
from simulator.npu.program import Program
from simulator.sanitizer import sanitize_program
from simulator.timing import simulate_levels
from tests.compiled import Case, check_program, make_case
from tests.graphs import conv, target_graph
from tests.models import small_model
from tests.plans import random_plan

NETWORKS = ("residual_block", "inception_block", "dense_block", "lrn_chain", "shuffle_block")


def case_of(name: str, cores: int = 1, preset: str = "tiny") -> Case:
    return make_case(small_model(name), Machine.model_validate(load_machine(preset).model_dump() | {"cores": cores}), DataType.float16)


def singles(target_graph: TargetGraph) -> Genome:
    genome = single_operators(target_graph)
    assert not isinstance(genome, Infeasible)
    return genome


def planned(target_graph: TargetGraph, genome: Genome) -> Plan:
    plan = decode_all(target_graph, genome)
    assert isinstance(plan, Plan), plan
    return plan


def compiled(target_graph: TargetGraph, plan: Plan) -> Program:
    program = Compiler(target_graph).compile(plan)
    assert isinstance(program, Program), program
    return program


def held(plan: Plan) -> set[str]:
    return {name for segment in plan.segments for name in segment.held}


def crossing(target_graph: TargetGraph, plan: Plan) -> list[frozenset[str]]:
    """Of every segment the tensors of its borders."""
    of = permute_to(target_graph, [name for segment in plan.segments for name in segment.operators])
    assert isinstance(of, TargetGraph)
    return [border_names(of, start, start + len(each.operators)) for each, start in with_starts(plan)]


def with_held(target_graph: TargetGraph, plan: Plan, names: set[str]) -> Plan:
    """The plan with those of its border tensors held."""
    each = zip(plan.segments, crossing(target_graph, plan), strict=True)
    return plan.model_copy(
        update={"segments": tuple(segment.model_copy(update={"held": tuple(sorted(mine & names))}) for segment, mine in each)}
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(NETWORKS), st.sampled_from([1, 1, 2]))
def test_any_plan_is_right_with_some_tensors_held(seed: int, name: str, cores: int) -> None:
    case, rng = case_of(name, cores), np.random.default_rng(seed)
    plan = random_plan(case.target_graph, rng)
    if plan is None:
        return
    names = sorted(set().union(*crossing(case.target_graph, plan)))
    plan = with_held(case.target_graph, plan, {each for each in names if rng.random() < 0.6})
    assert parse_plan(plan.to_json()) == plan
    program = Compiler(case.target_graph).compile(plan)
    if isinstance(program, Program):
        check_program(case, program)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("preset", ["tiny", "edge"])
def test_what_is_held_goes_through_no_ddr(name: str, preset: str) -> None:
    """All that cuts go through is held where every operator is a segment; the bound is below."""
    case = case_of(name, preset=preset)
    target_graph = case.target_graph
    genome = singles(target_graph)
    tensors = cut_tensors(target_graph, genome)
    through, kept = planned(target_graph, genome), planned(target_graph, holding(genome, tensors))
    assert held(kept)
    assert not held(through)
    if preset == "edge":
        assert held(kept) == {target_graph.storages[each.storage].name for each in tensors}, "L1 is large enough for all"
    programs = [compiled(target_graph, plan) for plan in (through, kept)]
    check_program(case, programs[1])
    machine, bound = target_graph.machine, Bound(target_graph)
    before, after = (simulate_levels(program, machine, list(machine.contention)) for program in programs)
    for level, timing in after.items():
        moved, less = (t.ddr_read_bytes + t.ddr_write_bytes for t in (before[level], timing))
        assert moved > less
        assert timing.cycles >= bound.of(level).cycles


@pytest.mark.parametrize("name", NETWORKS)
def test_a_genome_is_found_again_from_its_plan(name: str) -> None:
    target_graph = case_of(name).target_graph
    genome = singles(target_graph)
    some = [each for each in cut_tensors(target_graph, genome) if each.storage % 2]
    plan = planned(target_graph, holding(genome, some))
    found = genome_of(target_graph, plan)
    assert found is not None
    assert planned(target_graph, found) == plan


def test_what_does_not_fit_is_left_to_ddr() -> None:
    """The genome asks for more than L1 has: what saves most for the room it takes is held."""
    target_graph = case_of("dense_block").target_graph
    small = Machine.model_validate(
        target_graph.machine.model_dump() | {"buffers_bytes": {**target_graph.machine.buffers_bytes.model_dump(), "L1": 49152}}
    )
    case = make_case(small_model("dense_block"), small, DataType.float16)
    genome = singles(case.target_graph)
    tensors = cut_tensors(case.target_graph, genome)
    plan = planned(case.target_graph, holding(genome, tensors))
    assert 0 < len(held(plan)) < len(tensors)
    check_program(case, compiled(case.target_graph, plan))


def test_prediction_chooses_what_is_held() -> None:
    """What is expected to make no segment faster is not; of what does, that which saves most for its room comes first."""
    target_graph = case_of("dense_block", preset="edge").target_graph
    genome = singles(target_graph)
    assert choose_by_prediction(target_graph, genome, lambda raws: [1.0] * len(raws)) == genome
    from compiler.cost.features import expected_cycles

    level = target_graph.machine.contention["severe"]
    found = choose_by_prediction(target_graph, genome, lambda raws: expected_cycles(np.stack(raws), level).tolist())
    assert held(planned(target_graph, found))
    times = [
        simulate_levels(compiled(target_graph, planned(target_graph, each)), target_graph.machine, ["severe"])["severe"].cycles
        for each in (found, genome)
    ]
    assert times[0] < times[1]


def test_equal_segments_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight equal convolutions, of which each between two others may hold what it reads, what it makes, or both."""
    asked = list[tuple[Gene, tuple[int, int]]]()
    ways = holding_module._ways

    def counted(target_graph: TargetGraph, gene: Gene, space: tuple[int, int], passes: bool) -> list[Gene]:
        asked.append((gene, space))
        return ways(target_graph, gene, space, passes)

    monkeypatch.setattr(holding_module, "_ways", counted)
    u = target_graph(load_machine("edge"), (1, 16, 32, 32), *(conv(f"{at + 1}", f"{at or 'x'}", (16, 16), 3) for at in range(8)))
    found = choose_by_prediction(u, tuple(Gene(at, at + 1) for at in range(8)), lambda raws: [1.0 - at for at in range(len(raws))])
    assert any(gene.held for gene in found)
    beside = {blocks for _, (_, blocks) in asked}
    assert len(asked) <= 3 * len(beside)
    assert [gene[:2] for gene in found] == [(at, at + 1) for at in range(8)]


def test_measured_holding_beats_nothing_and_all_that_fits() -> None:
    """Each is judged by the program in which it is tried; a measure that nothing fits has nothing held."""
    target_graph = case_of("dense_block", preset="edge").target_graph
    genome = singles(target_graph)
    every = holding(genome, cut_tensors(target_graph, genome))
    asked, timer = dict[Genome, int](), SegmentTimer(Compiler(target_graph), "severe")

    def took(tried: Genome) -> NDArray[np.int64]:
        found = timer.cycles(planned(target_graph, tried))
        assert not isinstance(found, Infeasible)
        asked[tried] = int(found.sum())
        return found

    def cycles(raws: Sequence[NDArray[np.float64]]) -> list[float]:
        return [1.0] * len(raws)

    found = choose_by_measure(target_graph, genome, cycles, took)
    assert asked[found] == min(asked.values()) < asked[genome]
    assert every in asked
    assert len(asked) < 2 * len(cut_tensors(target_graph, genome)), "those that have no segment in common are tried at once"
    slower = choose_by_measure(target_graph, genome, cycles, lambda tried: took(genome) + sum(gene.held.bit_count() for gene in tried))
    assert slower == genome
    assert choose_by_measure(target_graph, genome, cycles, lambda tried: None) == genome


def test_overwritten_held_place_is_detected() -> None:
    """The sanitizer knows who may read what another segment has left: without the mark of its writer nobody may."""
    case = case_of("residual_block")
    genome = singles(case.target_graph)
    program = compiled(case.target_graph, planned(case.target_graph, holding(genome, cut_tensors(case.target_graph, genome))))
    assert not sanitize_program(program, case.target_graph.machine)
    for code in program.streams:
        marked = code[:, isa.BLOCK] < 0
        assert set(code[marked & (code[:, isa.OP] > isa.Op.WAIT), isa.DST].tolist()) <= {int(Memory.L1)}
        code[marked, isa.BLOCK] = ~code[marked, isa.BLOCK]
    assert {finding.kind for finding in sanitize_program(program, case.target_graph.machine)} == {"overwritten_read"}


def test_a_plan_shows_what_is_held() -> None:
    target_graph = case_of("residual_block").target_graph
    genome = singles(target_graph)
    plan = planned(target_graph, holding(genome, cut_tensors(target_graph, genome)))
    name = sorted(held(plan))[0]
    assert any(line.startswith("held: ") and name in line for line in plan_lines(plan))
    assert any("held" in line and name in line for line in segment_lines(Compiler(target_graph), plan))


def test_a_shortage_says_what_is_held() -> None:
    target_graph = case_of("residual_block").target_graph
    whole = target_graph.machine.buffers_bytes.L1
    assert whole is not None
    plan = planned(target_graph, singles(target_graph))
    names = set().union(*crossing(target_graph, plan))
    large = with_held(target_graph, plan, names)
    segments = [segment.model_copy(update={"prefetch": 4, "blocks": 1}) for segment in large.segments]
    for l1 in range(2048, whole, 2048):  # until what is held fits, and a segment beside it does not
        small = Machine.model_validate(
            target_graph.machine.model_dump() | {"buffers_bytes": {**target_graph.machine.buffers_bytes.model_dump(), "L1": l1}}
        )
        found = Compiler(make_case(small_model("residual_block"), small, DataType.float16).target_graph).compile(
            large.model_copy(update={"segments": tuple(segments)})
        )
        if isinstance(found, Infeasible) and " of them for what is held (" in str(found):
            assert f"the machine has {l1:,}, " in str(found)
            return
    raise AssertionError("no size is too small for a segment alone")


def test_plans_that_cannot_say_why() -> None:
    target_graph = case_of("residual_block", 2).target_graph
    plan = planned(target_graph, singles(target_graph))
    first, *others = plan.segments
    (name, *_) = sorted(crossing(target_graph, plan)[0])

    def why(**changes: object) -> str:
        found = Compiler(target_graph).compile(changed(**changes))
        assert isinstance(found, Infeasible)
        return str(found)

    def changed(**changes: object) -> Plan:
        return plan.model_copy(update={"segments": (first.model_copy(update=changes), *others)})

    assert f"'{name}' is in DDR here and held in L1 elsewhere" in why(held=(name,))
    assert why(held=("nothing",)) == f"segment 0, {first.operators[0]}: 'nothing' held: no tensor that the NPU alone sees"
    assert f"'{name}' held, and several cores" in why(held=(name,), cores=(0, 1), blocks=2)
    whole = with_held(target_graph, plan, {name})
    moved = whole.model_copy(update={"segments": (whole.segments[0].model_copy(update={"cores": (1,)}), *whole.segments[1:])})
    reader = next(index for index, segment in enumerate(whole.segments) if index and segment.held)
    found = f"segment {reader}, {whole.segments[reader].operators[0]}: '{name}' held by core 1, read on core 0; expected the same of all"
    assert str(Compiler(target_graph).compile(moved)).startswith(found)
    assert any(found in line for line in segment_lines(Compiler(target_graph), moved))
    joined = planned(target_graph, (Gene(0, len(target_graph.operators), 2),))
    own = joined.model_copy(update={"segments": (joined.segments[0].model_copy(update={"held": (name,)}),)})
    names = f"{joined.segments[0].operators[0]}..{joined.segments[0].operators[-1]}"
    assert str(Compiler(target_graph).compile(own)).startswith(
        f"segment 0, {names}: '{name}' held: no border of the segment cuts it; accepted"
    )
    text = changed(held=(name,), shared=(name,)).to_json()
    with pytest.raises(BadInputError, match="is in shared memory; accepted: one of the two"):
        parse_plan(text)
