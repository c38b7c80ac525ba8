"""A quantised model as onnxruntime groups it: the graph that it saves, and every tensor of that."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, helper

from simulator.exact_onnxruntime import session_options

Array = NDArray[Any]
_MOVE_AXES = ["NhwcTransformer", "NchwcTransformer"]


class Fused:
    """graph: what onnxruntime makes of a model by the options of `simulator.exact_onnxruntime`.

    Without the passes that move axes, its tensors have the model's names and axes; the kernels are the same.  Raises what onnxruntime does.
    """

    def __init__(self, model: ModelProto, precise: bool | None = None) -> None:
        self._precise = precise
        options = session_options(precise)
        with tempfile.TemporaryDirectory(prefix="tilefarm-") as folder:
            path = Path(folder) / "optimised.onnx"
            options.optimized_model_filepath = str(path)
            self._whole = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"], disabled_optimizers=_MOVE_AXES
            )
            self.graph = onnx.load(path)

    @property
    def made(self) -> list[str]:
        """Names of all tensors that its nodes make."""
        return [name for node in self.graph.graph.node for name in node.output if name]

    def outputs(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Of the model, when nobody looks at its other tensors."""
        names = [item.name for item in self.graph.graph.output]
        return dict(zip(names, self._whole.run(names, dict(feeds)), strict=True))

    def tensors(self, feeds: Mapping[str, Array], wanted: Iterable[str]) -> dict[str, Array]:
        """Some of `made` and of the outputs."""
        return as_it_is(self.graph, feeds, wanted, self._precise)


def as_it_is(model: ModelProto, feeds: Mapping[str, Array], wanted: Iterable[str], precise: bool | None = None) -> dict[str, Array]:
    """Tensors of a model by name, node by node: nothing is grouped or moved."""
    exposed, names = ModelProto(), list(dict.fromkeys(wanted))
    if not names:  # onnxruntime takes no model without nodes
        return {}
    exposed.CopyFrom(model)
    there = {item.name for item in exposed.graph.output}
    # a type has to be there, and onnxruntime finds the right one
    exposed.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names if name not in there)
    options = session_options(precise)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(exposed.SerializeToString(), options, providers=["CPUExecutionProvider"])
    known = {item.name for item in session.get_inputs()}
    found = session.run(names, {name: array for name, array in feeds.items() if name in known})
    return {name: np.asarray(value) for name, value in zip(names, found, strict=True)}
