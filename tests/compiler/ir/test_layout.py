"""Places and lanes: what shares storage, what is copied, and that a walk through the lanes gives the same values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.frontend import lower
from compiler.frontend.onnx_io.load import prepare
from compiler.ir.graph import Graph, Port
from compiler.ir.interpret import evaluate
from compiler.ir.layout import Layout, Placement, assign
from compiler.ir.operators import Concat, Conv, Operator, Shuffle, Step, Vector
from simulator.npu.parts import DataType
from tests.models import LIGHT, SMALL, SMALL_MODELS, Builder, Floats, light_graph, random_feeds, random_model, small_graph

F16, F32 = DataType.float16, DataType.float32
ADD = (Step("add", operand=1),)


def graph_of(inputs: dict[str, tuple[int, int, int, int]], operators: list[Operator], *outputs: str) -> Graph:
    shapes = dict(inputs)
    for op in operators:
        shapes[op.y] = op.output_shape([shapes[name] for name in op.inputs])
    ports_in = tuple(Port(name, name, shape) for name, shape in inputs.items())
    return Graph("g", ports_in, tuple(Port(name, name, shapes[name]) for name in outputs), tuple(operators), shapes)


def conv(x: str, y: str, c_in: int, c_out: int, groups: int = 1, residual: str | None = None) -> Conv:
    rng = np.random.default_rng(len(x) + c_out)
    weights = rng.standard_normal((c_out, c_in // groups, 1, 1)).astype(np.float32)
    return Conv(y, x, y, weights, np.zeros(c_out, np.float32), groups=groups, residual=residual)


def run_in_memory(layout: Layout, feeds: dict[str, Floats]) -> dict[str, Floats]:
    """Evaluate with every tensor read from and written to its lanes of a storage; nothing is done for Concat and Shuffle."""
    memory = {
        name: np.full((s.n, s.planes * s.pixel_lanes, s.h, s.w), np.nan, np.float32) for name, s in layout.storages.items()
    }  # fmt: skip

    def lanes(tensor: str) -> tuple[Floats, list[int]]:
        place = layout.placements[tensor]
        first = place.plane * layout.storages[place.storage].pixel_lanes
        return memory[place.storage], [first + lane for lane in place.lanes]

    def write(tensor: str, values: Floats) -> None:
        storage, at = lanes(tensor)
        storage[:, at] = values

    def read(tensor: str) -> Floats:
        storage, at = lanes(tensor)
        return storage[:, at]

    for port in layout.graph.inputs:
        write(port.tensor, feeds[port.onnx_name].reshape(layout.graph.shapes[port.tensor]))
    for op in layout.graph.operators:
        if not isinstance(op, Concat | Shuffle):
            write(op.y, op.apply([read(name) for name in op.inputs]))
    return {port.onnx_name: read(port.tensor).reshape(port.onnx_shape) for port in layout.graph.outputs}


def assert_runs(graph: Graph, feeds: dict[str, Floats], dtype: DataType) -> Layout:
    layout = assign(graph, dtype)
    expected, actual = evaluate(graph, feeds), run_in_memory(layout, feeds)
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(values).max())))
    return layout


def feeds_of(graph: Graph) -> dict[str, Floats]:
    rng = np.random.default_rng(5)
    return {port.onnx_name: rng.standard_normal(port.onnx_shape).astype(np.float32) for port in graph.inputs}


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_small_network(name: str, dtype: DataType) -> None:
    graph = small_graph(name)
    layout = assert_runs(graph, feeds_of(graph), dtype)
    assert len(layout.copies) == 0


@pytest.mark.parametrize("seed", range(200, 300))
def test_random_network(seed: int) -> None:
    model = prepare(random_model(seed))
    assert_runs(lower(model), random_feeds(model, seed), F16 if seed % 2 else F32)


@pytest.mark.parametrize("name", [name if name in SMALL else pytest.param(name, marks=pytest.mark.slow) for name in LIGHT])
def test_light_networks_need_no_copy(name: str) -> None:
    graph = light_graph(name)
    for dtype in (F16, F32):
        layout = assign(graph, dtype)
        assert layout.copies == ()
        assert layout.graph.operators == graph.operators


def test_concat_is_addresses_and_gaps() -> None:
    operators: list[Operator] = [conv("x", "a", 24, 20), conv("x", "b", 24, 5), Concat("y", ("a", "b"), "y"), conv("y", "z", 25, 8)]
    layout = assign(graph_of({"x": (1, 24, 3, 4)}, operators, "z"), F16)
    assert layout.placements["a"] == Placement("y", 0, 2, tuple(range(20)))
    assert layout.placements["b"] == Placement("y", 2, 1, tuple(range(5)))
    assert layout.placements["y"] == Placement("y", 0, 3, (*range(20), *range(32, 37)))
    assert {name: storage.blocks(layout.dtype) for name, storage in layout.storages.items()} == {"x": 2 * 12, "y": 3 * 12, "z": 12}
    # C0 is 8 in float32, and FIXPIPE writes two planes at a time
    assert assign(layout.graph, F32).placements["b"] == Placement("y", 4, 2, tuple(range(5)))


def test_nested_concat_shares_one_storage() -> None:
    operators: list[Operator] = [
        conv("x", "a", 24, 20), conv("a", "b", 20, 5), Concat("ab", ("a", "b"), "ab"), conv("ab", "c", 25, 7),
        Concat("abc", ("ab", "c"), "abc"),
    ]  # fmt: skip
    layout = assign(graph_of({"x": (2, 24, 3, 4)}, operators, "abc"), F16)
    assert {layout.placements[name].storage for name in ("a", "b", "ab", "c", "abc")} == {"abc"}
    assert [layout.placements[name].plane for name in ("a", "b", "ab", "c")] == [0, 2, 0, 3]
    assert layout.copies == ()
    assert layout.storages["abc"].blocks(layout.dtype) == 2 * 4 * 12


def test_dense_block_with_flat_concats_needs_no_copy() -> None:
    """As PyTorch exports DenseNet: every layer concatenates all features before it anew."""
    b = Builder(np.random.default_rng(0), (1, 3, 8, 8))
    features = [b.conv("x", 20)]
    for _ in range(4):
        features.append(b.conv(b.relu(b.batch_norm(b.concat(*features))), 12))
    graph = lower(prepare(b.model(b.conv(b.concat(*features), 8))))
    layout = assert_runs(graph, feeds_of(graph), F16)
    assert layout.copies == ()


def test_residual_follows_the_gaps() -> None:
    """The sum of a Concat with gaps and a Conv: the Conv writes the Concat's lanes."""
    operators: list[Operator] = [
        conv("x", "a", 24, 20), conv("x", "b", 24, 5), Concat("y", ("a", "b"), "y"), conv("y", "z", 25, 25, residual="y"),
        conv("x", "early", 24, 25), Vector("sum", ("early", "y"), "sum", ADD),
    ]  # fmt: skip
    graph = graph_of({"x": (1, 24, 3, 4)}, operators, "z", "sum")
    layout = assert_runs(graph, feeds_of(graph), F16)
    assert layout.copies == ()
    for name in ("z", "early", "sum"):
        assert layout.placements[name].lanes == layout.placements["y"].lanes


