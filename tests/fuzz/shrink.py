"""A faulty model cut down: outputs, nodes, attributes and sizes go as long as the same fault remains (delta debugging).

A step is a function from a sample to smaller ones.  The first of those that shows the fault is taken; steps are tried until none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from simulator.exact_onnxruntime import REFUSALS
from tests.fuzz.as_test import regular, text_of
from tests.fuzz.builder import Array, MisfitError, Sample, port_of, values_of
from tests.fuzz.campaign import DIED, Job, judge_in_time
from tests.fuzz.graphs import draw_graph
from tests.fuzz.outcome import Outcome, judge
from tests.fuzz.trial import Target

MOST_TRIALS = 300
Smaller = Callable[[Sample], Iterator[Sample]]


def shrunk_tests(job: Job, faults: Mapping[int, Outcome], count: int) -> dict[int, str]:
    """Seed -> a test of its smallest graph, of so many seeds, each with another fault than those before it as far as there are."""
    order, met = list[int](), set[tuple[str, str]]()
    for seed, fault in sorted(faults.items()):
        if (key := (fault.kind, fault.what)) not in met:
            met.add(key)
            order.append(seed)
    order += [seed for seed in sorted(faults) if seed not in order]
    found = {}
    for seed in order[:count]:
        sample, fault = shrink(draw_graph(seed, job.quantised), faults[seed], job.target(seed), seed)
        found[seed] = text_of(sample, fault, job.machine_of(seed), job.target(seed).dtype.name, seed)
    return found


def shrink(sample: Sample, fault: Outcome, target: Target, seed: int) -> tuple[Sample, Outcome]:
    """The smallest sample that was found, and its fault; the plan that showed it is the only one that is made."""
    if fault.what == DIED:
        return sample, fault
    target = target._replace(plans=(fault.plan or target.plans[0],))

    left, simpler = MOST_TRIALS, True

    def shows(trial: Sample | None) -> bool:
        nonlocal left
        if trial is None or not left:
            return False
        left -= 1
        found = judge_in_time(lambda: judge(trial, target, seed))
        return (found.kind, found.what) == (fault.kind, fault.what)

    while simpler and left:
        simpler = False
        for step in STEPS:
            at = 0  # what was tried in vain of a larger sample is tried again in the next round only
            while (found := next(((k, each) for k, each in _valid(step, sample, at) if shows(each)), None)) is not None:
                (at, sample), simpler = found, True
    last = judge(sample, target, seed)
    return sample, last if last.fault else fault


def _valid(step: Smaller, sample: Sample, first: int) -> Iterator[tuple[int, Sample | None]]:
    """Samples of a step from number `first` on, with shapes as they are; None for one that onnxruntime does not take."""
    for k, each in enumerate(step(sample)):
        if k >= first:
            try:
                yield k, with_shapes(each)
            except (MisfitError, *REFUSALS):
                yield k, None


def with_shapes(sample: Sample) -> Sample:
    """Without what no output needs, and with the shapes that outputs have."""
    model, wanted = ModelProto(), {port.name for port in sample.model.graph.output}
    model.CopyFrom(sample.model)
    nodes = []
    for node in reversed(sample.model.graph.node):
        if wanted & set(node.output):
            nodes.insert(0, node)
            wanted |= set(node.input)
    if not nodes:
        raise MisfitError
    graph = model.graph
    made = values_of(sample.model, sample.feeds, [port.name for port in graph.output])
    inputs, constants = (
        [item for item in items if item.name in wanted] for items in (sample.model.graph.input, sample.model.graph.initializer)
    )
    del graph.node[:], graph.output[:], graph.input[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    graph.initializer.extend(constants)
    graph.output.extend(port_of(name, value) for name, value in made.items())
    return Sample(model, {name: value for name, value in sample.feeds.items() if name in wanted})


def _copy(sample: Sample) -> Sample:
    model = ModelProto()
    model.CopyFrom(sample.model)
    return Sample(model, dict(sample.feeds))


def _tensors(sample: Sample) -> dict[str, Array]:
    return values_of(sample.model, sample.feeds, [name for node in sample.model.graph.node for name in node.output if name])


def fewer_outputs(sample: Sample) -> Iterator[Sample]:
    """One alone, or one less."""
    ports = list(sample.model.graph.output)
    kept = [[port] for port in ports] + [ports[:i] + ports[i + 1 :] for i in range(len(ports))]
    for some in kept if len(ports) > 1 else []:
        found = _copy(sample)
        del found.model.graph.output[:]
        found.model.graph.output.extend(some)
        yield found


def earlier_outputs(sample: Sample) -> Iterator[Sample]:
    """What a node reads as an output in place of what it makes."""
    for at, port in enumerate(sample.model.graph.output):
        node = next((node for node in sample.model.graph.node if port.name in node.output), None)
        there = {port.name for port in sample.model.graph.output}
        made = {name for each in sample.model.graph.node for name in each.output}
        for name in [] if node is None else [name for name in node.input if name in made and name not in there]:
            found = _copy(sample)
            found.model.graph.output[at].CopyFrom(helper.make_empty_tensor_value_info(name))
            yield found


def inputs_for_nodes(sample: Sample) -> Iterator[Sample]:
    """An input with the values that a node made, in the node's place."""
    values, outputs = _tensors(sample), {port.name for port in sample.model.graph.output}
    for node in reversed(sample.model.graph.node):
        names = [name for name in node.output if name and name not in outputs]
        if len(names) < len(node.output) or (node.op_type == "DequantizeLinear" and len(sample.model.graph.node) < 4):
            continue
        found = _copy(sample)
        found.model.graph.node.remove(node)
        found.model.graph.input.extend(port_of(name, values[name]) for name in names)
        found.feeds.update({name: values[name] for name in names})
        yield found


