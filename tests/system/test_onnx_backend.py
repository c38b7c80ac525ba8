"""onnx's own backend tests, through compiler and simulated NPU: what is supported is right, what is not says why.

The default run takes the tests of operators that are quick; `-m slow` takes all of them.  `scripts/onnx_operators.py` prints the table.
"""

from __future__ import annotations

import unittest
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from scripts.onnx_operators import LEAST_PARTLY, LEAST_PASSES, LEFT_OUT, Result, page, run_suite, suite
from simulator.npu.errors import TilefarmError, UnsupportedError
from tuner.onnx_backend import NpuBackend, prepare

QUICK = (
    "test_relu", "test_conv_", "test_softmax_", "test_matmul", "test_gemm", "test_averagepool_2d", "test_maxpool_2d", "test_concat",
    "test_add", "test_mul", "test_sub", "test_div", "test_tanh", "test_sigmoid", "test_gelu", "test_transpose", "test_slice", "test_elu",
    "test_reduce_mean", "test_Conv1d", "test_Conv2d", "test_MaxPool1d", "test_cast_FLOAT", "test_clip", "test_globalaveragepool",
    "test_convinteger",
)  # fmt: skip


def check(tests: Any) -> dict[str, str]:
    """Status by test; asserts that none fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = run_suite(tests)
    failed = [f"{result.test}: {result.why}" for result in results if result.status == "failed"]
    assert not failed, "\n".join(failed)
    return {result.test: result.status for result in results}


def test_common_operators() -> None:
    found = check(test for test in suite(real=False) if test.name.startswith(QUICK))
    assert sum(status == "passed" for status in found.values()) >= 100


@pytest.mark.slow
def test_every_test_of_onnx() -> None:
    found = check(suite(real=True))
    assert sum(status == "passed" for status in found.values()) >= LEAST_PASSES
    assert sum(status == "partly" for status in found.values()) >= LEAST_PARTLY
    assert set(LEFT_OUT) <= set(found)


def test_the_runner_of_onnx_takes_the_backend() -> None:
    """As a user of onnx.backend.test would: skips where the backend says that it does not support something."""
    from onnx.backend.test import BackendTest

    class Skipping(NpuBackend):
        @classmethod
        def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Any:
            try:
                return super().prepare(model, device, **kwargs)
            except TilefarmError as error:
                raise unittest.SkipTest(str(error)) from None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = BackendTest(Skipping, __name__).include("test_relu_cpu").include("test_argmax_default_axis_example_cpu")
    result = unittest.TestResult()
    made.test_suite.run(result)
    assert (result.failures, result.errors) == ([], [])
    assert any("ArgMax" in why for _, why in result.skipped)


def model_of(node: Any, inputs: dict[str, list[int]], shape: list[int]) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()]
    graph = helper.make_graph([node], "one", ports, [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_unsupported_nodes_run_on_host_around_npu_pieces() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Sin", ["e"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("TopK", ["r", "k"], ["y", "i"], axis=1),
    ]
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8]), helper.make_tensor_value_info("k", TensorProto.INT64, [1])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3]), helper.make_tensor_value_info("i", TensorProto.INT64, [2, 3])]
    model = helper.make_model(helper.make_graph(nodes, "m", ports, outputs), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rep = prepare(model)
    x = np.random.default_rng(0).standard_normal((2, 8), np.float32)
    y, i = rep.run([x, np.array([3])])
    assert len(rep.session.compiled.pieces) == 2
    expected = np.maximum(np.sin(np.exp(x)), 0)
    np.testing.assert_array_equal(i, np.argsort(-expected, axis=1, kind="stable")[:, :3])
    np.testing.assert_allclose(y, np.take_along_axis(expected, i, 1), rtol=1e-5)


def test_the_page_counts_what_there_is() -> None:
    results = [
        Result("node", "test_a", "Add", "float32", "passed", ""),
        Result("node", "test_b", "Add", "uint8", "skipped", "nothing of it can run on the NPU: Add 'y': input 'a' is a|b"),
        Result("node", "test_c", "Sin", "float16", "partly", ""),
    ]
    lines = page(results).splitlines()
    assert lines[-2:] == ["| Add | float32 | 1 |  |  | 1 |  | input 'a' is a\\|b |", "| Sin | float16 |  | 1 |  |  |  |  |"]
    assert any("3 tests, 1 passed, 1 partly, 0 copies, 1 skipped, 0 failed." in line for line in lines)


def test_weights_that_are_inputs_are_bound_repeatedly() -> None:
    rng = np.random.default_rng(0)
    rep = prepare(model_of(helper.make_node("Conv", ["x", "w"], ["y"]), {"x": [1, 3, 6, 6], "w": [4, 3, 3, 3]}, [1, 4, 4, 4]))
    x = rng.standard_normal((1, 3, 6, 6), np.float32)
    for _ in range(2):
        w = rng.standard_normal((4, 3, 3, 3), np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
        np.testing.assert_allclose(rep.run([x, w]).y, np.einsum("nchwij,ocij->nohw", windows, w), rtol=1e-4, atol=1e-4)


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(UnsupportedError, match="Hardmax"):
        prepare(model_of(helper.make_node("Hardmax", ["x"], ["y"]), {"x": [2, 3]}, [2, 3]))
    wide = model_of(helper.make_node("Relu", ["x"], ["y"]), {"x": [2]}, [2])
    with pytest.raises(UnsupportedError, match="beyond float32"):
        prepare(wide).run([np.array([1e300, 1.0])])
    assert NpuBackend.supports_device("CPU")
    assert not NpuBackend.supports_device("CUDA")
