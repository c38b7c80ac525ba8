"""Sibling convolutions as one: values stay, no copies, and those whose result has a place already are left alone."""

from __future__ import annotations

import numpy as np

from compiler.frontend import lower
from compiler.ir.graph import Conv
from compiler.ir.interpret import evaluate
from compiler.ir.layout import assign
from compiler.kinds.build import pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.rewrites.siblings import families, merge_siblings
from compiler.space.starts import layer_by_layer
from simulator.npu.machine import DataType, load_machine
from tests.compiled import Case, check_program
from tests.models import Builder, inception_block, random_feeds, reference_outputs


def test_an_inception_block() -> None:
    """Two of its three 1x1 convolutions can be one; the third writes into the Concat."""
    model = inception_block(np.random.default_rng(0))
    graph = lower(model)
    (family,) = families(graph)
    assert [len(op.bias) for op in family] == [12, 8]
    merged = merge_siblings(graph, [family])
    convs = [sum(isinstance(op, Conv) for op in g.operators) for g in (graph, merged)]
    assert convs[0] == convs[1] + 1
    assert assign(merged, DataType.float16).copies == ()
    feeds = random_feeds(model)
    for name, expected in evaluate(graph, feeds).items():
        np.testing.assert_allclose(evaluate(merged, feeds)[name], expected, rtol=1e-4, atol=1e-5)
    for dtype in DataType.float16, DataType.float32:
        unit, constants = pack_unit(merged, load_machine("edge"), dtype)
        plan = layer_by_layer(unit)
        assert not isinstance(plan, Infeasible)
        program = Compiler(unit).compile(plan)
        assert not isinstance(program, Infeasible)
        check_program(Case(model, unit, constants, feeds, reference_outputs(model, feeds)), program)


def test_what_differs_is_no_family() -> None:
    b = Builder(np.random.default_rng(0), (1, 8, 8, 8))
    wide, narrow = b.conv("x", 5), b.conv("x", 5, (1, 1), pads=(0, 0, 0, 0))
    strided, other = b.conv("x", 5, stride=(2, 2)), b.relu(b.conv("x", 5))
    out = b.conv("x", 5)
    model = b.model(*(b.conv(name, 3) for name in (wide, narrow, strided, other)), out)
    assert families(lower(model)) == []
