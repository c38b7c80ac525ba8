"""The command line on a small model: what it writes, prints and returns."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.derive.plan import Plan, parse_plan
from compiler.frontend import lower
from compiler.frontend.macs import model_macs
from compiler.tile.primitives import parse as parse_schedule
from compiler.tile.unit import make_unit
from simulator.npu import isa
from simulator.npu.asm import parse
from simulator.npu.container import Container, decode, program
from simulator.npu.errors import BadInputError
from simulator.npu.isa import Op
from simulator.npu.machine import DataType, load_machine
from simulator.onnx_container import read_container
from simulator.session import InferenceSession
from simulator.timing import simulate_levels
from tests.models import random_feeds, small_model
from tuner.build import build_variants, compile_plan, default_plan, open_source, package
from tuner.candidate import FeatureSet
from tuner.check import load_feeds, relative_error
from tuner.cli import main
from tuner.commands.options import parse_input, parse_plans, parse_shapes, parse_tags, parse_weights
from tuner.log.run_log import Origin, RunLog
from tuner.macs import npu_macs, program_macs
from tuner.reference import reference
from tuner.request import StudyRequest, TuneRequest
from tuner.source import Source, write_source

LEVELS = ("none", "slight", "severe")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Run:
    """cli(arguments...) -> exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "conv_chain.onnx"
    onnx.save(small_model("conv_chain"), path)
    return path


