"""Child process of the sandbox: onnx's checker, converter, shape inference, inliner and evaluator, and onnxruntime's loader.

It is started by path (`compiler.frontend.onnx_io.onnx_sandbox`), so it imports nothing of this project and is ready sooner.  Requests
come on stdin, answers go to the original stdout: a line of JSON, then the number of bytes that it states.

All passes of onnx except the evaluator are one C++ module, from bytes to bytes.  The Python part of onnx, with numpy, takes eight times
as long to import, so only the evaluator imports it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import BinaryIO

_PASSES = "onnx.onnx_cpp2py_export"


def _passes() -> ModuleType:
    """Load the C++ module, which a later import of onnx reuses."""
    package = PathFinder.find_spec("onnx")
    spec = PathFinder.find_spec(_PASSES, None if package is None else package.submodule_search_locations)
    if spec is None or spec.loader is None:
        raise ImportError(f"{_PASSES}: not found", name=_PASSES)
    module = sys.modules[_PASSES] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


passes = _passes()


def check(body: bytes) -> bytes:
    passes.checker.check_model(body, False, False, False)  # without shape inference, and without operators of other domains
    return b""


def convert(body: bytes, opset: int) -> bytes:
    answer: bytes = passes.version_converter.convert_version(body, opset)
    return answer


def infer(body: bytes, values: bool) -> bytes:
    types_too, strict = True, True
    answer: bytes = passes.shape_inference.infer_shapes(body, types_too, strict, values)
    return answer


def inline(body: bytes, operators: list[str]) -> bytes:
    answer: bytes = passes.inliner.inline_local_functions(body, True)
    if operators:
        answer = passes.inliner.inline_selected_functions2(answer, [("", name) for name in operators], False)
    return answer


def evaluate(body: bytes) -> bytes:
    """Outputs of a model without inputs, as initialisers of an otherwise empty model."""
    import numpy as np
    import onnx
    from onnx.reference import ReferenceEvaluator  # 0.6 s: only for models that are not fully supported

    model = onnx.load_from_string(body)
    names = [output.name for output in model.graph.output]
    outputs = ReferenceEvaluator(model).run(names, {})
    answer = onnx.ModelProto()
    tensors = (onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in zip(names, outputs, strict=True))
    answer.graph.initializer.extend(tensors)
    return answer.SerializeToString()


def create_session(body: bytes) -> bytes:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    onnxruntime.InferenceSession(body, options, providers=["CPUExecutionProvider"])
    return b""


ANSWERS: dict[str, Callable[..., bytes]] = {answer.__name__: answer for answer in (check, convert, infer, inline, evaluate, create_session)}


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    while line := requests.readline():
        request = json.loads(line)
        body = requests.read(request["size_bytes"])
        _limit(request["limit_bytes"], request["cpu_s"])
        answer, error, exhausted = b"", "", False
        try:
            answer = ANSWERS[request["what"]](body, **request["options"])
        except MemoryError:
            exhausted = True
        except Exception as caught:  # noqa: BLE001  libraries raise any exception for unusual models
            error, exhausted = f"{type(caught).__name__}: {caught}", "bad_alloc" in str(caught)
        del body
        if len(answer) > request["answer_bytes"]:
            answer, exhausted = b"", True
        head = {"size_bytes": len(answer), "error": error[:2000], "exhausted": exhausted}
        answers.write(json.dumps(head).encode() + b"\n")
        answers.write(answer)
        answers.flush()
        del answer


def _limit(limit_bytes: int, cpu_s: int) -> None:
    """Set the limits of a request: total address space, CPU seconds from now on.  Tighter outer limits stay."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    for kind, value in ((resource.RLIMIT_AS, limit_bytes), (resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + cpu_s)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer_file = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries is hidden
    serve(sys.stdin.buffer, answer_file)