@pytest.mark.parametrize(
    ("operators", "outputs", "kinds"),
    [
        # in two unrelated Concats
        ([conv("x", "a", 24, 8), Concat("p", ("a", "x"), "p"), Concat("q", ("x", "a"), "q")], ("p", "q"), [Vector, Vector, Vector]),
        # twice in one
        ([conv("x", "a", 24, 8), Concat("p", ("a", "a"), "p")], ("p",), [Vector]),
        # the same planes under two labels
        ([conv("x", "a", 24, 8), Shuffle("s", "a", "s", (1, 0, 3, 2, 5, 4, 7, 6)), Concat("p", ("a", "s"), "p")], ("p",), [Vector]),
        # a tensor and its shuffle added
        ([conv("x", "a", 24, 8), Shuffle("s", "a", "s", (1, 0, 3, 2, 5, 4, 7, 6)), Vector("p", ("a", "s"), "p", ADD)], ("p",), [Conv]),
        # sums of Concats that split differently
        (
            [
                conv("x", "a", 24, 8), conv("x", "b", 24, 20), conv("x", "c", 24, 20), conv("x", "d", 24, 8),
                Concat("p", ("a", "b"), "p"), Concat("q", ("c", "d"), "q"), Vector("y", ("p", "q"), "y", ADD),
            ],
            ("y",), [Conv],
        ),
        # sums of Concats that split alike
        (
            [
                conv("x", "a", 24, 8), conv("x", "b", 24, 20), conv("x", "c", 24, 8), conv("x", "d", 24, 20),
                Vector("ac", ("a", "c"), "ac", ADD), Vector("bd", ("b", "d"), "bd", ADD),
                Concat("p", ("a", "b"), "p"), Concat("q", ("c", "d"), "q"), Vector("y", ("p", "q"), "y", ADD),
            ],
            ("y", "ac", "bd"), [],
        ),
    ],
)  # fmt: skip
def test_conflicts(operators: list[Operator], outputs: tuple[str, ...], kinds: list[type]) -> None:
    graph = graph_of({"x": (1, 24, 3, 4)}, operators, *outputs)
    layout = assert_runs(graph, feeds_of(graph), F16)
    added = {op.name: type(op) for op in layout.graph.operators if op.name in layout.copies}
    assert list(added.values()) == kinds
    assert len(layout.graph.operators) == len(operators) + len(kinds)


