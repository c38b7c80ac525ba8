"""`run --check` of quantised models: what has to be right to the bit, what a rounding may turn, and that a wrong value is found."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from compiler.build import build_variants, default_plan, package
from compiler.frontend import load_model
from compiler.frontend.lower import lower_partition
from compiler.frontend.partition.offload_cost import AlwaysOffload
from compiler.model import ModelSpec, lower_model
from compiler.ops.lower_graph import pack_unit
from compiler.package.onnx_out import onnx_bytes
from simulator.npu.container_file import encode
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.dynamic import dynamic, transformer
from tests.models import Builder
from tuner.cli import main
from tuner.verify.check import check_level, prepare_check, random_feeds
from tuner.verify.per_operator import check_operators, check_quantised, measure_agreement
from tuner.zoo.quantise import quantise_model as quantise
from tuner.zoo.quantise import random_samples
from tuner.zoo.quantiser import Quantiser

EDGE, QDQ = load_machine("edge"), Quantiser("qdq", "uint8", per_channel=True)
ETHOS, ITS_FLOATS = load_machine("ethos-u65-512"), load_machine("ethos-u65-512:rounding=float")


def whole(b):
    """Every operator on integers."""
    return b.conv(b.node("MaxPool", [b.conv("x", 4)], kernel_shape=[2, 2]), 5)


def with_a_table(b):
    """A function between that onnxruntime computes in floats, value by value."""
    return b.conv(b.node("Tanh", [b.conv("x", 4)]), 5)


def mixed(b):
    """A function between that nobody computes in integers."""
    return b.conv(b.node("LRN", [b.conv("x", 4)], size=3), 5)


def attention(b):
    """Two heads of 8 channels: one product has its right side transposed, the other has it as it is."""

    def heads(x, *perm):
        apart = b.node("Reshape", [b.node("MatMul", [x, b.normal((16, 16), 0.3)]), b.constant(np.array([1, 6, 2, 8], np.int64))])
        return b.node("Transpose", [apart], perm=perm)

    scores = b.node("MatMul", [heads("x", 0, 2, 1, 3), heads("x", 0, 2, 3, 1)])
    y = b.node("MatMul", [b.softmax(scores, axis=-1), heads("x", 0, 2, 1, 3)])
    return b.node("Reshape", [b.node("Transpose", [y], perm=[0, 2, 1, 3]), b.constant(np.array([1, 6, 16], np.int64))])


def files(folder, build, how=QDQ, machine=EDGE, side=6, shape=None):
    """The float model and the compiled one, layer by layer at one level."""
    b = Builder(np.random.default_rng(0), shape or (1, 3, side, side))
    floats = load_model(b.model(build(b)))
    onnx.save(floats, folder / "floats.onnx")
    (folder / "q.onnx").write_bytes(quantise(floats, random_samples(floats, 2, 0), how))
    opened = lower_model(ModelSpec(folder / "q.onnx", machine))
    containers = [replace(build_variants(packed, {"none": default_plan(packed.target_graph)}), controller=None) for packed in opened.packed]
    package(opened, containers, folder / "out.onnx")
    return folder / "out.onnx"


def checked(path):
    session, feeds, expected = prepare_check(path, 1)
    return session, expected, check_level(session, feeds, expected, "none")


@pytest.mark.parametrize("how", [Quantiser("qdq", "int8"), Quantiser("qop", "uint8", per_channel=True)], ids=str)
def test_without_floats_between_no_value_may_differ(tmp_path, how):
    session, expected, found = checked(files(tmp_path, whole, how))
    assert found.ok
    assert expected.quantised
    assert {(one.exact, one.differing, one.limit) for one in found.values.compared.values()} == {(True, 0, 0.0)}
    told = check_quantised(expected.integers(), found.values.outputs, session.compiled.machine, session.compiled.dtype)
    assert told.faults == ()
    assert told.operators.left_out == ()
    assert told.operators.total[0] == 3  # the convolutions and the pool; the host has the others
    assert told.operators.kinds["QLinearConv"][0] == 2
    assert max(map(int, told.unfused)) <= 1
    assert sum(told.unfused.values()) == told.operators.total[1]


def test_products_of_a_dynamically_quantised_transformer_are_exact(tmp_path):
    """Attention, biases and normalisations are in floats, so what is quantised behind them is not."""

    def able(graph):
        return pack_unit(graph, EDGE, DataType.float16)

    graphs, part = lower_partition(dynamic(transformer(), tmp_path), AlwaysOffload(EDGE, DataType.float16), able=able)
    variants = [build_variants(packed, {"none": default_plan(packed.target_graph)}) for packed in map(able, graphs)]
    (tmp_path / "out.onnx").write_bytes(onnx_bytes(part, [encode(replace(each, controller=None)) for each in variants]))
    session, expected, found = checked(tmp_path / "out.onnx")
    assert found.ok, found.faults
    assert expected.quantised
    told = check_quantised(expected.integers(), found.values.outputs, session.compiled.machine, session.compiled.dtype)
    assert told.faults == told.operators.left_out == ()
    assert {kind: of[::2] for kind, of in told.operators.kinds.items()} == {"MatMulInteger": (6, 0)}


def test_a_table_is_no_floating_operator(tmp_path):
    session, expected, found = checked(files(tmp_path, with_a_table))
    assert found.ok
    assert {(one.exact, one.differing) for one in found.values.compared.values()} == {(True, 0)}
    told = check_quantised(expected.integers(), found.values.outputs, session.compiled.machine, session.compiled.dtype)
    assert dict(told.operators.kinds)["Table"][::2] == (1, 0)


def class_token(b: Builder) -> str:
    """One that is the same for every input, in front of a sequence that a product follows."""
    token = b.node("Concat", [b.normal((1, 1, 16)), b.node("MatMul", ["x", b.normal((16, 16))])], axis=1)
    return b.node("MatMul", [token, b.normal((16, 8))])


def test_constant_before_a_sequence_is_run_by_itself(tmp_path):
    session, expected, found = checked(files(tmp_path, class_token, Quantiser("qop", "int8"), shape=(1, 6, 16)))
    assert found.ok
    told = check_operators(expected.integers(), session.compiled.machine, session.compiled.dtype)
    assert (told.total[2], told.left_out) == (0, ())
    assert told.kinds["QLinearConcat"][0] == 1


@pytest.mark.parametrize("form", ["qdq", "qop"])
def test_products_and_softmax_over_heads_run_by_themselves(tmp_path, form):
    """They come with the views in front of them, or with heads and channels in one axis."""
    session, expected, found = checked(files(tmp_path, attention, Quantiser(form, "int8"), shape=(1, 6, 16)))
    assert found.ok
    told = check_operators(expected.integers(), session.compiled.machine, session.compiled.dtype)
    assert (told.total[2], told.left_out) == (0, ())
    assert {kind: each[0] for kind, each in told.kinds.items() if kind != "QuantizeLinear"} == {"QLinearMatMul": 5, "QLinearSoftmax": 1}
    integers = expected.integers()
    kinds = integers.answer["kinds"]
    wrong = {name: array ^ 1 if kinds[name] == "QLinearMatMul" else array for name, array in integers.expected.items()}
    told = check_operators(replace(integers, expected=wrong), session.compiled.machine, session.compiled.dtype)
    assert told.total[2] == told.kinds["QLinearMatMul"][1]  # each value of each is looked at


def test_a_wrong_value_is_found_and_named(tmp_path):
    session, expected, found = checked(files(tmp_path, whole))
    name = next(name for name, one in found.values.compared.items() if name.endswith("QuantizeLinear_Output"))
    values = dict(expected.values)
    values[name] = values[name] ^ 1
    again = check_level(session, random_feeds(session, 1), replace(expected, values=values), "none")
    assert not again.ok
    assert f"{name!r}: {values[name].size:,} of {values[name].size:,} values differ from onnxruntime's, none may" in again.faults
    integers = expected.integers()
    wrong = {key: array.copy() for key, array in integers.expected.items()}
    _, second, *_ = wrong
    wrong[second].flat[3] ^= 1
    told = check_operators(replace(integers, expected=wrong), session.compiled.machine, session.compiled.dtype)
    assert (told.total[2], told.first) == (1, second)


def test_fixed_point_machine_has_its_own_reference(tmp_path):
    """It differs from onnxruntime's by steps, which the check counts; a program that rounds as onnxruntime does is wrong there."""
    session, expected, found = checked(files(tmp_path, whole, QDQ, ETHOS, side=24))
    assert found.ok
    assert {(one.exact, one.differing) for one in found.values.compared.values()} == {(True, 0)}
    told = check_quantised(expected.integers(), found.values.outputs, session.compiled.machine, session.compiled.dtype)
    assert told.faults == ()
    assert told.operators.total[::2] == (3, 0)
    assert set(told.operators.steps) == {"1"}
    (tmp_path / "floats").mkdir()
    other, of_onnxruntime, as_it_is = checked(files(tmp_path / "floats", whole, QDQ, ITS_FLOATS, side=24))
    assert as_it_is.ok
    again = check_level(other, random_feeds(other, 1), expected, "none")
    assert any("values differ from those of TFLite's rounding, none may" in fault for fault in again.faults)
    alone = check_quantised(of_onnxruntime.integers(), as_it_is.values.outputs, ITS_FLOATS, other.compiled.dtype)
    assert (alone.operators.steps, alone.faults) == (None, ())


