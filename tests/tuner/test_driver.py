"""A run is the same for any number of workers, after any resume and after any kill; its log, plans and file agree with its summary."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest

from compiler.model import LoweredModel, ModelSpec, lower_model
from compiler.plan.plan import Plan, parse_plan
from compiler.space.mutators import MOVES
from simulator.npu.container import Container
from simulator.npu.container_file import decode
from simulator.npu.errors import BadInputError, InfeasibleError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.onnx_container import read_container
from simulator.terminal import say
from simulator.timing import simulate_levels
from tests.messages import naming
from tests.models import Builder
from tests.tuning import QUICK, ROOT, Driver, GatheredPool, assert_equal_runs, plan_files, quick, save_small, sorted_log, sorted_tasks
from tuner import run_session
from tuner.cli import main
from tuner.config import load_config
from tuner.cost_model.model_file import load_trained
from tuner.farm import actor_pool, supervision
from tuner.log.read import read_log, read_tasks
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Measurement, Request
from tuner.runs.folder import read_json
from tuner.runs.repair import lost_rows, repair_run, verify_run
from tuner.study.run_study import run_cell, study
from tuner.summary import Summary
from tuner.tune_request import StudyRequest

LEVELS = ("none", "slight", "severe")
N = 48


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("residual_block", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run that others are compared with."""
    out = tmp_path_factory.mktemp("whole") / "run"
    quick(model, out, N)
    return out


@pytest.fixture(scope="module")
def opened(model: Path) -> LoweredModel:
    return lower_model(ModelSpec(model, load_machine("edge"), DataType.float16))


