"""A seed as a model: some inputs, four to twelve operators, outputs in any order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from simulator.exact_onnxruntime import REFUSALS
from simulator.npu.errors import BadInputError
from tests.fuzz.builder import OPSETS, GraphBuilder, MisfitError, Sample, schema_of, values_of
from tests.fuzz.integer_operators import INTEGER_OPERATORS
from tests.fuzz.operators import OPERATORS, draw_operator
from tests.fuzz.quantised import QuantisedBuilder
from tuner.zoo.quantise import quantise_model as quantise
from tuner.zoo.quantiser import Quantiser

_OF_INTEGERS = ("QuantizeLinear", "DequantizeLinear")  # beside operators


def draw_graph(seed: int, quantised: bool) -> Sample:
    """The same for the same seed.  quantised: around most operators, with some on integers; every fifth by onnxruntime's quantiser."""
    if quantised and seed % 5 == 4 and (found := _by_quantiser(seed)) is not None:
        return found
    rng = np.random.default_rng([seed, int(quantised)])
    make: Callable[..., Any] = QuantisedBuilder if quantised else GraphBuilder
    builder = make(rng, int(rng.choice([opset for opset in OPSETS if opset >= 13] if quantised else OPSETS)))
    for _ in range(builder.choose((1, 1, 2, 3))):
        builder.input(builder.draw_shape(builder.choose((2, 3, 3, 4, 4, 5))))
    count, tries = builder.integer(4, 12), 0
    while operators_in(builder) < count and tries < 10 * count:
        tries += 1
        with builder.whole_or_nothing():
            draw = partial(_draw_on_integers, builder) if quantised and builder.chance(0.12) else partial(draw_operator, builder)
            draw()
    sample = builder.sample(_draw_outputs(builder))
    return sample if quantised or builder.chance(0.93) else _as_float16(sample)


def _as_float16(sample: Sample) -> Sample:
    """The same with float16 in place of float32; as it is where onnxruntime does not take that."""
    made = Sample(ModelProto(), {name: value.astype(np.float16) for name, value in sample.feeds.items()})
    made.model.CopyFrom(sample.model)
    for port in (*made.model.graph.input, *made.model.graph.output):
        port.type.tensor_type.elem_type = TensorProto.FLOAT16
    for item in made.model.graph.initializer:
        if item.data_type == TensorProto.FLOAT:
            item.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(item).astype(np.float16), item.name))
    try:
        values_of(*made, [port.name for port in made.model.graph.output])
    except REFUSALS:
        return sample
    return made


def _by_quantiser(seed: int) -> Sample | None:
    """The float graph of a seed, quantised with the ranges of its own values; None where onnxruntime cannot."""
    model, feeds = draw_graph(seed, quantised=False)
    how = Quantiser(activations="int8" if seed % 2 else "uint8", per_channel=seed % 4 < 2)
    try:
        made = onnx.load_model_from_string(quantise(model, {name: array[None] for name, array in feeds.items()}, how))
        values_of(made, feeds, [port.name for port in made.graph.output])
    except (BadInputError, *REFUSALS):
        return None
    return Sample(made, feeds)


def draw_single(name: str, seed: int) -> Sample | None:
    """An operator of a table behind an input; None where it cannot be drawn so."""
    rng, on_integers = np.random.default_rng([seed, 2]), name in INTEGER_OPERATORS
    opsets = [opset for opset in OPSETS if opset >= 13] if on_integers else [opset for opset in OPSETS if schema_of(name, opset)]
    builder: Any = (QuantisedBuilder if on_integers else GraphBuilder)(rng, int(rng.choice(opsets)))
    builder.input(builder.draw_shape(builder.choose((2, 3, 4, 5))))
    with builder.whole_or_nothing():
        {**OPERATORS, **INTEGER_OPERATORS}[name](builder, name)
    return builder.sample([builder.pool[-1]]) if builder.nodes else None


def operators_in(builder: GraphBuilder) -> int:
    return sum(node.op_type not in _OF_INTEGERS for node in builder.nodes)


def _draw_on_integers(builder: QuantisedBuilder) -> None:
    op = builder.choose(list(INTEGER_OPERATORS))
    INTEGER_OPERATORS[op](builder, op)


def _draw_outputs(builder: GraphBuilder) -> list[str]:
    """Whatever nobody reads, some of what is read, sometimes an input, a constant, or a second name of an output."""
    read = {name for node in builder.nodes for name in node.input}
    made = [name for node in builder.nodes for name in node.output if name in builder.pool]
    if not made:
        made = [builder.node("Relu", [builder.pool[0]])]
    outputs = [name for name in made if name not in read or builder.chance(0.15)]
    if isinstance(builder, QuantisedBuilder):
        outputs = [_behind_integers(builder, name) if builder.chance(0.7) else name for name in outputs]
    for more, probability in ((list(builder.feeds), 0.05), (list(builder.constants), 0.03)):
        floats = [name for name in more if builder.values[name].dtype == np.float32]
        if floats and builder.chance(probability):
            outputs.append(builder.choose(floats))
    if builder.chance(0.08):
        (name,) = builder.add("Identity", [builder.choose(outputs)], most=np.inf)
        outputs.append(name)
    unique = list(dict.fromkeys(outputs)) or made[-1:]
    return [unique[i] for i in builder.rng.permutation(len(unique))]


def _behind_integers(builder: QuantisedBuilder, name: str) -> str:
    made_by = next(node.op_type for node in builder.nodes if name in node.output)
    try:
        return name if made_by == "DequantizeLinear" else builder.dequantize(builder.quantize(name))
    except MisfitError:
        return name
