"""onnxruntime where integers have to be right: sessions of models that may be quantised.

`session.qdqisint8allowed`: operators between int8 tensors are grouped as those between uint8 are.  By default x86 makes such tensors uint8
first, and leaves a third of the convolutions in floats, whose sums have no order that anybody could compute in.

`session.x64quantprecision`: on x86 without VNNI kernels for uint8 times int8 add two products in int16, with saturation.  It turns such
weights into uint8, whose kernels are exact, and is asked for there alone: activations of int8 and weights of uint8 have no kernel in QGemm.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort

# what a session raises of a model that it does not take, or of values that it does not
REFUSALS = (ort.Fail, ort.InvalidArgument, ort.InvalidGraph, ort.InvalidProtobuf, ort.NotImplemented, ort.RuntimeException, RuntimeError)
FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")  # what the kernels are chosen by


def session_options(precise: bool | None = None) -> Any:
    """One thread, no messages.  precise: whether to ask for `session.x64quantprecision`; None: where this CPU needs it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    precise = not multiplies_exactly() if precise is None else precise
    options.add_session_config_entry("session.x64quantprecision", str(int(precise)))
    return options


def cpu_features() -> tuple[str, ...]:
    """Those of `FEATURES` that this CPU has, as Linux says; () elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    flags = next((line.split(":", 1)[1].split() for line in text.splitlines() if line.startswith("flags")), [])
    return tuple(name for name in FEATURES if name in flags)


@cache
def multiplies_exactly() -> bool:
    """Whether uint8 times int8 does not saturate here: the largest pair of products, where `session.x64quantprecision` is not asked."""
    a, b = np.full((1, 4), 255, np.uint8), np.full((4, 16), 127, np.int8)
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    graph = helper.make_graph(
        [node], "probe", [helper.make_tensor_value_info("a", TensorProto.UINT8, a.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [1, 16])], [numpy_helper.from_array(b, "b")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), session_options(False), providers=["CPUExecutionProvider"])
    (sums,) = session.run(None, {"a": a})
    return bool((sums == 255 * 127 * 4).all())