# the same run


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_the_number_of_workers_changes_nothing(
    model: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Each has the first job of its shard, which nobody does again for it, however long it takes."""
    monkeypatch.setattr(run_session, "ActorPool", GatheredPool)
    monkeypatch.setattr(actor_pool, "SILENCE_S", 600.0)
    monkeypatch.setattr(supervision, "LATE_S", 600.0)
    monkeypatch.setattr(supervision, "HELPS", float("inf"))
    quick(model, tmp_path / "run", N, backend="ray", workers=workers)
    assert_equal_runs(tmp_path / "run", whole)
    assert {name.partition("@")[0] for name in read_log(tmp_path / "run")["worker"]} == {f"w{slot}" for slot in range(workers)}


def test_another_seed_is_another_run(model: Path, whole: Path, tmp_path: Path) -> None:
    summary = quick(model, tmp_path / "run", 24, seed=1)
    assert summary.run != read_json(whole / "summary.json")["run"]
    mine, theirs = (set(read_log(run).query("kind == 'program'")["task"]) for run in (tmp_path / "run", whole))
    assert mine - theirs


# resume


@pytest.mark.parametrize("first", [1, 24])
def test_continued_run_equals_one_of_the_whole_budget(model: Path, whole: Path, tmp_path: Path, first: int) -> None:
    run = tmp_path / "run"
    assert quick(model, run, first).candidates == first
    before = sorted_log(run)
    quick(model, run, N, resume=True)
    assert_equal_runs(run, whole)
    pd.testing.assert_frame_equal(sorted_log(run).head(len(before)), before, check_categorical=False)
    assert len(read_json(run / "models" / "history.json")) >= 6, "two trainings of three levels: models come back from models/"


def test_rows_beyond_the_checkpoint_teach_no_model(model: Path, whole: Path, tmp_path: Path) -> None:
    """Checkpoints far apart: a resumed run trains again in the middle of what is in its log."""
    run = tmp_path / "run"
    quick(model, run, 40, "farm.checkpoint_every_s=1000")
    quick(model, run, N, resume=True)
    assert_equal_runs(run, whole)


def test_damaged_log_is_reported_and_repaired_run_continues(model: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    quick(model, run, 12)
    (run / "log" / "00000002.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInputError, match=naming(f"{run}/log/00000002.parquet", f"`tilefarm log repair {run}`")):
        quick(model, run, N, resume=True)
    repair_run(run)
    with pytest.raises(BadInputError, match=r"state\.json: .* \d+ measured tasks"):
        quick(model, run, N, resume=True)
    (run / "checkpoint" / "state.json").unlink()
    quick(model, run, N, resume=True)
    assert verify_run(run) == []
    assert_equal_runs(run, whole)


def test_rows_lost_behind_the_checkpoint_are_remeasured(
    model: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint counts none of it, so the run goes on, and is the one that lost nothing."""
    run, far = tmp_path / "run", "farm.checkpoint_every_s=1000"
    quick(model, run, 12, far)
    shutil.copytree(run / "checkpoint", tmp_path / "earlier")
    quick(model, run, 24, far, resume=True)
    shutil.rmtree(run / "checkpoint")
    shutil.copytree(tmp_path / "earlier", run / "checkpoint")
    last = sorted((run / "log").iterdir())[-1]
    last.unlink()
    with pytest.raises(BadInputError, match=naming(last, "missing", f"`tilefarm log repair {run}`")):
        quick(model, run, N, far, resume=True)
    repair_run(run)
    assert (lost := lost_rows(run)["log"]) > 0
    quick(model, run, N, far, resume=True, quiet=False)
    assert f"{lost} rows of log and tasks were lost; they are measured again" in capsys.readouterr().err
    assert (verify_run(run), lost_rows(run)) == ([], {})
    assert_equal_runs(run, whole)


def test_crashing_candidates_are_rows_of_a_resumable_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Evaluator.measure

    def fragile(self: Evaluator, request: Request) -> Measurement:
        if any(gene.blocks == 3 for gene in request.genome):
            raise RuntimeError("three blocks")
        return measure(self, request)

    monkeypatch.setattr(Evaluator, "measure", fragile)
    summary = quick(model, tmp_path / "whole", 32)
    assert summary.failures["crash"] > 3
    log = read_log(tmp_path / "whole")
    crashed = log[log["status"] == "crash"]
    assert set(crashed["error"]) == {"RuntimeError: three blocks"}
    assert crashed["cycles"].isna().all()
    assert crashed["seq"].nunique() == summary.failures["crash"]
    quick(model, tmp_path / "run", 20)
    quick(model, tmp_path / "run", 32, resume=True)
    assert_equal_runs(tmp_path / "run", tmp_path / "whole")


def test_finished_run_resumed_with_own_budget_is_unchanged(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    quick(model, run, 12)
    log, plans = sorted_log(run), plan_files(run)
    assert quick(model, run, 12, resume=True).candidates == 12
    pd.testing.assert_frame_equal(sorted_log(run), log)
    assert plan_files(run) == plans


@pytest.mark.parametrize(
    ("number", "options", "expected", "word"),
    [
        (signal.SIGINT, ("--backend", "serial"), 130, "interrupted"),
        (signal.SIGTERM, ("--backend", "serial"), 143, "terminated"),
        (signal.SIGTERM, ("--workers", "1"), 143, "terminated"),  # Ray has a handler of its own
    ],
)
def test_a_signal_leaves_a_run_that_resumes(
    number: signal.Signals, options: tuple[str, ...], expected: int, word: str, model: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    driver = Driver(model, run, 100_000, options=options)
    driver.wait_for_parts(4)
    code, errors = driver.stop(number)
    assert code == expected, errors
    assert "Traceback" not in errors
    assert errors.splitlines()[-2:] == [f"{run}: --resume continues it", f"tilefarm: {word}"]
    reached = len(read_log(run))
    assert reached
    quick(model, run, N, resume=True)
    ours, theirs = sorted_log(run), sorted_log(whole)
    both = min(len(ours), len(theirs))
    pd.testing.assert_frame_equal(ours.head(both), theirs.head(both), check_categorical=False)
    assert len(ours) >= reached


# the log, the plans, the file


def test_the_log_agrees_with_the_summary(whole: Path) -> None:
    summary = Summary.model_validate(read_json(whole / "summary.json"))
    log = pd.read_parquet(whole / "log")
    programs = log[(log["kind"] == "program") & (log["status"] == "ok")]
    best = programs.groupby("level", observed=True)["cycles"].min().to_dict()
    assert best == summary.own_cycles
    assert list(summary.levels) == list(LEVELS)
    assert log[log["kind"] == "program"]["seq"].nunique() == summary.candidates == N
    assert log["seq"].nunique() == summary.tasks
    assert (log.groupby("seq")["level"].nunique() == len(LEVELS)).all()
    assert log["row_id"].is_unique
    bad = log[log["status"] != "ok"].drop_duplicates("seq")["status"].astype(str).value_counts().to_dict()
    assert bad == summary.failures
    for level, row in summary.levels.items():
        fastest = programs[(programs["level"] == level) & (programs["cycles"] == row.cycles)]
        assert set(fastest["roofline_cycles"]) == {row.roofline_cycles}
        assert row.ddr_bytes in set(fastest["ddr_read_bytes"] + fastest["ddr_write_bytes"])
        assert row.roofline_cycles <= row.cycles
        assert max(row.bound.engines, row.bound.prefetch, row.bound.traffic) == row.bound.cycles <= row.cycles
        assert row.bound.ddr_bytes <= row.ddr_bytes
        assert row.program_bound_cycles <= row.cycles <= row.baseline_layerwise_cycles
        assert row.cycles == row.variant_cycles[level]
        assert summary.own_cycles[level] <= min(row.variant_cycles.values()), "nothing is faster at a level than its champion"
        assert row.cycles == summary.own_cycles[level] or level in {each.level for each in summary.robust.displaced}  # type: ignore[union-attr]
        assert 0 < row.max_rel_error < 0.01
        assert row.latency_us == pytest.approx(row.cycles / 1000)
    assert (programs["cycles"] >= programs["roofline_cycles"]).all()


def test_log_has_proposers_of_tasks_and_their_programs(whole: Path) -> None:
    log, tasks = read_log(whole), read_tasks(whole).set_index("task")
    assert log["proposed_by"].notna().all()
    assert (log.groupby("seq")["proposed_by"].nunique() == 1).all()
    programs = log[log["kind"] == "program"].drop_duplicates("seq")
    assert programs["proposed_by"].iloc[0] == "baseline"
    first = dict(zip(programs["task"], programs["seq"], strict=True))
    others = {"baseline", "prediction", "shortest path", "placement", "random"}
    children = 0
    for row in programs.itertuples():
        parents, moves = tasks.at[row.task, "parents"].split(), set(row.proposed_by.split(","))
        assert all(first[parent] < row.seq for parent in parents)
        assert bool(parents) == (not moves & others)
        assert moves <= {*MOVES, "crossover"} or moves <= others
        children += bool(parents)
    assert children


def test_predictions_name_the_model_that_made_them(whole: Path) -> None:
    log = read_log(whole)
    segments = log[(log["kind"] != "program") & log["model_version"].notna()]
    assert len(segments)
    assert segments["predicted_cycles"].notna().all()
    kept = {load_trained(path).model.version for path in (whole / "models").glob("*.model")}
    for _, rows in segments.groupby("level", observed=True):
        assert set(rows["model_version"]) <= kept, "one model for all levels"


def test_every_logged_task_is_there_with_its_features(whole: Path) -> None:
    log, tasks = read_log(whole), read_tasks(whole)
    assert tasks["task"].is_unique
    assert set(log["task"]) == set(tasks["task"])
    kinds = dict(zip(tasks["task"], tasks["kind"], strict=True))
    assert all(kinds[task] == kind for task, kind in zip(log["task"], log["kind"], strict=True))
    features = tasks[[name for name in tasks.columns if name.startswith("f_")]]
    assert np.isfinite(features.to_numpy(np.float64)).all()


def test_equal_tasks_have_equal_results(whole: Path) -> None:
    log = read_log(whole)
    assert (log.groupby(["task", "level"], observed=True)["cycles"].nunique(dropna=False) == 1).all()


def test_program_payloads_compile_again_to_equal_cycles(whole: Path, opened: LoweredModel) -> None:
    log, tasks = read_log(whole), read_tasks(whole)
    programs = tasks[tasks["kind"] == "program"]
    assert len(programs) > N // 2
    for task, payload in zip(programs["task"], programs["payload"], strict=True):
        plan = Plan.model_validate(json.loads(payload)["plan"])
        timings = simulate_levels(opened.compiler.compile(plan), opened.target_graph.machine, LEVELS)
        rows = log[log["task"] == task]
        assert {level: timings[level].cycles for level in LEVELS} == dict(zip(rows["level"], rows["cycles"], strict=True))


def container(run: Path) -> Container:
    return decode(read_container(run / "best.onnx"))


def test_plans_compile_again_to_the_containers_bytes(whole: Path, opened: LoweredModel) -> None:
    summary = Summary.model_validate(read_json(whole / "summary.json"))
    packed = container(whole)
    for level, row in summary.levels.items():
        plan = parse_plan((whole / "plans" / f"{level}.json").read_bytes())
        assert plan.digest == row.plan == packed.variant(level).plan_digest
        program = opened.compiler.compile(plan)
        for mine, theirs in zip(program.streams, packed.variant(level).streams, strict=True):
            assert np.array_equal(mine, theirs)
        timings = simulate_levels(program, opened.target_graph.machine, LEVELS)
        assert timings[level].cycles == row.cycles
    baseline = parse_plan((whole / "plans" / "baseline.json").read_bytes())
    assert all(len(segment.operators) == 1 for segment in baseline.segments)
    timings = simulate_levels(opened.compiler.compile(baseline), opened.target_graph.machine, LEVELS)
    assert {level: timings[level].cycles for level in LEVELS} == {
        level: row.baseline_layerwise_cycles for level, row in summary.levels.items()
    }


MEASURE_AGAIN = """
import json, sys
from pathlib import Path
from simulator.npu.container import program
from simulator.npu.container_file import decode
from simulator.onnx_container import read_container
from simulator.timing import simulate_levels

container = decode(read_container(Path(sys.argv[1])))
levels = container.levels
print(json.dumps({
    at: {level: simulate_levels(program(container, level), container.machine, levels)[at].cycles for level in levels} for at in levels
}))
"""


def test_a_fresh_process_measures_every_number_again(whole: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_AGAIN, str(whole / "best.onnx")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    summary = read_json(whole / "summary.json")
    assert json.loads(done.stdout) == {level: row["variant_cycles"] for level, row in summary["levels"].items()}


def test_the_summary_follows_its_schema(whole: Path) -> None:
    schema = Summary.model_json_schema()
    raw = read_json(whole / "summary.json")
    jsonschema.validate(raw, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**raw, "candidates": "many"}, schema)
    assert json.loads(Summary.model_validate(raw).model_dump_json()) == raw


# budgets


@pytest.mark.parametrize("count", [1, 5])
def test_a_budget_of_candidates_is_exact(model: Path, tmp_path: Path, count: int) -> None:
    summary = quick(model, tmp_path / "run", count)
    assert summary.candidates == count
    assert read_log(tmp_path / "run").query("kind == 'program'")["seq"].nunique() == count
    assert summary.budget.kind == "candidates"
    assert (summary.budget.requested, summary.budget.used) == (count, count)


def test_a_budget_of_seconds_ends(model: Path, tmp_path: Path) -> None:
    summary = quick(model, tmp_path / "run", None, seconds=1.0)
    assert summary.budget.kind == "seconds"
    assert summary.candidates >= 1
    assert summary.wall_s < 60
    jsonschema.validate(read_json(tmp_path / "run" / "summary.json"), Summary.model_json_schema())


def test_passed_deadline_still_leaves_a_result(model: Path, tmp_path: Path) -> None:
    summary = quick(model, tmp_path / "run", None, seconds=0.001)
    assert summary.candidates == 2, "the baseline, and what compile takes: the same at every level"
    assert all(row.speedup >= 1.0 for row in summary.levels.values())


# what is refused


def deep_model(folder: Path) -> Path:
    """One pixel of its input is larger than the L1 of `tiny`."""
    import onnx

    b = Builder(np.random.default_rng(0), (1, 40_000, 2, 2))
    path = folder / "deep.onnx"
    onnx.save(b.model(b.conv("x", 16, (1, 1), pads=(0, 0, 0, 0))), path)
    return path


def test_a_model_that_does_not_fit_is_infeasible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = deep_model(tmp_path)
    with pytest.raises(InfeasibleError, match=r"tiny: .*65,536 B of L1"):
        quick(path, tmp_path / "run", 4, machine="tiny")
    arguments = ["tune", str(path), "--machine", "tiny", "--out", str(tmp_path / "other"), "--backend", "serial", "--quiet"]
    assert main(arguments) == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "65,536 B of L1" in lines[0]


def test_an_unknown_level_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=naming("level 'heavy'", "none, slight, severe")):
        quick(model, tmp_path / "run", 4, level_weights={"heavy": 2.0})
    assert not (tmp_path / "run").exists()


def test_a_folder_with_another_run_is_refused(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    quick(model, run, 1)
    before = sorted_log(run)
    with pytest.raises(BadInputError, match="--resume continues it"):
        quick(model, run, 2)
    with pytest.raises(BadInputError, match="seed 0, not 1"):
        quick(model, run, 2, seed=1, resume=True)
    with pytest.raises(BadInputError, match=naming("search.proposed", "not 0.25", "model.rounds 20", "not 21")):
        quick(model, run, 2, "search.proposed=0.25", "model.rounds=21", "farm.wait_s=1", resume=True)
    with pytest.raises(BadInputError, match="another dtype than float32"):
        quick(model, run, 2, resume=True, dtype="float32")
    with pytest.raises(BadInputError, match="tag '', not 'a=b'"):
        quick(model, run, 2, resume=True, tag="a=b")
    pd.testing.assert_frame_equal(sorted_log(run), before)


def test_a_checkpoint_that_was_damaged_is_refused(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    quick(model, run, 20)
    path = run / "checkpoint" / "state.json"
    text = path.read_text()
    path.write_text(text.replace('"programs":', '"programs":1', 1))
    with pytest.raises(BadInputError, match="damaged"):
        quick(model, run, 24, resume=True)


# options


@pytest.mark.parametrize("part", ["cost_model", "window", "block_fusion", "cores", "placement", "halo_cache", "prefetch", "segmentations"])
def test_every_switch_runs(model: Path, whole: Path, tmp_path: Path, part: str) -> None:
    run = tmp_path / "run"
    if part == "segmentations":  # of the other model nothing is faster than layer by layer before 96 programs
        model = save_small("conv_chain", tmp_path)
    programs = {"segmentations": 64, "cost_model": 48}.get(part, 12)
    summary = quick(model, run, programs, f"use.{part}=false", machine="ascend310" if part in ("cores", "placement") else "edge")
    assert summary.candidates == programs
    log, tasks = read_log(run), sorted_tasks(run)
    plans = [Plan.model_validate(json.loads(text)["plan"]) for text in tasks[tasks["kind"] == "program"]["payload"]]
    segments = [segment for plan in plans for segment in plan.segments]
    assert any(len(segment.operators) > 1 for segment in segments)
    if part == "cost_model":
        assert log["model_version"].isna().all()
        assert log[log["kind"] != "program"]["predicted_cycles"].notna().any(), "by a formula"
        assert not summary.cost_model
        assert summary.tasks >= 60, "enough to have trained a model"
    elif part == "window":
        assert {(segment.window, segment.sliding) for segment in segments} == {(1, False)}
        whole_tasks = sorted_tasks(whole)
        assert any('"sliding":true' in text for text in whole_tasks["payload"]), "with it, windows are looked at"
    elif part == "prefetch":
        longer = [segment for segment in segments if len(segment.operators) > 1]
        assert {segment.spread for segment in longer} == {False}
    elif part == "segmentations":
        assert summary.levels["none"].speedup > 1, "evolution alone finds something"
    elif part == "halo_cache":
        assert not any(segment.halo for segment in segments)
    elif part == "block_fusion":
        assert {segment.blocks for segment in segments if len(segment.operators) > 1} == {1}
        alone = [json.loads(text)["plan"] for text in tasks[tasks["kind"] == "operator"]["payload"]]
        assert any(plan["blocks"] > 1 for plan in alone), "single operators still come in blocks"
        alone = [json.loads(text)["plan"] for text in tasks[tasks["kind"] == "segment"]["payload"]]
        assert {plan["blocks"] for plan in alone} == {1}, "no time is spent on measuring others either"
    elif part == "cores":
        assert {segment.cores for segment in segments} == {(0,)}
        assert "stage" not in set(tasks["kind"])
        assert all(len(plan["cores"]) == 1 for text in tasks[tasks["kind"] != "program"]["payload"] if (plan := json.loads(text)["plan"]))
    elif part == "placement":
        assert "stage" not in set(tasks["kind"])
        assert {segment.cores for segment in segments} == {(0, 1), (0,)}, "all of them, or what an operator without a second row can have"
        assert all(len(segment.operators) == 1 for segment in segments if segment.cores == (0,))


def test_a_search_for_two_cores_uses_both(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    quick(model, run, 20, machine="ascend310")
    tasks = sorted_tasks(run)
    plans = [Plan.model_validate(json.loads(text)["plan"]) for text in tasks[tasks["kind"] == "program"]["payload"]]
    assert {segment.cores for plan in plans for segment in plan.segments} == {(0,), (1,), (0, 1)}
    alone = [tuple(json.loads(text)["plan"]["cores"]) for text in tasks[tasks["kind"] == "operator"]["payload"]]
    assert set(alone) == {(0,), (0, 1)}, "which core it is does not matter to a task"
    assert len(container(run).variants) == 3


def test_level_weights_and_tags_are_heard(model: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    summary = quick(model, run, N, level_weights={"severe": 50.0}, tag="batch=1,team=a")
    assert summary.tags == {"batch": "1", "team": "a"}
    assert set(read_log(run)["tag"]) == {"batch=1,team=a"}
    mine, theirs = ([*log[log["kind"] == "program"].drop_duplicates("seq")["task"]] for log in (sorted_log(run), sorted_log(whole)))
    assert mine != theirs
    with pytest.raises(BadInputError, match=r"level_weights {'severe': 50\.0}, not {}"):
        quick(model, run, 60, resume=True, tag="batch=1,team=a")


def test_float32_and_the_other_style(model: Path, tmp_path: Path) -> None:
    summary = quick(model, tmp_path / "run", 8, dtype="float32", style="epcontext")
    assert all(row.max_rel_error < 1e-5 for row in summary.levels.values())
    assert container(tmp_path / "run").dtype == DataType.float32


# study


def study_request(model: Path, out: Path, trials: int, **values: object) -> StudyRequest:
    overrides = (*QUICK, "study.batch=2", "study.startup=2")
    return StudyRequest((model,), "edge", trials, out=out, measurements=240, overrides=overrides, backend="serial", quiet=True, **values)  # type: ignore[arg-type]


def same_study(summary: Any) -> Any:
    """Without what differs from one time to another."""
    return {**summary, "cpu_s": 0, "trials": [{**trial, "cpu_s": 0} for trial in summary["trials"]]}


@pytest.mark.slow
def test_study_of_real_runs_resumes_to_a_configuration(tmp_path: Path) -> None:
    small = save_small("conv_chain", tmp_path)
    summary = study(study_request(small, tmp_path / "whole", 4), say)
    assert summary["trials_done"] == 4
    assert summary["cpu_s"] > 0
    ended = [trial["value"] for trial in summary["trials"] if not trial["pruned"]]
    assert all(math.isfinite(value) and value < 0 for value in ended), "faster than layer by layer"
    study(study_request(small, tmp_path / "parts", 2), say)
    with pytest.raises(BadInputError, match="--resume continues"):
        study(study_request(small, tmp_path / "parts", 4), say)
    with pytest.raises(BadInputError, match="dtype float32"):
        study(study_request(small, tmp_path / "parts", 4, resume=True, dtype="float32"), say)
    assert same_study(study(study_request(small, tmp_path / "parts", 4, resume=True), say)) == same_study(summary)
    best = load_config(str(tmp_path / "whole" / "best.yaml"))
    assert best.digest == summary["best"]["config_digest"]
    assert best.search.generation == summary["best"]["params"]["search.generation"]


def test_search_in_steps_has_the_uninterrupted_curve(tmp_path: Path) -> None:
    model, config = str(save_small("conv_chain", tmp_path)), load_config(None, QUICK).replaced({"farm.backend": "serial"})
    counts = (20, 40, 80, 160)
    through = run_cell(model, "edge", config, 3, counts, str(tmp_path / "through")).levels
    for rung in (2, 3, 4):
        steps = run_cell(model, "edge", config, 3, counts[:rung], str(tmp_path / "steps")).levels
        assert steps == {level: row[:rung] for level, row in through.items()}
    assert all(row == sorted(row, reverse=True) and row[-1] < 0 for row in through.values())


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        ([], "run.json: not the identity of a run"),
        ("net", "run.json: not the identity of a run"),
        ({"warm_start": []}, "run.json: not the identity of a run"),
        ({"run": "r", "warm_start": 5}, "run.json: warm_start 5; a list is expected"),
        ({"run": "r", "start": None}, "run.json: start None; a list is expected"),
    ],
)
def test_resumed_folder_without_identity_is_one_line(
    model: Path, tmp_path: Path, identity: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(identity))
    assert main(["tune", str(model), "--machine", "edge", "--out", str(tmp_path), "--backend", "serial", "--resume"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
