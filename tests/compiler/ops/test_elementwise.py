"""Chains of value-by-value steps: every order of steps, of values put aside and of operands read again gives the values of the steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from compiler.ir.graph import Graph, Port
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Step, Vector
from compiler.ops.elementwise import VectorSpec
from compiler.ops.lower_graph import pack_unit
from compiler.ops.tile_program import Extent
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.initial import layer_by_layer
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Memory
from tests.compiled import Case, check_program, make_case
from tests.models import Builder

EDGE = load_machine("edge")
CHANNELS, PIXELS = 21, 9


@st.composite
def chains(draw: st.DrawFn) -> tuple[Step, ...]:
    """Of two tensors and one pixel (inputs 0 to 2), with sums and maxima of small integers, which are exact in any order of buffers."""
    steps: list[Step] = []
    kept: set[int] = set()
    for _ in range(draw(st.integers(0, 9))):
        op = draw(st.sampled_from(["adds", "maxs", "relu", "scale_shift", "add", "sub", "max", "rsub", "keep", "take"]))
        if op == "keep":
            number = draw(st.integers(0, 2))
            kept.add(number)
            steps.append(Step("keep", register=number))
        elif op in ("adds", "maxs"):
            steps.append(Step(op, float(draw(st.integers(-4, 4)))))
        elif op == "relu":
            steps.append(Step("relu"))
        elif op == "scale_shift":
            shift = np.arange(CHANNELS, dtype=np.float32) % 5 if draw(st.booleans()) else np.full(CHANNELS, 3, np.float32)
            steps.append(Step("scale_shift", scale=np.full(CHANNELS, draw(st.sampled_from([-1, 1])), np.float32), shift=shift))
        else:
            others = [("register", number) for number in sorted(kept)] + [("operand", 0), ("operand", 1)]
            if op in ("add", "sub", "max"):
                others.append(("operand", 2))
            steps.append(Step(op, **dict([draw(st.sampled_from(others))])))
    return tuple(steps)


@settings(max_examples=60, deadline=None)
@given(chains(), st.integers(0, 2**31))
def test_any_chain(steps: tuple[Step, ...], seed: int) -> None:
    whole, pixel = (1, CHANNELS, PIXELS, 1), (1, CHANNELS, 1, 1)
    shapes = {"x": whole, "z": whole, "p": pixel, "y": whole}
    ports = tuple(Port(name, name, shapes[name]) for name in ("x", "z", "p"))
    graph = Graph("one", ports, (Port("y", "y", whole),), (Vector("op", ("x", "z", "p"), "y", steps),), shapes)
    target_graph, constants = pack_unit(graph, EDGE, DataType.float16)
    plan = layer_by_layer(target_graph)
    assert not isinstance(plan, Infeasible)
    program = Compiler(target_graph).compile(plan)
    assert not isinstance(program, Infeasible)
    rng = np.random.default_rng(seed)
    feeds = {name: rng.integers(-9, 9, shapes[name]).astype(np.float32) for name in ("x", "z", "p")}
    case = Case(ModelProto(), target_graph, constants, feeds, evaluate(graph, feeds))
    check_program(case, program, tolerance=0.0)


@pytest.mark.parametrize(("alike", "instructions"), [(True, 1), (False, 4)])
def test_constants_shared_by_channels_are_one_block(alike: bool, instructions: int) -> None:
    """Of four planes by 256 blocks, which an instruction goes over from end to end; else the constants' blocks are those of each plane."""
    shape, channels = (1, 64, 16, 16), 64
    scale = np.full(channels, 3, np.float32)
    step = Step("scale_shift", scale=scale, shift=scale if alike else np.arange(channels, dtype=np.float32))
    graph = Graph(
        "one", (Port("x", "x", shape),), (Port("y", "y", shape),), (Vector("op", ("x",), "y", (step,)),), dict.fromkeys("xy", shape)
    )
    target_graph, _ = pack_unit(graph, EDGE, DataType.float16)
    plan = layer_by_layer(target_graph)
    assert not isinstance(plan, Infeasible)
    program = Compiler(target_graph).compile(plan)
    assert not isinstance(program, Infeasible)
    code = program.streams[0]
    assert (code[:, isa.OP] == Op.VMADD).sum() == instructions
    constants = (code[:, isa.OP] == Op.COPY) & (code[:, isa.S0] < target_graph.memory.constant_blocks) & (code[:, isa.SRC] == Memory.DDR)
    assert (code[constants, isa.C_LENGTH] * code[constants, isa.C_COUNT]).sum() == (2 if alike else 8)


def test_silu_is_four_instructions() -> None:
    """x / (1 + exp(-x)): no copy of x, no product with a reciprocal."""
    b = Builder(np.random.default_rng(0), (1, 16, 4, 4))
    case = make_case(b.model(b.node("Mul", ["x", b.node("Sigmoid", ["x"])])), EDGE, DataType.float16)
    (spec,) = case.target_graph.operators
    assert isinstance(spec, VectorSpec)
    assert spec.program.steps[:, 1].tolist() == [Op.VMULS, Op.VEXP, Op.VADDS, Op.VDIV]
    assert spec.program.slot == Extent(tile=2)
