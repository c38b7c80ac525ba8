"""Element-wise operators on integers, moves of them, and what leads to floats and back, beside convolutions as networks have them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.build import default_plan
from compiler.ir.graph import Graph
from compiler.ir.operators import (
    Concat,
    Dequantise,
    LookUp,
    Operator,
    Pool,
    Quantise,
    QuantisedAverage,
    QuantisedPair,
    Resample,
    Step,
    Vector,
)
from compiler.ir.quantised import elementwise, linear
from compiler.ir.quantised.affine import fit_gated_affine
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.rounding import saturate, to_int32
from compiler.ir.quantised.tables import all_stored_integers, fit_line, function_table, leaky_relu_floats, logistic, requantize_table
from compiler.ir.taps import Taps
from compiler.ops.integer_elementwise import TypedSpec
from compiler.ops.lower_graph import make_unit
from compiler.ops.tile_program_emitter import EXTENT
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from simulator.npu.errors import UnsupportedError
from simulator.npu.fused import fma
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import check_program, run_program
from tests.graphs import graph
from tests.integer_graphs import case_of, conv, quantisation
from tests.integers import with_integers
from tests.messages import naming
from tests.plans import random_plan

TINY = with_integers(load_machine("tiny"))
WITHOUT_LOOKUP = Machine.model_validate(TINY.model_dump() | {"vector": TINY.vector.model_dump() | {"lookup_cycles": None}})
TWICE = Taps(tuple(((i // 2, 1.0),) for i in range(16)))


def residual(seed: int) -> Graph:
    """As ResNet has it: a pool, a branch of two convolutions, the sum."""
    rng = np.random.default_rng(seed)
    x, a, b, c = (quantisation(rng) for _ in range(4))
    operators: list[Operator] = [
        conv(rng, "a", "x", (3, 40), x, a, kernel=7, stride=2),
        Pool("p", "a", "p", "max", (3, 3), (2, 2), (1, 1, 1, 1)),
        conv(rng, "b", "p", (40, 24), a, b, kernel=1),
        conv(rng, "c", "b", (24, 40), b, c),
        QuantisedPair("s", "c", "p", "s", "add", c, a, quantisation(rng, scale=0.12)),
    ]
    return graph((1, 3, 24, 32), operators, x_q=x)


def upwards(seed: int) -> Graph:
    """As U-Net has it: down, up by nearest neighbours, beside what was there before, in one scale; tables and a product."""
    rng = np.random.default_rng(seed)
    x, a, b, d = (quantisation(rng) for _ in range(4))
    share = Quantisation.of(np.float32(1 / 256), np.zeros((), np.uint8), np.uint8)
    of_d = DataType[d.dtype.name]
    operators: list[Operator] = [
        conv(rng, "a", "x", (16, 24), x, a),
        Pool("p", "a", "p", "max", (2, 2), (2, 2)),
        conv(rng, "b", "p", (24, 48), a, b),
        Resample("u", "b", "u", TWICE, TWICE),
        LookUp("ud", "u", "ud", requantize_table(all_stored_integers(b), b, d), b, d),
        LookUp("ad", "a", "ad", requantize_table(all_stored_integers(a), a, d), a, d),
        Concat("k", ("ud", "ad"), "k"),
        conv(rng, "e", "k", (72, 24), d, a),
        LookUp("l", "e", "l", function_table(lambda v: leaky_relu_floats(v, 0.1), a, a), a, a),
        LookUp("g", "e", "g", function_table(logistic, a, share), a, share),
        QuantisedPair("m", "l", "g", "m", "mul", a, share, quantisation(rng, of_d, float(a.scale[0]))),
    ]
    return graph((1, 16, 16, 16), operators, x_q=x)


def squeezed(seed: int) -> Graph:
    """As EfficientNet has it: a mean of the image, of which one value per channel scales the image; sums with one, in either order."""
    rng = np.random.default_rng(seed)
    x, a, b, c, d = (quantisation(rng) for _ in range(5))
    share = Quantisation.of(np.float32(1 / 256), np.zeros((), np.uint8), np.uint8)
    of_a = DataType[a.dtype.name]
    operators: list[Operator] = [
        conv(rng, "a", "x", (16, 70), x, a),
        QuantisedAverage("p", "a", "p", (9, 11), a, b),
        conv(rng, "q", "p", (70, 20), b, c, kernel=1),
        conv(rng, "r", "q", (20, 70), c, d, kernel=1),
        LookUp("g", "r", "g", function_table(logistic, d, share), d, share),
        QuantisedPair("m", "a", "g", "m", "mul", a, share, quantisation(rng, of_a, float(a.scale[0]) / 2)),
        QuantisedPair("s", "a", "r", "s", ("add", "radd")[seed % 2], a, d, quantisation(rng, scale=0.15)),
        QuantisedAverage("y", "a", "y", (3, 2), a, quantisation(rng, of_a, float(a.scale[0]) / 2), (2, 1), (1, 0, 1, 1)),
    ]
    return graph((2, 16, 9, 11), operators, ["m", "s", "y"], x_q=x)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("network", [residual, upwards, squeezed])
def test_networks_layer_by_layer_and_fused(network, seed: int) -> None:
    case = case_of(network(seed), TINY, seed=seed)
    compiler = Compiler(case.target_graph)
    check_program(case, compiler.compile(default_plan(case.target_graph)))
    for values in case.expected.values():
        assert np.unique(values).size > 8
    rng = np.random.default_rng(seed)
    done = 0
    while done < 4:
        plan = random_plan(case.target_graph, rng, 6, strips=True)
        program = None if plan is None else compiler.compile(plan)
        if program is None or isinstance(program, Infeasible):
            continue
        check_program(case, program)
        done += 1


def test_gate_is_one_multiply_add_of_the_image() -> None:
    """Of every integer and every gate, wherever one is right for all of them, as of nearly all scales."""
    rng, taken = np.random.default_rng(0), 0
    for _ in range(24):
        a_q, y_q = quantisation(rng), quantisation(rng)
        b_q = quantisation(rng, scale=1 / 256)
        a, b = all_stored_integers(a_q), all_stored_integers(b_q)
        wanted = elementwise.mul(np.tile(a, (256, 1)), a_q, np.tile(b[:, None], (1, 256)), b_q, y_q)
        (sa, za), (sb, zb), (sy, _) = (q.single("") for q in (a_q, b_q, y_q))
        gate = fit_gated_affine(a, b.astype(np.int64) - zb, za, wanted, np.asarray(sa * sb / sy))
        pair = QuantisedPair("y", "x", "p", "y", "mul", a_q, b_q, y_q)
        of_pixel = LookUp("p", "m", "p", requantize_table(a, a_q, b_q), a_q, b_q)
        made = graph((1, 40, 3, 5), [Pool("m", "x", "m", "max", (3, 5)), of_pixel, pair], x_q=a_q)
        (*_, spec) = make_unit(made, TINY, DataType.float16).operators
        assert isinstance(spec, TypedSpec)
        steps, places = spec.program.steps, spec.program.places
        on_image = np.isin(steps[:, 1], (Op.VADDS, Op.VMUL, Op.VMADD, Op.VMULS)) & (places[steps[:, 3], EXTENT] > 0)
        assert (on_image.sum() == 1) == (gate is not None)
        if gate is not None:
            taken += 1
            scale = (b.astype(np.float32) - np.float32(zb)) * gate.scale
            found = fma(a[None].astype(np.float32), scale[:, None], fma(scale, np.float32(-za), gate.shift)[:, None])
            np.testing.assert_array_equal(saturate(to_int32(found), y_q), wanted)
    assert taken > 20


@pytest.mark.parametrize("machine", [TINY, WITHOUT_LOOKUP])
def test_every_integer_takes_another_scale(machine: Machine) -> None:
    """All 256 of a type, to a finer, an equal and a coarser scale, by a table and without one."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x = quantisation(rng)
        y = quantisation(rng, scale=float(x.scale[0]) * (0.37, 1.0, 2.9)[seed % 3])
        made = graph((1, 64, 4, 4), [LookUp("y", "x", "y", requantize_table(all_stored_integers(x), x, y), x, y)], x_q=x)
        case = case_of(made, machine, seed=seed)
        check_program(case, Compiler(case.target_graph).compile(default_plan(case.target_graph)))


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
def test_floats_become_integers_and_floats_again(dtype: DataType) -> None:
    """The same integers, and back to the bit: floats of the host beside integers are float32, whatever the unit's type."""
    rng = np.random.default_rng(3)
    for q in (quantisation(rng) for _ in range(4)):
        made = graph((1, 40, 5, 6), [Quantise("i", "x", "i", q), Dequantise("f", "i", "f", q)], ["i", "f"])
        case = case_of(made, TINY, dtype)
        program = Compiler(case.target_graph).compile(default_plan(case.target_graph))
        check_program(case, program)
        back = case.expected["f"].astype(np.float32)
        np.testing.assert_array_equal(run_program(case, program)[0]["f"].reshape(back.shape), back)


