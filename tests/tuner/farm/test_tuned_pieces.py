"""Models in several pieces: compiled, tuned, run and looked at, by every command; the values are onnxruntime's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest

from compiler.build import containers_of, default_plans, measure, package
from compiler.model import ModelSpec, lower_model
from compiler.plan.plan import Plan, parse_plan
from simulator.compiled import read_compiled
from simulator.npu.errors import BadInputError, InfeasibleError, UnsupportedError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.onnx_container import read_container
from simulator.session import InferenceSession
from tests.messages import naming
from tests.models import Builder
from tests.piece_models import IN_PIECES, WIDTH, piece_model
from tests.tuning import quick
from tuner.cli import main
from tuner.farm.subgraph_searches import share_budget
from tuner.log.read import read_log
from tuner.runs.list_runs import open_run
from tuner.runs.progress import compare_runs, read_progress
from tuner.verify.check import check_file, random_feeds

EDGE = load_machine("edge")


def saved(name: str, folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    onnx.save(piece_model(name), path)
    return path


def compiled(name: str, folder: Path, style: Any = "function") -> Path:
    opened = lower_model(ModelSpec(saved(name, folder), EDGE))
    measured = measure(opened, dict.fromkeys(EDGE.contention, default_plans(opened)))
    package(opened, containers_of(opened, measured), folder / f"{style}.onnx", style)
    return folder / f"{style}.onnx"


def stock(path: Path, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.parametrize("name", IN_PIECES)
def test_values_are_those_of_the_original_model(name: str, tmp_path: Path) -> None:
    """Of the containers, of the file's bodies on stock onnxruntime, and of the model, all the same."""
    out = compiled(name, tmp_path)
    onnx.checker.check_model(onnx.load(out), full_check=True)
    session = InferenceSession(out)
    assert [piece.name for piece in session.compiled.pieces] == [f"Partition{k}" for k in range(len(IN_PIECES[name].pieces))]
    feeds = random_feeds(session, 3)
    expected = stock(tmp_path / f"{name}.onnx", feeds)
    for mine, body, theirs in zip(session.run(None, feeds, level="severe"), stock(out, feeds), expected, strict=True):
        np.testing.assert_allclose(body, theirs, rtol=1e-4, atol=1e-4)
        if theirs.dtype == np.float32:
            assert np.abs(mine - theirs).max() <= 1e-2 * np.abs(theirs).max()
            assert not np.array_equal(mine, theirs)  # float16 on the NPU: the bodies did not run
        else:
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", ["chain", "crossed", "detector"])
def test_check_passes_and_cycles_are_sums(name: str, tmp_path: Path) -> None:
    out = compiled(name, tmp_path)
    model = read_compiled(out)
    for checked in check_file(out):
        assert checked.faults == ()
        assert checked.cycles[checked.level] == sum(piece.container.variant(checked.level).cycles[checked.level] for piece in model.pieces)
    with pytest.raises(BadInputError, match=rf"holds {len(model.pieces)} containers, expected one"):
        read_container(out)


def test_each_piece_is_checked_on_its_own(tmp_path: Path) -> None:
    """A file in which one piece's container is another's is refused, and one whose constants were changed has other values."""
    out = compiled("chain", tmp_path)
    model = onnx.load(out)
    nodes = [node for node in model.graph.node if node.domain == "tilefarm"]
    nodes[0].attribute[1].t.raw_data, nodes[2].attribute[1].t.raw_data = nodes[2].attribute[1].t.raw_data, nodes[0].attribute[1].t.raw_data
    onnx.save(model, tmp_path / "swapped.onnx")
    with pytest.raises(BadInputError, match="its container has inputs"):
        InferenceSession(tmp_path / "swapped.onnx")
    del nodes[1].attribute[1]
    onnx.save(model, tmp_path / "less.onnx")
    with pytest.raises(BadInputError, match=naming("3 compiled nodes", "2 containers")):
        InferenceSession(tmp_path / "less.onnx")


def test_a_plan_says_which_segments_are_whose(tmp_path: Path) -> None:
    opened = lower_model(ModelSpec(saved("chain", tmp_path), EDGE))
    plan = default_plans(opened)
    assert [(piece.name, piece.segments) for piece in plan.pieces] == [("Partition0", 1), ("Partition1", 2), ("Partition2", 1)]
    assert parse_plan(plan.to_json()) == plan
    assert [plan.piece(k).segments for k in range(3)] == [plan.segments[:1], plan.segments[1:3], plan.segments[3:]]
    with pytest.raises(BadInputError, match=naming("pieces", "4 segments", 3)):
        parse_plan(plan.model_copy(update={"segments": plan.segments[1:]}).to_json())
    with pytest.raises(BadInputError, match=naming("p", "Partition0, Partition1, Partition2", "chain")):
        measure(opened, {"none": plan.piece(0)}, {"none": "p"})
    with pytest.raises(UnsupportedError, match=naming("chain", "3 pieces")):
        _ = opened.target_graph