@pytest.fixture(scope="module")
def compiled(model: Path) -> Path:
    path = model.parent / "compiled.onnx"
    assert main(["compile", str(model), "--machine", "edge", "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def plans(model: Path) -> tuple[Plan, Plan]:
    """Two plans of the model on edge: the default one, and one with a segment in two blocks."""
    plan = default_plan(open_source(Source(model, load_machine("edge"))).unit)
    first = plan.segments[0].model_copy(update={"blocks": 2})
    return plan, plan.model_copy(update={"segments": (first, *plan.segments[1:])})


def test_help_answers_without_loading_anything_heavy():
    code = (
        "import sys; from tuner.cli import main; main(['--help'])\n"
        "heavy = {'numpy', 'numba', 'onnx', 'onnxruntime', 'ray', 'xgboost', 'optuna', 'pandas', 'pyarrow', 'pydantic'}\n"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "compile" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        "tune",
        "study",
        "compile",
        "export",
        "run",
        "simulate",
        "trace",
        "disasm",
        "machines",
        "doctor",
        "plan show",
        "plan diff",
        "log verify",
        "log repair",
        "log compact",
        "schema",
    ],
)
def test_every_command_has_help(cli, command):
    code, out, err = cli(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert "Usage" in out


def test_compile_is_the_same_bytes_every_time(cli, model, tmp_path, plans):
    for name in ("a", "b"):
        code, out, err = cli("compile", model, "--machine", "edge", "--out", tmp_path / name)
        assert (code, err) == (0, "")
        assert "100.0% of them on the NPU" in out
    (tmp_path / "plan.json").write_text(plans[0].to_json())
    assert cli("compile", model, "--machine", "edge", "--plan", tmp_path / "plan.json", "--out", tmp_path / "c")[0] == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def test_compile_says_what_it_wrote(cli, model, tmp_path):
    out_path = tmp_path / "out.onnx"
    code, out, _ = cli("compile", model, "--machine", "edge", "--dtype", "float32", "--out", out_path, "--json")
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
    assert 0 < report["check"]["max_rel_error"] < report["check"]["tolerance"]
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
    package(open_source(Source(model, load_machine("edge"))), [change(decode(read_container(compiled)))], out)
    return out


def test_one_changed_instruction_fails_the_check(cli, compiled, model, tmp_path):
    def change(container: Container) -> Container:
        code = container.variants[0].streams[0].copy()
        products = np.flatnonzero(code[:, isa.OP] == Op.MMAD)
        code[products[-1], isa.S0] += 16  # the last product reads the next fractal of L0A
        return replace(container, variants=(replace(container.variants[0], streams=(code,)), *container.variants[1:]))

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


def test_simulate_shows_every_level(cli, compiled):
    rows = json.loads(cli("simulate", compiled, "--json")[1])["levels"]
    assert tuple(rows) == LEVELS
    assert rows["none"]["cycles"] < rows["slight"]["cycles"] < rows["severe"]["cycles"]
    assert rows["none"]["balance"] > rows["severe"]["balance"] > 0
    for row in rows.values():
        assert row["latency_us"] == pytest.approx(row["cycles"] / 1e3)  # edge: 1 GHz
        assert 0 < max(row["engine_utilisation"].values()) <= 1
        assert row["ddr_read_bytes"] > row["ddr_write_bytes"] > 0
    code, out, _ = cli("simulate", compiled, "--level", "slight")
    assert code == 0
    assert "slight" in out
    assert "severe" not in out


def test_simulate_by_segments(cli, compiled):
    container = decode(read_container(compiled))
    names = [operator.name for operator in container.operators]
    levels = json.loads(cli("simulate", compiled, "--segments", "--json")[1])["levels"]
    assert tuple(levels) == LEVELS
    for level, found in levels.items():
        rows, total = found["segments"], json.loads(cli("simulate", compiled, "--level", level, "--json")[1])["levels"][level]
        assert [row["segment"] for row in rows] == list(range(len(names)))  # layer by layer
        assert [row["first_operator"] for row in rows] == [row["last_operator"] for row in rows] == names
        assert [row["blocks"] for row in rows] == [segment.blocks for segment in container.variant(level).segments]
        for key in ("ddr_read_bytes", "ddr_write_bytes"):
            assert sum(row[key] for row in rows) == total[key]
        assert sum(row["own_cycles"] for row in rows) == found["cycles"] == total["cycles"]
        assert sum(row["macs"] for row in rows) == program_macs(program(container, level))
        assert all(row["utilisation"][row["bound"]] == max(row["utilisation"].values()) for row in rows)
        assert {row["halo"] for row in rows if row["macs"]} == {1.0}  # nothing is computed twice
    code, out, _ = cli("simulate", compiled, "--segments", "--level", "severe")
    assert code == 0
    assert all(name in out for name in names)
    assert "level none" not in out


def test_operators_of_a_container_are_the_model(compiled, model):
    container = decode(read_container(compiled))
    assert sum(operator.macs for operator in container.operators) == model_macs(onnx.shape_inference.infer_shapes(onnx.load(model)))
    for variant in container.variants:
        tags = variant.streams[0][:, isa.TAG]
        assert set((tags & 0xFFFF).tolist()) == set(range(len(container.operators)))
        assert set((tags >> 16).tolist()) == set(range(len(variant.segments)))


def test_trace(cli, compiled, tmp_path):
    plain, packed = tmp_path / "t.json", tmp_path / "t.json.gz"
    code, out, _ = cli("trace", compiled, "--level", "severe", "--out", plain)
    assert code == 0
    value = json.loads(plain.read_text())
    assert f"level severe, {value['otherData']['cycles']:,} cycles" in out
    assert f"{len(value['traceEvents']):,} events" in out
    assert value["otherData"]["level"] == "severe"
    names = {event["args"]["operator"] for event in value["traceEvents"] if event.get("cat") == "CUBE"}
    assert names <= {operator.name for operator in decode(read_container(compiled)).operators}
    assert names
    assert cli("trace", compiled, "--level", "severe", "--out", packed)[0] == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    first = tmp_path / "first.json"
    assert cli("trace", compiled, "--out", first)[0] == 0
    assert json.loads(first.read_text())["otherData"]["level"] == "none"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "t.txt"), ".json.gz"),
        (("--out", "missing/t.json"), "missing"),
        (("--level", "heavy", "--out", "t.json"), "none, slight, severe"),
    ],
)
def test_trace_says_what_is_wrong(cli, compiled, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("trace", compiled, *arguments)
    assert code == 2
    assert message in err
    assert not list(tmp_path.iterdir())


def test_disasm_parses_back(cli, compiled, tmp_path):
    code, out, _ = cli("disasm", compiled, "--level", "slight")
    stream = decode(read_container(compiled)).variant("slight").streams[0]
    assert code == 0
    np.testing.assert_array_equal(parse(out), stream)
    assert cli("disasm", compiled, "--core", 0, "--out", tmp_path / "text")[:2] == (0, "")
    np.testing.assert_array_equal(parse((tmp_path / "text").read_text()), stream)


def test_machines(cli, tmp_path):
    code, out, _ = cli("machines")
    assert code == 0
    assert {"ascend310", "edge", "tiny"} <= {line.split()[0] for line in out.splitlines()[1:]}
    assert "buffers_bytes.L1" in cli("machines", "edge")[1]
    raw = json.loads(cli("machines", "edge", "--json")[1])
    assert raw["digest"] == load_machine("edge").digest
    assert [m["name"] for m in json.loads(cli("machines", "--json")[1])] == sorted(
        m["name"] for m in json.loads(cli("machines", "--json")[1])
    )


def test_plan_show(cli, tmp_path, plans):
    path = tmp_path / "plan.json"
    path.write_text(plans[0].to_json())
    out = cli("plan", "show", path)[1]
    assert plans[0].digest in out
    raw = json.loads(cli("plan", "show", path, "--json")[1])
    digest = raw.pop("digest")
    assert parse_plan(json.dumps(raw)).digest == digest == plans[0].digest


def test_plan_show_primitives(cli, run_folder, model, tmp_path, plans):
    """By the run in whose folder the plan lies, or by model and machine; every text is the tiling of the plan."""
    code, out, _ = cli("plan", "show", run_folder / "plans" / "slight.json", "--primitives")
    assert code == 0
    parts = out.split("# segment ")[1:]
    assert parts[0].splitlines()[0].endswith(", the largest of 2 blocks")
    operators = [(name, t) for segment in plans[1].segments for name, t in zip(segment.operators, segment.tilings, strict=True)]
    assert [parse_schedule("# " + part) for part in parts] == [t for _, t in operators]
    copy = tmp_path / "copy.json"
    copy.write_text(plans[1].to_json())
    assert cli("plan", "show", copy, "--primitives", "--model", model, "--machine", "edge") == (0, out, "")
    raw = json.loads(cli("plan", "show", copy, "--primitives", "--model", model, "--machine", "edge", "--json")[1])
    assert [row["operator"] for row in raw] == [name for name, _ in operators]
    assert parse_schedule("\n".join(raw[0]["primitives"])) == operators[0][1]
    code, _, err = cli("plan", "show", copy, "--primitives")
    assert (code, "lies in no run folder, so give --model and --machine" in err) == (2, True)
    code, _, err = cli("plan", "show", copy, "--primitives", "--model", model)
    assert (code, "--model and --machine go together" in err) == (2, True)
    code, _, err = cli("plan", "show", copy, "--model", model)
    assert (code, "--model goes with --primitives" in err) == (2, True)


def test_plan_diff(cli, tmp_path, plans):
    same, other, merged = (tmp_path / f"{name}.json" for name in ("same", "other", "merged"))
    same.write_text(plans[0].to_json())
    other.write_text(plans[1].to_json())
    assert cli("plan", "diff", same, same, "--exit-code") == (0, "", "")
    code, out, _ = cli("plan", "diff", same, other)
    assert (code, out) == (0, f"segment 0, {plans[0].segments[0].operators[0]}:\n  blocks: 1 -> 2\n")
    assert cli("plan", "diff", same, other, "--exit-code")[0] == 1
    raw = json.loads(cli("plan", "diff", same, other, "--json")[1])
    assert (raw["equal"], raw["a"], raw["b"]) == (False, plans[0].digest, plans[1].digest)
    assert raw["changes"][0]["changed"] == {"blocks": [1, 2]}
    a, b, *rest = plans[0].segments
    joined = a.model_copy(update={"operators": a.operators + b.operators, "tilings": a.tilings + b.tilings})
    merged.write_text(plans[0].model_copy(update={"segments": (joined, *rest)}).to_json())
    first, second = a.operators[0], b.operators[-1]
    assert cli("plan", "diff", same, merged)[1].splitlines() == [
        f"{first}..{second}: cut in other places",
        f"  - segment 0, {first}: 1 block, prefetch 2, window 1",
        f"  - segment 1, {second}: 1 block, prefetch 2, window 1",
        f"  + segment 0, {first}..{second}: 1 block, prefetch 2, window 1",
    ]
    moved = other.read_text().replace(plans[0].machine, "0" * 32)
    other.write_text(moved)
    assert cli("plan", "diff", merged, other)[1].splitlines()[0] == f"machine: {plans[0].machine} -> {'0' * 32}"


def test_plain_lines_when_not_a_terminal(cli):
    assert cli("machines")[1].isascii()


# --- export ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_folder(model: Path, tmp_path: Path, plans: tuple[Plan, Plan]) -> Path:
    """What a run leaves: plans, the source, the compiled file."""
    run = tmp_path / "run"
    (run / "plans").mkdir(parents=True)
    chosen = dict(zip(LEVELS, (plans[0], plans[1], plans[0]), strict=True))
    for level, plan in chosen.items():
        (run / "plans" / f"{level}.json").write_text(plan.to_json())
    copied = tmp_path / model.name
    copied.write_bytes(model.read_bytes())
    opened = open_source(Source(copied, load_machine("edge")))
    write_source(run, opened.source, opened.unit.graph.digest)
    package(opened, [build_variants(opened.compiler, chosen)], run / "best.onnx")
    return run


def test_export_gives_the_bytes_of_the_run(cli, run_folder, tmp_path, plans):
    code, _, err = cli("export", run_folder, "--out", tmp_path / "out.onnx")
    assert (code, err) == (0, "")
    assert (tmp_path / "out.onnx").read_bytes() == (run_folder / "best.onnx").read_bytes()
    assert cli("export", run_folder, "--plan", plans[1].digest[:8], "--out", tmp_path / "one.onnx", "--style", "epcontext")[0] == 0
    assert {v.plan_digest for v in decode(read_container(tmp_path / "one.onnx")).variants} == {plans[1].digest}
    code, _, err = cli("export", run_folder, "--plan", "0" * 32, "--out", tmp_path / "two.onnx")
    assert code == 2
    assert "has no such plan" in err


def test_export_finds_a_plan_in_the_tasks(cli, run_folder, tmp_path, plans):
    import pyarrow as pa
    import pyarrow.parquet as pq

    other = plans[0].model_copy(
        update={"segments": (*plans[0].segments[:-1], plans[0].segments[-1].model_copy(update={"blocks": 1, "window": 2}))}
    )
    payload = json.dumps({"unit": "u", "plan": other.model_dump(mode="json")})
    (run_folder / "tasks").mkdir()
    pq.write_table(pa.table({"kind": ["segment", "program"], "payload": ["{}", payload]}), run_folder / "tasks" / "0.parquet")
    assert cli("export", run_folder, "--plan", other.digest, "--out", tmp_path / "out.onnx")[0] == 0
    assert decode(read_container(tmp_path / "out.onnx")).variants[0].plan_digest == other.digest


def test_export_refuses_a_model_that_changed(cli, run_folder, tmp_path, model):
    onnx.save(small_model("conv_chain", seed=1), tmp_path / model.name)
    code, _, err = cli("export", run_folder, "--out", tmp_path / "out.onnx")
    assert code == 2
    assert "changed since the run" in err
    (tmp_path / model.name).unlink()
    assert "is not there any more" in cli("export", run_folder, "--out", tmp_path / "out.onnx")[2]
    assert not (tmp_path / "out.onnx").exists()


# --- tune and study: every option reaches the request ---------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TuneRequest]:
    """Requests that a driver in place of the real one was given; it leaves a summary."""
    requests: list[TuneRequest] = []

    def drive(request: TuneRequest) -> None:
        requests.append(request)
        level = {"ddr_share": 1.0, "cycles": 50, "latency_us": 0.05, "plan": "a" * 32, "same_as": None, "roofline_cycles": 10}
        request.out.mkdir(parents=True, exist_ok=True)
        summary = {"status": "done", "stopped": ["budget"], "levels": {"none": {**level, "baseline_layerwise_cycles": 100}}}
        (request.out / "summary.json").write_text(json.dumps(summary))

    module = types.ModuleType("tuner.tune")
    module.tune = drive  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tuner.tune", module)
    return requests


def test_tune_hands_over_every_option(cli, asked, tmp_path):
    text = (
        f"tune m.onnx --machine edge --out {tmp_path / 'run'} --candidates 7 --seed 3 --config quick --set search.population=8 "
        "--set a.b=c --level-weights none=1,severe=3 --backend serial --address auto --workers 2 --wait 5 --resume --style epcontext "
        "--tag b=2 --tag a=1 --dtype float32 --shape x=1,3,8,8 --random-weights 4 --mirror s3://b/run --runner m:f "
        "--resource npu --quiet --json"
    )
    code, out, err = cli(*text.split())
    assert (code, err) == (0, "")
    assert json.loads(out)["status"] == "done"
    assert asked == [
        TuneRequest(
            model=Path("m.onnx"), machine="edge", out=tmp_path / "run", candidates=7, seed=3, config="quick",
            overrides=("search.population=8", "a.b=c"), level_weights={"none": 1.0, "severe": 3.0}, backend="serial", address="auto",
            workers=2, wait_s=5.0, resume=True, style="epcontext", tag="a=1,b=2", dtype="float32", shapes={"x": (1, 3, 8, 8)},
            random_weights=4, quiet=True, mirror="s3://b/run", runner="m:f", resource="npu",
        )
    ]  # fmt: skip
    assert "0.500" in cli("tune", "m.onnx", "--machine", "edge", "--out", tmp_path / "other")[1]
    assert asked[1] == TuneRequest(model=Path("m.onnx"), machine="edge", out=tmp_path / "other")
    code, _, err = cli("tune", "m.onnx", "--machine", "edge", "--out", tmp_path / "c", "--candidates", 1, "--seconds", 1)
    assert code == 2
    assert "give one of them" in err


def test_study_hands_over_every_option(cli, monkeypatch, tmp_path):
    requests: list[StudyRequest] = []

    def drive(request: StudyRequest, say: Callable[[str], None]) -> dict[str, object]:
        requests.append(request)
        say("batch 1 of 1")
        return {"trials_done": 2, "best": {"trial": 1, "ratio_to_baseline": 0.5, "params": {"search.population": 8}}}

    module = types.ModuleType("tuner.study_run")
    module.study = drive  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tuner.study_run", module)
    text = (
        f"study a.onnx b.onnx --machine edge --out {tmp_path} --trials 4 --seeds 2 --seed 3 --storage sqlite:///s.db --candidates 5 "
        "--config quick --set study.batch=2 --backend serial --address auto --workers 2 --wait 5 --resume --dtype float32 "
        "--random-weights 1 --quiet --json"
    )
    code, out, err = cli(*text.split())
    assert (code, err) == (0, "")
    assert json.loads(out)["trials_done"] == 2
    assert requests == [
        StudyRequest(
            models=(Path("a.onnx"), Path("b.onnx")), machine="edge", out=tmp_path, trials=4, seeds=2, seed=3, storage="sqlite:///s.db",
            candidates=5, config="quick", overrides=("study.batch=2",), backend="serial", address="auto", workers=2, wait_s=5.0,
            resume=True, dtype="float32", random_weights=1, quiet=True,
        )
    ]  # fmt: skip
    code, out, err = cli("study", "a.onnx", "--machine", "edge", "--out", tmp_path)
    assert (code, err) == (0, "batch 1 of 1\n")
    assert "0.5000 of" in out
    assert requests[1] == StudyRequest((Path("a.onnx"),), "edge", out=tmp_path)


# --- codes -----------------------------------------------------------------------------------------------------------------------


def test_interrupted_is_130(cli, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tuner.commands.inspect.machines", stop)
    assert cli("machines") == (130, "", "tilefarm: interrupted\n")


def test_an_interrupted_run_says_how_to_go_on(cli, monkeypatch, tmp_path):
    def stop(request: TuneRequest) -> None:
        request.out.mkdir()
        (request.out / "run.json").write_text("{}")
        raise KeyboardInterrupt

    module = types.ModuleType("tuner.tune")
    module.tune = stop  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tuner.tune", module)
    code, _, err = cli("tune", "m.onnx", "--machine", "edge", "--out", tmp_path / "run")
    assert code == 130
    assert "--resume continues it" in err


def test_a_bug_is_not_hidden(monkeypatch):
    def bug(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tuner.commands.inspect.machines", bug)
    with pytest.raises(ZeroDivisionError):
        main(["machines"])


# --- parts -------------------------------------------------------------------------------------------------------------------------


def test_options_are_parsed():
    assert parse_shapes(["x=1,3,8,8", "a=b=2x4"]) == {"x": (1, 3, 8, 8), "a=b": (2, 4)}
    assert parse_weights("none=1, severe=2.5") == {"none": 1.0, "severe": 2.5}
    assert parse_tags(["b=2", "a="]) == "a=,b=2"
    assert parse_input("random") == 0
    assert parse_input("random:12") == 12
    assert parse_input("x.npz") == Path("x.npz")
    assert parse_plans([], LEVELS, "edge") == {}
    assert parse_plans(["p.json", "severe=q.json"], LEVELS, "edge") == {
        "none": Path("p.json"),
        "slight": Path("p.json"),
        "severe": Path("q.json"),
    }


@pytest.mark.parametrize(
    ("parse_text", "text"),
    [
        (lambda t: parse_shapes([t]), "x"), (lambda t: parse_shapes([t]), "x="), (lambda t: parse_shapes([t]), "x=1,a"),
        (lambda t: parse_shapes([t, t]), "x=1"), (parse_weights, "none"), (parse_weights, "none=0"), (parse_weights, "none=nan"),
        (parse_weights, "none=1,none=2"),
        (lambda t: parse_tags([t]), "a"), (lambda t: parse_tags([t, t]), "a=1"), (parse_input, "random:x"),
        (lambda t: parse_plans([t], LEVELS, "edge"), "heavy=p.json"), (lambda t: parse_plans([t], LEVELS, "edge"), "slight=p.json"),
        (lambda t: parse_plans([t, t], LEVELS, "edge"), "p.json"), (lambda t: parse_plans([t, t], LEVELS, "edge"), "none=p.json"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_right(parse_text, text):
    with pytest.raises(BadInputError, match="severe" if text == "slight=p.json" else text.split("=")[0]):
        parse_text(text)


def test_errors_before_a_softmax():
    logits = np.array([1.0, -2.0, 4.0, -9.0])
    p = np.exp(logits) / np.exp(logits).sum()
    off = logits + np.array([0, 0.4, 0, 0])
    q = np.exp(off) / np.exp(off).sum()
    found = relative_error(q, p, DataType.float32, 9.0)
    assert found == pytest.approx(0.4 / 9, rel=0.02)
    # below the smallest normal float16 nothing is compared, above it everything
    assert relative_error(p * [1, 1, 1, 0.5], p, DataType.float16, 9.0) == 0.0
    assert relative_error(p * [1, 1, 1, 1e4], p, DataType.float16, 9.0) > 0.1
    assert relative_error(np.array([1.0, 2.0]), np.array([1.0, 4.0]), DataType.float16) == 0.5
    assert relative_error(np.zeros(2), np.zeros(2), DataType.float16) == 0.0
    assert np.isnan(relative_error(np.array([1.0, np.nan]), np.array([1.0, 4.0]), DataType.float16))
    assert np.isnan(relative_error(np.array([np.nan, 1.0]), np.array([0.5, 0.5]), DataType.float16, 1.0))


def test_macs_are_counted_twice_the_same(model):
    opened = open_source(Source(model, load_machine("edge")))
    compiled = compile_plan(opened.compiler, default_plan(opened.unit))
    # conv 20x12x10x(3x3x3), conv 40x5x6x(20x3x3) after the pool, Gemm 40x10
    by_hand = 20 * 10 * 12 * 27 + 40 * 5 * 6 * 180 + 400
    assert model_macs(opened.model) == opened.unit.macs == by_hand
    assert by_hand <= program_macs(compiled) < 20 * by_hand


def test_a_model_that_kills_onnxruntime_is_one_line(tmp_path):
    """SplitToSequence into pieces of size 0 passes the checker; onnxruntime divides by it."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", "c", "h", "w")) for name in "xy"]
    nodes = [helper.make_node("SplitToSequence", ["x", "s"], ["q"], axis=1), helper.make_node("ConcatFromSequence", ["q"], ["y"], axis=1)]
    zero = numpy_helper.from_array(np.array(0, np.int64), "s")
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [zero])
    path = tmp_path / "killer.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    onnx.checker.check_model(str(path))
    with pytest.raises(BadInputError, match=r"killer.onnx: onnxruntime (died on|cannot run) its body"):
        reference(path, {"x": np.zeros((1, 4, 2, 2), np.float32)})


def test_a_child_that_dies_or_hangs_is_one_line(compiled, monkeypatch, tmp_path):
    shell = tmp_path / "python"
    for script, message in (("kill -SEGV $$", r"died on its body \(signal 11\)"), ("exec sleep 60", "not done with its body after 0.2 s")):
        shell.write_text(f"#!/bin/sh\n{script}\n")
        shell.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(shell))
        with pytest.raises(BadInputError, match=message):
            reference(compiled, {"x": np.zeros((1, 3, 20, 24), np.float32)}, timeout_s=0.2 if "sleep" in script else 60)


# --- files of a run --------------------------------------------------------------------------------------------------------------


def test_log_commands(cli, tmp_path):
    run = tmp_path / "run"
    with RunLog(run, Origin(run="r1", model="net", machine="tiny", simulator="1"), (FeatureSet("s", ("m",)),)):
        pass
    assert cli("log", "verify", run)[0] == 0
    assert cli("log", "compact", run, "--out", tmp_path / "small")[0] == 0
    assert cli("log", "verify", tmp_path / "small")[0] == 0
    (run / "log" / "notes.txt").write_text("not a part")
    code, out, _ = cli("log", "verify", run)
    assert code == 1
    assert "notes.txt" in out
    assert cli("log", "repair", run)[0] == 0
    assert json.loads(cli("log", "verify", run, "--json")[1])["faults"] == []
    assert cli("log", "verify", tmp_path / "nowhere")[0] == 2


@pytest.mark.parametrize("name", ["config", "machine", "plan", "summary"])
def test_schemas_are_printed(cli, name):
    code, out, _ = cli("schema", name)
    schema = json.loads(out)
    assert code == 0
    assert schema["additionalProperties"] is False
    assert {"config": "search", "machine": "clock_hz", "plan": "segments", "summary": "levels"}[name] in schema["properties"]


def test_an_lrn_adds_no_macs_to_the_model():
    model = small_model("lrn_chain")
    unit = make_unit(lower(model), load_machine("edge"), DataType.float16)
    assert npu_macs(unit, model) == model_macs(onnx.shape_inference.infer_shapes(model)) < unit.macs
