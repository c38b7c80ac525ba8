"""A mask of -inf stays a mask where a product moves it."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from simulator.session import InferenceSession
from tuner.cli import main


def masked_softmax(rows: int, columns: int) -> onnx.ModelProto:
    """Softmax of scores plus a mask that lies the other way, so that its lanes change."""
    ports = [("x", (rows, columns)), ("mask", (columns, rows)), ("y", (rows, columns))]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ports]
    nodes = [
        helper.make_node("Transpose", ["mask"], ["turned"], perm=[1, 0]),
        helper.make_node("Add", ["x", "turned"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(nodes, "g", infos[:2], infos[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("rows", "columns"), [(24, 40), (7, 33), (64, 64)])
def test_a_mask_that_a_product_moves(rows: int, columns: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(rows)
    x, mask = rng.standard_normal((rows, columns)).astype(np.float32), np.zeros((columns, rows), np.float32)
    mask[rng.random(mask.shape) < 0.4] = -np.inf
    mask[0] = 0  # one value of each row stays
    onnx.save(masked_softmax(rows, columns), tmp_path / "m.onnx")

    def outputs() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        assert main(["compile", str(tmp_path / "m.onnx"), "--machine", "edge", "--out", str(tmp_path / "out.onnx")]) == 0
        return np.asarray(InferenceSession(str(tmp_path / "out.onnx")).run(None, {"x": x, "mask": mask})[0])

    scores = np.exp(x + mask.T)
    np.testing.assert_allclose(outputs(), scores / scores.sum(1, keepdims=True), atol=4e-3)
    with mock.patch("compiler.ops.finite_moves._may_be_infinite", return_value=False):
        assert np.isnan(outputs()).any(), "no product moves the mask: this shape tests nothing"