def test_behind_floats_a_rounding_may_turn_a_value(tmp_path):
    session, expected, found = checked(files(tmp_path, mixed))
    assert found.ok
    (one,) = (one for name, one in found.values.compared.items() if name.endswith("QuantizeLinear_Output"))
    assert not one.exact
    assert one.step == pytest.approx(1 / np.abs(expected.values[next(iter(found.values.compared))]).max(), rel=1)
    assert one.limit >= one.step
    told = check_quantised(expected.integers(), found.values.outputs, session.compiled.machine, session.compiled.dtype)
    assert told.faults == ()
    assert {"QuantizeLinear", "DequantizeLinear", "QLinearConv"} == set(told.operators.kinds)  # from onnxruntime's own floats


def test_the_command_says_all_of_it(tmp_path, capsys):
    out = files(tmp_path, whole)
    assert main(["run", str(out), "--input", "random:3", "--check", "--float", str(tmp_path / "floats.onnx"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["check"]["integers"]
    assert (told["operators"], told["differing"], told["first"]) == (3, 0, None)
    assert told["float"]["top1_of"] == 25
    assert told["float"]["top1_same"] > 20
    assert 15 < told["float"]["sqnr_db"] < 60
    assert main(["run", str(out), "--input", "random:3", "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("integers: ")).endswith("values differ")
    assert lines[-1] == "check of level none: passed"


def test_command_explains_the_difference_of_fixed_point(tmp_path, capsys):
    out = files(tmp_path, whole, QDQ, ETHOS, side=24)
    assert main(["run", str(out), "--input", "random:3", "--check", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["check"]["integers"]
    assert (told["operators"], told["differing"], set(told["fixed_point_steps"])) == (3, 0, {"1"})
    assert main(["run", str(out), "--input", "random:3", "--check"]) == 0
    steps = f" {told['fixed_point_steps']['1']} by 1 steps"
    assert any("TFLite" in line and line.endswith(steps) for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--float", "no.onnx"], "--float no.onnx: expected together with --check"),
        (["--check", "--float", "no.onnx"], "no.onnx: no such file"),
    ],
)
def test_useless_float_model_is_one_line(tmp_path, capsys, words, said):
    out = files(tmp_path, whole)
    assert main(["run", str(out), "--input", "random", *words]) == 2
    assert said in capsys.readouterr().err


def test_float_model_of_other_outputs_is_one_line(tmp_path, capsys):
    out = files(tmp_path, whole)
    model = onnx.load(tmp_path / "floats.onnx")
    model.graph.node.append(helper.make_node("Relu", [model.graph.output[0].name], ["other"]))
    model.graph.output[0].name = "other"
    onnx.save(model, tmp_path / "other.onnx")
    assert main(["run", str(out), "--input", "random", "--check", "--float", str(tmp_path / "other.onnx")]) == 2
    assert "outputs other [1, 5, 5, 5]; expected" in capsys.readouterr().err


def test_agreement_is_of_choices_among_channels():
    floats = {"y": np.array([[[1.0, 5.0], [2.0, 4.0]]]), "z": np.array([3.0])}
    found = measure_agreement({"y": np.array([[[1.0, 3.0], [2.0, 4.0]]]), "z": np.array([3.0])}, floats)
    assert found.top1 == (1, 2)
    assert found.sqnr_db == pytest.approx(10 * np.log10((1 + 25 + 4 + 16 + 9) / 4))
