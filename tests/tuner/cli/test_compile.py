"""`compile` and `run --check`: the same bytes, right values and cycles, and what is not right is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import tuner.cli.predicted_plans
from compiler.build import package
from compiler.frontend.partition.macs import model_macs
from compiler.model import ModelSpec, lower_model
from simulator.feeds import load_feeds
from simulator.npu import isa
from simulator.npu.container import Container, program
from simulator.npu.container_file import decode
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.onnx_container import read_container
from simulator.session import InferenceSession
from simulator.timing import simulate_levels
from tests.models import Builder, random_feeds

LEVELS = ("none", "slight", "severe")


def test_compile_is_the_same_bytes_every_time(cli, model, tmp_path, plans):
    for name in ("a", "b"):
        code, out, err = cli("compile", model, "--machine", "edge", "--layerwise", "--out", tmp_path / name)
        assert (code, err) == (0, "")
        assert "100.0% of them on the NPU" in out
    (tmp_path / "plan.json").write_text(plans[0].to_json())
    assert cli("compile", model, "--machine", "edge", "--plan", tmp_path / "plan.json", "--out", tmp_path / "c")[0] == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def test_compile_says_what_it_wrote(cli, model, tmp_path):
    out_path = tmp_path / "out.onnx"
    code, out, _ = cli("compile", model, "--machine", "edge", "--dtype", "float32", "--layerwise", "--out", out_path, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["file_bytes"] == out_path.stat().st_size
    assert report["container_bytes"] == len(read_container(out_path))
    assert report["macs"] == model_macs(onnx.shape_inference.infer_shapes(onnx.load(model)))
    container = decode(read_container(out_path))
    assert container.dtype == DataType.float32
    for level, row in report["levels"].items():
        assert row["variant_cycles"] == dict(container.variant(level).cycles)
        assert row["cycles"] == row["variant_cycles"][level] >= row["program_bound_cycles"] > 0
        assert row["same_as"] == (None if level == "none" else "none")
        assert row["executed_macs"] >= report["macs"]


@pytest.mark.parametrize("style", ["function", "epcontext"])
def test_values_are_unchecked_or_checked_at_once(cli, model, tmp_path, style):
    out_path = tmp_path / "an out.onnx"
    words = ("compile", model, "--machine", "edge", "--layerwise", "--style", style, "--out", out_path)
    code, out, _ = cli(*words)
    how = f"`tilefarm run '{out_path}' --input random --check`, or " if style == "function" else ""
    assert (code, out.splitlines()[-1]) == (0, f"values unchecked: {how}compile with --check")
    code, out, err = cli(*words, "--check")
    assert (code, err) == (0, "")
    assert out.count("sanitizer: 0 findings") == 1  # the levels have one program
    assert out.splitlines()[-3:] == [f"check of level {level}: passed" for level in LEVELS]
    assert "values unchecked" not in out
    told = json.loads(cli(*words, "--check", "--json")[1])["check"]
    assert (told["ok"], told["ports"], told["first_wrong"], list(told["levels"])) == (True, [], None, list(LEVELS))
    if style == "function":
        mine = json.loads(cli("run", out_path, "--input", "random", "--level", "slight", "--check", "--json")[1])["check"]
        assert told["levels"]["slight"] == {key: mine[key] for key in told["levels"]["slight"]}
    assert json.loads(cli(*words, "--json")[1])["check"] is None


@pytest.mark.parametrize(("onnx_type", "domain"), [("Relu", ""), ("Cosh", "my.own")])
@pytest.mark.parametrize("first", ["Relu", "Sign"])
def test_what_onnxruntime_refuses_is_not_compiled(cli, tmp_path, onnx_type, domain, first):
    """In front of it an operator of the NPU, or none."""
    helper, kinds = onnx.helper, onnx.TensorProto
    nodes = [
        helper.make_node(first, ["x"], ["a"]),
        helper.make_node("Cast", ["a"], ["b"], to=kinds.INT16),
        helper.make_node(onnx_type, ["b"], ["y"], domain=domain),
    ]
    ports = helper.make_tensor_value_info("x", kinds.FLOAT, [1, 16]), helper.make_tensor_value_info("y", kinds.INT16, [1, 16])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    path, out = tmp_path / "refused.onnx", tmp_path / "out.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:]), opset_imports=opsets, ir_version=8), path)
    code, said, err = cli("compile", path, "--machine", "edge", "--out", out)
    why = "my.own:Cosh(-1) is not a registered function/op" if domain else "Could not find an implementation for Relu(14) node"
    assert (code, said, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"tilefarm: {path}: onnxruntime, which checks what is compiled, does not load it: {why}")
    assert not out.exists()


def test_what_is_not_written_is_not_checked(cli, model):
    code, out, err = cli("compile", model, "--machine", "edge", "--dump", "plan", "--check")
    assert (code, out, err) == (2, "", "tilefarm: --check: checks the file that is written; expected together with --out\n")


def test_compile_reports_progress_where_it_takes_long(cli, model, tmp_path, monkeypatch):
    words = "compile", model, "--machine", "edge", "--out", tmp_path / "out.onnx"
    code, out, err = cli(*words)
    assert (code, err) == (0, "")
    monkeypatch.setattr(tuner.cli.predicted_plans, "_FIRST_LINE_S", 0.0)
    monkeypatch.setattr(tuner.cli.predicted_plans, "_LINE_EVERY_S", 0.0)
    slow, same, lines = cli(*words)
    assert (slow, same) == (0, out)
    told = [line.rsplit(": ", 1) for line in lines.splitlines()]
    predicted = [int(what.split()[0]) for levels, what in told if levels == "none, slight, severe" and what.endswith(" segments predicted")]
    simulated = [int(what.split()[0]) for level, what in told if level == "severe" and what.endswith(" programs simulated")]
    assert predicted == sorted(predicted) != []
    assert simulated == list(range(1, len(simulated) + 1)) != []


def test_compile_says_what_groups_multiply_beside_their_weights(cli, tmp_path):
    b = Builder(np.random.default_rng(0), (1, 68, 4, 4))
    onnx.save(b.model(b.conv("x", 68, (1, 1), pads=(0, 0, 0, 0), groups=2)), tmp_path / "groups.onnx")
    words = ("compile", tmp_path / "groups.onnx", "--machine", "edge", "--layerwise", "--out", tmp_path / "out.onnx")
    assert "\ngroup structure: 1 convolution multiplies 1.9 times its weights" in cli(*words)[1]
    report = json.loads(cli(*words, "--json")[1])
    macs = 16 * 68 * 34
    assert report["grouped"] == {"convolutions": 1, "macs": macs, "multiplied_macs": 16 * 17 * 16 * 16}
    assert report["macs"] == macs
    assert report["levels"]["none"]["executed_macs"] >= report["grouped"]["multiplied_macs"]


def test_without_a_plan_it_is_the_quick_one(cli, model, tmp_path):
    """The same bytes every time, and never slower than layer by layer."""
    reports = []
    for name, options in (("a", ()), ("b", ()), ("c", ("--layerwise",))):
        code, out, err = cli("compile", model, "--machine", "edge", *options, "--out", tmp_path / name, "--json")
        assert (code, err) == (0, "")
        reports.append({level: row["cycles"] for level, row in json.loads(out)["levels"].items()})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()
    assert all(reports[0][level] < cycles for level, cycles in reports[2].items())


@pytest.mark.parametrize("option", [("--layerwise",), ("--model", "any.model")], ids=lambda words: words[0])
def test_what_makes_plans_goes_not_with_plans(cli, model, tmp_path, option):
    words = ("--plan", tmp_path / "p.json", "--out", tmp_path / "o.onnx")
    expected = f"tilefarm: {option[0]}: makes plans, so it does not go with --plan\n"
    assert cli("compile", model, "--machine", "edge", *option, *words) == (2, "", expected)


def test_a_plan_for_each_level(cli, model, tmp_path, plans):
    for name, plan in zip("ab", plans, strict=True):
        (tmp_path / f"{name}.json").write_text(plan.to_json())
    options = [f"none={tmp_path / 'a.json'}", f"slight={tmp_path / 'b.json'}", f"severe={tmp_path / 'a.json'}"]
    arguments = [part for option in options for part in ("--plan", option)]
    assert cli("compile", model, "--machine", "edge", *arguments, "--out", tmp_path / "out.onnx")[0] == 0
    container = decode(read_container(tmp_path / "out.onnx"))
    assert [v.plan_digest for v in container.variants] == [plans[0].digest, plans[1].digest, plans[0].digest]
    assert [container.same_as(level) for level in LEVELS] == [None, None, "none"]
    for variant in container.variants:
        timings = simulate_levels(program(container, variant.level), container.machine)
        assert dict(variant.cycles) == {level: timing.cycles for level, timing in timings.items()}


def test_the_compiled_file_runs_on_stock_onnxruntime(model, compiled):
    feeds = random_feeds(onnx.load(model))
    mine, theirs = (onnxruntime.InferenceSession(str(p), providers=["CPUExecutionProvider"]).run(None, feeds) for p in (compiled, model))
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-6)


def test_run_checks_values_sanitizer_and_cycles(cli, compiled):
    for level in LEVELS:
        code, out, err = cli("run", compiled, "--input", "random:5", "--level", level, "--check")
        assert (code, err) == (0, "")
        assert f"check of level {level}: passed" in out
    report = json.loads(cli("run", compiled, "--input", "random", "--check", "--json")[1])
    assert report["level"] == "none"
    assert report["check"]["ok"]
    check = report["check"]
    assert 0 < check["max_rel_error"] < check["limit_rel_error"] <= 0.1
    assert 0 < check["rounding_rel_error"] < check["limit_rel_error"]
    assert list(check["compared"]) == list(report["outputs"])
    assert (check["counted"], check["first_beyond"]) == ({}, None)
    assert report["check"]["variant_cycles"] == report["check"]["recomputed_cycles"]


def test_run_reads_and_writes_npz(cli, compiled, tmp_path):
    session = InferenceSession(compiled)
    feeds = {p.name: np.random.default_rng(1).standard_normal(p.shape).astype(np.float32) for p in session.get_inputs()}
    np.savez(tmp_path / "x.npz", **feeds)
    assert cli("run", compiled, "--input", tmp_path / "x.npz", "--out", tmp_path / "y.npz")[0] == 0
    written = load_feeds(tmp_path / "y.npz")
    names = [p.name for p in session.get_outputs()]
    assert list(written) == names
    for name, value in zip(names, session.run(names, feeds), strict=True):
        np.testing.assert_array_equal(written[name], value)


def rewritten(compiled: Path, model: Path, out: Path, change: Callable[[Container], Container]) -> Path:
    """The compiled file with another container in it, sealed as it should be."""
    package(lower_model(ModelSpec(model, load_machine("edge"))), [change(decode(read_container(compiled)))], out)
    return out


def test_one_changed_instruction_fails_the_check(cli, compiled, model, tmp_path):
    def change(container: Container) -> Container:
        code = container.variants[0].streams[0].copy()
        products = np.flatnonzero(code[:, isa.OP] == Op.MMAD)
        code[products[-1], isa.S0] += 16  # the last product reads the next fractal of L0A
        # of the controller's table no level has the stream of another one any more
        return replace(container, variants=(replace(container.variants[0], streams=(code,)), *container.variants[1:]), controller=None)

    changed = rewritten(compiled, model, tmp_path / "changed.onnx", change)
    code, out, _ = cli("run", changed, "--input", "random", "--check")
    assert code == 1
    assert "FAILED" in out
    assert cli("run", changed, "--input", "random", "--level", "severe", "--check")[0] == 0


def test_a_wrong_table_of_cycles_fails_the_check(cli, compiled, model, tmp_path):
    def change(container: Container) -> Container:
        first = container.variants[0]
        return replace(container, variants=(replace(first, cycles={**first.cycles, "none": 1}), *container.variants[1:]))

    changed = rewritten(compiled, model, tmp_path / "changed.onnx", change)
    code, out, _ = cli("run", changed, "--input", "random", "--check")
    assert code == 1
    assert "cycles at level none: the file says 1" in out
    code, _, err = cli("simulate", changed, "--level", "none")
    assert code == 2
    assert "the file says 1 cycles" in err
    assert "the file says 1 cycles" in cli("trace", changed, "--out", tmp_path / "t.json")[2]
