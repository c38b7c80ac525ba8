"""The session: onnxruntime's call shape, values from the instructions of the level's variant."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.npu import isa
from simulator.npu.container import Container, Variant, encode
from simulator.npu.errors import BadInputError
from simulator.npu.isa import WORDS, Op
from simulator.npu.machine import DataType, Engine, Memory, load_machine
from simulator.npu.program import DdrBuffer, MemoryMap
from simulator.session import InferenceSession

TINY = load_machine("tiny")
CHANNELS, H, W = 20, 3, 5
PLANES, PIXELS = 2, H * W
BLOCKS = PLANES * PIXELS


def record(op: Op, engine: Engine, source: Memory, destination: Memory, d: int, s0: int, **words: int) -> list[int]:
    row = [0] * WORDS
    row[: isa.P] = [op, engine, DataType.float16, 0, source, destination, d, s0, -1, -1]
    for name, value in words.items():
        row[getattr(isa, name)] = value
    return row


def flag(op: Op, engine: Engine, other: Engine) -> list[int]:
    row = [0] * WORDS
    row[isa.OP], row[isa.ENGINE], row[isa.FLAG_CORE], row[isa.FLAG_ENGINE] = op, engine, 0, other
    return row


def relu_streams(scale: float) -> tuple[np.ndarray, ...]:
    """y = relu(x) * scale on core 0: all of x to UB, twice through VECTOR, and back."""
    steps = {"V_BLOCKS": 1, "V_REPEATS": BLOCKS, "V_DRS": 1, "V_S0RS": 1}
    rows = [
        record(Op.COPY, Engine.MTE2, Memory.DDR, Memory.UB, 0, 1, C_LENGTH=BLOCKS, C_COUNT=1, C_COUNT2=1),
        flag(Op.SET, Engine.MTE2, Engine.VECTOR),
        flag(Op.WAIT, Engine.VECTOR, Engine.MTE2),
        record(Op.VRELU, Engine.VECTOR, Memory.UB, Memory.UB, 0, 0, **steps),
        record(Op.VMULS, Engine.VECTOR, Memory.UB, Memory.UB, 0, 0, V_IMM=isa.float_bits(scale), **steps),
        flag(Op.SET, Engine.VECTOR, Engine.MTE3),
        flag(Op.WAIT, Engine.MTE3, Engine.VECTOR),
        record(Op.COPY, Engine.MTE3, Memory.UB, Memory.DDR, 1 + BLOCKS, 0, C_LENGTH=BLOCKS, C_COUNT=1, C_COUNT2=1),
    ]
    return np.array(rows, np.int32), np.zeros((0, WORDS), np.int32)


def relu_container() -> Container:
    """Two levels that differ on purpose: `none` gives relu(x), `severe` gives 2 relu(x)."""
    lanes = tuple(range(2, 2 + CHANNELS))  # a gap at both ends
    port = {"shape": (1, CHANNELS, H, W), "onnx_shape": (1, CHANNELS, H, W), "lanes": lanes, "pixel_lanes": 16, "planes": PLANES}
    memory = MemoryMap(
        DataType.float16,
        (
            DdrBuffer("nothing", "constant", 0, 1),
            DdrBuffer("x", "input", 1, BLOCKS, **port),
            DdrBuffer("y", "output", 1 + BLOCKS, BLOCKS, **port),
        ),
        1 + 2 * BLOCKS,
    )
    cycles = {"none": 1, "severe": 2}
    variants = (Variant("none", 65536, relu_streams(1.0), "", cycles), Variant("severe", 16384, relu_streams(2.0), "", cycles))
    return Container("0" * 32, TINY, memory, variants, bytes(32))


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(encode(relu_container()))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).integers(-8, 8, (1, CHANNELS, H, W)).astype(np.float32)


def test_ports(session):
    (one,), (two,) = session.get_inputs(), session.get_outputs()
    assert (one.name, one.shape, one.type) == ("x", [1, CHANNELS, H, W], "tensor(float)")
    assert (two.name, two.shape, two.type) == ("y", [1, CHANNELS, H, W], "tensor(float)")
    assert session.levels == ("none", "severe")


def test_values_are_those_of_the_levels_own_instructions(session, x):
    (none,) = session.run(None, {"x": x})
    (severe,) = session.run(["y"], {"x": x}, level="severe")
    assert none.dtype == np.float32
    np.testing.assert_array_equal(none, np.maximum(x, 0))
    np.testing.assert_array_equal(severe, 2 * np.maximum(x, 0))


def test_one_changed_instruction_changes_a_value(x):
    container = relu_container()
    code = container.variants[0].streams[0].copy()
    code[3, isa.OP] = Op.VEXP
    first = replace(container.variants[0], streams=(code, container.variants[0].streams[1]))
    changed = InferenceSession(encode(replace(container, variants=(first, container.variants[1]))))
    (y,) = changed.run(None, {"x": x})
    assert (y != np.maximum(x, 0)).any()


def test_runs_do_not_see_one_another(session, x):
    (first,) = session.run(None, {"x": x})
    session.run(None, {"x": -x})
    (again,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, r"input 'x': missing; expected float32 \[1, 20, 3, 5\]"),
        ({"z": 0.0}, "input 'z': the model has x"),
        ({"x": np.zeros((1, 20, 5, 3), np.float32)}, r"found float32 \[1, 20, 5, 3\], expected float32 \[1, 20, 3, 5\]"),
        ({"x": np.zeros((1, 20, 3, 5), np.int64)}, "found int64"),
        ({"x": np.full((1, 20, 3, 5), "a")}, "found <U1"),
    ],
)
def test_a_wrong_input_is_named(session, feeds, message):
    with pytest.raises(BadInputError, match=message):
        session.run(None, feeds)


def test_a_wrong_output_or_level_is_named(session, x):
    with pytest.raises(BadInputError, match="output 'z': the model has y"):
        session.run(["z"], {"x": x})
    with pytest.raises(BadInputError, match=r"level 'slight': .*; levels: none, severe"):
        session.run(None, {"x": x}, level="slight")


def test_a_file_that_is_none_is_named(tmp_path):
    with pytest.raises(BadInputError, match=r"nothing\.onnx: cannot be read"):
        InferenceSession(tmp_path / "nothing.onnx")
    with pytest.raises(BadInputError, match="model bytes: not an ONNX model"):
        InferenceSession(b"\xff" * 20)
