"""Every producer before every consumer, at sizes around whole planes: values are right, lanes without a channel hold what is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.build import default_plan
from compiler.ir import taps
from compiler.ir.operators import (
    ZERO,
    Concat,
    Conv,
    Dequantise,
    Floats,
    HeadedProduct,
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
    Resample,
    Shuffle,
    Softmax,
    Step,
    StepOp,
    Vector,
)
from compiler.ir.quantised.affine import Affine
from compiler.ir.quantised.parameters import Quantisation
from compiler.ops.registry import BY_OPERATOR
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.initial import layer_by_layer
from compiler.target.target_graph import TargetGraph
from simulator.functional import execute
from simulator.host_layout import load_input
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, DataType
from tests.compiled import Case, check_program, run_program
from tests.compiler.ops.test_contract import EXAMPLES
from tests.graphs import depth_to_space, graph
from tests.integer_graphs import case_of
from tests.integer_graphs import conv as integer_conv
from tests.integers import with_integers
from tests.messages import naming
from tests.plans import random_plan
from tests.tuning import ROOT

Rng = np.random.Generator
Size = tuple[int, int, int]  # channels, rows, columns
Made = list[Operator]  # the last one makes "p" of x, or "y" of "p"
CHANNELS = (1, 8, 12, 15, 16, 17, 20, 24, 31, 32, 33, 40, 48)
MACHINES = {name: with_integers(load_machine(name)) for name in ("edge", "tiny", "ascend310")}


def _steps(*ops: StepOp | tuple[StepOp, float]) -> tuple[Step, ...]:
    return tuple(Step(op) if isinstance(op, str) else Step(op[0], op[1]) for op in ops)


SIGMOID = _steps(("muls", -1.0), "exp", ("adds", 1.0), "reciprocal")


def _floats(rng: Rng, *shape: int) -> Floats:
    return (rng.standard_normal(shape) / 2).astype(np.float32)


def _chain(*ops: StepOp | tuple[StepOp, float]) -> Callable[[Rng, Size], Made]:
    return lambda rng, size: [Vector("p", ("x",), "p", _steps(*ops))]


def _conv(y: str, x: str, rng: Rng, c: int, out: int, kernel: int = 1, groups: int = 1, residual: str | None = None) -> Conv:
    weights = _floats(rng, out, c // groups, kernel, kernel) / np.float32((c // groups * kernel * kernel) ** 0.5)
    return Conv(y, x, y, weights, _floats(rng, out), pads=(kernel // 2,) * 4, groups=groups, residual=residual)


def _scale_shift(rng: Rng, c: int) -> Step:
    return Step("scale_shift", scale=_floats(rng, c), shift=_floats(rng, c))


def _behind_exp(make: Callable[[Rng, Size], Operator]) -> Callable[[Rng, Size], Made]:
    """What reads a tensor `e` whose lanes without a channel hold 1."""
    return lambda rng, size: [Vector("e", ("x",), "e", _steps("exp")), make(rng, size)]


def _joined(rng: Rng, size: Size) -> Made:
    """A Concat in which some lanes hold something, and a Shuffle of it."""
    c = size[0]
    parts: Made = [_conv("a", "x", rng, c, c // 2 + 1), Vector("b", ("a",), "b", _steps("exp")), _conv("d", "x", rng, c, c)]
    order = tuple(rng.permutation(c // 2 + 1 + c).tolist())
    return [*parts, Concat("j", ("b", "d"), "j"), Shuffle("h", "j", "h", order), Shuffle("p", "h", "p", tuple(range(c)))]


def _product(transposed: bool) -> Callable[[Rng, Size], Made]:
    def make(rng: Rng, size: Size) -> Made:
        c, h, w = size
        if transposed:  # as many channels as x has pixels, made as many as there were
            return [Vector("e", ("x",), "e", _steps("exp")), MatMul("m", "e", "x", "m", 1, True), _conv("p", "m", rng, h * w, c)]
        return [
            _conv("s", "x", rng, c, h * w),
            Softmax("t", "s", "t"),
            Vector("e", ("x",), "e", _steps("exp")),
            MatMul("p", "t", "e", "p", 1, False),
        ]

    return make


PRODUCERS: dict[str, Callable[[Rng, Size], Made]] = {
    "nothing": lambda rng, size: [Vector("p", ("x",), "p", _steps("relu"))],
    "sigmoid": lambda rng, size: [Vector("p", ("x",), "p", SIGMOID)],
    "exp": _chain("exp"),
    "one minus x": _chain(("muls", -1.0), ("adds", 1.0)),
    "maximum": _chain(("maxs", 0.5)),
    "shifted": lambda rng, size: [
        Vector("p", ("x",), "p", (Step("scale_shift", scale=_floats(rng, size[0]), shift=_floats(rng, size[0])),))
    ],
    "reciprocal": _chain("square", ("adds", 0.5), "reciprocal"),
    "logarithm": _chain("square", ("adds", 1e-3), "ln"),
    "quotient": lambda rng, size: [Vector("e", ("x",), "e", _steps("exp")), Vector("p", ("x", "e"), "p", (Step("div", operand=1),))],
    "convolution": lambda rng, size: [_conv("p", "x", rng, size[0], size[0], 3)],
    "depthwise": lambda rng, size: [_conv("p", "x", rng, size[0], size[0], 3, size[0])],
    "residual": _behind_exp(lambda rng, size: _conv("p", "x", rng, size[0], size[0], residual="e")),
    "maxima": _behind_exp(lambda rng, size: Pool("p", "e", "p", "max", (3, 3), pads=(1, 1, 1, 1))),
    "averages": _behind_exp(lambda rng, size: Pool("p", "e", "p", "average", (3, 3), pads=(1, 1, 1, 1), count_include_pad=True)),
    "softmax": lambda rng, size: [Softmax("p", "x", "p")],
    "normalised": lambda rng, size: [LayerNorm("p", "x", "p", _floats(rng, size[0]), _floats(rng, size[0]), 1e-3)],
    "padded": lambda rng, size: [
        Resample("p", "x", "p", taps.select_places([None, *range(size[1] - 1)]), taps.select_places(range(size[2])), 0.75)
    ],
    "turned": _behind_exp(lambda rng, size: Reflow("p", "e", "p", size[1:], size[1:])),
    "joined": _joined,
    "product": _product(False),
    "transposed product": _product(True),
    "pixels": lambda rng, size: [
        _conv("q", "x", rng, size[0], 4 * size[0]),
        Pool("h", "q", "h", "max", (1, 1)),
        Vector("e", ("h",), "e", _steps("exp")),
        depth_to_space("d", "e", "d", (1, 4 * size[0], *size[1:]), 2),
        Pool("p", "d", "p", "max", (2, 2), (2, 2)),
    ],
}


def _two_heads(transposed: bool) -> Callable[[Rng, Size], Made]:
    """Of as many channels as are even, and of pixels the same number in front of a product over them."""

    def make(rng: Rng, size: Size) -> Made:
        c, h, w = size
        lead: Made = [_conv("K", "p", rng, c, 2 * h * w), Vector("G", ("K",), "G", SIGMOID)]
        if transposed:
            return [*lead, MatMul("y", "G", "K", "y", 2, True)]
        return [*lead, _conv("V", "p", rng, c, 2 * c), Vector("U", ("V",), "U", SIGMOID), MatMul("y", "G", "U", "y", 2, False)]

    return make


CONSUMERS: dict[str, Callable[[Rng, Size], Made]] = {
    "itself by itself": lambda rng, size: [MatMul("y", "p", "p", "y", 1, True)],
    "left of the input": lambda rng, size: [MatMul("y", "p", "x", "y", 1, True)],
    "right of the input": lambda rng, size: [MatMul("y", "x", "p", "y", 1, True)],
    "values": lambda rng, size: [
        _conv("S", "x", rng, size[0], size[1] * size[2]),
        MatMul("M", "S", "p", "M", 1, False),
        MatMul("y", "M", "M", "y", 1, True),
    ],
    "weights": lambda rng, size: [
        _conv("S", "p", rng, size[0], size[1] * size[2]),
        Vector("E", ("S",), "E", SIGMOID),
        MatMul("y", "E", "x", "y", 1, False),
    ],
    "heads": _two_heads(True),
    "values of heads": _two_heads(False),
    "softmax": lambda rng, size: [Softmax("y", "p", "y")],
    "norm": lambda rng, size: [LayerNorm("y", "p", "y", _floats(rng, size[0]), _floats(rng, size[0]), 1e-3)],
    "convolution": lambda rng, size: [_conv("y", "p", rng, size[0], 20, 3)],
    "depthwise": lambda rng, size: [_conv("y", "p", rng, size[0], size[0], 3, size[0])],
    "all pixels": lambda rng, size: [Pool("A", "p", "A", "average", size[1:]), _conv("y", "A", rng, size[0], 20)],
    "sum": lambda rng, size: [Vector("A", ("p", "x"), "A", (Step("add", operand=1),)), MatMul("y", "A", "A", "y", 1, True)],
}

Q, OTHER, COARSE = (Quantisation.of(np.float32(scale), np.int8(zero), np.int8) for scale, zero in ((0.03, -5), (0.05, 9), (0.7, 20)))
FAR = Quantisation.of(np.float32(40), np.int8(-30), np.int8)


def _table(rng: Rng) -> NDArray[np.int8]:
    return np.clip(np.sort(rng.integers(-100, 100, 256)), -128, 127).astype(np.int8)


INTEGER_PRODUCERS: dict[str, Callable[[Rng, Size], Made]] = {
    "table": lambda rng, size: [LookUp("p", "x", "p", _table(rng), Q, Q)],
    "sum": lambda rng, size: [LookUp("t", "x", "t", _table(rng), Q, Q), QuantisedPair("p", "x", "t", "p", "add", Q, Q, Q)],
    "multiplication": lambda rng, size: [LookUp("t", "x", "t", _table(rng), Q, Q), QuantisedPair("p", "t", "t", "p", "mul", Q, Q, Q)],
    "convolution": lambda rng, size: [integer_conv(rng, "p", "x", (size[0], size[0]), Q, Q)],
    "multiply-add": lambda rng, size: [
        QuantisedAffine("p", "x", "p", ((Affine(_floats(rng, size[0]), 40 * _floats(rng, size[0])), Q),), Q)
    ],
    "average": lambda rng, size: [QuantisedAverage("p", "x", "p", (3, 3), Q, Q, pads=(1, 1, 1, 1), count_include_pad=True)],
    "maximum": lambda rng, size: [LookUp("t", "x", "t", _table(rng), Q, Q), Pool("p", "t", "p", "max", (3, 3), pads=(1, 1, 1, 1))],
    "softmax": lambda rng, size: [QuantisedSoftmax("p", "x", "p", Q, Q)],
    "padded": lambda rng, size: [
        Resample("p", "x", "p", taps.select_places([None, *range(size[1] - 1)]), taps.select_places(range(size[2])), 7.0)
    ],
    "floats between": lambda rng, size: [Dequantise("f", "x", "f", Q), Vector("e", ("f",), "e", _steps("exp")), Quantise("p", "e", "p", Q)],
    "transposed product": lambda rng, size: [
        QuantisedMatMul("m", "x", "x", "m", 1, True, Q, Q, COARSE),
        integer_conv(rng, "p", "m", (size[1] * size[2], size[0]), COARSE, Q, 1),
    ],
    "product": lambda rng, size: [
        integer_conv(rng, "s", "x", (size[0], size[1] * size[2]), Q, Q, 1),
        QuantisedMatMul("m", "s", "x", "m", 1, False, Q, Q, COARSE),
        LookUp("p", "m", "p", _table(rng), COARSE, Q),
    ],
}
INTEGER_CONSUMERS: dict[str, Callable[[Rng, Size], Made]] = {
    "itself by itself": lambda rng, size: [QuantisedMatMul("y", "p", "p", "y", 1, True, Q, Q, COARSE)],
    "a product of products": lambda rng, size: [
        QuantisedMatMul("M", "p", "p", "M", 1, True, Q, Q, COARSE),
        QuantisedMatMul("y", "M", "M", "y", 1, True, COARSE, COARSE, FAR),
    ],
    "left of the input": lambda rng, size: [QuantisedMatMul("y", "p", "x", "y", 1, True, Q, Q, COARSE)],
    "values": lambda rng, size: [
        integer_conv(rng, "S", "x", (size[0], size[1] * size[2]), Q, Q, 1),
        QuantisedMatMul("M", "S", "p", "M", 1, False, Q, Q, COARSE),
        QuantisedMatMul("y", "M", "M", "y", 1, True, COARSE, COARSE, FAR),
    ],
    "weights": lambda rng, size: [
        integer_conv(rng, "S", "p", (size[0], size[1] * size[2]), Q, Q, 1),
        LookUp("T", "S", "T", _table(rng), Q, Q),
        QuantisedMatMul("y", "T", "x", "y", 1, False, Q, Q, COARSE),
    ],
    "softmax": lambda rng, size: [QuantisedSoftmax("y", "p", "y", Q, OTHER)],
    "convolution": lambda rng, size: [integer_conv(rng, "y", "p", (size[0], 20), Q, OTHER)],
    "average": lambda rng, size: [QuantisedAverage("y", "p", "y", size[1:], Q, OTHER)],
    "floats": lambda rng, size: [Dequantise("F", "p", "F", Q), MatMul("y", "F", "F", "y", 1, True)],
}


def padding_of(target_graph: TargetGraph, ddr: NDArray[np.uint8], tensor: str) -> set[float]:
    """What lanes without a channel of a tensor hold."""
    place, dtype = target_graph.layout.placements[tensor], target_graph.layout.type_of(tensor)
    storage = next(each for each in target_graph.storages if each.name == place.storage)
    shape = storage.n, storage.planes, storage.h * storage.row_blocks, dtype.lanes
    values = np.ndarray(shape, dtype.storage, ddr, storage.address * BLOCK_BYTES)[:, place.plane : place.plane + place.planes]
    lanes = values.transpose(1, 3, 0, 2).reshape(place.planes * dtype.lanes, -1)
    return set(np.unique(np.delete(lanes, place.lanes, axis=0)).astype(float).tolist())


def check_padding(case: Case) -> None:
    """Of a program that leaves every tensor in DDR: within rounding, what the layout says."""
    target_graph = case.target_graph
    ddr: NDArray[np.uint8] = np.full(target_graph.memory.size_blocks * BLOCK_BYTES, 0xFF, np.uint8)
    ddr[: len(case.constants)] = case.constants
    for buffer in target_graph.memory.of_kind("input"):
        load_input(ddr, buffer, case.feeds[buffer.name], target_graph.memory.type_of(buffer))
    plan = layer_by_layer(target_graph)
    assert not isinstance(plan, Infeasible)
    program = Compiler(target_graph).compile(plan)
    assert not isinstance(program, Infeasible)
    execute(program, target_graph.machine, ddr, verify=False)
    for op in target_graph.layout.graph.operators:
        if type(op) in BY_OPERATOR:
            said, dtype = np.array(sorted(target_graph.layout.padding[op.y])), target_graph.layout.type_of(op.y)
            for value in padding_of(target_graph, ddr, op.y):
                slack = 1e-2 * abs(value) if dtype.is_float else 0
                assert said[0] - slack <= value <= said[-1] + slack, (op, value, said)


def hold(made: Made, size: Size, machine: Machine, dtype: DataType, seed: int, x_q: Quantisation | None = None) -> None:
    """Check values of a graph alone and fused, and its lanes."""
    case = case_of(graph((1 + seed % 2, *size), made, x_q=x_q), machine, dtype, seed)
    check_padding(case)
    rng = np.random.default_rng(seed)
    for plan in (layer_by_layer(case.target_graph), random_plan(case.target_graph, rng, len(made) + 2)):
        program = None if plan is None or isinstance(plan, Infeasible) else Compiler(case.target_graph).compile(plan)
        if program is not None and not isinstance(program, Infeasible):
            check_program(case, program, 2e-2 if dtype == DataType.float16 else 2e-4)


FLOAT_PAIRS = list(product(PRODUCERS, CONSUMERS))
INTEGER_PAIRS = list(product(INTEGER_PRODUCERS, INTEGER_CONSUMERS))


def _draw(seed: int) -> tuple[Rng, Size, Machine]:
    rng = np.random.default_rng(seed)
    sizes = int(rng.choice(CHANNELS)), int(rng.choice((1, 3, 4))), int(rng.choice((1, 4, 5, 8)))
    return rng, sizes, MACHINES[list(MACHINES)[seed % len(MACHINES)]]


def test_the_page_says_what_operators_leave_and_need() -> None:
    """A row for each class; what is zero, and what needs no more than finite values, is so for its examples."""
    rows = [line.split("|")[1:4] for line in (ROOT / "docs/decisions.md").read_text().splitlines() if line.startswith("  | `")]
    page = {name: (leaves.strip(), needs.strip()) for names, leaves, needs in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(page) == {kind.__name__ for kind in (*BY_OPERATOR, Concat, Shuffle)}
    for _, op in EXAMPLES.values():
        leaves, needs = page[type(op).__name__]
        held = [frozenset({0.0, 3.0})] * len(op.inputs)
        assert not leaves.startswith("zero") or op.padding(held, np.float32) == ZERO, op
        assert not op.requires_zeros(held, np.float32) or needs not in ("finite", "anything"), op


ROUNDS = range(20)
"""All pairs, by the slow tests; the others have a third of the first round."""


@pytest.mark.parametrize("seed", range(0, len(FLOAT_PAIRS), 3))
def test_floats(seed: int) -> None:
    producer, consumer = FLOAT_PAIRS[seed % len(FLOAT_PAIRS)]
    rng, size, machine = _draw(seed)
    dtype = DataType.float16 if rng.integers(2) else DataType.float32
    hold([*PRODUCERS[producer](rng, size), *CONSUMERS[consumer](rng, size)], size, machine, dtype, seed)


@pytest.mark.slow
@pytest.mark.parametrize("turn", ROUNDS)
@pytest.mark.parametrize("part", range(10))
def test_all_floats(turn: int, part: int) -> None:
    for pair in range(part, len(FLOAT_PAIRS), 10):
        test_floats(turn * len(FLOAT_PAIRS) + pair)


@pytest.mark.parametrize("seed", range(0, len(INTEGER_PAIRS), 3))
def test_integers(seed: int) -> None:
    producer, consumer = INTEGER_PAIRS[seed % len(INTEGER_PAIRS)]
    rng, size, machine = _draw(seed)
    made = [*INTEGER_PRODUCERS[producer](rng, size), *INTEGER_CONSUMERS[consumer](rng, size)]
    hold(made, size, machine, DataType.float32, seed, Q)


@pytest.mark.slow
@pytest.mark.parametrize("turn", ROUNDS)
def test_all_integers(turn: int) -> None:
    for pair in range(len(INTEGER_PAIRS)):
        test_integers(turn * len(INTEGER_PAIRS) + pair)


def test_sum_of_lanes_without_a_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadedProduct, "requires_zeros", lambda *_: ())
    exp = Vector("e", ("x",), "e", _steps("exp"))
    case = case_of(graph((1, 20, 3, 4), [exp, MatMul("y", "e", "e", "y", 1, True)]), MACHINES["edge"])
    program = Compiler(case.target_graph).compile(default_plan(case.target_graph))
    assert not isinstance(program, Infeasible)
    with pytest.raises(AssertionError, match=naming("operator 1", "lane 20")):
        run_program(case, program)
