"""What cannot be right is refused in one line that says what and where, with exit code 2 (3: does not fit), and nothing half-written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from compiler.build import default_plan
from compiler.model import ModelSpec, lower_model
from simulator.npu.machine_file import configs_folder
from simulator.onnx_container import read_container
from tests.models import small_model
from tuner.cli import main

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)


def conv_model(shape: tuple[int | str, ...] = (1, 4, 8, 8), check: bool = True, **attributes: Any) -> onnx.ModelProto:
    """One 3x3 convolution of four channels to four."""
    weights = numpy_helper.from_array(RNG.standard_normal((4, 4, 3, 3)).astype(np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", "c", "h", "w"))
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"], name="conv", **attributes)], "g", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def one_node(op: str, domain: str = "", **attributes: Any) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4, 8, 8)) for name in "xy")
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], name="odd", domain=domain, **attributes)], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good model, its compiled file, a plan, and bad ones of all kinds."""
    folder = tmp_path_factory.mktemp("things")
    onnx.save(small_model("conv_chain"), folder / "good.onnx")
    onnx.save(small_model("vector_chain"), folder / "other.onnx")
    data = (folder / "good.onnx").read_bytes()
    (folder / "text.onnx").write_text("just a line of text, no model at all\n")
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "truncated.onnx").write_bytes(data[: len(data) // 2])
    (folder / "graphless.onnx").write_bytes(onnx.ModelProto(ir_version=8).SerializeToString())
    onnx.save(conv_model(("batch", 4, 8, 8)), folder / "dynamic.onnx")
    onnx.save(conv_model(group=0), folder / "group0.onnx")
    onnx.save(conv_model(strides=[0, 1]), folder / "stride0.onnx")
    onnx.save(one_node("NonZero"), folder / "unsupported.onnx")
    onnx.save(one_node("Atan"), folder / "atan.onnx")
    onnx.save(one_node("Magic", domain="my.own"), folder / "custom.onnx")

    assert main(["compile", str(folder / "good.onnx"), "--machine", "edge", "--out", str(folder / "compiled.onnx")]) == 0
    compiled, container = (folder / "compiled.onnx").read_bytes(), read_container(folder / "compiled.onnx")
    middle = compiled.index(container) + len(container) // 2
    (folder / "flipped.onnx").write_bytes(compiled[:middle] + bytes([compiled[middle] ^ 4]) + compiled[middle + 1 :])
    (folder / "cut.onnx").write_bytes(compiled[:middle])

    for name, machine in (("edge", "edge"), ("elsewhere", "ascend310")):
        plan = default_plan(lower_model(ModelSpec(folder / "good.onnx", _machine(machine))).target_graph)
        (folder / f"plan_{name}.json").write_text(plan.to_json())
    raw = json.loads((folder / "plan_edge.json").read_text())
    (folder / "plan_text.json").write_text("{not json")
    (folder / "plan_list.json").write_text("[]")
    (folder / "plan_deep.json").write_text("[" * 100_000)
    (folder / "plan_binary.json").write_bytes(b"\xff\xfe\x00")
    _dump(folder / "plan_key.json", {**raw, "sgements": []})
    _dump(folder / "plan_version.json", {**raw, "version": 2})
    negative = json.loads(json.dumps(raw))
    negative["segments"][0]["blocks"] = -1
    _dump(folder / "plan_negative.json", negative)
    _dump(folder / "plan_short.json", {**raw, "segments": raw["segments"][:-1]})
    _dump(folder / "plan_twice.json", {**raw, "segments": [*raw["segments"], raw["segments"][-1]]})
    large = json.loads(json.dumps(raw))
    large["segments"][0]["tilings"][0]["tile_m"] = 1 << 20
    _dump(folder / "plan_large.json", large)
    vast = json.loads(json.dumps(raw))
    vast["segments"][0]["tilings"][0]["tile_m"] = 16 * 10**30
    _dump(folder / "plan_vast.json", vast)

    values = yaml.safe_load((configs_folder() / "machines" / "edge.yaml").read_text())
    del values["provenance"]  # statements on what is missing below are refused themselves
    _machine_file(folder / "unknown_key.yaml", {**values, "colour": "red"})
    _machine_file(folder / "negative.yaml", {**values, "buffers_bytes": {**values["buffers_bytes"], "L1": -64}})
    _machine_file(folder / "nowhere.yaml", {**values, "paths": [{**values["paths"][0], "destination": "L9"}]})
    _machine_file(folder / "small.yaml", {**values, "buffers_bytes": {**values["buffers_bytes"], "L1": 1024}})
    _machine_file(folder / "pathless.yaml", {**values, "paths": [p for p in values["paths"] if p["destination"] != "L0A"]})
    _machine_file(folder / "wrong_engine.yaml", {**values, "paths": [{**values["paths"][0], "engine": "MTE1"}, *values["paths"][1:]]})
    _machine_file(folder / "half_only.yaml", {**values, "matrix": {**values["matrix"], "cycles_per_fractal": {"float16": 1}}})
    _machine_file(folder / "no_levels.yaml", {**values, "contention": {}})
    _machine_file(folder / "odd_level.yaml", {**values, "contention": {"../up": 1.0}})
    _machine_file(folder / "reserved.yaml", {**values, "contention": {"baseline": 1.0}})
    (folder / "list.yaml").write_text("- 1\n- 2\n")
    (folder / "twice.yaml").write_text("name: a\nname: b\n")
    (folder / "broken.yaml").write_text("name: [")

    np.savez(folder / "names.npz", y=np.zeros((1, 3, 20, 24), np.float32))
    np.savez(folder / "shapes.npz", x=np.zeros((1, 3, 20, 23), np.float32))
    np.savez(folder / "types.npz", x=np.zeros((1, 3, 20, 24), np.int64))
    np.savez(folder / "objects.npz", x=np.array([{}, []], dtype=object), allow_pickle=True)
    np.save(folder / "single.npy", np.zeros((1, 3, 20, 24), np.float32))
    (folder / "text.npz").write_text("no arrays\n")
    np.savez(folder / "whole.npz", x=np.zeros((1, 3, 20, 24), np.float32))
    (folder / "half.npz").write_bytes((folder / "whole.npz").read_bytes()[:700])

    (folder / "run").mkdir()
    (folder / "damaged").mkdir()
    (folder / "damaged" / "source.json").write_text('{"model": 3}')
    return folder


def _machine(name: str) -> Any:
    from simulator.npu.machine_file import load_machine

    return load_machine(name)


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _machine_file(path: Path, values: Any) -> None:
    path.write_text(yaml.safe_dump(values, sort_keys=False))


COMPILE = "compile {d}/good.onnx --machine edge --out {out}"
TUNE = "tune {d}/good.onnx --machine edge --out {out} --quiet"
CASES = [
    # the model
    ("compile {d}/missing.onnx --machine edge --out {out}", "missing.onnx: no such file"),
    ("compile {d} --machine edge --out {out}", "not a file, expected an ONNX model"),
    ("compile {d}/text.onnx --machine edge --out {out}", "text.onnx: not an ONNX"),
    ("compile {d}/empty.onnx --machine edge --out {out}", "empty.onnx: the file is empty"),
    ("compile {d}/truncated.onnx --machine edge --out {out}", "truncated.onnx: not an ONNX file, or cut short"),
    ("compile {d}/graphless.onnx --machine edge --out {out}", "graphless.onnx: not an ONNX model: it has no graph"),
    ("compile {d}/dynamic.onnx --machine edge --out {out}", r"dynamic shapes: 'x' \[batch,4,8,8\]; give them with --shape batch=1$"),
    ("compile {d}/dynamic.onnx --machine edge --out {out} --shape x=1,5,8,8", "axis 1 is 4 in the model, not 5"),
    ("compile {d}/dynamic.onnx --machine edge --out {out} --shape z=1,4,8,8", "--shape z=1,4,8,8: no such input .*; inputs: x; .*: batch$"),
    ("compile {d}/dynamic.onnx --machine edge --out {out} --shape x=0,4,8,8", "every dimension is at least 1"),
    ("compile {d}/dynamic.onnx --machine edge --out {out} --shape x", r"--shape x: expected name=1,3,224,224"),
    ("compile {d}/group0.onnx --machine edge --out {out}", "conv.*group.*0"),
    ("compile {d}/stride0.onnx --machine edge --out {out}", "conv.*stride.*0"),
    ("compile {d}/unsupported.onnx --machine edge --out {out}", "NonZero"),
    ("compile {d}/atan.onnx --machine edge --dump graph", "odd.*Atan|Atan.*odd"),
    ("compile {d}/custom.onnx --machine edge --out {out}", "Magic|my.own"),
    ("compile {d}/compiled.onnx --machine edge --out {out}", "is compiled already, by tilefarm"),
    # the machine
    ("compile {d}/good.onnx --machine eagle --out {out}", "machine 'eagle': no such preset or file; presets: .*edge"),
    ("compile {d}/good.onnx --machine {d}/unknown_key.yaml --out {out}", "unknown_key.yaml: colour"),
    ("compile {d}/good.onnx --machine {d}/negative.yaml --out {out}", r"negative.yaml: buffers_bytes.L1: .*\(got -64\)"),
    ("compile {d}/good.onnx --machine {d}/nowhere.yaml --out {out}", "nowhere.yaml: paths.0.destination"),
    ("compile {d}/good.onnx --machine {d}/list.yaml --out {out}", "list.yaml: expected a mapping"),
    ("compile {d}/good.onnx --machine {d}/twice.yaml --out {out}", "twice.yaml: line 2: key 'name' is given twice"),
    ("compile {d}/good.onnx --machine {d}/broken.yaml --out {out}", "broken.yaml: not YAML"),
    ("compile {d}/good.onnx --machine {d}/pathless.yaml --out {out}", "path L1 -> L0A is missing"),
    ("compile {d}/good.onnx --machine {d}/wrong_engine.yaml --out {out}", "path DDR -> L1 belongs to MTE1, needed of MTE2"),
    ("compile {d}/good.onnx --machine {d}/half_only.yaml --out {out} --dtype float32", "no float32; it has float16"),
    ("compile {d}/good.onnx --machine {d}/no_levels.yaml --out {out}", "no_levels.yaml: contention"),
    ("machines {d}/odd_level.yaml", "odd_level.yaml: contention.*../up"),
    ("machines {d}/reserved.yaml", "reserved.yaml: contention.baseline.*baseline is no name for a level"),
    ("machines eagle", "machine 'eagle'"),
    # the output
    ("compile {d}/good.onnx --machine edge --out {d}/no/such/out.onnx", "no/such does not exist"),
    ("compile {d}/good.onnx --machine edge --out {d}", "is a folder; give a file"),
    ("compile {d}/good.onnx --machine edge --out {d}/good.onnx/out.onnx", "folder .*good.onnx does not exist"),
    ("disasm {d}/compiled.onnx --out {d}/no/text", "no does not exist"),
    ("run {d}/compiled.onnx --input random --out {d}/no/y.npz", "no does not exist"),
    # options
    ("compile {d}/good.onnx --out {out}", "Missing option '--machine'"),
    ("compile {d}/good.onnx --machine edge --out {out} --dtype int4", "--dtype.*int4.*float16.*float32"),
    ("compile {d}/good.onnx --machine edge --out {out} --style odd", "--style.*odd"),
    ("compile {d}/good.onnx --machine edge --out {out} --random-weights -1", "--random-weights"),
    ("fly", "No such command 'fly'"),
    ("run {d}/compiled.onnx --input random --speed 3", "No such option: --speed"),
    # plans
    (COMPILE + " --plan {d}/missing.json", "missing.json: cannot be read"),
    (COMPILE + " --plan {d}/plan_text.json", "plan_text.json: not JSON"),
    (COMPILE + " --plan {d}/plan_list.json", "plan_list.json: "),
    (COMPILE + " --plan {d}/plan_deep.json", "plan_deep.json: not JSON"),
    (COMPILE + " --plan {d}/plan_binary.json", "plan_binary.json: not JSON"),
    (COMPILE + " --plan {d}/plan_key.json", "plan_key.json: sgements"),
    (COMPILE + " --plan {d}/plan_version.json", "plan_version.json: version"),
    (COMPILE + " --plan {d}/plan_negative.json", r"plan_negative.json: segments.0.blocks.*\(got -1\)"),
    (COMPILE + " --plan {d}/plan_vast.json", "plan_vast.json: segments.0.tilings.0.conv.tile_m"),
    (COMPILE + " --plan {d}/plan_short.json", "plan_short.json: operator .* is missing; expected .* somewhere"),
    (COMPILE + " --plan {d}/plan_twice.json", "plan_twice.json: operator .* is there already; expected every operator once"),
    (COMPILE + " --plan {d}/plan_elsewhere.json", "plan_elsewhere.json: made for machine .*, this is edge"),
    (COMPILE + " --dtype float32 --plan {d}/plan_edge.json", "plan_edge.json: made for dtype float16, this is float32"),
    ("compile {d}/other.onnx --machine edge --out {out} --plan {d}/plan_edge.json", "plan_edge.json: made for model"),
    (COMPILE + " --random-weights 1 --plan {d}/plan_edge.json", "plan_edge.json: made for model"),
    (COMPILE + " --plan heavy={d}/plan_edge.json", "level 'heavy': unknown; levels of edge: none, slight, severe"),
    (COMPILE + " --plan none={d}/plan_edge.json", "no plan for level slight, severe"),
    ("plan show {d}/plan_text.json", "plan_text.json: not JSON"),
    # the compiled file
    ("run {d}/good.onnx --input random", "holds no container: compile it first"),
    ("run {d}/flipped.onnx --input random", r"damaged \(SHA-256 differs\)"),
    ("run {d}/cut.onnx --input random", "cut short"),
    ("simulate {d}/flipped.onnx", r"damaged \(SHA-256 differs\)"),
    ("simulate {d}/empty.onnx", "empty.onnx: empty"),
    ("simulate {d}/missing.onnx", "missing.onnx: cannot be read"),
    ("disasm {d}/cut.onnx", "cut short"),
    ("run {d}/compiled.onnx --input random --level heavy", "level 'heavy': .*levels: none, slight, severe"),
    ("simulate {d}/compiled.onnx --level heavy", "level 'heavy': .*levels: none, slight, severe"),
    ("disasm {d}/compiled.onnx --level heavy", "level 'heavy': .*levels: none, slight, severe"),
    ("disasm {d}/compiled.onnx --core 7", "--core 7: edge has cores 0..0"),
    # inputs
    ("run {d}/compiled.onnx --input {d}/names.npz", r"names.npz: input 'y': the model has x"),
    ("run {d}/compiled.onnx --input {d}/shapes.npz", r"shapes.npz: input 'x': found float32 \[1, 3, 20, 23\], expected .*\[1, 3, 20, 24\]"),
    ("run {d}/compiled.onnx --input {d}/types.npz", r"types.npz: input 'x': found int64"),
    ("run {d}/compiled.onnx --input {d}/objects.npz", "objects.npz: not an .npz file of plain arrays"),
    ("run {d}/compiled.onnx --input {d}/single.npy", "single.npy: one array without a name"),
    ("run {d}/compiled.onnx --input {d}/text.npz", "text.npz: not an .npz file"),
    ("run {d}/compiled.onnx --input {d}/half.npz", "half.npz: not an .npz file"),
    ("run {d}/compiled.onnx --input {d}/missing.npz", "missing.npz: cannot be read"),
    ("run {d}/compiled.onnx --input random:x", "--input random:x: expected random:SEED"),
    # runs
    ("export {d}/missing --out {out}", "missing: no such run folder"),
    ("export {d}/run --out {out}", "run: not a run folder"),
    ("export {d}/damaged --out {out}", "damaged/source.json: "),
    ("tune {d}/good.onnx --machine edge --out {out} --candidates 0", "--candidates"),
    ("tune {d}/good.onnx --machine edge --out {out} --level-weights none=x", "--level-weights none=x: 'none=x': expected level=weight"),
    ("tune {d}/good.onnx --machine edge --out {out} --tag a", "--tag a: expected key=value"),
    ("study {d}/missing.onnx --machine edge --out {out}", "missing.onnx: no such file"),
    (TUNE + " --mirror {d}/copy", "--mirror .*copy: expected a URL"),
    (TUNE + " --runner board", "--runner board: unknown; known: .*simulator.*module:name"),
    (TUNE + " --runner os:measure", "--runner os:measure: os has nothing to call by the name measure"),
    (TUNE + " --strategy nobody", "--strategy nobody: unknown; known: segmentation; or module:name"),
    (TUNE + " --runner command:./board.sh", "--runner command:./board.sh: ./board.sh: no such command here"),
    (TUNE + " --backend ray --address 10.1.2.3:6379", "--address 10.1.2.3:6379: not on this computer, and without a token"),
    (TUNE.replace("tune", "sweep") + " --mirror {d}/copy", "--mirror .*copy: expected a URL"),
    (TUNE.replace("tune", "sweep") + " --runner board", "--runner board: unknown"),
    (TUNE.replace("tune", "study") + " --runner os:measure", "--runner os:measure: os has nothing to call by the name measure"),
    (TUNE.replace("tune", "study") + " --storage nonsense", "--storage nonsense: "),
]  # fmt: skip
DOES_NOT_FIT = [
    ("compile {d}/good.onnx --machine {d}/small.yaml --out {out}", "1,024 B of L1"),
    (COMPILE + " --plan {d}/plan_large.json", "plan_large.json: does not fit edge: segment 0, .* a tile needs .* B of L0A"),
]


def refused(
    arguments: str, message: str, expected: int, things: Path, tmp_path: Path, run: Callable[[list[str]], tuple[int, str, str]]
) -> None:
    before = sorted(p.name for p in things.rglob("*"))
    code, out, err = run(arguments.format(d=things, out=tmp_path / "out").split())
    assert (code, out) == (expected, ""), err
    assert err.startswith("tilefarm: ")
    assert err.count("\n") == 1
    assert re.search(message, err), err
    assert list(tmp_path.iterdir()) == []
    assert sorted(p.name for p in things.rglob("*")) == before


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], tuple[int, str, str]]:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)  # which a local Ray sets, and leaves in the process

    def run(arguments: list[str]) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(arguments)
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(("arguments", "message"), CASES, ids=lambda value: value if value[:1].islower() else "")
def test_one_line_and_exit_code_2(arguments, message, things, tmp_path, here):
    refused(arguments, message, 2, things, tmp_path, here)


