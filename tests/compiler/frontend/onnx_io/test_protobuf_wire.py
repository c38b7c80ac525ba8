"""A tensor in pieces is, byte for byte, what protobuf makes of it as a whole."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import StringStringEntryProto, TensorProto, numpy_helper

from compiler.frontend.onnx_io.protobuf_wire import field_head, tensor_pieces, without_data

RAW = numpy_helper.from_array(np.arange(300, dtype=np.float32).reshape(3, 100), "weights")
DESCRIBED = TensorProto(
    name="w", dims=[2], data_type=TensorProto.FLOAT16, raw_data=b"abcd", doc_string="said", data_location=TensorProto.DEFAULT,
    segment=TensorProto.Segment(begin=0, end=2), metadata_props=[StringStringEntryProto(key="k", value="v")],
)  # fmt: skip


@pytest.mark.parametrize(
    "tensor",
    [
        RAW,
        DESCRIBED,
        TensorProto(name="none", dims=[0], data_type=TensorProto.FLOAT, raw_data=b""),
        TensorProto(name="typed", dims=[3], data_type=TensorProto.FLOAT, float_data=[1, 2, 3]),
        TensorProto(name="both", dims=[1], data_type=TensorProto.INT64, int64_data=[-1], raw_data=b"\xff" * 8, double_data=[0.5]),
        TensorProto(raw_data=bytes(1 << 21)),
    ],
    ids=["raw", "described", "empty", "typed", "both", "large"],
)
def test_pieces_are_the_message(tensor: TensorProto) -> None:
    assert b"".join(tensor_pieces(tensor)) == tensor.SerializeToString(deterministic=True)


@pytest.mark.parametrize("tensor", [RAW, DESCRIBED], ids=["raw", "described"])
def test_data_beside_a_tensor_are_in_its_pieces(tensor: TensorProto) -> None:
    hollow = without_data(tensor)
    assert not hollow.HasField("raw_data")
    assert b"".join(tensor_pieces(hollow, memoryview(tensor.raw_data))) == tensor.SerializeToString(deterministic=True)


def test_a_head_says_how_long_its_field_is() -> None:
    for size in (0, 1, 127, 128, 300, 1 << 14, 1 << 21):
        text = TensorProto(raw_data=bytes(size)).SerializeToString()
        assert field_head(TensorProto, "raw_data", size) + bytes(size) == text
