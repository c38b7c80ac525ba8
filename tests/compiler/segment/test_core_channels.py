"""Cores that share a segment's output channels: right values, each weight loaded by one core, nothing that waits for another core."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx import ModelProto

from compiler.cost.features import FEATURES, raw_features
from compiler.ops.conv import ConvSpec
from compiler.ops.matmul import MatMulSpec
from compiler.ops.norm import LayerNormSpec
from compiler.ops.softmax import SoftmaxSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.segment.core_channels import can_split, channel_parts
from compiler.space.decode import decode, decode_all
from compiler.space.gene import Gene, splits
from compiler.space.initial import single_operators, spread
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, DataType
from simulator.npu.program import Program
from simulator.timing import simulate_levels
from tests.compiled import Case, check_program, make_case
from tests.compiler.codegen.test_transformer import encoder
from tests.models import Builder, small_model
from tests.plans import with_cores

ASCEND = load_machine("ascend310")


def layers(seed: int = 0) -> ModelProto:
    """Every operator that can be cut by channels, over 80 of them: dense, depthwise and grouped convolutions, poolings, sums, a Gemm."""
    b = Builder(np.random.default_rng(seed), (1, 16, 9, 9))
    x = b.relu(b.conv("x", 80))
    y = b.relu(b.conv(x, 80, groups=80))
    y = b.batch_norm(b.max_pool(y, 3, 1, (1, 1, 1, 1)))
    x = b.add(b.conv(y, 80, (1, 1), pads=(0, 0, 0, 0), groups=5), x)
    x = b.node("Mul", [x, b.node("Sigmoid", [b.conv(b.node("GlobalAveragePool", [x]), 80, (1, 1), pads=(0, 0, 0, 0))])])
    x = b.node("GlobalAveragePool", [b.node("Resize", [x, "", b.constant(np.array([1, 1, 2, 2], np.float32))], mode="nearest")])
    return b.model(b.gemm(x, 70))


def by_channels(case: Case, longest: int = 1) -> tuple[Gene, ...]:
    """As long segments as can be cut, on all cores."""
    target_graph, genes = case.target_graph, list[Gene]()
    cores = tuple(range(target_graph.machine.cores))
    singles = single_operators(target_graph)
    assert not isinstance(singles, Infeasible)
    while (start := genes[-1].stop if genes else 0) < len(target_graph.operators):
        stops = range(min(len(target_graph.operators), start + longest), start, -1)
        wide = (Gene(start, stop, blocks, cores=cores, split="channels") for stop in stops for blocks in (1, 3))
        genes.append(next((g for g in wide if decode(target_graph, g) is not None), singles[start]))
    return tuple(genes)


def compiled(case: Case, genome: tuple[Gene, ...]) -> Program:
    plan = decode_all(case.target_graph, genome)
    assert not isinstance(plan, Infeasible), plan
    program = Compiler(case.target_graph).compile(plan)
    assert isinstance(program, Program), program
    return program


def crossing(program: Program) -> int:
    """Flags from one core to another."""
    return sum(int(((code[:, isa.OP] == Op.WAIT) & (code[:, isa.FLAG_CORE] != core)).sum()) for core, code in enumerate(program.streams))


MODELS = {"layers": layers, "encoder": lambda: encoder(2, 12, 4, 64)}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("cores", "dtype"), [(2, DataType.float16), (3, DataType.float16), (4, DataType.float32)])
@pytest.mark.parametrize("longest", [1, 5])
def test_values_are_right(model: str, cores: int, dtype: DataType, longest: int) -> None:
    case = make_case(MODELS[model](), with_cores(ASCEND, cores), dtype)
    genome = by_channels(case, longest)
    assert sum(gene.split == "channels" for gene in genome) > len(genome) // 2
    assert longest == 1 or max(gene.stop - gene.start for gene in genome if gene.split == "channels") > 1
    check_program(case, compiled(case, genome))


def test_parts_are_all_of_it_and_nothing_twice() -> None:
    for model, dtype in ((layers(), DataType.float32), (encoder(1, 12, 4, 64), DataType.float16)):
        target_graph, kinds = make_case(model, ASCEND, dtype).target_graph, Counter[type]()
        for k, whole in enumerate(target_graph.operators):
            for count in (2, 3, 4):
                parts = channel_parts(target_graph, k, k + 1, count)
                if isinstance(parts, Infeasible):
                    continue
                specs = [part.operators[k] for part in parts]
                kinds[type(whole)] += 1
                planes = [p for spec in specs for p in range(spec.y.plane, spec.y.plane + spec.y.planes)]
                assert planes == list(range(whole.y.plane, whole.y.plane + whole.y.planes))
                if isinstance(whole, ConvSpec) and not isinstance(whole, MatMulSpec):
                    at = [(spec.weights_at, spec.bias_at) for spec in specs if isinstance(spec, ConvSpec)]
                    ends = [(s.weights_at + s.stored_weight_blocks, s.bias_at + s.bias_blocks) for s in specs if isinstance(s, ConvSpec)]
                    assert at[0] == (whole.weights_at, whole.bias_at)
                    assert at[1:] == ends[:-1]
                    assert ends[-1] == (whole.weights_at + whole.stored_weight_blocks, whole.bias_at + whole.bias_blocks)
        assert {ConvSpec} < set(kinds)
    assert {MatMulSpec, SoftmaxSpec} < set(kinds), "head by head"


def test_what_cannot_be_cut_says_why() -> None:
    target_graph = make_case(encoder(1, 12, 4, 64), ASCEND, DataType.float16).target_graph
    norm = next(k for k, spec in enumerate(target_graph.operators) if isinstance(spec, LayerNormSpec))
    heads = next(k for k, spec in enumerate(target_graph.operators) if isinstance(spec, MatMulSpec))
    for k, count, why in ((norm, 2, "normalisation"), (heads, 5, "4 runs of channels that can be made apart, for 5 parts")):
        found = channel_parts(target_graph, k, k + 1, count)
        assert isinstance(found, Infeasible)
        assert why in str(found)
    chain = make_case(small_model("conv_chain"), ASCEND, DataType.float16).target_graph
    dense = [k for k, spec in enumerate(chain.operators) if isinstance(spec, ConvSpec)]
    found = channel_parts(chain, dense[0], dense[1] + 1, 2)
    assert isinstance(found, Infeasible)
    assert "from another core" in str(found)
    # in a plan it is an answer, too
    plan = decode(chain, Gene(dense[0], dense[1] + 1))
    assert plan is not None
    wide = plan.model_copy(update={"cores": (0, 1), "split": "channels"})
    lowered = Compiler(chain).alone(wide, dense[0])
    assert isinstance(lowered, Infeasible)
    assert "from another core" in lowered.reason


def classifier(machine: Machine) -> Case:
    b = Builder(np.random.default_rng(0), (1, 256, 1, 1))
    return make_case(b.model(b.gemm("x", 512)), machine, DataType.float16)


def test_weights_come_once_and_no_core_waits() -> None:
    case = classifier(with_cores(ASCEND, 4))
    assert len(case.target_graph.operators) == 1
    spec = case.target_graph.operators[0]
    assert isinstance(spec, ConvSpec)
    one = compiled(case, (Gene(0, 1),))
    four = compiled(case, (Gene(0, 1, cores=(0, 1, 2, 3), split="channels"),))
    assert crossing(four) == 0
    read = [simulate_levels(program, case.target_graph.machine)["none"] for program in (one, four)]
    assert read[1].ddr_read_bytes == read[0].ddr_read_bytes + 3 * 256 * 2, "the input four times, weights once"
    # the port of ascend310 is as wide as one core's, so on four times the port four cores take a quarter of the time, but for what starts
    wide = Machine.model_validate(
        case.target_graph.machine.model_dump() | {"ddr": case.target_graph.machine.ddr.model_dump() | {"bytes_per_cycle": 268}}
    )
    times = [
        simulate_levels(compiled(classifier(wide), genome), wide)["none"].cycles
        for genome in ((Gene(0, 1),), by_channels(classifier(wide)))
    ]
    assert times[1] < 0.4 * times[0]


def test_features_of_parts_are_those_of_the_whole() -> None:
    """What is moved adds up over the cores, what a core does is a share of it."""
    target_graph = make_case(layers(), with_cores(ASCEND, 4), DataType.float16).target_graph
    at = {name: FEATURES.index(name) for name in ("weight_bytes", "store_bytes", "cube_cycles", "vector_cycles", "cores", "instructions")}
    for k, spec in enumerate(target_graph.operators):
        wide = Gene(k, k + 1, cores=(0, 1, 2, 3), split="channels")
        one, four = decode(target_graph, Gene(k, k + 1)), decode(target_graph, wide)
        if four is None:
            assert not can_split(target_graph, k, k + 1, 4)
            continue
        assert one is not None
        a, b = (raw_features(target_graph, plan, k) for plan in (one, four))
        assert a[at["store_bytes"]] == b[at["store_bytes"]]
        expansion = spec.expansion if isinstance(spec, ConvSpec) else None
        masks = 0 if expansion is None else 3 * expansion.mask_blocks * BLOCK_BYTES  # which each core has
        assert a[at["weight_bytes"]] + masks == b[at["weight_bytes"]]
        assert b[at["cores"]] == 4
        busy = "cube_cycles" if isinstance(spec, ConvSpec) else "vector_cycles"
        assert 0.2 * a[at[busy]] < b[at[busy]] <= a[at[busy]]
        # eight blocks are one repeat, and two are one as well
        assert b[at[busy]] < a[at[busy]] or spec.y.planes * spec.out_h * spec.out_w <= 8


def test_a_gene_on_one_core_splits_nothing() -> None:
    target_graph: TargetGraph = classifier(with_cores(ASCEND, 2)).target_graph
    assert decode(target_graph, Gene(0, 1, split="channels")) == decode(target_graph, Gene(0, 1))
    assert splits(target_graph, Gene(0, 1), 1) == ["rows"]
    assert splits(target_graph, Gene(0, 1), 2) == ["channels"], "one row"
    (wide,) = spread(target_graph, (Gene(0, 1),))
    assert (wide.cores, wide.split) == ((0, 1), "channels")
