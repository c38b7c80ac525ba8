"""Quantisation of a float model by onnxruntime's own quantiser, with ranges from given samples."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, helper

from compiler.frontend.onnx_io.attributes import one_line
from simulator.npu.errors import BadInputError
from tuner.zoo.quantiser import Quantiser

Array = NDArray[Any]


def expected_data(model: ModelProto) -> str:
    """Description of valid samples, for messages."""
    return ", ".join(f"{name!r} {dtype} [samples, {', '.join(map(str, shape))}]" for name, (dtype, shape) in input_types(model).items())


def input_types(model: ModelProto) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Types and shapes of all inputs, which are static (`compiler.frontend.load_model`)."""
    return {
        item.name: (
            np.dtype(helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)),
            tuple(dim.dim_value for dim in item.type.tensor_type.shape.dim),
        )
        for item in model.graph.input
    }


def random_samples(model: ModelProto, count: int, seed: int) -> dict[str, Array]:
    """Random samples [count, ...] of every input: normal values, and integers below 100, valid tokens of any vocabulary."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(0, 1, (count, *shape)) if dtype.kind == "f" else rng.integers(0, 100, (count, *shape))).astype(dtype)
        for name, (dtype, shape) in input_types(model).items()
    }


def check_data(model: ModelProto, data: Mapping[str, Array], source: str) -> int:
    """Check samples; returns their number.  Raises BadInputError if they do not match the model's inputs."""
    inputs = input_types(model)
    expectation = f"expected {expected_data(model)}"
    if set(data) != set(inputs):
        odd_name = sorted(set(data) ^ set(inputs))[0]
        raise BadInputError(f"{source}: {'no array' if odd_name in inputs else 'an array'} {odd_name!r}; {expectation}")
    counts = {array.shape[0] if array.ndim else 0 for array in data.values()}
    for name, (dtype, shape) in inputs.items():
        array = data[name]
        if array.dtype != dtype or array.shape[1:] != shape or not array.ndim:
            raise BadInputError(f"{source}: {name!r} is {array.dtype} {list(array.shape)}; {expectation}")
        if dtype.kind == "f" and not np.isfinite(array).all():
            raise BadInputError(f"{source}: {name!r} has values that are not finite; expected finite ones")
    if counts == {0}:
        raise BadInputError(f"{source}: no samples; expected one at least")
    if len(counts) > 1:
        raise BadInputError(f"{source}: {' and '.join(map(str, sorted(counts)))} samples; expected as many of every input")
    return counts.pop()


def quantise_model(model: ModelProto, data: Mapping[str, Array], quantiser: Quantiser, source: str = "model") -> bytes:
    """Quantise a model; returns the file.  data: [samples, ...] of every input.  Raises BadInputError; equal arguments give equal bytes.

    onnxruntime folds batch normalisations into convolutions first, and a Sum of two becomes an Add, because its quantiser skips both.
    """
    samples = check_data(model, data, source)
    model = _with_adds(model)
    import onnxruntime
    from onnxruntime import quantization

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(range(samples))

        def get_next(self) -> dict[str, Array] | None:
            i = next(self.left, None)
            return None if i is None else {name: array[i] for name, array in data.items()}

    with tempfile.TemporaryDirectory(prefix="tilefarm-") as folder:
        folded, out = Path(folder) / "folded.onnx", Path(folder) / "quantised.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(folded)
        options.log_severity_level = 3
        formats = {"qdq": quantization.QuantFormat.QDQ, "qop": quantization.QuantFormat.QOperator}
        types = {"uint8": quantization.QuantType.QUInt8, "int8": quantization.QuantType.QInt8}
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            with _quiet():
                quantization.quantize_static(
                    folded, out, Samples(), formats[quantiser.format], per_channel=quantiser.per_channel,
                    activation_type=types[quantiser.activations],
                    weight_type=quantization.QuantType.QInt8,
                )  # fmt: skip
        except Exception as error:  # noqa: BLE001  onnxruntime and its quantiser raise many types, ValueError to RuntimeError
            raise BadInputError(f"{source}: onnxruntime cannot quantise the model: {one_line(error)}") from None
        return out.read_bytes()


def _with_adds(model: ModelProto) -> ModelProto:
    copy = deepcopy(model)
    for node in copy.graph.node:
        if node.op_type == "Sum" and len(node.input) == 2:
            node.op_type = "Add"
    return copy


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the quantiser's advice on the root logger, which is about these very steps."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)