def test_every_float16_becomes_the_integer_of_its_quotient() -> None:
    """By a multiply-add, where one is equal to the quotient for all of them, and by the quotient, where that has ties."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = every[np.isfinite(every)].astype(np.float32).reshape(1, 64, 31, 32)
    rng, steps = np.random.default_rng(5), set()
    odd = Quantisation.of(np.float32(0.25), np.int8(7), np.int8)
    for q in (*(quantisation(rng) for _ in range(3)), odd):
        operators = [Vector("v", ("x",), "v", (Step("muls", 1.0),)), Quantise("y", "v", "y", q)]
        case = case_of(graph((1, 64, 31, 32), operators), TINY, DataType.float16)
        _, spec = case.target_graph.operators
        steps.add(spec.steps_of_tile)
        program = Compiler(case.target_graph).compile(default_plan(case.target_graph))
        found = run_program(replace(case, feeds={"x": x}), program)[0]["y"].reshape(x.shape)
        np.testing.assert_array_equal(found, linear.quantize(x, q))
    assert len(steps) == 2


def test_floats_between_integers_keep_finite_lanes() -> None:
    """A maximum of floats between: lanes without a channel hold what the zero point stands for, and spoil no convolution."""
    rng = np.random.default_rng(1)
    a, b, c = (quantisation(rng) for _ in range(3))
    one = Quantisation.of(np.float32(0.01), np.zeros((), np.uint8), np.uint8)
    operators: list[Operator] = [
        conv(rng, "a", "x", (8, 20), a, one),
        Dequantise("f", "a", "f", one),
        Vector("r", ("f",), "r", (Step("maxs", 0.5), Step("reciprocal"))),
        Quantise("q", "r", "q", b),
        conv(rng, "y", "q", (20, 8), b, c),
    ]
    case = case_of(graph((1, 8, 6, 6), operators, x_q=a), TINY, DataType.float32)
    check_program(case, Compiler(case.target_graph).compile(default_plan(case.target_graph)))


def test_a_table_needs_look_up() -> None:
    q = quantisation(np.random.default_rng(0))
    made = graph((1, 8, 2, 2), [LookUp("y", "x", "y", function_table(logistic, q, q), q, q)], x_q=q)
    with pytest.raises(UnsupportedError, match=naming("'y'", "tiny", "table")):
        make_unit(made, WITHOUT_LOOKUP, DataType.float16)


LINES = {
    "itself": lambda x: x,
    "a number times": lambda x: x / np.float32(5.656854),
    "the other way round": lambda x: -x,
    "what is above 0": lambda x: np.maximum(x, 0),
    "between limits": lambda x: np.clip(x * np.float32(0.3), -0.4, 0.9),
    "one value": lambda x: x * 0,
}


@pytest.mark.parametrize("name", LINES)
def test_straight_line_table_needs_none(name: str) -> None:
    rng = np.random.default_rng(len(name))
    taken = 0
    for _ in range(12):
        x_q, y_q = (quantisation(rng, None, float(rng.uniform(0.005, 0.05))) for _ in range(2))
        op = LookUp("y", "x", "y", function_table(LINES[name], x_q, y_q), x_q, y_q)
        if fit_line(op.entries, x_q, y_q) is None:  # no one scale rounds to all of them
            continue
        taken += 1
        case = case_of(graph((1, 256, 1, 1), [op], x_q=x_q), WITHOUT_LOOKUP, DataType.float16)
        program = Compiler(case.target_graph).compile(default_plan(case.target_graph))
        check_program(case, program)
        every = {"x": np.arange(256).astype(np.uint8).view(x_q.dtype).reshape(1, 256, 1, 1)}
        found = run_program(replace(case, feeds=every), program)[0]["y"]
        np.testing.assert_array_equal(found.reshape(-1), op.apply([every["x"]]).reshape(-1))
    assert taken > 8


def test_values_beyond_int32_are_refused() -> None:
    rng = np.random.default_rng(0)
    x, fine = quantisation(rng, DataType.int8, 1.0), quantisation(rng, DataType.int8, 1e-8)
    for mode in ("add", "mul"):
        op = QuantisedPair("y", "x", "x", "y", mode, x, x, fine)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match=r"'y': values of up to .* times its scale"):
            make_unit(graph((1, 8, 2, 2), [op], x_q=x), TINY, DataType.float16)


def test_one_row_beside_an_image_is_refused() -> None:
    x = quantisation(np.random.default_rng(0))
    operators: list[Operator] = [Pool("p", "x", "p", "max", (2, 1)), QuantisedPair("y", "x", "p", "y", "mul", x, x, x)]
    with pytest.raises(UnsupportedError, match=naming("'y'", "shapes")):
        make_unit(graph((1, 8, 2, 2), operators, x_q=x), TINY, DataType.float16)


def test_mean_beyond_exact_float32_is_refused() -> None:
    x = quantisation(np.random.default_rng(0))
    made = graph((1, 8, 258, 256), [QuantisedAverage("y", "x", "y", (258, 256), x, x)], x_q=x)
    with pytest.raises(UnsupportedError, match=naming("'y'", "66,048", "65,793")):
        make_unit(made, TINY, DataType.float16)
