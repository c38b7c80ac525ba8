"""Several pieces of a model: which nodes each has, that they can run one after the other, and which are worth it."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from compiler.frontend.lower import lower_partition
from compiler.frontend.onnx_io.load import prepare
from compiler.frontend.partition.offload_cost import AlwaysOffload, NodeWork, Offload, SubgraphWork
from compiler.frontend.partition.partition import Partition
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import Builder
from tests.partial_models import partial_model
from tests.piece_models import IN_PIECES, WIDTH, piece_model

EDGE = load_machine("edge")
OFFLOAD = Offload(EDGE, DataType.float16)
FREE = AlwaysOffload(EDGE, DataType.float16)


def parted(model: ModelProto, offload: Offload | None = OFFLOAD) -> Partition:
    return lower_partition(prepare(model), offload)[1]


@pytest.mark.parametrize("name", IN_PIECES)
def test_which_nodes_are_in_which_piece(name: str) -> None:
    case = IN_PIECES[name]
    model = prepare(piece_model(name))
    graphs, part = lower_partition(model, OFFLOAD)
    kinds = tuple(tuple(model.graph.node[i].op_type for i in sorted(piece.inside)) for piece in part.pieces)
    assert kinds == case.pieces
    assert tuple(node.op_type for node in part.host) == case.host
    assert [piece.name for piece in part.pieces] == [f"Partition{k}" for k in range(len(kinds))]
    assert len({graph.digest for graph in graphs}) == 1
    for piece, graph in zip(part.pieces, graphs, strict=True):
        onnx.checker.check_model(piece.npu, full_check=True)
        assert {port.onnx_name for port in graph.outputs} == {item.name for item in piece.npu.graph.output}


def runs_in_order(part: Partition) -> bool:
    """Whether pieces can run one after the other in their order, each as a whole, with the host's nodes between them."""
    known = {item.name for item in (*part.model.graph.input, *part.model.graph.initializer)}
    nodes = list(part.model.graph.node)
    inside = {i for piece in part.pieces for i in piece.inside}
    todo = [i for i in range(len(nodes)) if i not in inside]
    for piece in (*part.pieces, None):
        waiting = True
        while waiting:
            waiting = False
            for i in list(todo):
                if all(name in known for name in nodes[i].input if name):
                    known.update(nodes[i].output)
                    todo.remove(i)
                    waiting = True
        if piece is not None:
            if not all(item.name in known for item in piece.npu.graph.input):
                return False
            known.update(name for i in piece.inside for name in nodes[i].output)
    return not todo


