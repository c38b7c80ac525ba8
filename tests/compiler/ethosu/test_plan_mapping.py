"""Plans of the farm become segments of a file's operators, whatever was fused, and in the order of the plan."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from compiler.ethosu.network_parts import compile_network
from compiler.ethosu.plan_mapping import PlanNames, map_plan, names_of_nodes
from compiler.frontend.tflite.network import TfliteNetwork, read_network
from compiler.frontend.tflite.to_onnx import to_onnx
from compiler.model import LoweredModel, ModelSpec, lower_model
from compiler.plan.plan import Plan
from compiler.space.initial import layer_by_layer
from scripts.our_streams import MACHINE, OurStream
from simulator.npu.errors import BadInputError
from tests.compiler.ethosu.drawn_networks import Builder
from tests.compiler.ethosu.models import model


@cache
def opened(name: str) -> tuple[TfliteNetwork, LoweredModel]:
    network = read_network(model(name).data)
    return network, lower_model(ModelSpec.named(Path(name), MACHINE, "float16", {}, None), to_onnx(network), name)


def results(lowered: LoweredModel) -> dict[str, str]:
    return {spec.name: spec.operator.y for graph in lowered.target_graphs for spec in graph.operators}


def names(lowered: LoweredModel) -> PlanNames:
    return names_of_nodes(results(lowered))


def layers(lowered: LoweredModel) -> Plan:
    """Every operator of the target graph by itself."""
    return layer_by_layer(lowered.target_graphs[0])


@pytest.mark.parametrize("name", ["keyword_spotting", "table_activations"])
def test_a_plan_of_layers_gives_litert_s_integers(name):
    network, lowered = opened(name)
    plan = layers(lowered)
    ordered, stream_plan = map_plan(network, plan, names(lowered))
    assert len(stream_plan.segments) >= len(plan.segments) - 1
    outputs, _ = OurStream(compile_network(ordered, stream_plan, 384 << 10)).run(model(name).inputs)
    for output, expected in zip(outputs, model(name).outputs, strict=True):
        assert output is None or np.array_equal(output, expected)


def test_blocks_are_stripes():
    network, lowered = opened("keyword_spotting")
    plan = layers(lowered)
    first = results(lowered)[plan.segments[0].operators[0]]
    segments = [
        segment.model_copy(update={"blocks": 2 if number == 1 else 1, "held": (first,) if number < 2 else ()})
        for number, segment in enumerate(plan.segments)
    ]
    _, stream_plan = map_plan(network, plan.model_copy(update={"segments": tuple(segments)}), names(lowered))
    assert [segment.stripes for segment in stream_plan.segments[:3]] == [1, 2, 1]
    assert stream_plan.held == {network.operators[0].outputs[0]}


def test_a_fused_sum_is_in_the_same_segment():
    builder = Builder(0)
    x = builder.input(8, 8, 16)
    y = builder.conv(builder.conv(x, 16, (3, 3), 1, 1, True, False, False), 16, (3, 3), 1, 1, True, False, False)
    builder.add(x, y)
    network = builder.network()
    lowered = lower_model(ModelSpec.named(Path("m"), MACHINE, "float16", {}, None), to_onnx(network), "m")
    plan = layers(lowered)
    assert len(plan.segments) == 2
    _, stream_plan = map_plan(network, plan, names(lowered))
    assert [tuple(segment) for segment in stream_plan.segments] == [(0, 1, 1), (1, 3, 1)]


def test_operators_of_another_file_are_refused():
    network, lowered = opened("table_activations")
    for name in ("conv", "operator99"):
        segment = layers(lowered).segments[0].model_copy(update={"operators": (name,)})
        with pytest.raises(BadInputError, match=re.escape(f"operator {name!r}: expected one of the model's 15")):
            map_plan(network, layers(lowered).model_copy(update={"segments": (segment,)}), names(lowered))
