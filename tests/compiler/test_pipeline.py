"""The compiler as a whole on small models; what its caches may and may not do; why it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import compiler.pipeline
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan
from compiler.schedule.instruction_numbers import EDGES
from compiler.space.decode import decode, decode_all, plan_of
from compiler.space.gene import Gene
from compiler.space.initial import layer_by_layer, single_operators
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Memory
from simulator.npu.program import Program
from simulator.sanitizer import sanitize_program
from tests.compiled import Case, check_program, make_case, run_program
from tests.models import SMALL_MODELS, Builder, small_model
from tests.plans import resized

EDGE, TINY = load_machine("edge"), load_machine("tiny")


def baseline(case: Case) -> Plan:
    plan = layer_by_layer(case.target_graph)
    assert isinstance(plan, Plan)
    return plan


def compiled(case: Case, plan: Plan) -> Program:
    program = Compiler(case.target_graph).compile(plan)
    assert isinstance(program, Program), program
    return program


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case(small_model("residual_block"), EDGE, DataType.float16)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", list(SMALL_MODELS))
def test_layer_by_layer(name: str, dtype: str) -> None:
    for machine in (EDGE, TINY):
        case = make_case(small_model(name), machine, DataType[dtype])
        check_program(case, compiled(case, baseline(case)))


def test_signal_larger_than_l1_is_cut_in_blocks() -> None:
    b = Builder(np.random.default_rng(3), (1, 64, 700))
    model = b.model(b.node("Conv", ["x", b.normal((16, 64, 3), 0.1)], pads=[1, 1]))
    case = make_case(model, TINY, DataType.float16)
    plan = baseline(case)
    assert TINY.buffer_blocks(Memory.L1) < 64 // 16 * 700
    assert plan.segments[0].blocks > 1
    check_program(case, compiled(case, plan))


def test_initial_contents_of_memory_do_not_matter(case: Case) -> None:
    program = compiled(case, baseline(case))
    first, _ = run_program(case, program, scramble_seed=0)
    second, _ = run_program(case, program, scramble_seed=1)
    assert all((first[name] == second[name]).all() for name in first)


def test_one_changed_word_is_noticed(case: Case) -> None:
    """The checks would see a wrong program: an address off by one block changes values or is a finding."""
    program = compiled(case, baseline(case))
    right, _ = run_program(case, program)
    code = program.streams[0]
    rng = np.random.default_rng(0)
    work = np.flatnonzero(~np.isin(code[:, isa.OP], (1, 2)))
    for row in rng.choice(work, 12, replace=False):
        changed = code.copy()
        changed[row, isa.D] += 1
        wrong = Program(program.machine, (changed, *program.streams[1:]), program.memory)
        noticed = bool(sanitize_program(wrong, EDGE))
        if not noticed:
            values, _ = run_program(case, wrong)
            noticed = any(not np.array_equal(values[name], right[name]) for name in right)
        assert noticed, row


def test_changed_segment_alone_is_lowered_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    drafted = compiler.pipeline.draft_segment

    def counting(target_graph, plan, start, *rest):  # type: ignore[no-untyped-def]
        made.append(start)
        return drafted(target_graph, plan, start, *rest)

    monkeypatch.setattr(compiler.pipeline, "draft_segment", counting)
    compile_all = Compiler(case.target_graph)
    genome = single_operators(case.target_graph)
    assert not isinstance(genome, Infeasible)
    plan = decode_all(case.target_graph, genome)
    assert isinstance(plan, Plan)
    compile_all.compile(plan)
    assert made == list(range(len(genome)))
    changed = decode_all(case.target_graph, (*genome[:2], genome[2]._replace(blocks=2), *genome[3:]))
    assert isinstance(changed, Plan)
    mutated = compile_all.compile(changed)
    assert made[len(genome) :] == [2]
    assert isinstance(mutated, Program)
    assert mutated.digest == compiled(case, changed).digest
    assert mutated.digest != compiled(case, plan).digest


def test_a_full_cache_forgets_the_oldest(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, lowered, lower = baseline(case), list[int](), compiler.pipeline.lower_draft

    def counting(draft, *rest):  # type: ignore[no-untyped-def]
        lowered.append(draft.segment.outline.start)
        return lower(draft, *rest)

    monkeypatch.setattr(compiler.pipeline, "lower_draft", counting)
    small = Compiler(case.target_graph, cache_bytes=1)
    first, second = small.compile(plan), small.compile(plan)
    every = sum(len(segment.cores) for segment in plan.segments)
    assert 2 * every - 1 <= len(lowered) <= 2 * every  # once for each program: all but the last are forgotten in between
    assert isinstance(first, Program)
    assert isinstance(second, Program)
    assert first.digest == second.digest == compiled(case, plan).digest


def test_compiler_without_records_schedules_equally_and_links_nothing(case: Case) -> None:
    plan = baseline(case)
    whole, lean = Compiler(case.target_graph), Compiler(case.target_graph, records=False)
    expected, parts = whole.parts(plan), lean.parts(plan)
    assert isinstance(expected, list)
    assert isinstance(parts, list)
    one, other = whole.schedule(expected), lean.schedule(parts)
    assert np.array_equal(one.number, other.number)
    for part, (first, edges) in zip(parts, one.number.tolist(), strict=False):  # between parts, numbers are nobody's
        of, to = slice(first, first + part.lowered.records), slice(EDGES * first, edges)
        for name in ("after", "core", "engine", "edge_start", "set_head"):
            assert np.array_equal(getattr(one, name)[of], getattr(other, name)[of])
        for name in ("edge_from", "edge_to", "set_next"):
            assert np.array_equal(getattr(one, name)[to], getattr(other, name)[to])
    streams = [[s.stream[at : at + length] for at, length in zip(s.stream_start, s.lengths, strict=True)] for s in (one, other)]
    assert all(np.array_equal(a, b) for a, b in zip(*streams, strict=True))
    assert sum(map(len, streams[0]))
    saved = sum(part.lowered.nbytes for part in expected) - sum(part.lowered.nbytes for part in parts)
    assert saved == sum(part.lowered.code.nbytes for part in expected)
    with pytest.raises(ValueError, match="keeps no records"):
        lean.link(parts)


def test_tags_name_segment_and_operator(case: Case) -> None:
    plan = baseline(case)
    code = compiled(case, plan).streams[0]
    segments, operators = code[:, isa.TAG] >> 16, code[:, isa.TAG] & 0xFFFF
    assert (segments == operators).all()  # one operator each
    assert set(segments.tolist()) == set(range(len(plan.segments)))


def test_flags_have_the_block_of_their_record(case: Case) -> None:
    fused = decode(case.target_graph, Gene(0, len(case.target_graph.operators), 4))
    assert fused is not None
    code = compiled(case, plan_of(case.target_graph, [fused])).streams[0]
    assert set(code[:, isa.BLOCK].tolist()) == set(range(fused.blocks))
    assert fused.blocks > 1
    for engine in set(code[:, isa.ENGINE].tolist()):
        queue = code[code[:, isa.ENGINE] == engine]
        for at, row in enumerate(queue):
            near = {Op.SET: at - 1, Op.WAIT: at + 1}.get(row[isa.OP])  # another flag of the same record, or the record
            if near is not None:
                assert (queue[near, [isa.TAG, isa.BLOCK]] == row[[isa.TAG, isa.BLOCK]]).all()


def test_fusion_moves_fewer_bytes(case: Case) -> None:
    """The whole network in one segment reads its input and weights and writes its output: no intermediate passes DDR."""
    n = len(case.target_graph.operators)
    fused = decode(case.target_graph, Gene(0, n, 1))
    assert fused is not None
    program = compiled(case, plan_of(case.target_graph, [fused]))
    check_program(case, program)
    _, counters = run_program(case, program)
    _, apart = run_program(case, compiled(case, baseline(case)))
    constants = sum(b.size_blocks for b in case.target_graph.memory.of_kind("constant"))
    ports = {kind: sum(b.size_blocks for b in case.target_graph.memory.buffers if b.kind == kind) for kind in ("input", "output")}
    assert counters.ddr_write_bytes == ports["output"] * 32
    assert counters.ddr_read_bytes == (ports["input"] + constants) * 32
    assert apart.ddr_write_bytes > counters.ddr_write_bytes


def test_operators_in_no_topological_order(case: Case) -> None:
    plan = baseline(case)
    backwards = plan.model_copy(update={"segments": plan.segments[::-1]})
    short = plan.model_copy(update={"segments": plan.segments[:-1]})
    for wrong, where in (backwards, "operator 0"), (short, f"operator {len(plan.segments) - 1}"):
        found = Compiler(case.target_graph).compile(wrong)
        assert isinstance(found, Infeasible)
        assert found.where == where
        assert "expected" in found.reason


def test_a_machine_that_is_too_small() -> None:
    """1 KiB of L1 holds three rows of three columns, but not the smallest chunks of weights beside them: a value that says so."""
    machine = resized(EDGE, L1=1024)
    case = make_case(small_model("residual_block"), machine, DataType.float16)
    found = layer_by_layer(case.target_graph)
    assert isinstance(found, Infeasible)
    assert "1,024 B of L1" in found.reason
    assert found.where in {spec.name for spec in case.target_graph.operators}


def test_segment_lies_at_the_planned_end(case: Case) -> None:
    plan, compiler = baseline(case), Compiler(case.target_graph)
    count = len(plan.segments)
    assert count > 4

    def tops(same: set[int]) -> list[bool]:
        segments = [each.model_copy(update={"same_end": at in same}) for at, each in enumerate(plan.segments)]
        changed = plan.model_copy(update={"segments": tuple(segments)})
        check_program(case, compiled(case, changed))
        parts = compiler.parts(changed)
        assert not isinstance(parts, Infeasible)
        return [part.flip for part in parts]

    assert tops(set()) == [bool(at % 2) for at in range(count)]
    assert tops({2}) == [bool(at % 2) != (at >= 2) for at in range(count)]
    assert tops({2, 3}) == [bool(at % 2) != (at == 2) for at in range(count)]
    assert tops({0}) == [not at % 2 for at in range(count)], "the first one lies at the other end than nobody before it"
    segment = plan.segments[0].model_copy(update={"same_end": True})
    (alone,) = compiler.alone(segment, 0)
    assert not alone.flip, "by itself it has no neighbour"


def test_which_segment_does_not_fit(case: Case) -> None:
    plan = baseline(case)
    other = make_case(small_model("residual_block"), resized(EDGE, L1=2048), DataType.float16)
    found = Compiler(other.target_graph).compile(plan)
    assert isinstance(found, Infeasible)
    assert str(found).startswith(f"segment 0, {case.target_graph.operators[0].name}: needs ")
