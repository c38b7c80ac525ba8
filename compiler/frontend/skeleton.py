"""A model without its large constants, for passes that copy and serialise it again and again: VGG has 550 MB of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from simulator.onnx_kinds import FLOATS


class Large(NamedTuple):
    """A large constant.  data: its raw data, where it has them: protobuf makes a copy at every look."""

    tensor: TensorProto
    data: bytes | None

    def array(self) -> NDArray[Any]:
        if self.data is None:
            return numpy_helper.to_array(self.tensor)
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(self.tensor.data_type)).newbyteorder("<")
        return np.frombuffer(self.data, kind).reshape(tuple(self.tensor.dims))


def taken_out(large: Mapping[str, TensorProto]) -> dict[str, Large]:
    """What `detach` has put beside a skeleton, to be read more than once."""
    return {name: Large(tensor, tensor.raw_data if tensor.HasField("raw_data") else None) for name, tensor in large.items()}


def detach(model: ModelProto, at_least: int) -> tuple[ModelProto, dict[str, TensorProto]]:
    """(copy in which float initialisers of `at_least` values or more are inputs, those initialisers by name).

    The initialisers are the model's own, not copies.  An initialiser that the model lists as an input as well stays one.
    """
    skeleton = ModelProto()
    _copy(skeleton, model, {"graph"})
    _copy(skeleton.graph, model.graph, {"initializer"})
    listed = {item.name for item in model.graph.input}
    large: dict[str, TensorProto] = {}
    for item in model.graph.initializer:
        if item.data_type in FLOATS and math.prod(item.dims) >= at_least and item.name not in large:
            large[item.name] = item
            if item.name not in listed:
                skeleton.graph.input.append(helper.make_tensor_value_info(item.name, item.data_type, list(item.dims)))
        else:
            skeleton.graph.initializer.append(item)
    return skeleton, large


def attach(model: ModelProto, large: dict[str, TensorProto]) -> None:
    """Put the initialisers back, in place: copies of those that are still read."""
    model.graph.initializer.extend(still_read(model, large).values())


def still_read(model: ModelProto, large: dict[str, TensorProto]) -> dict[str, TensorProto]:
    """Of the initialisers those that something reads.  Their names are inputs of the model no longer, in place."""
    kept = [item for item in model.graph.input if item.name not in large]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    read = {name for node in model.graph.node for name in node.input} | {item.name for item in model.graph.output}
    return {name: item for name, item in large.items() if name in read or _has_subgraphs(model)}


def _has_subgraphs(model: ModelProto) -> bool:
    """If, Loop and Scan bodies read outer tensors by name."""
    kinds = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    return any(attribute.type in kinds for node in model.graph.node for attribute in node.attribute)


def _copy(target: Any, source: Any, without: set[str]) -> None:
    """Set fields of one protobuf message to another's, but for some."""
    for descriptor, value in source.ListFields():
        if descriptor.name in without:
            continue
        if isinstance(value, (str, bytes, int, float)):
            setattr(target, descriptor.name, value)
        else:
            getattr(target, descriptor.name).MergeFrom(value)