def test_shuffle_is_labels() -> None:
    order = (0, 4, 1, 5, 2, 6, 3, 7)
    operators: list[Operator] = [conv("x", "a", 24, 8, groups=2), Shuffle("s", "a", "s", order), conv("s", "d", 8, 8, groups=8)]
    layout = assign(graph_of({"x": (1, 24, 3, 4)}, operators, "d"), F16)
    assert layout.placements["s"] == Placement("a", 0, 1, order)
    assert operators[2].follows == operators[2].inputs
    assert layout.placements["d"].lanes == order


def test_four_lane_image() -> None:
    graph = graph_of({"x": (2, 3, 5, 8)}, [conv("x", "a", 3, 8)], "a")
    layout = assign(graph, F16)
    assert layout.storages["x"].pixel_lanes == 4
    assert layout.storages["x"].blocks(layout.dtype) == 2 * 5 * 8 // 4
    assert assign(graph, F16, four_lanes=False).storages["x"].pixel_lanes == 16
    assert assign(graph, F32).storages["x"].pixel_lanes == 8
    for other in (
        graph_of({"x": (1, 3, 5, 6)}, [conv("x", "a", 3, 8)], "a"),
        graph_of({"x": (1, 5, 5, 8)}, [conv("x", "a", 5, 8)], "a"),
        graph_of({"x": (1, 3, 5, 8)}, [conv("x", "a", 3, 3, groups=3)], "a"),
        graph_of({"x": (1, 3, 5, 8)}, [conv("x", "a", 3, 3, residual="x")], "a"),
        graph_of({"x": (1, 3, 5, 8)}, [conv("x", "a", 3, 3), Vector("v", ("x",), "v", (Step("relu"),))], "a", "v"),
    ):
        assert assign(other, F16).storages["x"].pixel_lanes == 16


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: {**p, "a": replace(p["a"], plane=1)},
        lambda p: {**p, "b": replace(p["b"], plane=0)},
        lambda p: {**p, "a": replace(p["a"], lanes=(0,) * 20)},
        lambda p: {**p, "z": replace(p["z"], lanes=tuple(range(25)))},
        lambda p: {**p, "y": replace(p["y"], lanes=tuple(range(25)))},
        lambda p: {**p, "z": replace(p["z"], planes=4)},
        lambda p: {**p, "z": replace(p["z"], storage="x")},
    ],
)
def test_verify_sees_damage(damage: object) -> None:
    operators: list[Operator] = [
        conv("x", "a", 24, 20), conv("x", "b", 24, 5), Concat("y", ("a", "b"), "y"), conv("y", "z", 25, 25, residual="y"),
    ]  # fmt: skip
    layout = assign(graph_of({"x": (1, 24, 3, 4)}, operators, "z"), F16)
    layout.verify()
    with pytest.raises(ValueError, match=r"."):
        replace(layout, placements=damage(layout.placements)).verify()  # type: ignore[operator]
