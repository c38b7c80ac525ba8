"""What a worker measures: what a genome is, what it costs at every level, and what its log rows are made of.  No Ray."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import pytest

from compiler.build import operators
from compiler.cost.features import FEATURES, raw_features
from compiler.frontend import lower
from compiler.frontend.onnx_io.load import prepare
from compiler.frontend.onnx_io.random_weights import seed_weights
from compiler.ir.graph import Graph, Port
from compiler.ir.operators import Concat
from compiler.ir.quantised.parameters import Quantisation
from compiler.ops.lower_graph import make_unit, pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan
from compiler.space.decode import decode, decode_all
from compiler.space.gene import Gene, Genome
from compiler.space.initial import layer_by_layer, single_operators
from compiler.space.mutators import random_genome
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.npu.program import Program
from simulator.npu.shared_traffic import shared_traffic
from simulator.timing import simulate_levels
from tests.integer_graphs import conv as quantised_conv
from tests.integers import with_integers
from tests.models import SMALL_MODELS, Builder, light_graph, small_graph
from tests.plans import resized
from tuner.log.digests import canonical_json
from tuner.log.record import RESULTS
from tuner.measure.evaluator import Evaluator, build_evaluator
from tuner.measure.npu_target import Npu
from tuner.measure.request import Measurement, Request
from tuner.measure.roofline import Roofline
from tuner.zoo.builders import build_network

LEVELS = ("none", "slight", "severe")
CYCLES = RESULTS.index("cycles")


@lru_cache(maxsize=16)
def target_graph(name: str, machine: str = "edge") -> TargetGraph:
    return make_unit(small_graph(name), load_machine(machine), DataType.float16)


def singles(u: TargetGraph) -> Genome:
    genome = single_operators(u)
    assert not isinstance(genome, Infeasible)
    return genome


def equal(a: Measurement, b: Measurement) -> bool:
    arrays = all(
        (x is None) == (y is None) and (x is None or np.array_equal(x, y)) for x, y in ((a.features, b.features), (a.values, b.values))
    )
    return arrays and (a.status, a.error, a.payload) == (b.status, b.error, b.payload)


def test_the_columns_are_those_of_the_log() -> None:
    evaluator = Evaluator(target_graph("conv_chain"), LEVELS)
    measurement = evaluator.measure(Request("program", singles(evaluator.target_graph)))
    assert measurement.values is not None
    assert measurement.values.shape == (len(LEVELS), len(RESULTS))
    assert RESULTS[CYCLES] == "cycles"


def test_shared_memory_traffic_and_peak_are_the_records() -> None:
    names = ("shared_read_bytes", "shared_write_bytes", "peak_shared_bytes")
    columns = [RESULTS.index(name) for name in names]
    for machine, there in (("ascend310-l2", True), ("edge", False)):
        u = target_graph("residual_block", machine)
        npu = Npu(u, LEVELS, records=True)
        evaluator = Evaluator(u, LEVELS, npu)
        genome = singles(u)
        values = evaluator.measure(Request("program", genome)).values
        assert values is not None
        plans = [(plan, gene.start) for gene in genome if (plan := evaluator.plan(gene)) is not None]
        parts = npu.compiler.some(plans)
        assert not isinstance(parts, Infeasible)
        program = npu.compiler.link(parts)
        traffic = shared_traffic(program.streams)
        for row in values[:, columns].tolist():
            assert row == [*traffic, program.needs.shared_bytes]
            assert all(row) == any(row) == there


def test_no_program_is_faster_than_its_roofline() -> None:
    """A vision transformer reads one token in the end: rows that nobody reads are no work, for the program or for its bound."""
    u = make_unit(
        lower(seed_weights(prepare(build_network("vit_b16-small,layers=2,width=128")), 0)), load_machine("edge"), DataType.float16
    )
    roofline = Roofline(u)
    assert sum(roofline.work(tuple(range(len(u.operators))))[0].values()) == sum(operator.macs for operator in operators(u)) < u.macs
    program = Compiler(u).compile(decode_all(u, (Gene(0, 12), Gene(12, len(u.operators)))))
    for level, timing in simulate_levels(program, u.machine, LEVELS).items():
        assert timing.cycles >= roofline.cycles(0, len(u.operators), level)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_a_program_is_measured_as_it_is_compiled(name: str) -> None:
    u = target_graph(name)
    evaluator, compiler = build_evaluator(u, LEVELS), Compiler(u)
    rng, measured = np.random.default_rng(1), 0
    for genome in (singles(u), *(random_genome(u, rng) for _ in range(4))):
        measurement = evaluator.measure(Request("program", genome))
        plan = decode_all(u, genome)
        if isinstance(plan, Infeasible):
            assert measurement.status == "infeasible"
            assert "no tiling fits L1" in (measurement.error or "")
            continue
        payload = json.loads(measurement.payload)
        assert payload["unit"] == u.digest
        assert Plan.model_validate(payload["plan"]) == plan
        assert measurement.payload == canonical_json(payload)
        program = compiler.compile(plan)
        if isinstance(program, Infeasible):
            assert (measurement.status, measurement.error, measurement.values) == ("infeasible", str(program), None)
            continue
        timings = simulate_levels(program, u.machine, LEVELS)
        assert measurement.status == "ok"
        assert measurement.values is not None
        assert measurement.values[:, CYCLES].tolist() == [timings[level].cycles for level in LEVELS]
        assert measurement.values[:, 2:4].tolist() == [[timings[level].ddr_read_bytes, timings[level].ddr_write_bytes] for level in LEVELS]
        assert (measurement.values[:, CYCLES] >= measurement.values[:, RESULTS.index("roofline_cycles")]).all()
        assert measurement.values[:, CYCLES].tolist() == sorted(measurement.values[:, CYCLES]), "the fewer bytes per cycle, the longer"
        measured += 1
    assert measured >= 2


def test_layer_by_layer_plan_is_single_operators() -> None:
    u = target_graph("residual_block")
    measurement = Evaluator(u, LEVELS).measure(Request("program", singles(u)))
    assert Plan.model_validate(json.loads(measurement.payload)["plan"]) == layer_by_layer(u)


def test_cores_without_a_plan_are_used_where_faster() -> None:
    """Eight cores that draw 17 of 136 bytes per cycle each against one; and not at the price of loading many weights twice."""
    machine = load_machine("ascend310p")
    u = make_unit(light_graph("squeezenet"), machine, DataType.float16)
    plan, one = layer_by_layer(u), decode_all(u, singles(u))
    assert isinstance(plan, Plan)
    assert isinstance(one, Plan)
    widths = [len(segment.cores) for segment in plan.segments]
    assert max(widths) == 8
    assert widths[-1] == 1, "a row has no blocks"
    programs = [Compiler(u).compile(p) for p in (plan, one)]
    found, alone = (simulate_levels(p, machine) for p in programs if isinstance(p, Program))
    assert all(found[level].cycles < alone[level].cycles for level in ("none", "slight"))
    both = layer_by_layer(make_unit(light_graph("squeezenet"), load_machine("ascend310"), DataType.float16))
    assert isinstance(both, Plan)
    assert {len(segment.cores) for segment in both.segments} == {1, 2}


def test_program_features_are_sums_over_segments() -> None:
    u = target_graph("inception_block")
    evaluator, genome = Evaluator(u, LEVELS), singles(u)
    whole = evaluator.measure(Request("program", genome))
    parts = [evaluator.measure(Request("segment", (gene,), False)) for gene in genome]
    assert whole.features is not None
    assert whole.features == pytest.approx(np.sum([part.features for part in parts], 0))
    plan = decode(u, genome[0])
    assert plan is not None
    assert np.array_equal(parts[0].features, raw_features(u, plan, 0))
    assert whole.features[FEATURES.index("segments")] == len(genome)


def test_unmeasured_program_is_simulated_without_a_task() -> None:
    u = target_graph("inception_block")
    evaluator, genome = Evaluator(u, LEVELS), singles(u)
    foreseen, measured = evaluator.measure(Request("program", genome, False)), evaluator.measure(Request("program", genome))
    assert (foreseen.status, foreseen.task, foreseen.payload) == ("ok", "", "")
    assert foreseen.values is not None
    assert measured.values is not None
    assert np.array_equal(foreseen.values[:, CYCLES], measured.values[:, CYCLES])


def test_measurements_follow_from_the_request_alone() -> None:
    u = target_graph("residual_block")
    one, two = Evaluator(u, LEVELS), Evaluator(u, LEVELS)
    rng = np.random.default_rng(2)
    requests = [Request("program", random_genome(u, rng)) for _ in range(6)]
    requests += [Request("segment", (gene,)) for request in requests for gene in request.genome]
    first = list(map(one.measure, requests))
    assert all(map(equal, first, list(map(one.measure, requests)))), "the second time from the caches"
    assert all(map(equal, reversed(first), map(two.measure, requests[::-1]))), "in the other order"
    as_lists = [Request(request.kind, tuple(tuple(gene) for gene in request.genome)) for request in requests]  # type: ignore[misc]
    assert all(map(equal, first, map(Evaluator(u, LEVELS).measure, as_lists))), "genes that came as plain tuples"


def test_end_of_l1_is_a_matter_of_programs() -> None:
    u = target_graph("conv_chain")
    evaluator, genome = Evaluator(u, LEVELS), singles(u)
    turned = (*genome[:1], genome[1]._replace(same_end=True), *genome[2:])
    alone, other = (evaluator.measure(Request("segment", (each[1],))) for each in (genome, turned))
    assert (alone.task, alone.payload) == (other.task, other.payload)
    programs = [evaluator.measure(Request("program", each)) for each in (genome, turned)]
    assert programs[0].task != programs[1].task
    assert programs[0].payload.count("same_end") == 0
    assert programs[1].payload.count('"same_end":true') == 1
    assert programs[0].features is not None
    assert np.array_equal(programs[0].features, programs[1].features)


def test_a_segment_alone_reads_and_writes_its_borders() -> None:
    u = target_graph("conv_chain")
    evaluator, genome = Evaluator(u, LEVELS), singles(u)
    fused = evaluator.measure(Request("segment", (Gene(0, len(u.operators)),)))
    apart = [evaluator.measure(Request("segment", (gene,))) for gene in genome]
    moved = RESULTS.index("ddr_read_bytes")
    assert fused.values is not None
    assert fused.values[0, moved] < sum(int(part.values[0, moved]) for part in apart if part.values is not None)
    payload = json.loads(fused.payload)
    assert set(payload) == {"structure", "plan"}
    assert "operators" not in payload["plan"], "names do not tell equal segments apart"


def test_what_does_not_fit_is_an_answer() -> None:
    u = make_unit(small_graph("conv_chain"), resized(load_machine("tiny"), L1=1024), DataType.float16)
    measurement = Evaluator(u, LEVELS).measure(Request("segment", (Gene(0, 2, 1),)))
    assert (measurement.status, measurement.error) == ("infeasible", "operators 0..1 in 1 blocks: no tiling fits L1")
    assert (measurement.payload, measurement.features, measurement.values) == ("", None, None)
    assert len(measurement.task) == 32, "the log has a name for it"


# the model's own bound, on paper


def test_roofline_of_one_convolution() -> None:
    """16 x 8 x 8 in, 32 x 8 x 8 out, 3 x 3: 294,912 MACs at 4,096 per cycle; 2,048 + 4,096 + 9,280 bytes.

    They move at 60.56 bytes per cycle, 64 without refresh, and at a half and a quarter of that.
    """
    b = Builder(np.random.default_rng(0), (1, 16, 8, 8))
    u = make_unit(lower(b.model(b.conv("x", 32))), load_machine("edge"), DataType.float16)
    assert [Roofline(u).cycles(0, 1, level) for level in LEVELS] == [255, 510, 1019]


@pytest.mark.parametrize("dtype", [DataType.int8, DataType.uint8])
def test_roofline_of_a_convolution_of_integers(dtype: DataType) -> None:
    """The same of 8 bits: half of the bytes, but a bias of int32, 1,024 + 2,048 + 4,608 + 128; and two to one in MACs per cycle."""
    rng, q = np.random.default_rng(0), Quantisation.of(np.float32(0.1), np.zeros((), dtype.storage), dtype.storage)
    ports = Port("x", "x", (1, 16, 8, 8)), Port("y", "y", (1, 32, 8, 8))
    shapes = {"x": (1, 16, 8, 8), "y": (1, 32, 8, 8)}
    made = Graph("g", ports[:1], ports[1:], (quantised_conv(rng, "y", "x", (16, 32), q, q),), shapes, types={"x": q, "y": q})
    u, _ = pack_unit(made, with_integers(load_machine("edge")), DataType.float16)
    assert [Roofline(u).cycles(0, 1, level) for level in LEVELS] == [129, 258, 516]
    assert Roofline(u).work((0,)) == ({DataType.int8: 294_912}, 7_808)


def test_roofline_of_a_convolution_with_many_macs() -> None:
    """256 x 16 x 16 in and out, 3 x 3: 150,994,944 MACs at 4,096 per cycle are more than any of its bytes."""
    b = Builder(np.random.default_rng(0), (1, 256, 16, 16))
    u = make_unit(lower(b.model(b.conv("x", 256))), load_machine("edge"), DataType.float16)
    assert Roofline(u).cycles(0, 1, "none") == 36_864


def test_roofline_counts_segment_outputs_and_concatenations_once() -> None:
    """Nested concatenations share their parts: each part is read once, at a quarter of what DDR delivers."""
    u = target_graph("dense_block")
    quarter = u.machine.ddr.deliverable / 4
    roofline, end, shapes = Roofline(u), len(u.operators), u.graph.shapes
    assert roofline.cycles(0, end, "severe") < sum(roofline.cycles(k, k + 1, "severe") for k in range(end)), "intermediates stay"
    made_of = {op.y: op.inputs for op in u.graph.operators if isinstance(op, Concat)}

    def parts(name: str) -> set[str]:
        return set().union(*map(parts, made_of[name])) if name in made_of else {name}

    def size(names: Iterable[str]) -> int:
        return sum(int(np.prod(shapes[name])) * u.dtype.size_bytes for name in names)

    shared = 0
    for start in range(1, end):
        specs = u.operators[start:]
        made = {spec.operator.y for spec in specs}
        read = {name for spec in specs for name in spec.operator.inputs}
        inputs = set().union(*map(parts, read)) - made
        shared += size(inputs) < sum(size(parts(name) - made) for name in read)
        weights = sum(roofline.weight_bytes[start:])
        macs = sum(spec.macs for spec in specs)
        assert roofline.cycles(start, end, "severe") == max(
            -(-macs // 4096), math.ceil((size(inputs | {specs[-1].operator.y}) + weights) / quarter)
        )
    assert shared, "some segment reads two concatenations that share parts"
