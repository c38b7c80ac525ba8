"""A unit: what it needs of a machine, where constants and storages lie."""

from __future__ import annotations

import pickle

import pytest

from compiler.frontend import lower
from compiler.ir.operators import Conv, WeightShape
from compiler.ops.conv import ConvSpec
from compiler.ops.lower_graph import make_unit, pack_unit
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.corner_models import CORNER_MODELS, corner_model
from tests.graphs import concat, conv, graph
from tests.messages import naming
from tests.models import SMALL_MODELS, small_graph

EDGE = load_machine("edge")


def without(source: str, destination: str) -> Machine:
    raw = EDGE.model_dump()
    raw["paths"] = [p for p in raw["paths"] if (p["source"], p["destination"]) != (source, destination)]
    return Machine.model_validate(raw)


@pytest.mark.parametrize("path", [(p.source, p.destination) for p in EDGE.paths if (p.source, p.destination) != ("L0C", "L1")])
def test_paths_that_every_program_needs(path: tuple[str, str]) -> None:
    with pytest.raises(UnsupportedError, match=naming("machine edge", f"path {path[0]} -> {path[1]}")):
        make_unit(small_graph("conv_chain"), without(*path), DataType.float16)


def test_results_may_take_the_way_through_ub() -> None:
    make_unit(small_graph("conv_chain"), without("L0C", "L1"), DataType.float16)


def test_a_path_of_another_engine() -> None:
    raw = EDGE.model_dump()
    for p in raw["paths"]:
        if (p["source"], p["destination"]) == ("DDR", "L1"):
            p["engine"] = "MTE1"
    with pytest.raises(UnsupportedError, match=naming("path DDR -> L1", "MTE1", "MTE2")):
        make_unit(small_graph("conv_chain"), Machine.model_validate(raw), DataType.float16)


def test_a_data_type_that_the_machine_lacks() -> None:
    raw = EDGE.model_dump()
    del raw["matrix"]["cycles_per_fractal"]["float32"]
    with pytest.raises(UnsupportedError, match=naming("machine edge", "float32", "float16")):
        make_unit(small_graph("conv_chain"), Machine.model_validate(raw), DataType.float32)


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
@pytest.mark.parametrize("name", [*SMALL_MODELS, *CORNER_MODELS])
def test_results_are_whole_blocks_of_channels(name: str, dtype: DataType) -> None:
    """FIXPIPE writes 16 channels at a time: what a convolution writes is a multiple of them, and inside its storage."""
    g = small_graph(name) if name in SMALL_MODELS else lower(corner_model(name))
    u = make_unit(g, EDGE, dtype)
    u.memory.verify()
    for spec in u.operators:
        assert spec.y.plane + spec.y.planes <= u.storages[spec.y.storage].planes
        if isinstance(spec, ConvSpec):
            assert spec.y.planes * dtype.lanes == spec.groups * spec.n1 * 16
            assert spec.lanes == 4 or spec.groups * spec.c1 == spec.reads[0].planes


def test_addresses_on_paper() -> None:
    """1x1, 16 -> 16 channels: 16 blocks of weights, 2 of bias (float32), then x and y of 16 blocks each, on 4-block borders."""
    u, constants = pack_unit(graph((1, 16, 4, 4), [conv("y", "x", (16, 16), 1)], ["y"]), EDGE, DataType.float16)
    (spec,) = u.operators
    assert isinstance(spec, ConvSpec)
    assert (spec.weights_at, spec.bias_at) == (0, 16)
    assert [(s.address, s.planes, s.plane_blocks) for s in u.storages] == [(20, 1, 16), (36, 1, 16)]
    assert u.macs == 16 * 16 * 16
    assert len(constants) == 20 * 32


def test_weights_are_padded_only_without_vector_bytes() -> None:
    """64 channels by themselves, 3x3: 4 x 9 blocks of weights, or fractals of 16 blocks each."""
    depthwise = graph((1, 64, 4, 4), [conv("y", "x", (64, 64), 3, groups=64)], ["y"])
    for name, blocks in (("edge", 36), ("tiny", 36 * 16)):
        (spec,) = make_unit(depthwise, load_machine(name), DataType.float16).operators
        assert (spec.stored_weight_blocks, spec.weight_blocks) == (blocks, 36 * 16)


def test_a_unit_does_not_keep_its_models_weights() -> None:
    """Units are sent to every worker, and remembered: none may keep hundreds of megabytes alive."""
    operators = [conv("a", "x", (64, 64), 3), conv("b", "a", (64, 64), 3)]
    u, constants = pack_unit(graph((1, 64, 4, 4), operators, ["b"]), EDGE, DataType.float16)
    assert len(constants) >= 2 * 64 * 64 * 9 * 2
    assert len(pickle.dumps(u)) < len(constants) / 8
    assert all(isinstance(spec.operator, Conv) and isinstance(spec.operator.weights, WeightShape) for spec in u.operators)


def test_producers_and_consumers_follow_places_not_names() -> None:
    """b reads a through a Concat; the first convolution's result leaves by the output that is the Concat."""
    operators = [conv("a", "x", (16, 16)), conv("c", "x", (16, 16)), concat("j", "a", "c"), conv("b", "j", (32, 16))]
    u = make_unit(graph((1, 16, 4, 4), list(operators), ["j", "b"]), EDGE, DataType.float16)
    assert u.producers == {0: (), 1: (), 2: (0, 1)}
    assert u.consumers == {0: (2,), 1: (2,), 2: ()}
    assert u.escapes == {0, 1, 2}
