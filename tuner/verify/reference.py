"""onnxruntime's answer for the body of a compiled model, from a process of its own.

A model from outside can kill the process that onnxruntime runs in (a DepthToSpace with block size 2^32 divides by zero), so it
runs in a child: `python -m tuner.verify.reference_body FOLDER`, where FOLDER has request.json and feeds.npz and is given told.json and
out.npz.  Arrays travel without pickle.
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
from simulator.npu.float_range import Beyond
from simulator.npu.parts import DataType

if TYPE_CHECKING:  # the child, which imports this, loads no kernels
    from onnx import ModelProto

    from simulator.compiled import Compiled

Array = NDArray[Any]
TIMEOUT_S = 1800.0
NO_BODY = 3  # exit code of the child
FLOATS = "floats.onnx"


class Stored(NamedTuple):
    """What the NPU keeps in memory, and as what.  tensors: names of the memory maps of all pieces, most of them of tensors of the body.

    wide: those that are of float32, whatever others are.
    """

    tensors: Sequence[str] = ()
    dtype: DataType = DataType.float32
    wide: Sequence[str] = ()

    @classmethod
    def of(cls, compiled: Compiled) -> Stored:
        maps = [piece.container.memory for piece in compiled.pieces]
        buffers = [(buffer.name, memory.type_of(buffer)) for memory in maps for buffer in memory.buffers if buffer.kind != "constant"]
        return cls(
            tuple(dict.fromkeys(name for name, _ in buffers)),
            compiled.dtype,
            tuple(dict.fromkeys(name for name, dtype in buffers if dtype == DataType.float32)),
        )


@dataclass(frozen=True)
class ReferenceValues:
    """onnxruntime's values by name, in float32 where the model is of float16: its outputs, what goes into the pieces and what comes out.

    rounded: samples of what outputs of model and pieces are where weights and whatever the NPU stores are rounded, each piece given its
    inputs in `values`; () where the NPU computes in float32.
    logits_scale: for a tensor that a Softmax makes, max|what that Softmax reads|.
    stepped: outputs that jump with values of the NPU (an index, a comparison, what is chosen by one).
    exact, steps: of a quantised model, as `reference_integers.FloatBorders` has them; empty of others.
    whose: the values, for people.  frames: of the model in a run, one after the other along the first axis of every value.
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
    def beyond(self) -> Beyond | None:
        """The first tensor, in the order of the graph, with a value that the NPU's data type does not hold; a weight where no other is one.

        Another run of onnxruntime.  Raises as `reference`.
        """
        told, _, _ = self._child("beyond")
        return None if told["beyond"] is None else Beyond(told["beyond"][0], float(told["beyond"][1]))

    def integers(self, floats: ModelProto | None = None) -> IntegerReference:
        """Of the first frame of a quantised model.  floats: the float model of it.  More runs of onnxruntime.  Raises as `reference`."""
        told, arrays, model = self._child("integers", None if floats is None else floats.SerializeToString())
        left = iter(arrays)
        given, expected, of_floats = ({name: next(left) for name in told[key]} for key in ("given", "kinds", "floats"))
        return IntegerReference(told, given, expected, of_floats, model)


@dataclass(frozen=True, eq=False)
class IntegerReference:
    """What onnxruntime has of a quantised model.

    alone: a model in which every operator on integers of the NPU is by itself.  given: its inputs; expected: its outputs, both by name.
    floats: outputs of the float model.  told: see `reference_integers.integers`.
    """

    told: Mapping[str, Any]
    given: Mapping[str, Array]
    expected: Mapping[str, Array]
    floats: Mapping[str, Array]
    alone: bytes = field(repr=False)


def differing(mine: Array, theirs: Array) -> int:
    """Values that are not the same; NaN is itself."""
    same = mine == theirs
    return int(same.size - (same | (np.isnan(mine) & np.isnan(theirs)) if mine.dtype.kind == "f" else same).sum())


def reference(path: Path, feeds: Mapping[str, Array], stored: Stored, timeout_s: float = TIMEOUT_S) -> ReferenceValues:
    """Run the body of a compiled ONNX file (or a plain ONNX file) on onnxruntime.

    Raises `BadInputError` where the file has no body, onnxruntime refuses it, dies on it, or takes longer than `timeout_s`.
    """
    child = _Child(path, dict(feeds), stored, timeout_s)
    told, arrays, _ = child("values")
    left = iter(arrays)
    values = {name: next(left) for name in told["values"]}
    rounded = tuple({name: next(left) for name in names} for names in told["rounded"])
    exact, steps = frozenset(told["exact"]), told["steps"]
    return ReferenceValues(
        values, rounded, told["logits_scale"], frozenset(told["stepped"]), exact, steps, told["quantised"], told["frames"], child
    )


@dataclass(frozen=True)
class _Child:
    """What a child is asked, but for the job.  A call returns what it told, its arrays, and the model that it wrote, if any."""

    path: Path
    feeds: Mapping[str, Array]
    stored: Stored
    timeout_s: float

    def __call__(self, job: str, floats: bytes | None = None) -> tuple[dict[str, Any], list[Array], bytes]:
        with tempfile.TemporaryDirectory(prefix="tilefarm-") as name:
            folder = Path(name)
            np.savez(folder / "feeds.npz", *map(np.asarray, self.feeds.values()))
            asked = {
                "job": job,
                "model": str(self.path),
                "feeds": list(self.feeds),
                "stored": list(self.stored.tensors),
                "dtype": self.stored.dtype.name,
                "wide": list(self.stored.wide),
            }
            if floats is not None:
                (folder / FLOATS).write_bytes(floats)
            (folder / "request.json").write_text(json.dumps(asked), encoding="utf-8")
            _run(self.path, folder, self.timeout_s)
            told = json.loads((folder / "told.json").read_text(encoding="utf-8"))
            model = (folder / "out.onnx").read_bytes() if (folder / "out.onnx").is_file() else b""
            if not (folder / "out.npz").is_file():
                return told, [], model
            with np.load(folder / "out.npz", allow_pickle=False) as arrays:
                return told, [arrays[f"arr_{i}"] for i in range(len(arrays.files))], model


def _run(path: Path, folder: Path, timeout_s: float) -> None:
    """A child for what `folder` asks."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tuner.verify.reference_body", str(folder)],
            capture_output=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadInputError(f"{path}: onnxruntime is not done with its body after {timeout_s:g} s") from None
    if done.returncode < 0:
        raise BadInputError(f"{path}: onnxruntime died on its body (signal {-done.returncode})")
    if done.returncode:
        line = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1][:300]
        raise BadInputError(f"{path}: {line}" if done.returncode == NO_BODY else f"{path}: onnxruntime cannot run its body: {line}")
