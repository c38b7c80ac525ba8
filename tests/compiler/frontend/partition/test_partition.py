"""Which nodes of a model go to the NPU, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from compiler.build import build_variants, default_plan, package
from compiler.frontend.lower import lower_partition
from compiler.frontend.onnx_io.attributes import known_shapes
from compiler.frontend.onnx_io.load import prepare
from compiler.frontend.partition.macs import model_macs, node_macs
from compiler.frontend.partition.partition import Partition
from compiler.ir.operators import Conv
from compiler.model import ModelSpec, lower_model
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine_file import load_machine
from tests.messages import naming
from tests.models import Builder, small_model
from tests.partial_models import CONV, PARTIAL, partial_model
from tuner.verify.check import check_file


def parted(model: ModelProto) -> Partition:
    return lower_partition(prepare(model))[1]


@pytest.mark.parametrize("name", PARTIAL)
def test_what_stays_with_the_host(name: str) -> None:
    case = PARTIAL[name]
    model = prepare(partial_model(name))
    (graph,), part = lower_partition(model)
    assert tuple(node.op_type for node in part.host if node.refused) == case.refused
    assert sorted(node.op_type for node in part.host if not node.refused) == sorted(case.others)
    assert sum(node.macs for node in part.host) == case.macs
    assert model_macs(part.pieces[0].npu) == model_macs(model) - case.macs
    onnx.checker.check_model(part.pieces[0].npu, full_check=True)
    assert {port.onnx_name for port in graph.outputs} == {item.name for item in part.pieces[0].npu.graph.output}
    assert part.model is model


@pytest.mark.parametrize("name", PARTIAL)
def test_it_is_convex_and_nothing_heavier_is(name: str) -> None:
    """Of sets of consecutive nodes, which are enough in models this small: each that has nothing refused and is convex weighs no more."""
    model = prepare(partial_model(name))
    part = lower_partition(model)[1]
    shapes = known_shapes(model.graph)
    nodes = list(model.graph.node)
    refused = {i for i, node in enumerate(nodes) if any(h.refused and h.name in (node.name, node.output[0]) for h in part.host)}
    behind: list[set[int]] = [set() for _ in nodes]
    for i in reversed(range(len(nodes))):
        for j in range(i + 1, len(nodes)):
            if set(nodes[i].output) & set(nodes[j].input):
                behind[i] |= {j} | behind[j]

    def convex(some: set[int]) -> bool:
        return not any(b in behind[x] for a in some for x in behind[a] - some for b in some)

    assert convex(set(part.pieces[0].inside))
    assert not refused & part.pieces[0].inside
    macs = [node_macs(node, shapes) for node in nodes]
    mine = sum(macs[i] for i in part.pieces[0].inside)
    for start in range(len(nodes)):
        for stop in range(start + 1, len(nodes) + 1):
            some = set(range(start, stop)) - refused
            if convex(some):
                assert sum(macs[i] for i in some) <= mine


def test_a_model_that_is_supported_is_one_partition() -> None:
    model = prepare(small_model("conv_chain"))
    (graph,), part = lower_partition(model)
    assert part.pieces[0].npu is part.model is model
    assert part.host == ()
    assert len(part.pieces[0].inside) == len(model.graph.node)
    assert lower_partition(model)[0][0].digest == graph.digest


def test_the_digest_covers_the_nodes_of_the_host() -> None:
    def built(op: str) -> str:
        b = Builder(np.random.default_rng(0), (1, 16, 8, 8))
        return lower_partition(prepare(b.model(b.node(op, [b.conv("x", 16)]))))[0][0].digest

    assert built("Sin") == built("Sin") != built("Cos")


def test_reasons_name_the_node_and_why() -> None:
    (sin, conv) = sorted(parted(partial_model("middle")).host, key=lambda node: not node.refused)
    assert (sin.op_type, sin.why, sin.macs) == ("Sin", "not supported", 0)
    assert conv.why == "supported, but what the NPU does not support lies between it and the partition"
    assert conv.macs == CONV
    (pool, _) = sorted(parted(partial_model("by_attribute")).host, key=lambda node: not node.refused)
    assert "dilations [2, 2]; only windows without holes are supported" in pool.why
    (gather, where) = parted(partial_model("tokens")).host
    assert gather.why.startswith("input 'ids' is int64; float, int8 or uint8 of a known shape is supported")
    assert "input 'mask' is bool" in where.why


def test_where_nothing_can_run_it_is_an_error() -> None:
    b = Builder(np.random.default_rng(0), (1, 4, 8, 8))
    with pytest.raises(UnsupportedError, match=naming("Sin 't1'")):
        parted(b.model(b.node("Cos", [b.node("Sin", ["x"])])))


def test_empty_partition_has_the_reason_of_most_macs() -> None:
    b = Builder(np.random.default_rng(0), (4, 4, 1, 1))
    with pytest.raises(UnsupportedError, match=naming("Conv 't2'", "weight 't1'")):
        parted(b.model(b.node("Conv", ["x", b.node("Sin", ["x"])])))


def test_views_alone_are_no_work_for_the_npu() -> None:
    b = Builder(np.random.default_rng(0), (1, 4, 8, 8))
    with pytest.raises(UnsupportedError, match="nothing of it can run on the NPU"):
        parted(b.model(b.node("Flatten", [b.node("Sin", ["x"])])))


def test_layout_alone_is_no_reason_for_the_host() -> None:
    """Rows first, then a convolution: the convolution reads a copy of the view that the Transpose is."""
    b = Builder(np.random.default_rng(0), (1, 16, 8, 8))
    turned = b.node("Transpose", [b.node("Sin", [b.node("Transpose", [b.conv("x", 16)], perm=[0, 2, 3, 1])])], perm=[0, 3, 1, 2])
    (graph,), part = lower_partition(prepare(b.model(b.conv(b.conv(turned, 16), 16))))
    assert sum(isinstance(op, Conv) for op in graph.operators) == 2
    refused = [node for node in part.host if node.refused]
    assert [node.op_type for node in refused] == ["Sin"]


def test_output_that_is_an_input_is_the_hosts(tmp_path: Path) -> None:
    b = Builder(np.random.default_rng(0), (1, 4, 8, 8))
    model = b.model(b.conv("x", 4))
    model.graph.output.append(model.graph.input[0])
    onnx.save(model, tmp_path / "m.onnx")
    opened = lower_model(ModelSpec(tmp_path / "m.onnx", load_machine("edge")))
    assert opened.part.host == ()
    plans = dict.fromkeys(opened.machine.contention, default_plan(opened.target_graph))
    package(opened, [build_variants(opened.packed[0], plans)], tmp_path / "out.onnx")
    (checked, *_) = check_file(tmp_path / "out.onnx", ["none"])
    assert checked.faults == ()
    assert checked.values.compared["x"].error == 0
    del model.graph.node[:], model.graph.output[0]
    with pytest.raises(UnsupportedError, match=naming("NPU", "operators")):
        parted(model)


def test_a_piece_has_one_batch(tmp_path: Path) -> None:
    """Two networks in one file, of two images and of three: the one with less work is the host's."""
    b = Builder(np.random.default_rng(0), (2, 16, 8, 8))
    model = b.model(b.relu(b.conv("x", 16)))
    model.graph.node.append(onnx.helper.make_node("Neg", ["z"], ["minus"]))
    for ports, name in ((model.graph.input, "z"), (model.graph.output, "minus")):
        ports.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, 16, 8, 8]))
    onnx.save(model, tmp_path / "m.onnx")
    opened = lower_model(ModelSpec(tmp_path / "m.onnx", load_machine("edge")))
    assert [node.op_type for node in opened.part.host] == ["Neg"]
    plans = dict.fromkeys(opened.machine.contention, default_plan(opened.target_graph))
    package(opened, [build_variants(opened.packed[0], plans)], tmp_path / "out.onnx")
    (checked, *_) = check_file(tmp_path / "out.onnx", ["none"])
    assert checked.faults == ()


def test_computed_constants_go_along_as_initialisers() -> None:
    part = parted(partial_model("computed_shape"))
    assert {node.op_type for node in part.pieces[0].npu.graph.node} <= {"Conv", "Reshape", "Gemm"}
    names = {item.name for item in part.pieces[0].npu.graph.initializer}
    (reshape,) = (node for node in part.pieces[0].npu.graph.node if node.op_type == "Reshape")
    assert reshape.input[1] in names
    assert reshape.input[1] not in {name for node in part.model.graph.node for name in node.output}
