"""onnxruntime's answer for the body of a compiled model, from a process of its own.

A model from outside can kill the process that onnxruntime runs in (a DepthToSpace with block size 2^32 divides by zero), so it
runs in a child: `python -m tuner.reference MODEL FEEDS.npz OUT.npz`.  Arrays travel in .npz files without pickle, names as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError
from simulator.onnx_names import DOMAIN, EP_DOMAIN, EP_OP

Floats = NDArray[np.float32]
TIMEOUT_S = 1800.0
NO_BODY = 3  # exit code of the child
_FLOATS = {"tensor(float16)": np.float16, "tensor(float)": np.float32, "tensor(double)": np.float64}
_RELABELS = ("Reshape", "Flatten", "Identity", "Squeeze", "Unsqueeze", "Dropout")


@dataclass(frozen=True)
class Reference:
    """outputs: float32 arrays by name.  logits_scale: for an output that a Softmax makes, max|what that Softmax reads|."""

    outputs: Mapping[str, Floats]
    logits_scale: Mapping[str, float]


def reference(path: Path, feeds: Mapping[str, NDArray[Any]], timeout_s: float = TIMEOUT_S) -> Reference:
    """Run the body of a compiled ONNX file (or a plain ONNX file) on onnxruntime.

    Raises `BadInputError` where the file has no body, onnxruntime refuses it, dies on it, or takes longer than `timeout_s`.
    """
    with tempfile.TemporaryDirectory(prefix="tilefarm-") as folder:
        there, back = Path(folder) / "feeds.npz", Path(folder) / "out.npz"
        names = list(feeds)
        np.savez(there, *(np.asarray(feeds[name]) for name in names))
        told = json.loads(_ran(path, there, back, names, timeout_s))
        with np.load(back, allow_pickle=False) as arrays:
            outputs = {name: np.asarray(arrays[f"arr_{i}"], np.float32) for i, name in enumerate(told["outputs"])}
        return Reference(outputs, told["logits_scale"])


def _ran(path: Path, there: Path, back: Path, names: list[str], timeout_s: float) -> str:
    """What the child writes to its stdout."""
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tuner.reference", str(path), str(there), str(back), json.dumps(names)],
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
    return done.stdout.decode()


# --- in the child --------------------------------------------------------------------------------------------------


def body_of(model: Any) -> Any:
    """A compiled model as the plain model that it was: nodes of the function's body, no container.  `model` is changed.

    Raises `BadInputError` for style epcontext, which has no body.
    """
    if any(node.domain == EP_DOMAIN and node.op_type == EP_OP for node in model.graph.node):
        raise BadInputError("has no body to compare with (style epcontext); compile with --style function")
    if not any(node.domain == DOMAIN for node in model.graph.node):
        return model
    nodes: list[Any] = []
    for node in model.graph.node:
        if node.domain != DOMAIN:
            nodes.append(node)
            continue
        bodies = [f for f in model.functions if f.domain == DOMAIN and f.name == node.op_type]
        if len(bodies) != 1:
            raise BadInputError(f"expected one function {DOMAIN}.{node.op_type} for the node of that name, found {len(bodies)}")
        if list(node.input) != list(bodies[0].input) or list(node.output) != list(bodies[0].output):
            raise BadInputError("names of the compiled node's inputs or outputs are not those of its body")
        nodes += bodies[0].node
    plain = type(model.graph)(node=nodes)  # without the containers: up to hundreds of megabytes
    rest = [f for f in model.functions if f.domain != DOMAIN]
    del model.graph.node[:]
    model.graph.node.extend(plain.node)
    del model.functions[:]
    model.functions.extend(rest)
    return model


def softmax_inputs(graph: Any) -> dict[str, str]:
    """Output -> what its final Softmax reads, for outputs that a Softmax makes (and nothing but relabelling behind it)."""
    producer = {name: node for node in graph.node for name in node.output}
    found = {}
    for port in graph.output:
        node = producer.get(port.name)
        while node is not None and node.op_type in _RELABELS:
            node = producer.get(node.input[0])
        if node is not None and node.op_type == "Softmax":
            found[port.name] = node.input[0]
    return found


def _child(model_path: str, feeds_path: str, out_path: str, names: list[str]) -> None:
    import onnx
    import onnxruntime

    model = body_of(onnx.load(model_path))
    outputs = [port.name for port in model.graph.output]
    logits = softmax_inputs(model.graph)
    for name in dict.fromkeys(logits.values()):
        if name not in outputs:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    data = model.SerializeToString()
    del model
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    del data
    # floats of any width are taken for the model's own, as the session takes them
    kinds = {port.name: _FLOATS.get(port.type) for port in session.get_inputs()}
    with np.load(feeds_path, allow_pickle=False) as arrays:
        given = {name: arrays[f"arr_{i}"] for i, name in enumerate(names)}
    feeds = {name: array.astype(kinds.get(name) or array.dtype) if array.dtype.kind == "f" else array for name, array in given.items()}
    wanted = list(dict.fromkeys([*outputs, *logits.values()]))
    values = dict(zip(wanted, session.run(wanted, feeds), strict=True))
    np.savez(out_path, *(values[name] for name in outputs))
    scale = {name: float(np.abs(values[source]).max()) for name, source in logits.items()}
    sys.stdout.write(json.dumps({"outputs": outputs, "logits_scale": scale}))


if __name__ == "__main__":
    try:
        _child(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
    except BadInputError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(NO_BODY)
    except Exception as error:  # noqa: BLE001  onnxruntime raises many types; the parent says in one line what it was
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        sys.exit(1)
