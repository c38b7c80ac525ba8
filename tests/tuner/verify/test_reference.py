"""onnxruntime in a child: what kills it or takes too long is one line."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from simulator.npu.errors import BadInputError
from simulator.npu.parts import DataType
from simulator.onnx_names import DOMAIN
from tests.models import small_model
from tests.tuning import ROOT
from tuner.verify.reference import StoredTensors, run_reference


def test_a_model_that_kills_onnxruntime_is_one_line(tmp_path):
    """SplitToSequence into pieces of size 0 passes the checker; onnxruntime divides by it."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", "c", "h", "w")) for name in "xy"]
    nodes = [helper.make_node("SplitToSequence", ["x", "s"], ["q"], axis=1), helper.make_node("ConcatFromSequence", ["q"], ["y"], axis=1)]
    zero = numpy_helper.from_array(np.array(0, np.int64), "s")
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [zero])
    path = tmp_path / "killer.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    onnx.checker.check_model(str(path))
    with pytest.raises(BadInputError, match=r"killer.onnx: onnxruntime (died on|cannot run) its body"):
        run_reference(path, {"x": np.zeros((1, 4, 2, 2), np.float32)}, StoredTensors())


def test_float16_model_is_computed_in_float32_and_rounded(tmp_path):
    """Pieces as a compiled file marks them; feeds of any width."""
    kind = TensorProto.FLOAT16
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array((rng.standard_normal((32, 32)) / 6).astype(dtype), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Sigmoid", ["t"], ["y"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    body = helper.make_function(DOMAIN, "Partition0", ["x", "w"], ["y"], nodes, opsets[:1])
    ports = [helper.make_tensor_value_info(name, kind, (4, 32)) for name in "xy"]
    call = helper.make_node("Partition0", ["x", "w"], ["y"], domain=DOMAIN)
    graph = helper.make_graph([call], "g", ports[:1], ports[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=[body]), tmp_path / "m.onnx")
    x = rng.standard_normal((4, 32))  # float64
    found = run_reference(tmp_path / "m.onnx", {"x": x}, StoredTensors(("x", "t", "y"), DataType.float16))
    assert found.values["y"].dtype == np.float32
    expected = 1 / (1 + np.exp(-x @ numpy_helper.to_array(weights).astype(np.float64)))
    np.testing.assert_allclose(found.values["y"], expected, atol=2e-3)
    off = [np.abs(sample["y"].astype(np.float64) - found.values["y"]).max() for sample in found.rounded]
    assert len(off) == 3
    assert 1e-4 < max(off) < 4e-3
    assert found.beyond is None
    exact = run_reference(tmp_path / "m.onnx", {"x": x}, StoredTensors(("x", "t", "y"), DataType.float32))
    assert exact.rounded == ()
    large = run_reference(tmp_path / "m.onnx", {"x": x * 1e5}, StoredTensors(("x", "t", "y"), DataType.float16))
    assert large.beyond is not None
    assert large.beyond.tensor == "x"


MEMORY = """
import re, sys
from pathlib import Path
import onnx
from simulator.npu.parts import DataType
from tuner.verify.reference_body import ReferencePiece, find_out_of_range
import numpy as np
model = onnx.load(sys.argv[1])
names = [node.output[0] for node in model.graph.node]
def peak():  # that of getrusage is at least what the process that forked this one had
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = peak()
x = np.ones((1, 16, 256, 256), np.float32)
piece = ReferencePiece(("x",), (names[-1],), range(len(names)))
assert find_out_of_range(model, (piece,), set(names), set(names), [{"x": x}], DataType.float16) is None
print((peak() - before) * 1024 // x.nbytes)
"""


def test_looking_at_every_tensor_keeps_few_of_them(tmp_path):
    """One after the other, not all at the end."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 16, 256, 256)) for name in ("x", "t39")]
    nodes = [helper.make_node("Sigmoid", [f"t{k - 1}" if k else "x"], [f"t{k}"]) for k in range(40)]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "long.onnx")
    done = subprocess.run([sys.executable, "-c", MEMORY, tmp_path / "long.onnx"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20


def test_child_that_dies_or_hangs_is_one_line(monkeypatch, tmp_path):
    model, shell = tmp_path / "conv_chain.onnx", tmp_path / "python"
    onnx.save(small_model("conv_chain"), model)
    for script, message in (("kill -SEGV $$", r"died on its body \(signal 11\)"), ("exec sleep 60", "not done with its body after 0.2 s")):
        shell.write_text(f"#!/bin/sh\n{script}\n")
        shell.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(shell))
        with pytest.raises(BadInputError, match=message):
            run_reference(model, {"x": np.zeros((1, 3, 20, 24), np.float32)}, StoredTensors(), timeout_s=0.2 if "sleep" in script else 60)
