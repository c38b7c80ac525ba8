"""The session: onnxruntime's call shape, values from the instructions of the level's variant."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from simulator.npu import isa
from simulator.npu.container import Container, Variant
from simulator.npu.container_file import encode
from simulator.npu.errors import BadInputError
from simulator.npu.isa import WORDS, Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine, Memory
from simulator.npu.program import DdrBuffer, MemoryMap
from simulator.session import InferenceSession, SessionOptions
from tests.messages import naming
from tests.piece_models import piece_model
from tuner.cli import main

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
    variants = (Variant("none", relu_streams(1.0), "", cycles), Variant("severe", relu_streams(2.0), "", cycles))
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
    with pytest.raises(BadInputError, match=naming("output 'z'", "y")):
        session.run(["z"], {"x": x})
    with pytest.raises(BadInputError, match=naming("level 'slight'", "none, severe")):
        session.run(None, {"x": x}, level="slight")


def test_the_level_may_come_from_onnxruntimes_run_options(session, x):
    options = onnxruntime.RunOptions()
    (none,) = session.run([], {"x": x}, options)  # no outputs named: all, as onnxruntime has it
    options.add_run_config_entry("tilefarm.level", "severe")
    (severe,) = session.run(None, {"x": x}, options)
    np.testing.assert_array_equal(severe, 2 * none)
    (named,) = session.run(None, {"x": x}, options, level="none")
    np.testing.assert_array_equal(named, none)
    with pytest.raises(BadInputError, match=naming("run_options 'severe'", "level=")):
        session.run(None, {"x": x}, "severe")
    options.add_run_config_entry("tilefarm.level", "heavy")
    with pytest.raises(BadInputError, match="level 'heavy'"):
        session.run(None, {"x": x}, options)


def test_session_names_its_runner_and_itself(session, tmp_path):
    assert session.get_providers() == ["TilefarmExecutionProvider"]
    assert session.get_modelmeta().producer_name == ""  # a bare container has no model around it
    model = piece_model("chain")
    model.producer_name, model.domain, model.model_version, model.doc_string = "somebody", "org.example", 7, "what it is"
    helper.set_model_props(model, {"license": "Apache-2.0", "": "no key"})
    onnx.save(model, tmp_path / "m.onnx")
    meta = InferenceSession(compiled(tmp_path / "m.onnx")).get_modelmeta()
    theirs = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"]).get_modelmeta()
    assert meta.producer_name == "tilefarm"
    for name in ("graph_name", "domain", "description", "graph_description", "version", "custom_metadata_map"):
        assert getattr(meta, name) == getattr(theirs, name), name


def test_profile_has_times_of_host_and_npu(tmp_path):
    onnx.save(piece_model("chain"), tmp_path / "m.onnx")
    path = compiled(tmp_path / "m.onnx")
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert session.get_providers() == ["TilefarmExecutionProvider", "CPUExecutionProvider"]
    feeds = {"x": np.ones((1, 64, 14, 14), np.float32)}
    for level in ("none", "severe"):
        session.run(None, feeds, level=level)
    written = session.end_profiling()
    assert written.startswith(str(tmp_path / "profile_"))
    assert session.end_profiling() == ""  # it is over
    trace = json.loads(Path(written).read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert trace["otherData"]["runs"] == 2
    clock = session.compiled.machine.clock_hz
    for run, level in enumerate(("none", "severe")):
        mine = [event for event in events if event["args"]["run"] == run]
        kinds = [event["cat"] for event in sorted(mine, key=lambda event: (event["ts"], -event["dur"]))]
        assert kinds == ["run", "npu", "host", "npu", "host", "npu"]
        whole, *steps = sorted(mine, key=lambda event: (event["ts"], -event["dur"]))
        programs = [event for event in steps if event["cat"] == "npu"]
        assert [event["name"] for event in programs] == ["Partition0", "Partition1", "Partition2"]
        assert sum(event["args"]["cycles"] for event in programs) == session.compiled.cycles(level)[level]
        for event in programs:
            assert event["args"]["level"] == level
            assert event["args"]["variant"] == "none"  # both levels have the same plan here
            assert event["dur"] == pytest.approx(event["args"]["cycles"] / clock * 1e6, abs=1e-3)
        hosts = [event for event in steps if event["cat"] == "host"]
        assert [event["args"]["nodes"] for event in hosts] == [["t5"], ["t13"]]
        assert all(event["dur"] > 0 for event in hosts)
        assert whole["dur"] == pytest.approx(sum(event["dur"] for event in steps), abs=1e-2)
        for one, two in itertools.pairwise(steps):  # one clock: nothing overlaps, nothing is missing
            assert two["ts"] == pytest.approx(one["ts"] + one["dur"], abs=1e-2)


def test_profiles_do_not_overwrite_each_other(session, x, tmp_path):
    names = set()
    for _ in range(3):
        mine = InferenceSession(encode(relu_container()), SessionOptions(True, str(tmp_path / "p")))
        mine.run(None, {"x": x})
        names.add(mine.end_profiling())
    assert len(names) == 3 == len(list(tmp_path.iterdir()))
    assert session.end_profiling() == ""  # not enabled


def test_model_in_several_pieces_has_no_single_container(tmp_path):
    onnx.save(piece_model("chain"), tmp_path / "m.onnx")
    session = InferenceSession(compiled(tmp_path / "m.onnx"))
    with pytest.raises(BadInputError, match=naming(3, "Partition0, Partition1, Partition2")):
        _ = session.container
    with pytest.raises(BadInputError, match=naming("input 'x'", "[1, 64, 14]", "[1, 64, 14, 14]")):
        session.run(None, {"x": np.zeros((1, 64, 14), np.float32)})


def compiled(model: Path) -> Path:
    """Layer by layer for `edge`, beside the model."""
    out = model.with_suffix(".compiled.onnx")
    assert main(["compile", str(model), "--machine", "edge", "--layerwise", "--out", str(out)]) == 0
    return out


def test_a_file_that_is_none_is_named(tmp_path):
    with pytest.raises(BadInputError, match=r"nothing\.onnx: cannot be read"):
        InferenceSession(tmp_path / "nothing.onnx")
    with pytest.raises(BadInputError, match=naming("model bytes", "ONNX")):
        InferenceSession(b"\xff" * 20)
