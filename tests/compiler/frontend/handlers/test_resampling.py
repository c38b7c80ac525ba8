"""Slices, padding, resizing and transposed convolutions: every mode against onnxruntime, interpreted and as instructions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, helper

from compiler.frontend import lower
from compiler.frontend.onnx_io.load import prepare
from compiler.ir.interpret import evaluate
from compiler.ir.taps import Taps, merge_taps, select_places
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import bits_float
from simulator.npu.parts import DataType
from tests.everywhere import MACHINES, hold
from tests.models import Builder, random_feeds, reference_outputs

Make = Callable[[Builder], str]


def ints(b: Builder, *values: int) -> str:
    return b.constant(np.array(values, np.int64))


def floats(b: Builder, *values: float) -> str:
    return b.constant(np.array(values, np.float32))


def cut(b: Builder, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
    return b.node("Slice", [x, ints(b, start), ints(b, end), ints(b, axis), ints(b, step)])


def padded(*pads: int, mode: str = "constant", value: float = 0.0) -> Make:
    return lambda b: b.node("Pad", ["x", ints(b, *pads), floats(b, value)] if mode == "constant" else ["x", ints(b, *pads)], mode=mode)


def by(scales: tuple[float, float], mode: str, where: str, **more: object) -> Make:
    return lambda b: b.node("Resize", ["x", "", floats(b, 1, 1, *scales)], mode=mode, coordinate_transformation_mode=where, **more)


def to(size: tuple[int, int], mode: str, where: str, **more: object) -> Make:
    return lambda b: b.node("Resize", ["x", "", "", ints(b, 1, 21, *size)], mode=mode, coordinate_transformation_mode=where, **more)


def transposed(outputs: int, kernel: tuple[int, int] = (3, 3), groups: int = 1, **attributes: object) -> Make:
    def make(b: Builder) -> str:
        weights = b.normal((21, outputs // groups, *kernel), 0.1)
        return b.node("ConvTranspose", ["x", weights, b.normal((outputs,))], group=groups, **attributes)

    return make


def halves(b: Builder) -> str:
    """An image cut into parts of channels, which are used apart and joined in another order."""
    sizes = ints(b, 5, 16)
    name = [f"part{i}" for i in range(2)]
    b.nodes.append(helper.make_node("Split", ["x", sizes], name, axis=1))
    b.shape[name[0]], b.shape[name[1]] = (1, 5, 9, 10), (1, 16, 9, 10)
    return b.conv(b.concat(b.relu(name[1]), name[0]), 7)


CASES: dict[str, Make] = {
    "rows": lambda b: cut(b, "x", 2, 2, 7),
    "columns backwards": lambda b: cut(b, "x", 3, -1, -100, -2),
    "every third": lambda b: cut(b, cut(b, "x", 2, 1, 100, 3), 3, 0, 9, 3),
    "channels": lambda b: b.conv(cut(b, "x", 1, 3, 18, 2), 5),
    "channels and rows": lambda b: b.node("Slice", ["x", ints(b, 1, 1), ints(b, 17, 9), ints(b, 1, 2)]),
    "split": halves,
    "pad": padded(0, 0, 1, 2, 0, 0, 3, 0),
    "pad with a value": padded(0, 0, 1, 0, 0, 0, 0, 2, value=-1.5),
    "pad channels": padded(0, 2, 0, 0, 0, 1, 1, 0, value=0.5),
    "pad and cut": padded(0, 0, -2, 1, 0, 0, 1, -3),
    "pad edge": padded(0, 0, 2, 1, 0, 0, 0, 3, mode="edge"),
    "pad reflect": padded(0, 0, 3, 1, 0, 0, 2, 4, mode="reflect"),
    "pad a pixel": lambda b: b.node("Pad", [b.node("GlobalMaxPool", ["x"]), ints(b, 0, 0, 1, 0, 0, 0, 0, 2)]),
    "nearest twice": by((2, 2), "nearest", "asymmetric", nearest_mode="floor"),
    "nearest three by two": by((3, 2), "nearest", "half_pixel"),
    "nearest smaller": by((0.5, 0.7), "nearest", "half_pixel", nearest_mode="round_prefer_ceil"),
    "nearest up": by((1.5, 1.3), "nearest", "asymmetric", nearest_mode="ceil"),
    "linear twice": by((2, 2), "linear", "half_pixel"),
    "linear by 4": by((4, 4), "linear", "pytorch_half_pixel"),
    "linear corners": to((17, 28), "linear", "align_corners"),
    "linear smaller": to((4, 6), "linear", "half_pixel"),
    "linear rows only": to((18, 10), "linear", "asymmetric"),
    "cubic": by((2, 1.6), "cubic", "half_pixel"),
    "cubic inside": to((13, 21), "cubic", "half_pixel", exclude_outside=1, cubic_coeff_a=-0.5),
    "to a row": to((1, 21), "linear", "pytorch_half_pixel"),
    "transposed conv": transposed(13, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    "transposed conv of stride 1": transposed(5, kernel=(4, 3), pads=[0, 2, 1, 0]),
    "transposed conv that cuts": transposed(5, kernel=(2, 2), strides=[3, 2], pads=[2, 1, 1, 2]),
    "transposed conv in groups": transposed(9, kernel=(4, 4), groups=3, strides=[2, 2], pads=[1, 1, 1, 1]),
    "transposed conv depthwise": transposed(21, kernel=(4, 4), groups=21, strides=[2, 2], pads=[1, 1, 1, 1]),
    "transposed conv dilated": transposed(4, strides=[1, 2], dilations=[2, 1]),
    "transposed conv of a shape": transposed(4, strides=[3, 3], output_shape=[28, 29]),
    "transposed conv of a smaller shape": transposed(4, strides=[1, 1], output_shape=[8, 9]),
    "transposed conv same": transposed(4, kernel=(3, 4), strides=[2, 3], auto_pad="SAME_UPPER"),
}


def model_of(name: str) -> ModelProto:
    b = Builder(np.random.default_rng(4), (1, 21, 9, 10))
    return b.model(CASES[name](b))


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    model = model_of(name)
    feeds = random_feeds(model)
    for key, expected in reference_outputs(model, feeds).items():
        np.testing.assert_allclose(evaluate(lower(prepare(model)), feeds)[key], expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_instructions(name: str) -> None:
    i = list(CASES).index(name)
    for j, dtype in enumerate(("float16", "float32")):
        assert hold(model_of(name), list(MACHINES.values())[(i + j) % len(MACHINES)], DataType[dtype], seed=i)


def test_inside_a_network() -> None:
    """A decoder: down, up by nearest and by a transposed convolution, joined with what was there before; two images."""
    b = Builder(np.random.default_rng(4), (2, 3, 16, 20))
    x = b.relu(b.conv("x", 20))
    low = b.relu(b.conv(b.max_pool(x), 24))
    up = b.node("Resize", [low, "", floats(b, 1, 1, 2, 2)], mode="nearest", coordinate_transformation_mode="asymmetric")
    learned = b.node("ConvTranspose", [low, b.normal((24, 12, 2, 2), 0.2)], strides=[2, 2])
    smooth = b.node("Resize", [low, "", floats(b, 1, 1, 2, 2)], mode="linear", coordinate_transformation_mode="half_pixel")
    model = b.model(b.conv(b.concat(up, x, b.relu(learned), smooth), 4))
    for i, machine in enumerate(MACHINES.values()):
        assert hold(model, machine, DataType.float16, seed=i)


def test_upsample_of_an_old_opset() -> None:
    b = Builder(np.random.default_rng(4), (1, 5, 4, 6), opset=9)
    model = b.model(b.conv(b.node("Upsample", ["x", floats(b, 1, 1, 2, 3)], mode="linear"), 4))
    feeds = random_feeds(model)
    for key, expected in reference_outputs(model, feeds).items():
        np.testing.assert_allclose(evaluate(lower(prepare(model)), feeds)[key], expected, rtol=1e-4, atol=1e-5)


REFUSED: dict[str, tuple[Make, str]] = {
    "antialias": (by((0.5, 0.5), "linear", "half_pixel", antialias=1), "antialias"),
    "a crop": (by((2, 2), "linear", "tf_crop_and_resize"), "coordinate_transformation_mode 'tf_crop_and_resize'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    b = Builder(np.random.default_rng(3), (1, 21, 9, 10), opset=18)
    build, said = REFUSED[name]
    with pytest.raises(UnsupportedError) as caught:
        lower(prepare(b.model(build(b))))
    assert said in str(caught.value)


TAP = st.tuples(st.integers(0, 8), st.sampled_from([1.0, 0.5, -0.25]))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(TAP, max_size=3), min_size=1, max_size=20))
def test_runs_cover_every_tap_once(rows: list[list[tuple[int, float]]]) -> None:
    taps = Taps(tuple(tuple(row) for row in rows))
    found = np.zeros((len(rows), 9), np.float32)
    started: set[int] = set()
    for place, step, count, source, source_step, bits, adds in taps.runs.tolist():
        for i in range(count):
            at = place + i * step
            assert (at in started) == bool(adds)
            started.add(at)
            found[at, source + i * source_step] += np.float32(bits_float(bits))
    np.testing.assert_allclose(found, taps.matrix(9), atol=1e-6)
    low = [min((s for s, _ in row), default=2**31) for row in rows]
    assert taps.bounds[:, 0].tolist() == low


def test_regular_patterns_are_few_runs() -> None:
    """An upsampling by 2 is two runs, zeros between pixels one, a slice one; linear by 2 two for each phase and its border."""
    assert len(select_places(i // 2 for i in range(40)).runs) == 2
    assert len(select_places(None if i % 3 else i // 3 for i in range(40)).runs) == 1
    assert len(select_places(range(3, 30, 2)).runs) == 1
    assert merge_taps([[(0, 0.5), (0, 0.5)], [(1, 0.0), (2, 1.0)]]) == select_places([0, 2])