def without_nodes(sample: Sample) -> Iterator[Sample]:
    """What a node reads in place of what it makes, where types allow it."""
    for node in sample.model.graph.node:
        for source in dict.fromkeys(node.input):
            found = _copy(sample)
            found.model.graph.node.remove(node)
            for other in found.model.graph.node:
                other.input[:] = [source if name in node.output else name for name in other.input]
            if not any(port.name in node.output for port in found.model.graph.output):
                yield found


def without_attributes(sample: Sample) -> Iterator[Sample]:
    for k, node in enumerate(sample.model.graph.node):
        for i in range(len(node.attribute)):
            found = _copy(sample)
            del found.model.graph.node[k].attribute[i]
            yield found
        if len(node.input) > 1:
            found = _copy(sample)
            del found.model.graph.node[k].input[-1]
            yield found


def smaller_sizes(sample: Sample) -> Iterator[Sample]:
    """A size everywhere it is met: in shapes of inputs and constants, and in constants that are shapes."""
    constants = {item.name: numpy_helper.to_array(item) for item in sample.model.graph.initializer}
    arrays = {**sample.feeds, **{name: array for name, array in constants.items() if array.dtype != np.int64}}
    for size in sorted({size for array in arrays.values() for size in array.shape if size > 1}, reverse=True):
        for less in sorted({1, 2, 3, 4, 8, 12, 15, 16, 17, 20, size // 2, size - 1}):
            if 0 < less < size:
                yield from _resized(sample, constants, size, less)


def _resized(sample: Sample, constants: Mapping[str, Array], size: int, less: int) -> Iterator[Sample]:
    def cut(array: Array) -> Array:
        return array[tuple(slice(0, less if n == size else n) for n in array.shape)]

    def resized(number: int, multiples: bool) -> int:
        return number // size * less if number == size or (multiples and number > 0 and number % size == 0) else number

    def shapes(array: Array, multiples: bool) -> Array:
        return np.array([resized(number, multiples) for number in array.reshape(-1).tolist()], np.int64).reshape(array.shape)

    for multiples in (False, True):
        found = _copy(sample)
        found.feeds.update({name: cut(value) for name, value in sample.feeds.items()})
        for port in found.model.graph.input:
            port.CopyFrom(port_of(port.name, found.feeds[port.name]))
        for item in found.model.graph.initializer:
            array = constants[item.name]
            item.CopyFrom(numpy_helper.from_array(shapes(array, multiples) if array.dtype == np.int64 else cut(array), item.name))
        yield found


def regular_values(sample: Sample) -> Iterator[Sample]:
    """Values that a test can write in a few words; scales, which have to fit what they are of, stay."""
    scales = {name for node in sample.model.graph.node if node.op_type.endswith("Linear") for name in node.input[1:]}
    for name, value in sample.feeds.items():
        if value.size > 4 and not np.array_equal(value, regular(value.shape, value.dtype.name)):
            found = _copy(sample)
            found.feeds[name] = regular(value.shape, value.dtype.name)
            yield found
    for k, item in enumerate(sample.model.graph.initializer):
        array = numpy_helper.to_array(item)
        if item.name in scales or array.size <= 4 or array.dtype == np.int64:
            continue
        if not np.array_equal(array, regular(array.shape, array.dtype.name)):
            found = _copy(sample)
            found.model.graph.initializer[k].CopyFrom(numpy_helper.from_array(regular(array.shape, array.dtype.name), item.name))
            yield found


STEPS: Sequence[Smaller] = (
    fewer_outputs, earlier_outputs, inputs_for_nodes, without_nodes, without_attributes, smaller_sizes, regular_values,
)  # fmt: skip
