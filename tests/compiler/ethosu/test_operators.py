"""Each operator of a `.tflite` file gives LiteRT's integers, or is left to the processor by name."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ethosu.lowering import find_refusals
from compiler.ethosu.network_parts import compile_network
from compiler.ethosu.operator_rules import RULES
from compiler.ethosu.segments import StreamPlan, StreamSegment, single_operators
from compiler.frontend.tflite.file_schema import KINDS
from compiler.frontend.tflite.network import TfliteNetwork, read_network
from scripts.our_streams import PLANS, OurStream, compile_ours
from simulator.npu.errors import BadInputError, TilefarmError, UnsupportedError
from tests.compiler.ethosu.models import model, models

LEFT = {"SOFTMAX"}
SRAM = 384 << 10


@pytest.mark.parametrize("model", [item for item in models() if item.name not in LEFT], ids=lambda item: item.name)
def test_outputs_are_those_of_litert(model):
    for plans in PLANS:
        outputs, _ = compile_ours(model.data, plans).run(model.inputs)
        assert any(output is not None for output in outputs)
        for output, expected in zip(outputs, model.outputs, strict=True):
            if output is not None:
                np.testing.assert_array_equal(output, expected)


def test_any_tensor_of_a_network_may_be_held():
    """Those that a fused table leaves unwritten, too."""
    network = read_network(model("table_activations").data)
    held = frozenset(number for operator in network.operators for number in operator.outputs)
    plan = replace(single_operators(len(network.operators)), held=held)
    outputs, _ = OurStream(compile_network(network, plan, SRAM)).run(model("table_activations").inputs)
    for output, expected in zip(outputs, model("table_activations").outputs, strict=True):
        np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("name", ["keyword_spotting", "table_activations"])
def test_stripes_of_a_network_give_the_same_integers(name):
    network = read_network(model(name).data)
    for count, stripes in ((2, 3), (4, 7), (5, 2)):
        segments = (
            StreamSegment(first, min(first + count, len(network.operators)), stripes) for first in range(0, len(network.operators), count)
        )
        outputs, _ = OurStream(compile_network(network, StreamPlan(tuple(segments)), SRAM)).run(model(name).inputs)
        for output, expected in zip(outputs, model(name).outputs, strict=True):
            assert output is None or np.array_equal(output, expected)


def test_an_operator_that_is_left_has_a_reason():
    network = read_network(model("keyword_spotting").data)
    (number, reason), *more = find_refusals(network, RULES)
    assert not more
    assert network.operators[number].kind == "SOFTMAX"
    assert reason.startswith(f"operator {number}, SOFTMAX: expected one of ABS, ADD, ")


def test_a_network_of_the_processor_is_refused():
    network = read_network(model("SOFTMAX").data)
    with pytest.raises(UnsupportedError, match="no operator for the part: operator 0, SOFTMAX"):
        compile_network(network, single_operators(1), SRAM)


def test_rules_are_of_known_kinds():
    assert set(RULES) - {kind.name for kind in KINDS} == {"TABLE"}  # of other models than files of TFLite


def changed(network: TfliteNetwork, kind: str, **options: int) -> TfliteNetwork:
    """A network with other options of a kind of operator."""
    operators = tuple(
        replace(operator, options={**operator.options, **options}) if operator.kind == kind else operator for operator in network.operators
    )
    return replace(network, operators=operators)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("CONV_2D", {"stride_y": 1, "stride_x": 4}, "strides 1x4: expected 1 to 3"),
        ("CONV_2D", {"dilation_y": 3, "dilation_x": 1}, "dilations 3x1: expected 1 to 2"),
        ("CONV_2D", {"activation": 4}, "activation 4: expected none, RELU, RELU_N1_TO_1 or RELU6"),
        ("FULLY_CONNECTED", {"weights_format": 1}, "weights of format 1: expected 0"),
        ("MAX_POOL_2D", {"rows": 300}, "a kernel of 300x"),
        ("RESIZE_BILINEAR", {"align_corners": 1}, "align_corners: expected none"),
        ("CONCATENATION", {"activation": 1}, "activation 1: expected none"),
    ],
)
def test_limits_are_named(name, options, message):
    network = changed(read_network(model(name).data), name, **options)
    ((_, reason),) = find_refusals(network, RULES)
    assert message in reason
    assert "\n" not in reason


def test_another_type_is_named():
    network = read_network(model("MAX_POOL_2D").data)
    tensors = tuple(tensor._replace(dtype=np.dtype(np.int16)) for tensor in network.tensors)
    ((_, reason),) = find_refusals(replace(network, tensors=tensors), RULES)
    assert reason.endswith("of int16: expected int8")


@settings(max_examples=70, deadline=None)
@given(st.data())
def test_a_damaged_file_is_one_line(data):
    raw = bytearray(model("CONV_2D").data)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 4))
        struct.pack_into("<I", raw, place, data.draw(st.integers(0, (1 << 32) - 1)))
    message = ""
    try:
        network = read_network(bytes(raw[: data.draw(st.integers(len(raw) // 2, len(raw)))]))
        list(find_refusals(network, RULES))
    except TilefarmError as error:
        message = str(error)
    assert "\n" not in message


def test_no_file_and_another_file_are_refused():
    for raw in (b"", b"abcd", b"\0" * 64):
        with pytest.raises(BadInputError, match="TFL3"):
            read_network(raw)
