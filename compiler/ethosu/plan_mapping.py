"""From a plan of the farm to segments of a network's operators.

A plan names operators of the ONNX form (`compiler.frontend.tflite.to_onnx`), some of which are several of the file's, or parts of one.
Of a segment its operators, its blocks and its persistent tensors count: blocks are stripes, persistent tensors lie in SRAM.
Its other keys are of memories and engines that the part has not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from compiler.ethosu.segments import StreamPlan, StreamSegment
from compiler.frontend.tflite.network import TfliteNetwork
from compiler.frontend.tflite.to_onnx import NODE
from compiler.plan.plan import Plan
from simulator.npu.errors import BadInputError

_OPERATOR, _TENSOR = re.compile(rf"{NODE}(\d+)(?![\d])"), re.compile(r"t(\d+)(?![\d])")


def map_plan(network: TfliteNetwork, plan: Plan, results: Mapping[str, str]) -> tuple[TfliteNetwork, StreamPlan]:
    """The network in the order of a plan, and its segments.  results: name of each operator of the plan -> name of its result."""
    segment_of = dict[int, int]()
    by_result = dict[int, int]()
    for number, segment in enumerate(plan.segments):
        for name in segment.operators:
            match, result = _OPERATOR.match(name), _TENSOR.fullmatch(results.get(name, ""))
            if match is None or int(match[1]) >= len(network.operators):
                raise BadInputError(f"plan: operator {name!r}: expected {NODE}0 to {NODE}{len(network.operators) - 1}")
            segment_of[int(match[1])] = max(number, segment_of.get(int(match[1]), 0))
            if result:
                by_result[int(result[1])] = number
    segments = _complete(network, segment_of, by_result)
    order = sorted(range(len(network.operators)), key=lambda operator: (segments[operator], operator))
    stripes = [segment.blocks for segment in plan.segments]
    cuts = [place for place in range(1, len(order)) if segments[order[place]] != segments[order[place - 1]]]
    bounds = zip([0, *cuts], [*cuts, len(order)], strict=True)
    held = frozenset(int(match[1]) for segment in plan.segments for name in segment.held if (match := _TENSOR.fullmatch(name)))
    ordered = replace(network, operators=tuple(network.operators[operator] for operator in order))
    return ordered, StreamPlan(tuple(StreamSegment(first, last, stripes[segments[order[first]]]) for first, last in bounds), held)


def _complete(network: TfliteNetwork, segment_of: Mapping[int, int], by_result: Mapping[int, int]) -> list[int]:
    """Segment of every operator: its own, that of its result, or the last of those that make its inputs."""
    producer = dict[int, int]()
    segments = list[int]()
    for number, operator in enumerate(network.operators):
        before = max((producer[tensor] for tensor in operator.inputs if tensor in producer), default=0)
        named = segment_of.get(number, by_result.get(operator.outputs[0], before))
        segments.append(max(before, named))
        producer |= dict.fromkeys(operator.outputs, segments[-1])
    return segments
