"""Reference values of a compiled model's body on onnxruntime, from a separate process.

A model from outside can kill the process of onnxruntime (a DepthToSpace with block size 2^32 divides by zero), so it runs in a child:
`python -m tuner.verify.reference_body FOLDER`, where FOLDER has request.json and feeds.npz and receives told.json and out.npz.  Arrays
travel without pickle.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError
from simulator.npu.float_range import OutOfRange
from simulator.npu.parts import DataType

if TYPE_CHECKING:  # the child imports this module and must load no kernels
    from onnx import ModelProto

    from simulator.compiled import Compiled

Array = NDArray[Any]
TIMEOUT_S = 1800.0
NO_BODY = 3  # exit code of the child
FLOATS = "floats.onnx"


class StoredTensors(NamedTuple):
    """Storage types on the NPU.  tensors: names in the memory maps of all pieces, most of them of tensors of the body.

    wide: tensors stored in float32 whatever `dtype` is.
    """

    tensors: Sequence[str] = ()
    dtype: DataType = DataType.float32
    wide: Sequence[str] = ()

    @classmethod
    def of(cls, compiled: Compiled) -> StoredTensors:
        maps = [piece.container.memory for piece in compiled.pieces]
        buffers = [(buffer.name, memory.type_of(buffer)) for memory in maps for buffer in memory.buffers if buffer.kind != "constant"]
        return cls(
            tuple(dict.fromkeys(name for name, _ in buffers)),
            compiled.dtype,
            tuple(dict.fromkeys(name for name, dtype in buffers if dtype == DataType.float32)),
        )


@dataclass(frozen=True)
class ReferenceValues:
    """Values of onnxruntime by name, float32 for a float16 model: the model's outputs, inputs and outputs of the pieces.

    rounded: samples of the outputs of model and subgraphs with rounded weights and stored tensors; each subgraph reads its inputs from
    `values`.  () if the NPU computes in float32.
    logits_scale: for the output of a Softmax, max|input of the Softmax|.
    stepped: outputs that are discontinuous in values of the NPU (an index, a comparison, a selection).
    exact, steps: for a quantised model, see `reference_integers.FloatBorders`; else empty.
    whose: source of the values, for messages.  frames: frames of the model in a run, in order along the first axis of every value.
    """

    values: Mapping[str, Array]
    rounded: tuple[Mapping[str, Array], ...]
    logits_scale: Mapping[str, float]
    stepped: frozenset[str]
    exact: frozenset[str]
    steps: Mapping[str, float]
    quantised: bool
    frames: int
    _child: _Child = field(repr=False)
    whose: str = "onnxruntime's"

    @cached_property
    def beyond(self) -> OutOfRange | None:
        """First tensor, in graph order, with a value outside the NPU's data type; a weight if no other tensor is.

        Another run of onnxruntime.  Raises as `run_reference`.
        """
        answer, _, _ = self._child("beyond")
        return None if answer["beyond"] is None else OutOfRange(answer["beyond"][0], float(answer["beyond"][1]))

    def integers(self, floats: ModelProto | None = None) -> IntegerReference:
        """Integers of the first frame of a quantised model.  floats: its float model.  More runs of onnxruntime.  Raises as
        `run_reference`."""
        answer, arrays, model = self._child("integers", None if floats is None else floats.SerializeToString())
        stream = iter(arrays)
        inputs, expected, float_outputs = ({name: next(stream) for name in answer[key]} for key in ("given", "kinds", "floats"))
        return IntegerReference(answer, inputs, expected, float_outputs, model)


@dataclass(frozen=True, eq=False)
class IntegerReference:
    """Integers of a quantised model on onnxruntime.

    isolated_model: a model of isolated integer operators.  given: its inputs; expected: its outputs, both by name.
    floats: outputs of the float model.  answer: see `reference_integers.integers`.
    """

    answer: Mapping[str, Any]
    given: Mapping[str, Array]
    expected: Mapping[str, Array]
    floats: Mapping[str, Array]
    isolated_model: bytes = field(repr=False)


def count_differing(actual: Array, expected: Array) -> int:
    """Number of different values; NaN equals NaN."""
    equal = actual == expected
    return int(equal.size - (equal | (np.isnan(actual) & np.isnan(expected)) if actual.dtype.kind == "f" else equal).sum())


def run_reference(path: Path, feeds: Mapping[str, Array], stored_tensors: StoredTensors, timeout_s: float = TIMEOUT_S) -> ReferenceValues:
    """Run the body of a compiled ONNX file (or a plain ONNX file) on onnxruntime.

    Raises `BadInputError` for a file without body, a refusal or crash of onnxruntime, or a run longer than `timeout_s`.
    """
    child = _Child(path, dict(feeds), stored_tensors, timeout_s)
    answer, arrays, _ = child("values")
    stream = iter(arrays)
    values = {name: next(stream) for name in answer["values"]}
    rounded = tuple({name: next(stream) for name in names} for names in answer["rounded"])
    exact, steps = frozenset(answer["exact"]), answer["steps"]
    return ReferenceValues(
        values, rounded, answer["logits_scale"], frozenset(answer["stepped"]), exact, steps, answer["quantised"], answer["frames"], child
    )


@dataclass(frozen=True)
class _Child:
    """Child process for one model.  A call runs a job and returns the answer, its arrays, and the written model if any."""

    path: Path
    feeds: Mapping[str, Array]
    stored: StoredTensors
    timeout_s: float

    def __call__(self, job: str, floats: bytes | None = None) -> tuple[dict[str, Any], list[Array], bytes]:
        with tempfile.TemporaryDirectory(prefix="tilefarm-") as name:
            folder = Path(name)
            np.savez(folder / "feeds.npz", *map(np.asarray, self.feeds.values()))
            request = {
                "job": job,
                "model": str(self.path),
                "feeds": list(self.feeds),
                "stored": list(self.stored.tensors),
                "dtype": self.stored.dtype.name,
                "wide": list(self.stored.wide),
            }
            if floats is not None:
                (folder / FLOATS).write_bytes(floats)
            (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
            _run(self.path, folder, self.timeout_s)
            answer = json.loads((folder / "told.json").read_text(encoding="utf-8"))
            model = (folder / "out.onnx").read_bytes() if (folder / "out.onnx").is_file() else b""
            if not (folder / "out.npz").is_file():
                return answer, [], model
            with np.load(folder / "out.npz", allow_pickle=False) as arrays:
                return answer, [arrays[f"arr_{i}"] for i in range(len(arrays.files))], model


def _run(path: Path, folder: Path, timeout_s: float) -> None:
    """Run a child on the request in `folder`."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        process = subprocess.run(
            [sys.executable, "-m", "tuner.verify.reference_body", str(folder)],
            capture_output=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadInputError(f"{path}: onnxruntime is not done with its body after {timeout_s:g} s") from None
    if process.returncode < 0:
        raise BadInputError(f"{path}: onnxruntime died on its body (signal {-process.returncode})")
    if process.returncode:
        line = (process.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1][:300]
        raise BadInputError(f"{path}: {line}" if process.returncode == NO_BODY else f"{path}: onnxruntime cannot run its body: {line}")
