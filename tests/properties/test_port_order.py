"""Inputs and outputs by position: whoever runs a compiled model gives and gets them as the model lists them, and as onnxruntime does."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

import compiler
import tuner.onnx_backend as backend
from compiler.build import containers_of, package
from compiler.package import onnx_out
from simulator.bundle.write import write_bundle
from simulator.compiled import read_compiled
from simulator.npu.container import Container
from simulator.npu.container_file import decode, encode
from simulator.npu.errors import BadInputError
from simulator.onnx_names import Style
from simulator.session import InferenceSession
from tests.epcontext_rules import check_epcontext
from tests.messages import naming
from tuner.cli import main

Array = NDArray[Any]
INPUTS = ("p", "q", "r")
NPU = ("Conv", "Relu", "Sigmoid", "Add", "Concat", "Identity", "Flatten")
NODES = (*NPU, "Sin", "Constant")  # the NPU has no sine; the last one is an Identity of an initialiser
Node = tuple[str, int, int]  # what, and which of the tensors so far it reads


def model_of(inputs: Sequence[str], nodes: Sequence[Node], outputs: Sequence[int]) -> ModelProto:
    """outputs: numbers of tensors: the inputs, an initialiser, the first convolution's, and those of the nodes."""
    rng = np.random.default_rng(len(nodes))
    shapes: dict[str, tuple[int, ...]] = {**dict.fromkeys(inputs, (1, 5, 3, 3)), "table": (2, 3)}
    made, weights = [], [numpy_helper.from_array(rng.standard_normal((2, 3), dtype=np.float32), "table")]
    for k, (what, first, second) in enumerate([("Conv", 0, 0), *nodes]):
        y, images = f"t{k}", [name for name, shape in shapes.items() if len(shape) == 4]
        x = images[first % len(images)]
        read, shape = [x], shapes[x]
        if what == "Conv":
            channels = (3, 5, 20)[second % 3]
            weights.append(numpy_helper.from_array(rng.standard_normal((channels, shape[1], 1, 1), dtype=np.float32), f"w{k}"))
            read, shape = [x, f"w{k}"], (1, channels, 3, 3)
        elif what in ("Add", "Concat"):
            alike = [name for name in images if what == "Concat" or shapes[name] == shape]
            read.append(alike[second % len(alike)])
            shape = shape if what == "Add" else (1, shape[1] + shapes[read[1]][1], 3, 3)
        elif what == "Constant":
            what, read, shape = "Identity", ["table"], (2, 3)
        elif what == "Flatten":
            shape = (1, shape[1] * 9)
        made.append(helper.make_node(what, read, [y], name=f"{what}{k}", **({"axis": 1} if what in ("Concat", "Flatten") else {})))
        shapes[y] = shape
    listed = [list(shapes)[k % len(shapes)] for k in outputs]
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in names] for names in (inputs, listed)]
    model = helper.make_model(helper.make_graph(made, "ports", *ports, weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    inputs = draw(st.permutations(INPUTS))[: draw(st.integers(1, 3))]
    number = st.integers(0, 20)
    nodes = draw(st.lists(st.tuples(st.sampled_from(NODES), number, number), max_size=5))
    outputs = draw(st.lists(number, max_size=5))
    outputs.insert(draw(st.integers(0, len(outputs))), len(inputs) + 1)  # something for the NPU: the first convolution
    return model_of(inputs, nodes, outputs)


def check_session(session: InferenceSession, feeds: dict[str, Array], outputs: dict[str, Array], listed: Sequence[str]) -> None:
    """feeds, outputs: by name; the first in order.  listed: the outputs in order."""
    assert [(port.name, port.shape) for port in session.get_inputs()] == [(name, list(array.shape)) for name, array in feeds.items()]
    assert [(port.name, port.shape) for port in session.get_outputs()] == [(name, list(outputs[name].shape)) for name in listed]
    found = session.run(None, feeds)
    check_values(found, [outputs[name] for name in listed])
    check_values(session.run(list(reversed(listed)), feeds), found[::-1])


def check_values(found: Sequence[Array], expected: Sequence[Array]) -> None:
    assert [array.shape for array in found] == [array.shape for array in expected]
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def with_ports_reversed(container: Container) -> Container:
    """Its memory map with the last port of a kind first."""
    ports = {kind: list(container.memory.of_kind(kind)) for kind in ("input", "output")}
    buffers = tuple(ports[b.kind].pop() if b.kind in ports else b for b in container.memory.buffers)
    return replace(container, memory=replace(container.memory, buffers=buffers))


@settings(max_examples=12, deadline=None)
@given(models())
@example(model_of(["p"], [("Relu", 1, 0), ("Sigmoid", 1, 0)], [4, 3]))
@example(model_of(["q", "p"], [("Relu", 2, 0), ("Identity", 0, 0), ("Identity", 2, 0), ("Identity", 3, 0)], [7, 6, 3, 5, 4]))
@example(model_of(["p"], [("Identity", 1, 0), ("Sin", 1, 0)], [3, 2, 4]))
@example(model_of(["q", "p"], [("Sin", 2, 0), ("Constant", 0, 0), ("Conv", 2, 1)], [6, 2, 1, 4, 5, 3, 3, 0, 1]))
def test_order_is_that_of_the_model_everywhere(model: ModelProto) -> None:
    stock = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {port.name: rng.standard_normal(port.shape, dtype=np.float32) for port in stock.get_inputs()}
    listed = [port.name for port in stock.get_outputs()]
    outputs = dict(zip(listed, stock.run(None, feeds), strict=True))
    compiled = compiler.compile(model, "edge", dtype="float32", layerwise=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for style in ("function", "epcontext"):
            compiled.save(folder / f"{style}.onnx", style)
            check_session(session := InferenceSession(folder / f"{style}.onnx"), feeds, outputs, listed)
        assert check_epcontext(folder / "epcontext.onnx") == ()
        check_values(onnxruntime.InferenceSession(folder / "function.onnx").run(None, feeds), [outputs[name] for name in listed])

        parts = read_compiled(folder / "function.onnx")
        for piece in parts.pieces:  # what the host makes is in none
            for kind, names in (("input", list(feeds)), ("output", list(dict.fromkeys(listed)))):
                found = [buffer.name for buffer in piece.container.memory.of_kind(kind)]
                assert [name for name in found if name in names] == [name for name in names if name in found]
        write_bundle(parts, folder / "bundle", "function.onnx")
        if session.host is None:
            check_session(InferenceSession(folder / "bundle"), feeds, outputs, listed)
            check_session(InferenceSession(encode(decode(encode(session.container)))), feeds, outputs, listed)

        np.savez(folder / "x.npz", **feeds)
        assert main(["run", str(folder / "function.onnx"), "--input", str(folder / "x.npz"), "--out", str(folder / "y.npz")]) == 0
        with np.load(folder / "y.npz") as arrays:
            assert arrays.files == list(dict.fromkeys(listed))
            check_values([arrays[name] for name in arrays.files], [outputs[name] for name in arrays.files])
    check_values(backend.prepare(model).run(list(feeds.values())), [outputs[name] for name in listed])


def test_order_of_several_frames(tmp_path: Path) -> None:
    model = model_of(["q", "p"], [("Relu", 2, 0), ("Sigmoid", 2, 0), ("Add", 1, 0)], [5, 4, 3])
    stock = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {port.name: rng.standard_normal((2, *port.shape[1:]), dtype=np.float32) for port in stock.get_inputs()}
    each = [stock.run(None, {name: array[k : k + 1] for name, array in feeds.items()}) for k in range(2)]
    listed = [port.name for port in stock.get_outputs()]
    outputs = dict(zip(listed, (np.concatenate(pair) for pair in zip(*each, strict=True)), strict=True))
    compiler.compile(model, "edge", dtype="float32", layerwise=True, objective="throughput").save(tmp_path / "out.onnx")
    check_session(InferenceSession(tmp_path / "out.onnx"), feeds, outputs, listed)


@pytest.mark.parametrize("style", ["function", "epcontext"])
def test_file_whose_container_has_another_order(style: Style, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions wrote such: what is around the container says which is the model's."""
    model = model_of(["q", "p"], [("Relu", 2, 0), ("Sigmoid", 2, 0), ("Add", 0, 1)], [5, 4, 3])
    made = compiler.compile(model, "edge", dtype="float32", layerwise=True)
    containers = [with_ports_reversed(container) for container in containers_of(made.opened, made.measured)]
    with pytest.raises(BadInputError, match=naming("['p', 'q']", "['q', 'p']")):
        package(made.opened, containers, tmp_path / "out.onnx", style)
    monkeypatch.setattr(onnx_out, "_check_ports", lambda graph, container: None)
    package(made.opened, containers, tmp_path / "out.onnx", style)
    stock = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {port.name: np.random.default_rng(0).standard_normal(port.shape, dtype=np.float32) for port in stock.get_inputs()}
    listed = [port.name for port in stock.get_outputs()]
    check_session(InferenceSession(tmp_path / "out.onnx"), feeds, dict(zip(listed, stock.run(None, feeds), strict=True)), listed)
    if style == "epcontext":
        assert check_epcontext(tmp_path / "out.onnx")[0].startswith("payload: node 'Partition0': its outputs are ['t2', 't1', 't0']")