def test_plan_of_one_piece_is_written_unchanged() -> None:
    plan = Plan(model="m", machine="n", dtype="float16", segments=())
    assert "pieces" not in json.loads(plan.to_json())


def test_piece_that_does_not_fit_stays_on_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1024 channels of three rows and three columns are 18 KB."""
    b = Builder(np.random.default_rng(0), (1, WIDTH, 14, 14))
    wide = b.conv(b.node("Sin", [b.conv("x", WIDTH)]), 1024, (1, 1), pads=(0,) * 4)
    model = tmp_path / "wide.onnx"
    onnx.save(b.model(b.conv(wide, WIDTH)), model)
    assert main(["compile", str(model), "--machine", "edge:buffers_bytes.L1=16384", "--out", str(tmp_path / "out.onnx"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [piece["first_operator"] for piece in report["pieces"]] == [b.nodes[0].output[0]]
    left = [node for node in report["host"] if not node["refused"]]
    assert [node["op"] for node in left] == ["Conv", "Conv"]
    assert all("does not fit edge-buffers_bytes.l1-16384: t" in node["why"] for node in left)
    assert main(["compile", str(model), "--machine", "edge:buffers_bytes.L1=16384", "--out", str(tmp_path / "out.onnx")]) == 0
    assert any(
        line.startswith("host, 94.7% of MACs: 2 nodes (Conv), first Conv 't7': supported, but does not fit")
        for line in capsys.readouterr().out.splitlines()
    )
    assert main(["run", str(tmp_path / "out.onnx"), "--input", "random", "--check"]) == 0
    with pytest.raises(InfeasibleError, match="none of 2 pieces fits"):
        lower_model(ModelSpec(model, load_machine("edge:buffers_bytes.L1=1024")))


def test_bert_with_its_table_outside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """int64 token ids: the host looks them up, all that is computed is one piece."""
    assert main(["compile", "made:bert_base-small,lookup=1", "--machine", "edge", "--out", str(tmp_path / "bert.onnx"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["npu_mac_share"] == 1
    assert [node["op"] for node in report["host"]] == ["Gather"]
    assert main(["run", str(tmp_path / "bert.onnx"), "--input", "random", "--check"]) == 0


# tuning ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pieces")
    quick(saved("chain", folder), folder / "RUN", 18)
    return folder


def test_a_run_has_one_search_for_each_piece(tuned: Path) -> None:
    run = tuned / "RUN"
    summary = json.loads((run / "summary.json").read_text())
    log = read_log(run)
    programs = log[log["kind"] == "program"].groupby(log["run"].astype("str"))["seq"].nunique().to_dict()
    assert [piece["piece"] for piece in summary["pieces"]] == ["Partition0", "Partition1", "Partition2"]
    assert list(programs) == [piece["search"] for piece in summary["pieces"]]
    assert sum(programs.values()) == summary["candidates"] == 18
    assert programs[summary["pieces"][1]["search"]] > programs[summary["pieces"][0]["search"]]  # twice the work
    for level, row in summary["levels"].items():
        assert row["cycles"] == sum(piece["cycles"][level] for piece in summary["pieces"]) <= row["baseline_layerwise_cycles"]
        best = log[(log["kind"] == "program") & (log["status"] == "ok") & (log["level"] == level)].groupby(log["run"].astype("str"))
        assert summary["robust"]["own_cycles"][level] == int(best["cycles"].min().sum())
        assert row["program_bound_cycles"] <= row["cycles"]
        assert row["max_rel_error"] <= 1e-2
    assert pd.read_parquet(run / "log").shape == log.shape
    now = read_progress(open_run(run))
    assert now.best == summary["robust"]["own_cycles"]
    assert now.programs == 18


def test_extended_run_equals_a_longer_one(tuned: Path, tmp_path: Path) -> None:
    model = tuned / "chain.onnx"
    quick(model, tmp_path / "RUN", 9)
    quick(model, tmp_path / "RUN", 18, resume=True)
    assert (tmp_path / "RUN" / "best.onnx").read_bytes() == (tuned / "RUN" / "best.onnx").read_bytes()
    key = ["run", "seq", "level", "task", "cycles"]
    mine, theirs = (read_log(run)[key].sort_values(key[:3]).reset_index(drop=True) for run in (tmp_path / "RUN", tuned / "RUN"))
    pd.testing.assert_frame_equal(mine, theirs)
    assert compare_runs(open_run(tmp_path / "RUN"), open_run(tuned / "RUN")).candidates == 18


def test_equal_pieces_are_searched_once(tmp_path: Path) -> None:
    summary = quick(saved("blocks", tmp_path), tmp_path / "RUN", 8)
    assert len({piece.search for piece in summary.pieces}) == 1
    assert len({tuple(piece.cycles.items()) for piece in summary.pieces}) == 1
    served = json.loads((tmp_path / "RUN" / "pieces.json").read_text())["searches"]
    assert [row["pieces"] for row in served] == [["Partition0", "Partition1", "Partition2"]]
    assert read_progress(open_run(tmp_path / "RUN")).best == summary.own_cycles


def test_every_command_takes_it(tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, best = tuned / "RUN", str(tuned / "RUN" / "best.onnx")
    summary = json.loads((run / "summary.json").read_text())
    cycles = summary["levels"]["severe"]["cycles"]
    commands = {
        "simulate": ["simulate", best, "--json"],
        "segments": ["simulate", best, "--level", "severe", "--segments", "--json"],
        "served": ["simulate", best, "--trace", "step:1", "--inferences", "30", "--json"],
        "trace": ["trace", best, "--level", "severe", "--out", str(tmp_path / "t.json")],
        "trace2": ["trace", best, "--trace", "step:1", "--inferences", "30", "--out", str(tmp_path / "s.json")],
        "disasm": ["disasm", best, "--level", "severe"],
        "run": ["run", best, "--input", "random", "--level", "severe", "--check", "--json"],
        "export": ["export", str(run), "--out", str(tmp_path / "again.onnx"), "--json"],
        "digest": ["export", str(run), "--plan", summary["levels"]["severe"]["plan"], "--out", str(tmp_path / "one.onnx"), "--json"],
        "show": ["plan", "show", str(run / "plans" / "severe.json")],
        "primitives": ["plan", "show", str(run / "plans" / "severe.json"), "--primitives"],
        "compile": ["compile", str(tuned / "chain.onnx"), "--machine", "edge", "--plan", str(run / "plans" / "severe.json"),
                    "--out", str(tmp_path / "c.onnx"), "--json"],
        "report": ["report", str(run)],
        "status": ["status", str(run)],
        "best": ["best", str(run)],
        "ls": ["ls", str(tuned)],
        "verify": ["log", "verify", str(run)],
    }  # fmt: skip
    out = {}
    for name, words in commands.items():
        assert main(words) == 0, name
        out[name] = capsys.readouterr().out
    simulated = json.loads(out["simulate"])
    assert simulated["levels"]["severe"]["cycles"] == cycles == sum(piece["cycles"]["severe"] for piece in simulated["pieces"])
    segments = json.loads(out["segments"])["levels"]["severe"]["segments"]
    assert sum(row["own_cycles"] for row in segments) == cycles
    assert [row["segment"] for row in segments] == list(range(len(segments)))
    assert segments[-1]["last_operator"] == summary["pieces"][-1]["last_operator"]
    assert json.loads(out["served"])["result"]["inferences"] == 30
    assert out["disasm"].count("# edge float16 level severe Partition") == 3
    assert json.loads(out["run"])["check"]["ok"]
    assert (tmp_path / "again.onnx").read_bytes() == (run / "best.onnx").read_bytes()
    assert json.loads(out["digest"])["levels"]["severe"]["cycles"] == json.loads(out["compile"])["levels"]["severe"]["cycles"] == cycles
    assert "Partition1" in out["show"]
    shown = {line for line in out["primitives"].splitlines() if line.startswith("# segment")}
    assert len(shown) == sum(row["operators"] for row in segments), "of every operator, in each of its blocks"
    events = json.loads((tmp_path / "t.json").read_text())
    assert events["otherData"]["cycles"] == cycles


def test_budget_is_dealt_by_work_and_never_withdrawn() -> None:
    weights = [50, 30, 15, 1]
    before = share_budget(4, weights)
    assert before == [1, 1, 1, 1] == share_budget(0, weights)
    assert [sum(share_budget(count, weights, 2)) for count in (0, 8, 9)] == [8, 8, 9]
    for count in range(5, 200):
        now = share_budget(count, weights)
        assert sum(now) == count
        assert all(a <= b for a, b in zip(before, now, strict=True))
        before = now
    shares = [share / sum(before) for share in before]
    assert shares == pytest.approx([weight / sum(weights) for weight in weights], abs=0.02)


def test_every_piece_has_a_program_for_every_grant(tmp_path: Path) -> None:
    """Also where the budget would be one program less."""
    machine = "edge:contention.severe.l1_bytes=65536"
    summary = quick(saved("towers", tmp_path), tmp_path / "run", 2, machine=machine)
    log = read_log(tmp_path / "run")
    programs = log[log["kind"] == "program"].groupby("run")["task"].nunique()
    assert len(programs) > 1
    assert (programs == 2).all()
    assert all(level.speedup >= 1 for level in summary.levels.values())
    assert {"baseline.json", "baseline.severe.json"} <= {path.name for path in (tmp_path / "run" / "plans").iterdir()}


def test_float32_too(tmp_path: Path) -> None:
    opened = lower_model(ModelSpec(saved("towers", tmp_path), EDGE, DataType.float32))
    measured = measure(opened, {"none": default_plans(opened)})
    package(opened, containers_of(opened, measured), tmp_path / "out.onnx")
    (checked,) = check_file(tmp_path / "out.onnx")
    assert checked.faults == ()