@pytest.mark.parametrize("name", IN_PIECES)
def test_pieces_can_run_one_after_the_other(name: str) -> None:
    assert runs_in_order(parted(piece_model(name)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_pieces_of_random_graphs_run_in_sequence(seed: int) -> None:
    """Any wiring of operators, some of which are refused; where nothing costs anything, all that is supported runs on the NPU."""
    rng = np.random.default_rng(seed)
    b = Builder(rng, (1, 16, 4, 4))
    tensors = ["x"]
    for _ in range(int(rng.integers(4, 12))):
        one, two = (tensors[int(rng.integers(max(0, len(tensors) - 4), len(tensors)))] for _ in range(2))
        kind = rng.choice(["conv", "relu", "add", "Sin", "Cos"])
        made = b.conv(one, 16, (1, 1), pads=(0,) * 4) if kind == "conv" else b.relu(one) if kind == "relu" else b.add(one, two)
        tensors.append(made if kind in ("conv", "relu", "add") else b.node(kind, [one]))
    read = {name for node in b.nodes for name in node.input}
    model = b.model(*[name for name in tensors[1:] if name not in read])
    try:
        part = parted(model, FREE)
    except UnsupportedError:
        return
    assert runs_in_order(part)
    assert all(not (a.inside & c.inside) for a, c in itertools.combinations(part.pieces, 2))
    assert [node.why for node in part.host if not node.refused] == []


def test_mutually_waiting_convex_pieces_are_not_both_taken() -> None:
    """a1 -> Sin -> c1 and c2 -> Cos -> a2: {a1, a2} is convex, {c1, c2} is, but each would have to run before the other."""
    b = Builder(np.random.default_rng(0), (1, WIDTH, 14, 14))
    first, other = b.conv("x", WIDTH), b.conv(b.conv("x", WIDTH), WIDTH)
    one = b.conv(b.node("Sin", [first]), WIDTH)
    two = b.conv(b.node("Cos", [other]), WIDTH)
    part = parted(b.model(one, two))
    assert len(part.pieces) == 2  # not one before and one behind each operator that is refused, which would be four
    assert runs_in_order(part)
    assert [node.op_type for node in part.host] == ["Sin", "Cos"]


def test_without_prices_one_piece_is_taken() -> None:
    part = parted(piece_model("chain"), None)
    assert len(part.pieces) == 1
    assert {node.why for node in part.host if not node.refused} == {
        "supported, but what the NPU does not support lies between it and the partition"
    }


def test_work_shorter_than_a_launch_stays_on_host() -> None:
    part = parted(partial_model("middle"))
    (conv,) = (node for node in part.host if not node.refused)
    assert len(part.pieces) == 1
    assert conv.why == "supported, but not worth a piece of its own: less work than a launch takes"


def test_what_is_not_worth_it_says_both_times() -> None:
    """5.6 us of products at a launch of 5 us: the copies decide."""
    b = Builder(np.random.default_rng(0), (1, 16, 40, 40))
    first = b.conv(b.conv("x", 16), 16)
    machine = load_machine("edge:host.launch_us=5")
    part = parted(b.model(b.conv(b.node("Sin", [first]), 16, (1, 1), pads=(0,) * 4)), Offload(machine, DataType.float16))
    (conv,) = (node for node in part.host if not node.refused)
    assert conv.why.startswith("supported, but not worth a piece of its own: ")
    assert conv.why.endswith(" us with launch and copies")


def test_worth_by_hand() -> None:
    """40 M multiply-accumulates at 40 G a second are 1 ms; 1 M values of border are 4 MB, 400 us of copies; edge computes 4096 a cycle."""
    work = SubgraphWork((NodeWork(40_000_000, 0),), 0, 1_000_000)
    assert OFFLOAD.host_s(work.nodes) == pytest.approx(1e-3)
    assert OFFLOAD.npu_s(work) == pytest.approx(20e-6 + 400e-6 + max(40e6 / 4096, 2e6 / float(EDGE.ddr.deliverable)) / 1e9)
    assert OFFLOAD.reason_to_decline(work) is None
    small = SubgraphWork((NodeWork(10_000_000, 0),), 0, 1_000_000)
    times = "250.0 us on the host, 453.0 us with launch and copies"
    assert OFFLOAD.reason_to_decline(small) == f"supported, but not worth a piece of its own: {times}"
    whole = SubgraphWork((NodeWork(40_000_000, 0, True),), 0, 0, 3_000_000, 1_000_000)  # of integers: another rate, and bytes are bytes
    cycles = max(40e6 / float(EDGE.peak(DataType.int8)), 4e6 / float(EDGE.ddr.deliverable))
    assert OFFLOAD.npu_s(whole) == pytest.approx(20e-6 + 100e-6 + cycles / 1e9)
    assert EDGE.peak(DataType.int8) == 2 * EDGE.peak(DataType.float16)
    assert OFFLOAD.host_s([NodeWork(0, 2_500_000)]) == pytest.approx(1e-3)  # no products: by what it reads and writes


def test_piece_that_does_not_fit_goes_to_host() -> None:
    part = parted(piece_model("chain"))
    left = part.without({1: "does not fit tiny: t8: no tiling fits"})
    assert [piece.name for piece in left.pieces] == ["Partition0", "Partition1"]
    assert [piece.inside for piece in left.pieces] == [part.pieces[0].inside, part.pieces[2].inside]
    assert {node.why for node in left.host if not node.refused} == {"supported, but does not fit tiny: t8: no tiling fits"}
    assert [node for node in left.host if node.refused] == list(part.host)