@pytest.mark.parametrize(("arguments", "message"), DOES_NOT_FIT)
def test_what_does_not_fit_is_exit_code_3(arguments, message, things, tmp_path, here):
    refused(arguments, message, 3, things, tmp_path, here)


@pytest.mark.parametrize("at", [2, 49, 70])
def test_the_real_command(at, things, tmp_path):
    refused(*CASES[at], 2, things, tmp_path, _command)


def test_the_real_command_says_3(things, tmp_path):
    refused(*DOES_NOT_FIT[1], 3, things, tmp_path, _command)


def _command(arguments: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_writable(things, tmp_path, here):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    code, _, err = here(["compile", str(things / "good.onnx"), "--machine", "edge", "--out", str(locked / "out.onnx")])
    assert code == 2
    assert "is not writable" in err


def test_an_old_file_survives_a_failed_compile(things, tmp_path, here):
    out = tmp_path / "out.onnx"
    out.write_bytes(b"old")
    assert here(["compile", str(things / "truncated.onnx"), "--machine", "edge", "--out", str(out)])[0] == 2
    assert out.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.onnx"]


def test_a_reader_that_has_enough(things):
    """`| head -1`: no traceback, no message."""
    command = f"{sys.executable} -m tuner disasm {things / 'compiled.onnx'} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.startswith("# edge float16")
    assert done.stderr == ""
