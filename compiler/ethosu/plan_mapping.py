"""From a plan of the farm to segments of a network's operators.

A plan names operators of the graph that the frontend made, some of which are several of the network's, or parts of one.
Of a segment its operators, its blocks and its persistent tensors count: blocks are stripes, persistent tensors lie in SRAM.
Its other keys are of memories and engines that the part has not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from compiler.ethosu.segments import StreamPlan, StreamSegment
from compiler.frontend.tflite.network import TfliteNetwork
from compiler.frontend.tflite.to_onnx import NODE
from compiler.plan.plan import Plan
from simulator.npu.errors import BadInputError

_OPERATOR, _TENSOR = re.compile(rf"{NODE}(\d+)(?![\d])"), re.compile(r"t(\d+)(?![\d])")


class PlanNames(NamedTuple):
    """Numbers in a network.  operators: by the name of an operator in plans; results: of its result; tensors: by their name in plans."""

    operators: Mapping[str, int]
    results: Mapping[str, int]
    tensors: Mapping[str, int]


def names_of_nodes(results: Mapping[str, str]) -> PlanNames:
    """Numbers of a `.tflite` file by the names of its ONNX form.  results: name of each operator in plans -> name of its result."""
    operators = {name: int(match[1]) for name in results if (match := _OPERATOR.match(name))}
    produced = {name: int(match[1]) for name, result in results.items() if (match := _TENSOR.fullmatch(result))}
    return PlanNames(operators, produced, {f"t{number}": number for number in produced.values()})


def map_plan(network: TfliteNetwork, plan: Plan, names: PlanNames) -> tuple[TfliteNetwork, StreamPlan]:
    """The network in the order of a plan, and its segments."""
    segment_of, by_result = dict[int, int](), dict[int, int]()
    for number, segment in enumerate(plan.segments):
        for name in segment.operators:
            if not 0 <= names.operators.get(name, -1) < len(network.operators):
                raise BadInputError(f"plan: operator {name!r}: expected one of the model's {len(network.operators)}")
            operator = names.operators[name]
            segment_of[operator] = max(number, segment_of.get(operator, 0))
            if name in names.results:
                by_result[names.results[name]] = number
    segments = _complete(network, segment_of, by_result)
    order = sorted(range(len(network.operators)), key=lambda operator: (segments[operator], operator))
    stripes = [segment.blocks for segment in plan.segments]
    cuts = [place for place in range(1, len(order)) if segments[order[place]] != segments[order[place - 1]]]
    bounds = zip([0, *cuts], [*cuts, len(order)], strict=True)
    held = frozenset(names.tensors[name] for segment in plan.segments for name in segment.held if name in names.tensors)
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
