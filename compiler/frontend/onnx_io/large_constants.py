"""Models without their large constants, for passes that copy and serialise a model repeatedly: VGG has 550 MB of them.

Protobuf copies a tensor's raw data at every access, and a model is accessed for its digest, for lowering and for writing.  So a loaded
model is *hollow*: the raw data of its large initialisers are stored outside, by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from compiler.frontend.onnx_io.protobuf_wire import Data, copy_fields, without_data
from simulator.onnx_kinds import FLOATS
from simulator.onnx_names import names_read, refill

LARGE = 256  # values; constants of at least this size are hidden from checker, converter and shape inference, and are not folded there
ExternalData = Mapping[str, Data]  # name of a hollow initialiser -> its raw data
NO_DATA: ExternalData = {}


class LargeConstant(NamedTuple):
    """Large constant.  data: raw data; None where the values are in another field of the tensor."""

    tensor: TensorProto
    data: Data | None

    def array(self) -> NDArray[Any]:
        if self.data is None:
            return numpy_helper.to_array(self.tensor)
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(self.tensor.data_type)).newbyteorder("<")
        return np.frombuffer(self.data, kind).reshape(tuple(self.tensor.dims))


class ModelWithoutWeights(NamedTuple):
    """Hollow model, and the raw data of its large initialisers."""

    model: ModelProto
    data: ExternalData

    def filled(self) -> ModelProto:
        """Model with all its data, restored in place."""
        for tensor in self.model.graph.initializer:
            if tensor.name in self.data:
                tensor.raw_data = bytes(self.data[tensor.name])
        return self.model


def large_constants(large: Mapping[str, TensorProto], data: ExternalData = NO_DATA) -> dict[str, LargeConstant]:
    """Constants that `detach` removed, for repeated access.  data: weights of a hollow model."""
    raw = {name: tensor.raw_data for name, tensor in large.items() if name not in data and tensor.HasField("raw_data")}
    return {name: LargeConstant(tensor, data.get(name, raw.get(name))) for name, tensor in large.items()}


def detach(model: ModelProto, at_least: int) -> tuple[ModelProto, dict[str, TensorProto]]:
    """Copy in which float initialisers of `at_least` values or more are inputs, and those initialisers by name.

    The initialisers are the model's own, not copies.  An initialiser that is also listed as an input stays an input.
    """
    skeleton = ModelProto()
    copy_fields(skeleton, model, "graph")
    copy_fields(skeleton.graph, model.graph, "initializer")
    listed = {tensor.name for tensor in model.graph.input}
    large: dict[str, TensorProto] = {}
    for tensor in model.graph.initializer:
        if tensor.data_type in FLOATS and math.prod(tensor.dims) >= at_least and tensor.name not in large:
            large[tensor.name] = tensor
            if tensor.name not in listed:
                skeleton.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        else:
            skeleton.graph.initializer.append(tensor)
    return skeleton, large


def attach(model: ModelProto, large: Mapping[str, LargeConstant]) -> ModelWithoutWeights:
    """Hollow model with the removed initialisers that are still read, restored in place."""
    read_constants = _still_read(model, large)
    model.graph.initializer.extend(tensor if data is None else without_data(tensor) for tensor, data in read_constants.values())
    return ModelWithoutWeights(model, {name: data for name, (_, data) in read_constants.items() if data is not None})


def _still_read(model: ModelProto, large: Mapping[str, LargeConstant]) -> dict[str, LargeConstant]:
    """Removed initialisers that are still read.  Drops all of them from the model's inputs, in place."""
    refill(model.graph.input, (entry for entry in model.graph.input if entry.name not in large))
    read = names_read(model.graph.node) | {entry.name for entry in model.graph.output}
    return {name: entry for name, entry in large.items() if name in read}
