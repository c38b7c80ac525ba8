"""What every kind of operator holds to: a kind that is added to the table needs an example here, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.cost.features import FEATURES, raw_features
from compiler.ir import taps
from compiler.ir.graph import Graph
from compiler.ir.operators import (
    Conv,
    Dequantise,
    LayerNorm,
    LookUp,
    MatMul,
    Operator,
    Pool,
    Quantise,
    QuantisedAffine,
    QuantisedAverage,
    QuantisedMatMul,
    QuantisedPair,
    QuantisedSoftmax,
    Reflow,
    Relayout,
    Resample,
    Softmax,
    Step,
    Vector,
)
from compiler.ir.operators.relayout import Digit
from compiler.ir.quantised.affine import Affine
from compiler.ir.quantised.parameters import Quantisation
from compiler.ops.base import OnVector, vector_tiling
from compiler.ops.lower_graph import make_unit
from compiler.ops.registry import KINDS
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.blocks import cut_blocks
from compiler.segment.buffer_demand import demand_of
from compiler.segment.core_channels import channel_parts
from compiler.segment.memory_plan import place_segment, ub_requests
from compiler.segment.operator_run import streamed_rights
from compiler.segment.strips import strips, widest
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.access import MAX_RANGES, accesses
from simulator.npu.cycles import price
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine, Memory
from tests.compiled import Case, check_program
from tests.graphs import depth_to_space, graph
from tests.integer_graphs import case_of
from tests.integer_graphs import conv as integer_conv
from tests.integers import with_integers
from tests.lowered import lower_segment
from tests.plans import random_segment

MACHINES = {name: with_integers(load_machine(name)) for name in ("edge", "tiny", "ascend310")}
_ALONE = MACHINES["ascend310"].vector.model_copy(update={"ordered_cycles": None})
MACHINES["ascend310"] = MACHINES["ascend310"].model_copy(update={"vector": _ALONE})  # on which a softmax adds every lane alone
Shape = tuple[int, int, int, int]
RNG = np.random.default_rng(0)


def _floats(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return (RNG.standard_normal(shape) / 4).astype(np.float32)


HALVES = taps.merge_taps([[(i // 2, 0.5), ((i + 1) // 2, 0.5)] for i in range(11)])
EXAMPLES: dict[str, tuple[Shape, Operator]] = {
    "dense": ((2, 20, 9, 8), Conv("y", "x", "y", _floats(40, 20, 3, 3), _floats(40), (1, 2), pads=(1, 1, 1, 1), activation="relu")),
    "depthwise": ((1, 40, 9, 8), Conv("y", "x", "y", _floats(40, 1, 3, 3), _floats(40), pads=(1, 1, 1, 1), groups=40)),
    "four lanes": ((1, 3, 9, 8), Conv("y", "x", "y", _floats(40, 3, 3, 3), _floats(40), pads=(0, 1, 1, 0))),
    "product": ((1, 36, 3, 5), MatMul("y", "x", "x", "y", 2, True)),
    "product with bias": ((1, 36, 3, 5), MatMul("y", "x", "x", "y", 2, True, _floats(30))),
    "chain": ((2, 20, 9, 8), Vector("y", ("x",), "y", (Step("scale_shift", scale=_floats(20), shift=_floats(20)), Step("mul", operand=0)))),
    "multiply-adds": (
        (2, 20, 9, 8),
        Vector(
            "y", ("x",), "y",
            (
                Step("keep", register=0), Step("relu"), Step("keep", register=1), Step("multiply_add", -2.0, added=0),
                Step("keep", register=2),
                Step("scale_shift", scale=_floats(20), shift=_floats(20)), Step("multiply_add", 0.5, register=2),
                Step("multiply_add", register=2, added=1),
            ),
        ),
    ),
    "pooling": ((2, 20, 9, 8), Pool("y", "x", "y", "average", (3, 2), (2, 1), (1, 1, 0, 1))),
    "whole image": ((1, 20, 9, 8), Pool("y", "x", "y", "max", (9, 8))),
    "softmax": ((1, 72, 4, 5), Softmax("y", "x", "y", 3)),
    "norm": ((1, 20, 4, 5), LayerNorm("y", "x", "y", _floats(20), _floats(20), 1e-3)),
    "reflow": ((1, 20, 6, 8), Reflow("y", "x", "y", (6, 8), (5, 10), 1)),
    "reflow into zeros": ((2, 20, 6, 8), Reflow("y", "x", "y", (6, 8), (30, 5), 40)),
    "resample": ((1, 20, 6, 8), Resample("y", "x", "y", HALVES, taps.select_places([None, *range(7)]))),
    "depth to space": ((2, 76, 5, 4), depth_to_space("y", "x", "y", (2, 76, 5, 4), 2)),
    "relayout": (
        (2, 60, 5, 4),
        Relayout(
            "y", "x", "y", 20, (Digit(2, 0, 2, 0, 2), Digit(4, 1, 0, 1, 4)), (Digit(6, 0, 4, 0, 5), Digit(2, 0, -1, 0, 2)), (3, 5, 4),
            (-1, 1), 4, 0, 0.5,
        ),
    ),
}  # fmt: skip
Q, OTHER = (Quantisation.of(np.float32(scale), np.int8(zero), np.int8) for scale, zero in ((0.03, -5), (0.05, 9)))
SHARE = Quantisation.of(np.float32(1 / 256), np.uint8(0), np.uint8)
SUMS_ALONE = Quantisation.of(np.float32(1), None, np.int32)
BY_HEADS = Quantisation.of(np.float32(1.5), np.int8(-5), np.int8)
INTEGERS: dict[str, tuple[Shape, Operator]] = {
    "dense, of bytes": ((2, 20, 9, 8), integer_conv(RNG, "y", "x", (20, 70), Q, OTHER, stride=2)),
    "depthwise, of bytes": ((1, 70, 9, 8), integer_conv(RNG, "y", "x", (70, 70), Q, OTHER, groups=70)),
    "four lanes, of bytes": ((1, 3, 9, 16), integer_conv(RNG, "y", "x", (3, 40), Q, OTHER)),
    "pooling of bytes": ((2, 40, 9, 8), Pool("y", "x", "y", "max", (3, 2), (2, 1), (1, 1, 0, 1))),
    "dequantise": ((2, 70, 9, 8), Dequantise("y", "x", "y", Q)),
    "table": ((2, 70, 9, 7), LookUp("y", "x", "y", np.roll(np.arange(-128, 128), 9).astype(np.int8), Q, OTHER)),
    "sum": ((2, 70, 9, 8), QuantisedPair("y", "x", "x", "y", "add", Q, Q, OTHER)),
    "multiplication": ((2, 70, 9, 8), QuantisedPair("y", "x", "x", "y", "mul", Q, Q, OTHER)),
    "multiply-adds of bytes": (
        (2, 70, 9, 8),
        QuantisedAffine("y", "x", "y", ((Affine(_floats(70), 40 * _floats(70)), OTHER),), Q),
    ),
    "windows of bytes": ((2, 40, 9, 8), QuantisedAverage("y", "x", "y", (3, 2), Q, OTHER, (2, 1), (1, 1, 0, 1))),
    "windows of bytes, apart": ((1, 70, 9, 16), QuantisedAverage("y", "x", "y", (3, 3), Q, OTHER, (2, 2), (1, 1, 1, 1), True)),
    "whole image of bytes": ((2, 70, 13, 8), QuantisedAverage("y", "x", "y", (13, 8), Q, OTHER)),
    "softmax of bytes": ((2, 114, 4, 5), QuantisedSoftmax("y", "x", "y", Q, SHARE, 3)),
    "reflow of bytes": ((2, 70, 6, 8), Reflow("y", "x", "y", (6, 8), (30, 5), 40, -5.0)),
    "depth to space of bytes": ((1, 76, 5, 4), depth_to_space("y", "x", "y", (1, 76, 5, 4), 2)),
    "slice and padding of bytes": (
        (1, 40, 6, 8),
        Resample("y", "x", "y", taps.select_places([None, 1, 3, 5]), taps.select_places([*range(8), None]), 7.0),
    ),
    "product of bytes": ((1, 76, 3, 13), QuantisedMatMul("y", "x", "x", "y", 2, True, Q, Q, BY_HEADS)),
    "sums as floats": ((1, 20, 9, 8), replace(integer_conv(RNG, "y", "x", (20, 40), Q, OTHER), y_q=None)),
    "sums": ((1, 20, 9, 8), replace(integer_conv(RNG, "y", "x", (20, 40), Q, OTHER), y_q=SUMS_ALONE)),
    "sums by heads": ((1, 76, 3, 13), QuantisedMatMul("y", "x", "x", "y", 2, True, Q, Q, SUMS_ALONE)),
}  # that read int8
EXAMPLES |= {"quantise": ((2, 70, 9, 8), Quantise("y", "x", "y", Q))} | INTEGERS
OF_FLOATS = {"dequantise", "sums as floats"}  # whose results are of the type of floats
EVERYWHERE = [
    (name, machine, dtype)
    for name in EXAMPLES
    for machine in MACHINES
    for dtype in (
        (DataType.float16, DataType.float32) if machine == "tiny" and name not in INTEGERS.keys() - OF_FLOATS else (DataType.float16,)
    )
]
everywhere = pytest.mark.parametrize(("name", "machine", "dtype"), EVERYWHERE)


def example(name: str, machine: str, dtype: DataType) -> Case:
    """An operator alone, its input, and what it means."""
    return case_of(graph_of(name), MACHINES[machine], dtype)


def graph_of(name: str) -> Graph:
    shape, op = EXAMPLES[name]
    return graph(shape, [op], x_q=Q if name in INTEGERS else None)


def plans(target_graph: TargetGraph, count: int, seed: int) -> list[SegmentPlan]:
    """Any plans that the machine can hold: blocks, strips, cores, tilings."""
    rng = np.random.default_rng(seed)
    drawn = [random_segment(target_graph, 0, 1, rng, strips=True) for _ in range(4 * count)]
    return [plan for plan in drawn if plan is not None and isinstance(Compiler(target_graph).alone(plan, 0), list)][:count]


def test_every_kind_has_an_example() -> None:
    assert {kind.operator for kind in KINDS} == {type(op) for _, op in EXAMPLES.values()}
    for name, (_, op) in EXAMPLES.items():
        made = make_unit(graph_of(name), MACHINES["edge"], DataType.float16)
        kind = next(kind for kind in KINDS if kind.operator is type(op))
        assert type(made.operators[0]) is kind.spec
        assert len(made.operators[0].tables()) <= 3


@everywhere
def test_values(name: str, machine: str, dtype: DataType) -> None:
    case = example(name, machine, dtype)
    fitting = plans(case.target_graph, 3, 7)
    assert fitting
    for plan in fitting:
        program = Compiler(case.target_graph).compile(plan_of(case.target_graph, [plan]))
        assert not isinstance(program, Infeasible), program
        check_program(case, program)


@everywhere
def test_tilings_fit_the_footprint(name: str, machine: str, dtype: DataType) -> None:
    """A slot of the size that was given, or the smallest there is; two slots and constants fit UB."""
    spec = (target_graph := example(name, machine, dtype).target_graph).operators[0]
    if not isinstance(spec, OnVector):
        return
    for rows in range(1, spec.out_h + 1):
        for room in (8, 40, 300, 1280):
            t = vector_tiling(target_graph, spec, rows, room)
            columns = min(t.tile_columns or spec.out_w, spec.out_w)
            taken = spec.tile_blocks(spec.planes_of_tile(t), t.tile_rows, columns, dtype)
            assert t.tile_rows <= max(1, rows)
            smallest = spec.planes_of_tile(t) == spec.planes_together and t.tile_rows == 1
            assert taken <= room or smallest, (t, taken, room)
            assert spec.ub_buffers(t, True, dtype)[0][1:3] == (2, -(-taken // 8) * 8)


@everywhere
def test_records_stay_inside_the_footprint(name: str, machine: str, dtype: DataType) -> None:
    """Every block of UB that an instruction touches is in a buffer that the operator asked for."""
    target_graph = example(name, machine, dtype).target_graph
    ranges = np.empty((MAX_RANGES, 8), np.int64)
    for plan in plans(target_graph, 3, 11):
        plan = plan.model_copy(update={"cores": (0,), "split": "rows"})
        cut_up = strips(target_graph, 0, 1, plan.columns)
        assert not isinstance(cut_up, Infeasible)
        streamed = streamed_rights(target_graph, 0, plan.tilings)
        layouts = [(each, cut_blocks(each, 0, 1, plan.blocks, plan.caching, 1, streamed)) for each in cut_up]
        places, records = place_segment(layouts, plan), lower_segment(target_graph, plan, 0)
        if isinstance(records, Infeasible):
            continue
        assert not isinstance(places, Infeasible)
        allowed = np.zeros(target_graph.machine.buffer_blocks(Memory.UB), np.bool_)
        for each, layout in layouts:
            asked = [demand_of(each, each.operators[0], plan.tilings[0], layout.inside[0])]
            for request in ub_requests(each, layout, asked):
                allowed[places.ub[request.buffer] : places.ub[request.buffer] + request.size] = True
        for i in range(len(records.code)):
            for memory, _, first, length, runs, stride, groups, group_stride in ranges[: accesses(records.code, i, ranges)].tolist():
                for at in (first + g * group_stride + k * stride for g in range(groups) for k in range(runs) if memory == Memory.UB):
                    assert allowed[at : at + length].all(), (i, at, length)


@everywhere
def test_cost_is_of_what_is_emitted(name: str, machine: str, dtype: DataType) -> None:
    """Of the tilings that a search begins with: bytes that are stored exactly; bytes that are read and VECTOR within 3.5 times."""
    target_graph = example(name, machine, dtype).target_graph
    for blocks in (1, 2):
        plan = decode(target_graph, Gene(0, 1, blocks))
        assert plan is not None
        records = lower_segment(target_graph, plan, 0)
        assert not isinstance(records, Infeasible)
        claimed = dict(zip(FEATURES, raw_features(target_graph, plan, 0).tolist(), strict=True))
        busy, _, useful = price(records.code, target_graph.machine)
        assert claimed["store_bytes"] == -useful[useful < 0].sum()
        loaded, read = claimed["load_bytes"] + claimed["weight_bytes"] + claimed["residual_bytes"], int(useful[useful > 0].sum())
        assert read / 3.5 <= loaded <= read * 3.5
        vector = int(busy[records.code[:, isa.ENGINE] == Engine.VECTOR].sum())
        if isinstance(target_graph.operators[0], OnVector):
            assert vector / 3.5 <= claimed["vector_cycles"] <= vector * 3.5


@everywhere
def test_parts_are_the_whole(name: str, machine: str, dtype: DataType) -> None:
    """Channel parts make every plane once, strips hand out every column once; what cannot be cut says why."""
    target_graph = example(name, machine, dtype).target_graph
    whole = target_graph.operators[0]
    for count in (2, 3):
        parts = channel_parts(target_graph, 0, 1, count)
        if isinstance(parts, Infeasible):
            assert parts.reason
        else:
            made = [
                plane
                for part in parts
                for plane in range(part.operators[0].y.plane, part.operators[0].y.plane + part.operators[0].y.planes)
            ]
            assert made == list(range(whole.y.plane, whole.y.plane + whole.y.planes))
            assert sum(part.operators[0].macs for part in parts) >= whole.macs
        cut_up = strips(target_graph, 0, 1, count)
        if isinstance(cut_up, Infeasible):
            assert cut_up.reason
            continue
        owned = [each.operators[0].strip for each in cut_up]
        assert [column for strip in owned if strip for column in range(strip.first_owned, strip.first_owned + strip.owned)] == list(
            range(whole.out_w)
        )
        widest_of = widest(target_graph, 0, 1, count)
        assert not isinstance(widest_of, Infeasible)
        assert all(each.operators[0].in_w <= widest_of.operators[0].in_w for each in cut_up)


@pytest.mark.parametrize("name", EXAMPLES)
def test_signatures_tell_operators_apart(name: str) -> None:
    target_graph = example(name, "edge", DataType.float16).target_graph
    mine = target_graph.operators[0].signature(target_graph.storages)
    assert mine == example(name, "edge", DataType.float16).target_graph.operators[0].signature(target_graph.storages)
    others = [example(other, "edge", DataType.float16).target_graph for other in EXAMPLES if other != name]
    assert mine not in [other.operators[0].signature(other.storages) for other in others]


def test_a_signature_on_paper() -> None:
    """Names of tasks in a log come of this text: it changes only with what it says."""
    target_graph = example("depthwise", "edge", DataType.float16).target_graph
    window = "window=[3,3,1,1,1,1,1,1,1,1]"
    sizes = "in=[9,8] out=[9,8] planes=[[3,3],[3,3]] groups=3 c1=1 k1=9 n1=1 lanes=16"
    assert target_graph.operators[0].signature(target_graph.storages) == f'conv {sizes} {window} act="none" expansion=[1,16,1,512,1,16]'
    specs = {kind.spec for kind in KINDS}
    assert len({spec.word for spec in specs}) == len(specs)
