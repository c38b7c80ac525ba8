"""What runs in the process of the libraries: onnx's checker, converter, shape inference and evaluator, and onnxruntime's loader.

Started by its path (`compiler.frontend.onnx_io.onnx_sandbox`), so that it imports nothing of this project and is ready sooner.  Requests
come on stdin, answers go to the file that stdout was: a line of JSON, then as many bytes as it says.

All of onnx but the evaluator is one C++ module, from bytes to bytes.  Python's part of onnx, with numpy, takes eight times as long to
import as that module, and is left out until the evaluator wants it.
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
    """The C++ module, which a later import of onnx takes as well."""
    package = PathFinder.find_spec("onnx")
    spec = PathFinder.find_spec(_PASSES, None if package is None else package.submodule_search_locations)
    if spec is None or spec.loader is None:
        raise ImportError(f"{_PASSES}: not found", name=_PASSES)
    module = sys.modules[_PASSES] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


passes = _passes()


def check(body: bytes) -> bytes:
    passes.checker.check_model(body, False, False, False)  # neither shapes, which are inferred below, nor operators of other domains
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
    """The outputs of a model without inputs, as the initialisers of one that has nothing else."""
    import numpy as np
    import onnx
    from onnx.reference import ReferenceEvaluator  # 0.6 s: only models that are not supported as a whole pay for it

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
        except Exception as caught:  # noqa: BLE001  libraries raise anything on models that they were not tried on
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
    """Of this request: address space in all, and seconds of computing from now on.  A narrower limit from outside stays."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    for kind, value in ((resource.RLIMIT_AS, limit_bytes), (resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + cpu_s)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kept = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is not ours to show
    serve(sys.stdin.buffer, kept)
