"""Batch normalisations between integers, sums and products with a value per channel: multiply-adds, every value onnxruntime's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

from compiler.build import default_plan
from compiler.frontend import load_model
from compiler.frontend.lower import lower
from compiler.ir.interpret import evaluate
from compiler.ir.operators import QuantisedAffine, QuantisedConv
from compiler.ir.quantised.affine import Affine, fit_affine
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.tables import integers_of_type
from compiler.ops.affine_to_matmul import as_convolution
from compiler.ops.lower_graph import pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import Case, check_program, run_program
from tests.compiler.frontend.handlers.test_quantised import onnxruntime_of
from tests.integers import with_integers
from tests.plans import random_plan

TINY = with_integers(load_machine("tiny"))
F, TYPES = np.float32, (np.uint8, np.int8)


def scaled(seed: int, *, channels: int = 70, ties: bool = False):
    """x -> batch normalisation -> times a value per channel -> plus one, as DenseNet has it, in QDQ."""
    rng = np.random.default_rng(seed)
    kind = TYPES[seed % 2]
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    parts, nodes = {}, []

    def zero():
        return kind(rng.integers(least, most + 1))

    def scale(around):
        return F(2.0 ** np.round(np.log2(around))) if ties else F(around * rng.uniform(0.7, 1.4))

    def say(name, s, z):
        parts[f"{name}.s"], parts[f"{name}.z"] = s, z

    def node(op, inputs, out, **values):
        nodes.append(helper.make_node(op, inputs, [out], name=out, **values))

    def of(name):
        node("DequantizeLinear", [name, f"{name}.s", f"{name}.z"], f"{name}.f")
        return f"{name}.f"

    def to(name, s, z):
        say(name, s, z)
        node("QuantizeLinear", [f"{name}.r", f"{name}.s", f"{name}.z"], name)

    say("x", scale(0.05), zero())
    statistics = rng.normal(1, 0.4, channels), rng.normal(0, 1, channels), rng.normal(0, 1, channels), rng.uniform(0.2, 3, channels)
    parts |= {f"bn{i}": value.astype(F) for i, value in enumerate(statistics)}
    parts["bn0"][:2] = 0, -parts["bn0"][1]
    node("BatchNormalization", [of("x"), *(f"bn{i}" for i in range(4))], "n.r", epsilon=1e-5)
    to("n", scale(0.05), zero())
    for name, op, before in (("m", "Mul", "n"), ("y", "Add", "m")):
        parts[f"{name}.c"] = rng.integers(least, most + 1, (channels, 1, 1)).astype(kind)
        parts[f"{name}.c"][2] = most
        say(f"{name}.c", scale(0.01), zero())
        node(op, [of(before), of(f"{name}.c")] if seed % 3 else [of(f"{name}.c"), of(before)], f"{name}.r")
        to(name, scale(0.05), zero())
    elem, shape = helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [1, channels, 9, 7]
    ports = [[helper.make_tensor_value_info(name, elem, shape)] for name in ("x", "y")]
    graph = helper.make_graph(nodes, "scaled", *ports, [numpy_helper.from_array(np.asarray(v), k) for k, v in parts.items()])
    x = rng.integers(least, most + 1, shape).astype(kind)
    return load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)), {"x": x}


@pytest.mark.parametrize("seed", range(6))
def test_chain_is_one_operator_with_equal_values(seed: int) -> None:
    model, feeds = scaled(seed, ties=seed > 3)
    graph = lower(model)
    expected = onnxruntime_of(model, feeds)["y"]
    np.testing.assert_array_equal(evaluate(graph, feeds)["y"], expected)
    if seed < 4:
        assert [type(op) for op in graph.operators] == [QuantisedAffine]
    target_graph, constants = pack_unit(graph, TINY, DataType.float16)
    case = Case(model, target_graph, constants, feeds, {"y": expected})
    rng, ran = np.random.default_rng(seed), 0
    for plan in (default_plan(target_graph), *(random_plan(target_graph, rng, 5, strips=True) for _ in range(2))):
        program = None if plan is None else Compiler(target_graph).compile(plan)
        if program is not None and not isinstance(program, Infeasible):
            check_program(case, program)
            np.testing.assert_array_equal(run_program(case, program)[0]["y"].reshape(expected.shape), expected)
            ran += 1
    assert ran


def test_what_no_multiply_add_gives_has_none() -> None:
    x = integers_of_type(np.dtype(np.int8))
    line = np.clip(np.rint(x * 0.5), -128, 127).astype(np.int8)
    found = fit_affine(x, line, np.asarray(0.5))
    assert found is not None
    np.testing.assert_array_equal(found.apply(x, line.dtype), line)
    assert fit_affine(x, np.abs(line), np.asarray(0.5)) is None
    assert fit_affine(x, np.where(x == 7, line + 1, line).astype(np.int8), np.asarray(0.5)) is None


@pytest.mark.parametrize("kind", TYPES)
def test_product_is_its_multiply_add_for_all_integers(kind: type) -> None:
    rng, found = np.random.default_rng(3), 0
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    x = integers_of_type(np.dtype(kind)).reshape(1, 1, 1, 256)
    for case in range(200):
        x_q, y_q = (Quantisation.of(F(rng.uniform(0.01, 0.1)), kind(rng.integers(least, most + 1)), kind) for _ in range(2))
        slope, shift = (rng.normal(0, spread, 1).astype(F) for spread in ((1, 60) if case else (0, 60)))
        made = as_convolution("y", "x", "y", Affine(slope, shift), x_q, y_q)
        if made is not None:
            found += 1
            np.testing.assert_array_equal(made.apply([x]), QuantisedAffine("y", "x", "y", ((Affine(slope, shift), y_q),), x_q).apply([x]))
    assert found > 180


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("sx", "sy", "slope"), [(1e38, 1e-38, 1), (1e-38, 1, 1e-45), (1e38, 1e-38, 0)])
def test_distant_scales_have_no_product_and_no_warning(sx: float, sy: float, slope: float) -> None:
    x_q, y_q = (Quantisation.of(F(scale), np.uint8(3), np.uint8) for scale in (sx, sy))
    assert as_convolution("y", "x", "y", Affine(np.array([slope], F), np.zeros(1, F)), x_q, y_q) is None


def test_what_follows_a_multiply_add_is_a_product() -> None:
    model, _ = scaled(1)
    operators = pack_unit(lower(model), TINY, DataType.float16).target_graph.operators
    assert [type(spec.operator) for spec in operators] == [QuantisedAffine, QuantisedConv, QuantisedConv]
    fixed = TINY.model_copy(update={"rounding": "fixed_point"})
    assert [type(spec.operator) for spec in pack_unit(lower(model), fixed, DataType.float16).target_graph.operators] == [QuantisedAffine]
