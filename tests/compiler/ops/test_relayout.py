"""Relayouts: any digits in place of a loop over values, run as programs; arrangements of views, and how they cancel."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.frontend.handlers.arrange import arrange, resolve, without_images
from compiler.frontend.handlers.to_graph import Translator
from compiler.frontend.handlers.views import View, reshape_view, row_major, transpose_view
from compiler.ir.graph import Graph, Port
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Relayout
from compiler.ir.operators.relayout import Digit, merge_digits, places_of
from compiler.ir.quantised.parameters import Quantisation
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene
from simulator.npu import isa
from simulator.npu.cycles import price
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine
from tests.compiled import Case, check_program
from tests.graphs import graph
from tests.integer_graphs import case_of
from tests.integers import with_integers
from tests.lowered import lower_segment
from tests.models import Builder
from tests.plans import random_segment

EDGE, TINY = (with_integers(load_machine(name)) for name in ("edge", "tiny"))
Q = Quantisation.of(np.float32(0.03), np.int8(-5), np.int8)


def random_relayout(seed: int) -> tuple[tuple[int, int, int, int], Relayout]:
    """Shape of x, and a relayout of it: digits of x in any order, some cut, reversed, repeated or dropped."""
    rng = np.random.default_rng(seed)
    channels = int(rng.choice([1, 3, 16, 20, 32]))
    axes = [[int(s) for s in rng.choice([1, 2, 2, 3, 4, 5], size=rng.integers(1, 3))] for _ in range(2)]
    digits: list[Digit] = []
    first = [0, 0]
    for axis, sizes in enumerate(axes):
        stride = 1
        for size in reversed(sizes):
            kind, step, low, count = rng.integers(6), stride, 0, size
            if kind == 0:  # reversed
                first[axis] += (size - 1) * stride
                step = -stride
            elif kind == 1:  # one entry
                first[axis] += int(rng.integers(size)) * stride
                count = 1
            elif kind == 2:  # padding
                low = int(rng.integers(3))
                first[axis] -= low * stride
                count = low + size + int(rng.integers(3))
            high = low + size if kind == 2 else count
            digits.append(Digit(count, *((step, 0) if axis == 0 else (0, step)), low, high))
            stride *= size
    if rng.integers(3) == 0:
        digits.append(Digit(int(rng.integers(2, 4)), 0, 0, 0, 2))
        digits[-1] = digits[-1]._replace(high=digits[-1].size)
    digits = [digits[i] for i in rng.permutation(len(digits))]
    cut = int(rng.integers(len(digits) + 1))
    groups, pixels = merge_digits(digits[:cut]), merge_digits(digits[cut:])
    w = axes[1][-1]
    of = int(np.prod(axes[0])), int(np.prod(axes[1])) // w, w
    places = int(np.prod([digit.size for digit in pixels], dtype=np.int64))
    width = int(rng.choice([d for d in range(1, places + 1) if places % d == 0]))
    op = Relayout("y", "x", "y", channels, groups, pixels, of, (first[0], first[1]), width, 0, float(rng.choice([0.0, 2.0])))
    return (int(rng.integers(1, 3)), of[0] * channels, of[1], w), op


@given(st.integers(0, 1 << 30))
@settings(max_examples=150, deadline=None)
def test_values_are_those_of_a_loop(seed: int) -> None:
    shape, op = random_relayout(seed)
    assert op.unfit([shape]) == ""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    y = op.apply([x])
    flat = x.reshape(shape[0], op.of[0], op.channels, -1)
    result = y.reshape(shape[0], -1, op.channels, y.shape[2] * y.shape[3])
    for i, group in enumerate(product(*(range(d.size) for d in op.groups))):
        for j, pixel in enumerate(product(*(range(d.size) for d in op.pixels))):
            values = list(zip((*group, *pixel), (*op.groups, *op.pixels), strict=True))
            expected = np.full((shape[0], op.channels), op.fill, np.float32)
            if all(d.low <= value < d.high for value, d in values):
                source = op.first[0] + sum(v * d.group for v, d in values), op.first[1] + sum(v * d.pixel for v, d in values)
                expected = flat[:, source[0], :, source[1]]
            np.testing.assert_array_equal(result[:, i, :, j], expected)


def case(seed: int, integers: bool, machine: str) -> Case:
    shape, op = random_relayout(seed)
    return case_of(graph(shape, [op], x_q=Q if integers else None), {"edge": EDGE, "tiny": TINY}[machine], DataType.float16)


@pytest.mark.parametrize("machine", ["edge", "tiny"])
@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_programs(seed: int, integers: bool, machine: str) -> None:
    """Values and hazards of random plans."""
    it, rng = case(seed, integers, machine), np.random.default_rng(seed)
    plans = [plan for plan in (random_segment(it.target_graph, 0, 1, rng, strips=False) for _ in range(4)) if plan is not None]
    programs = [Compiler(it.target_graph).compile(plan_of(it.target_graph, [plan])) for plan in plans]
    legal = [program for program in programs if not isinstance(program, Infeasible)]
    assert legal
    for program in legal[:2]:
        check_program(it, program)


def random_view(seed: int) -> tuple[Translator, View, np.ndarray]:
    """A tensor's view after reshapes and transpositions, and the number of the value at each of its places."""
    rng = np.random.default_rng(seed)
    shape = (1, *(int(s) for s in rng.choice([1, 2, 3, 4, 6, 8, 16, 32], size=3)))
    b = Builder(rng, shape)
    state = Translator(b.model(b.relu("x")))
    state.receive(state.model.graph.input[0])
    view, numbers = row_major("x", state.shapes["x"], shape), np.arange(np.prod(shape)).reshape(shape)
    for _ in range(int(rng.integers(1, 4))):
        parts = []
        for size in view.shape:
            parts += [2, size // 2] if size % 2 == 0 and rng.integers(2) else [size]
        reshaped = reshape_view(view, parts)
        view, numbers = (view, numbers) if reshaped is None else (reshaped, numbers.reshape(parts))
        perm = [int(i) for i in rng.permutation(len(view.axes))]
        view, numbers = transpose_view(view, perm), numbers.transpose(perm)
    return state, view, numbers


@given(st.integers(0, 1 << 30))
@settings(max_examples=80, deadline=None)
def test_any_axes_become_channels_and_pixels(seed: int) -> None:
    """Values are in place, nothing is copied that lies right, and an arrangement of an arrangement reads what the first one read."""
    state, view, numbers = random_view(seed)
    rng = np.random.default_rng(seed)
    axes = without_images(view)
    chosen = [axis for axis in axes if rng.integers(2)]
    pixels = [axis for axis in axes if axis not in chosen]
    arranged = arrange(state, view, chosen, pixels)
    assert arranged is not None
    assert arranged.shape == view.shape
    order = (*chosen, *pixels)
    flat = numbers.transpose(order).reshape(1, int(np.prod([numbers.shape[i] for i in chosen])), -1, 1)
    shapes = dict(state.shapes)
    y = Port(arranged.tensor, "y", shapes[arranged.tensor])
    g = Graph("g", (Port("x", "x", shapes["x"]),), (y,), tuple(state.operators), shapes, "", state.tensors, state.types)
    g.verify()
    x = np.arange(numbers.size, dtype=np.float32).reshape(shapes["x"])
    np.testing.assert_array_equal(evaluate(g, {"x": x})["y"], flat.astype(np.float32))
    count = len(state.operators)
    assert arrange(state, arranged, chosen, pixels) == arranged
    assert len(state.operators) == count
    back = resolve(state, arranged)
    assert back.tensor == "x"
    assert back.axes == view.axes


def test_fewest_digits_have_the_same_places() -> None:
    for seed in range(50):
        _, op = random_relayout(seed)
        apart = [Digit(1, 3, 5, 0, 1), *op.pixels]
        for merged, digits in ((merge_digits(apart), apart), (merge_digits(op.groups), op.groups)):
            for one, other in zip(places_of(merged), places_of(digits), strict=True):
                inside = places_of(digits).inside
                np.testing.assert_array_equal(one[inside] if one.dtype != bool else one, other[inside] if other.dtype != bool else other)


@pytest.mark.parametrize("name", ["heads to pixels", "pixels to heads"])
def test_bytes_of_a_relayout(name: str) -> None:
    """Everything is moved once in and once out, in runs that take no more than twice their bytes of the bus."""
    heads, pixels = (8, 64) if name == "heads to pixels" else (1, 512)
    groups, digits = (
        ((), (Digit(8, 1, 0, 0, 8), Digit(64, 0, 1, 0, 64))) if heads == 8 else ((Digit(8, 0, 64, 0, 8),), (Digit(64, 0, 1, 0, 64),))
    )
    op = Relayout("y", "x", "y", 64, groups, digits, (heads, pixels, 1))
    target_graph = make_unit(graph((1, heads * 64, pixels, 1), [op]), EDGE, DataType.float16)
    plan = decode(target_graph, Gene(0, 1, 1))
    assert plan is not None
    records = lower_segment(target_graph, plan, 0)
    assert not isinstance(records, Infeasible)
    _, bus, useful = price(records.code, EDGE)
    size = heads * 64 * pixels * 2
    assert useful[useful > 0].sum() == size == -useful[useful < 0].sum()
    assert bus.sum() / 65536 <= 2 * 2 * size
    assert not (records.code[:, isa.ENGINE] == Engine.VECTOR).any()
