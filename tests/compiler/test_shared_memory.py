"""A memory that cores share: right values, no race, within its size, and less of DDR; and nothing of it where a machine has none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compiler.cost.features import FEATURES, raw_features
from compiler.dump.plan import plan_lines
from compiler.dump.segments import segment_lines
from compiler.frontend import load_model, lower, seed_weights
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler, places_of, with_starts
from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.schedule.shared_memory_allocator import allocate_residents
from compiler.segment.border_tensors import border_names
from compiler.segment.segment import Segment
from compiler.space.decode import decode, decode_all, plan_of
from compiler.space.encode import genome_of
from compiler.space.gene import Gene, Genome
from compiler.space.initial import single_operators
from compiler.space.shared_memory import with_residents, with_shared, without_shared
from simulator.breakdown import breakdown
from simulator.npu import isa
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Engine, Memory
from simulator.npu.program import Program
from simulator.occupancy import shared_in_use
from simulator.sanitizer import sanitize_program
from simulator.timeline import timeline
from simulator.timing import simulate_levels
from tests.compiled import Case, check_program, make_case
from tests.messages import naming
from tests.models import small_model
from tests.plans import random_plan
from tests.shared_machine import with_shared as machine_with_shared
from tuner.zoo.builders import build_network

NETWORKS = ("residual_block", "inception_block", "dense_block", "lrn_chain")
ROOMY, TIGHT = 1 << 20, 1 << 15


def machine(cores: int = 2, size_bytes: int = ROOMY, count_limit: int = 7) -> Machine:
    tiny = load_machine("tiny").model_dump(mode="json")
    return machine_with_shared(load_machine("tiny"), size_bytes, cores=cores, flags=tiny["flags"] | {"count_limit": count_limit})


def case_of(name: str, m: Machine) -> Case:
    return make_case(small_model(name), m, DataType.float16)


def split(case: Case, cores: int, blocks: int = 4) -> Genome:
    """Every operator alone, in at least `blocks` blocks, over more and more cores."""
    singles = single_operators(case.target_graph)
    assert not isinstance(singles, Infeasible)
    return tuple(
        gene._replace(blocks=max(gene.blocks, blocks), cores=tuple(np.roll(range(cores), k)[: 1 + k % cores].tolist()))
        for k, gene in enumerate(singles)
    )


def planned(case: Case, genome: Genome) -> Plan:
    plan = decode_all(case.target_graph, genome)
    assert isinstance(plan, Plan), plan
    return plan


def compiled(case: Case, plan: Plan) -> Program:
    program = Compiler(case.target_graph).compile(plan)
    assert isinstance(program, Program), program
    return program


def moves(program: Program) -> set[tuple[Memory, Memory, Engine]]:
    codes = np.concatenate(program.streams)
    copies = codes[codes[:, isa.OP] == Op.COPY]
    return {(Memory(s), Memory(d), Engine(e)) for s, d, e in copies[:, [isa.SRC, isa.DST, isa.ENGINE]].tolist()}


def weights_of(case: Case, segment: SegmentPlan, start: int) -> tuple[str, ...]:
    """Operators of a segment that have weights."""
    return tuple(name for k, name in enumerate(segment.operators) if case.target_graph.operators[start + k].weight_blocks)


def in_ddr(plan: Plan) -> Plan:
    return plan.model_copy(update={"segments": tuple(map(without_shared, plan.segments))})


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("cores", "limit"), [(1, 7), (2, 7), (3, 1), (4, 2)])
@pytest.mark.parametrize("size_bytes", [ROOMY, TIGHT])
def test_programs_are_right_whatever_fits(name: str, cores: int, limit: int, size_bytes: int) -> None:
    """Small as it is, places are used again, and writes wait for whoever read what was there."""
    case = case_of(name, machine(cores, size_bytes, limit))
    plan = planned(case, split(case, cores))
    compiler = Compiler(case.target_graph)
    parts = compiler.parts(plan)
    assert not isinstance(parts, Infeasible)
    places = places_of(parts)
    assert 0 < places.need * BLOCK_BYTES <= size_bytes
    if size_bytes == TIGHT:
        assert any(resident.after for resident in places.residents)
    check_program(case, compiler.link(parts))


@settings(max_examples=25, deadline=None)
@example(500, "dense_block", ROOMY)  # MTE2 of one core waits for moves of the other's MTE3 on both sides of where that one heard of it
@given(st.integers(0, 1 << 30), st.sampled_from(NETWORKS), st.sampled_from([ROOMY, TIGHT]))
def test_any_plan_is_right_with_what_stays(seed: int, name: str, size_bytes: int) -> None:
    is_right(seed, name, size_bytes)


def is_right(seed: int, name: str, size_bytes: int) -> None:
    case = case_of(name, machine(2, size_bytes))
    plan = random_plan(case.target_graph, np.random.default_rng(seed))
    if plan is None:
        return
    program = Compiler(case.target_graph).compile(with_residents(case.target_graph, plan))
    if isinstance(program, Program):
        check_program(case, program)


def test_place_used_again_needs_its_flags() -> None:
    """Without some flag between cores that orders two moves of the shared memory there is a race."""
    case = case_of("dense_block", machine(3, TIGHT))
    program = compiled(case, planned(case, split(case, 3)))
    found = set()
    for core, code in enumerate(program.streams):
        flags = (code[:, isa.OP] == Op.WAIT) & (code[:, isa.FLAG_CORE] != core)
        for row in np.flatnonzero(flags).tolist():
            flag = code[row]
            key = (int(flag[isa.FLAG_CORE]), int(flag[isa.FLAG_ENGINE]), core, int(flag[isa.ENGINE]))
            found.add(key[1::2])
            if key[1] == Engine.MTE2 and key[3] == Engine.MTE3:
                streams = [np.delete(each, row, axis=0) if at == core else each for at, each in enumerate(program.streams)]
                sets = [r for r, c in enumerate(streams[key[0]].tolist()) if c[isa.OP] == Op.SET and c[isa.FLAG_CORE] == core
                        and c[isa.ENGINE] == key[1] and c[isa.FLAG_ENGINE] == key[3]]  # fmt: skip
                nth = int(np.count_nonzero(flags[:row] & (code[:row, isa.ENGINE] == key[3]) & (code[:row, isa.FLAG_CORE] == key[0])
                                           & (code[:row, isa.FLAG_ENGINE] == key[1])))  # fmt: skip
                streams[key[0]] = np.delete(streams[key[0]], sets[nth], axis=0)
                races = sanitize_program(Program(program.machine, tuple(streams), program.memory), case.target_graph.machine)
                if any(f.kind == "race" and f.memory == Memory.SHARED for f in races):
                    return
    raise AssertionError(f"no flag between cores was needed for a place that is used again: {found}")


def test_tensors_and_weights_go_where_the_plan_says() -> None:
    case = case_of("residual_block", machine())
    plan = planned(case, split(case, 2))
    assert any(segment.shared for segment in plan.segments)
    there = moves(compiled(case, plan))
    assert (Memory.UB, Memory.SHARED, Engine.MTE3) in there
    assert (Memory.SHARED, Memory.L1, Engine.MTE2) in there
    staged = [segment.model_copy(update={"staged": segment.operators[:1]}) for segment in plan.segments[:1]]
    program = compiled(case, plan.model_copy(update={"segments": (*staged, *plan.segments[1:])}))
    assert (Memory.DDR, Memory.SHARED, Engine.MTE2) in moves(program)
    check_program(case, program)
    assert not any(Memory.SHARED in each for each in moves(compiled(case, in_ddr(plan))))


def test_less_of_ddr_and_the_weights_once() -> None:
    case = case_of("residual_block", machine())
    plan = planned(case, split(case, 2))
    weighted = tuple(
        segment.model_copy(update={"staged": weights_of(case, segment, start) if len(segment.cores) > 1 else ()})
        for segment, start in with_starts(plan)
    )
    every = plan.model_copy(update={"segments": weighted})
    assert any(segment.staged for segment in weighted)
    bytes_of = [simulate_levels(compiled(case, p), case.target_graph.machine)["none"] for p in (in_ddr(plan), plan, every)]
    reads = [t.ddr_read_bytes for t in bytes_of]
    assert reads[0] > reads[1]
    weights = {name: spec.weight_blocks * BLOCK_BYTES for spec in case.target_graph.operators for name in [spec.name]}
    again = sum(weights[n] * (len(s.cores) - 1) for s in weighted for n in s.staged) - sum(
        weights[n] * (len(s.cores) - 1) for s in plan.segments for n in s.staged
    )
    assert reads[1] - reads[2] == again
    assert bytes_of[1].ddr_write_bytes < bytes_of[0].ddr_write_bytes


@pytest.mark.parametrize("cores", [(0,), (0, 1)])
def test_weights_are_not_staged_beside_channels_on_vector(cores: tuple[int, ...]) -> None:
    model = seed_weights(load_model(build_network("mobilenet_v1-small")), 0)
    target_graph = make_case(model, load_machine("ascend310-l2"), DataType.float16).target_graph
    genes = [Gene(start, start + 3, 4, cores=cores, on_vector=(1, 0, 0)) for start in range(len(target_graph.operators) - 3)]
    plans = [(plan, gene.start) for gene in genes if (plan := decode(target_graph, gene)) is not None]
    assert len(plans) > 5
    for plan, start in plans:
        (shared,) = with_shared(target_graph, [(plan, start)])
        assert not isinstance(Segment.of(target_graph, shared, start), Infeasible)


def test_what_stays_fits_and_saves_most_first() -> None:
    target_graph = case_of("dense_block", machine(2, TIGHT)).target_graph
    plans = [(segment, start) for segment, start in with_starts(planned_of(target_graph))]
    found = with_shared(target_graph, plans)
    parts = Compiler(target_graph).some([(plan, start) for plan, (_, start) in zip(found, plans, strict=True)])
    assert not isinstance(parts, Infeasible)
    every = set().union(*(border_names(target_graph, start, start + len(plan.operators)) for plan, start in plans))
    kept = {name for plan in found for name in plan.shared}
    assert set() < kept < every
    assert with_shared(target_graph, list(zip(found, [s for _, s in plans], strict=True))) == found, "the same again, whatever was there"


def planned_of(target_graph) -> Plan:  # type: ignore[no-untyped-def]
    genome = single_operators(target_graph)
    assert not isinstance(genome, Infeasible)
    plan = decode_all(target_graph, genome)
    assert isinstance(plan, Plan)
    return plan


def test_residents_that_live_at_once_lie_apart() -> None:
    def ranges(*rows: Sequence[int]) -> np.ndarray:
        return np.array(rows, np.int64).reshape(-1, 2)

    places = allocate_residents([(0, ranges((100, 4))), (1, ranges((100, 4), (200, 6))), (2, ranges((200, 6), (300, 4)))])
    by_first = {r.first: r for r in places.residents}
    assert places.need == 10
    assert (by_first[100].birth, by_first[100].death, by_first[200].death) == (0, 1, 2)
    assert by_first[300].block == by_first[100].block
    assert [places.residents[k].first for k in by_first[300].after] == [100]
    assert by_first[100].after == by_first[200].after == ()


def test_plans_that_contradict_themselves_or_the_machine() -> None:
    case = case_of("residual_block", machine())
    plan = planned(case, split(case, 2))
    compiler = Compiler(case.target_graph)

    def refused(**changes: tuple[str, ...]) -> str:
        at = next(k for k, segment in enumerate(plan.segments) if segment.shared)
        segments = [*plan.segments]
        segments[at] = segments[at].model_copy(update=changes)
        found = compiler.compile(plan.model_copy(update={"segments": tuple(segments)}))
        assert isinstance(found, Infeasible)
        return str(found)

    assert "is in DDR here and in shared memory elsewhere" in refused(shared=())
    mine = next(segment.shared for segment in plan.segments if segment.shared)
    assert "'nothing' in shared memory: no tensor of the model" in refused(shared=(*mine, "nothing"))
    names = {storage.name for storage in case.target_graph.storages}
    seen = sorted(names - {buffer.name for buffer in case.target_graph.memory.of_kind("scratch")})
    assert any("the host reads or writes it" in refused(shared=(*mine, name)) for name in seen)
    without = lower_unit("residual_block", load_machine("tiny"))
    alone = Compiler(without).some([(segment, start) for segment, start in with_starts(plan)])
    assert isinstance(alone, Infeasible)
    assert "tiny has none" in str(alone)


def lower_unit(name: str, m: Machine):  # type: ignore[no-untyped-def]
    return make_unit(lower(small_model(name)), m, DataType.float16)


def test_what_is_too_much_is_said() -> None:
    big = case_of("dense_block", machine(2, ROOMY))
    plan = planned(big, split(big, 2))
    small = case_of("dense_block", machine(2, TIGHT))
    found = Compiler(small.target_graph).some(with_starts(plan))
    assert isinstance(found, Infeasible)
    assert str(found).startswith("shared memory: needs ")
    assert str(found).endswith("the machine has 32,768")


def test_machine_without_one_of_its_paths_is_refused() -> None:
    raw = machine().model_dump(mode="json")
    raw["paths"] = [path for path in raw["paths"] if (path["source"], path["destination"]) != ("UB", "SHARED")]
    with pytest.raises(UnsupportedError, match=naming("path UB -> SHARED")):
        lower_unit("residual_block", Machine.model_validate(raw))


def test_features_tell_both_memories_apart() -> None:
    """Bytes of DDR and of the shared memory are those of the program."""
    case = case_of("residual_block", machine())
    at = {name: i for i, name in enumerate(FEATURES)}
    compiler = Compiler(case.target_graph)
    for segment, start in with_starts(planned(case, split(case, 2))):
        weighted = weights_of(case, segment, start)
        for plan in {without_shared(segment), segment, segment.model_copy(update={"staged": weighted})}:
            parts = compiler.alone(plan, start)
            assert not isinstance(parts, Infeasible)
            code = np.concatenate([part.lowered.code for part in parts])
            copies = code[code[:, isa.OP] == Op.COPY].astype(np.int64)
            size = copies[:, [isa.C_LENGTH, isa.C_COUNT, isa.C_COUNT2]].prod(1) * BLOCK_BYTES

            def total(memory: Memory, word: int, copies=copies, size=size) -> int:  # type: ignore[no-untyped-def]
                return int(size[(copies[:, word] == memory) & (copies[:, isa.SRC] + copies[:, isa.DST] != Memory.SHARED)].sum())

            into = int(size[(copies[:, isa.SRC] == Memory.DDR) & (copies[:, isa.DST] == Memory.SHARED)].sum())
            raw = raw_features(case.target_graph, plan, start)
            read = raw[[at["load_bytes"], at["weight_bytes"], at["residual_bytes"]]].sum()
            assert read == total(Memory.DDR, isa.SRC) + into
            assert raw[at["store_bytes"]] == total(Memory.DDR, isa.DST)
            assert raw[at["shared_read_bytes"]] == total(Memory.SHARED, isa.SRC)
            assert raw[at["shared_write_bytes"]] == total(Memory.SHARED, isa.DST)
            assert (raw[at["shared_cycles"]] > 0) == bool(plan.shared or plan.staged)


def test_a_plan_has_a_gene_whatever_stays() -> None:
    case = case_of("residual_block", machine())
    plan = planned(case, split(case, 2))
    genome = genome_of(case.target_graph, plan)
    assert genome is not None
    assert decode_all(case.target_graph, genome) == plan
    assert genome_of(case.target_graph, in_ddr(plan)) == genome


def test_nothing_stays_where_there_is_none() -> None:
    target_graph = lower_unit("residual_block", load_machine("tiny"))
    plan = planned_of(target_graph)
    assert "shared" not in plan.to_json()
    assert with_residents(target_graph, plan) is plan
    assert with_shared(target_graph, with_starts(plan)) == list(plan.segments)
    assert plan_of(target_graph, []).segments == ()
    assert Gene(0, 1) == Gene(0, 1)


def test_texts_and_tables_show_what_lies_there() -> None:
    case = case_of("residual_block", machine())
    plan = planned(case, split(case, 2))
    staged = plan.segments[0].model_copy(update={"staged": plan.segments[0].operators[:1]})
    plan = plan.model_copy(update={"segments": (staged, *plan.segments[1:])})
    program = compiled(case, plan)
    shown = plan_lines(plan)
    assert f"shared: {' '.join(staged.shared)}" in shown
    assert sum(line.endswith(" weights staged") for line in shown) == sum(len(segment.staged) for segment in plan.segments)
    lines = list(segment_lines(Compiler(case.target_graph), plan))
    at = next(i for i, line in enumerate(lines) if line.startswith("shared memory: "))
    parts = Compiler(case.target_graph).parts(plan)
    assert not isinstance(parts, Infeasible)
    assert len(lines) - at - 1 == len(places_of(parts).residents)
    assert any("to SHARED" in line for line in lines[:at])
    t = timeline(program, case.target_graph.machine, case.target_graph.machine.contention["none"])
    rows = breakdown(t)
    codes = np.concatenate(program.streams).astype(np.int64)
    for word, key in ((isa.SRC, "shared_read_bytes"), (isa.DST, "shared_write_bytes")):
        copies = codes[(codes[:, isa.OP] == Op.COPY) & (codes[:, word] == Memory.SHARED)]
        moved = int(copies[:, [isa.C_LENGTH, isa.C_COUNT, isa.C_COUNT2]].prod(1).sum()) * BLOCK_BYTES
        assert sum(getattr(row, key) for row in rows) == moved > 0
    use = shared_in_use(t)
    assert use is not None
    assert 0 < int(use.value.max()) <= places_of(parts).need * BLOCK_BYTES
    assert int(use.value[-1]) == 0
