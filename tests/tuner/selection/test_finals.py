"""A champion of a noisy board is measured again beside its rivals before it is named one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from compiler.build import compile_plan
from compiler.model import LoweredModel, ModelSpec, lower_model
from compiler.plan.plan import Plan
from simulator.npu.container_file import decode
from simulator.npu.errors import BadInputError, TilefarmError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.messages import naming
from tests.tuning import quick, save_small
from tuner.farm.board_finals import FinalsWorker, read
from tuner.farm.isolated_map import each_here
from tuner.log.read import read_log, read_tasks
from tuner.measure.encode_program import encoded
from tuner.measure.runner_api import Bench, Encoded, Reading, Runner
from tuner.measure.simulator_runner import measure
from tuner.selection.finals import BoardFailedError, Contender, Verdict, contenders, decide_finals, finalists
from tuner.selection.race import FAILED, Turn

LEVELS = ("none", "slight", "severe")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LoweredModel]:
    folder = tmp_path_factory.mktemp("run")
    model = save_small("conv_chain", folder)
    quick(model, folder / "run", 24)
    return folder / "run", lower_model(ModelSpec(model, load_machine("edge"), DataType.float16))


def decided(run: tuple[Path, LoweredModel], board: Runner, budget: int = 9) -> Verdict:
    folder, opened = run
    summary = json.loads((folder / "summary.json").read_text())
    plans = finalists(read_log(folder), read_tasks(folder), summary["run"], LEVELS, 3)
    (packed,) = opened.packed
    # one of the best may be the same program as another, by a plan that differs in what has no effect
    baseline = Plan.model_validate_json((folder / "plans" / "baseline.json").read_text())
    *entered, base = contenders(packed, [*(plan for plan in plans if plan.digest != baseline.digest), baseline], LEVELS)
    worker = FinalsWorker(Bench(board), tuple(each.program for each in (*entered, base)))
    with each_here(lambda: worker) as farm:
        return decide_finals(entered, base, LEVELS, budget, partial(read, farm))


def test_the_best_programs_of_every_level_are_finalists(run: tuple[Path, LoweredModel]) -> None:
    folder, _ = run
    log = read_log(folder)
    plans = finalists(log, read_tasks(folder), log["run"].iloc[0], LEVELS, 2)
    digests = {plan.digest for plan in plans}
    levels = json.loads((folder / "summary.json").read_text())["levels"]
    assert {levels[level]["plan"] for level in LEVELS} <= digests
    assert 2 <= len(plans) == len(digests) <= 6
    # neither what another search measured nor what failed is one
    run_id, tasks = log["run"].iloc[0], read_tasks(folder)
    more = pd.concat([log, log.assign(run="another", cycles=log["cycles"][::-1].to_numpy())])
    assert finalists(more, tasks, run_id, LEVELS, 2) == plans
    best = log[log["kind"] == "program"].sort_values("cycles")["task"].iloc[0]
    failed = log.assign(status=log["status"].astype("str").where(log["task"] != best, "timeout"))
    rest = finalists(failed, tasks, run_id, LEVELS, 10_000)
    assert len(rest) == len(finalists(log, tasks, run_id, LEVELS, 10_000)) - 1


def test_plan_of_an_earlier_version_is_refused(run: tuple[Path, LoweredModel]) -> None:
    log, tasks = read_log(run[0]), read_tasks(run[0])
    task = log[(log["kind"] == "program") & (log["level"] == "none")].sort_values(["cycles", "task"])["task"].iloc[0]
    earlier = tasks["payload"].astype("str").str.replace('"ahead_kib":0', '"ahead_kib":64')
    with pytest.raises(BadInputError, match=rf"^task {task}: segments\.0\.ahead_kib: "):
        finalists(log, tasks.assign(payload=earlier), log["run"].iloc[0], ["none"], 1)


def test_simulator_board_gives_the_simulators_answers(run: tuple[Path, LoweredModel]) -> None:
    verdict = decided(run, measure, 400)
    for finalist in (*verdict.finalists, *verdict.baselines):
        assert finalist.cycles == finalist.contender.simulated
        assert set(finalist.readings.values()) == {2}, "it says the same twice"
        assert set(finalist.spread.values()) == {0.0}
    for level in LEVELS:
        best = min(finalist.contender.simulated[level] for finalist in verdict.finalists)
        assert verdict.cycles(verdict.plans[level], level) == best
        for finalist in verdict.finalists:
            slower = finalist.contender.simulated[level] > best
            chosen = finalist.contender.plan == verdict.plans[level]
            assert finalist.standing[level] == ("slower" if slower else "champion" if chosen else "not told apart")
    assert verdict.baselines[0].standing == {}


def test_board_gets_the_bytes_of_whole_programs(run: tuple[Path, LoweredModel]) -> None:
    seen: list[Encoded] = []

    def board(program: Encoded, level: str) -> Reading:
        seen.append(program)
        return Reading(5)

    verdict = decided(run, board, 1)
    container = decode(seen[0].container)
    weights, ours = np.frombuffer(container.constants, np.uint8), run[1].packed[0].constants
    assert np.array_equal(weights, ours[: len(weights)])
    assert weights.any()
    assert not ours[len(weights) :].any()
    assert sum(segment.operators for segment in container.variants[0].segments) == len(run[1].target_graphs[0].operators)
    # all equal: the simplest one wins at every level
    contenders = [each.contender for each in verdict.finalists]
    simplest = min(contenders, key=lambda each: (len(each.plan.segments), each.instructions, each.plan.digest))
    assert set(verdict.plans.values()) == {simplest.plan}


def test_program_failing_at_one_level_wins_nowhere(run: tuple[Path, LoweredModel]) -> None:
    def moody(program: Encoded, level: str) -> Reading:
        if level == "severe" and program.container == fastest:
            return Reading(None, "timeout", "gone")
        return measure(program, level)

    fastest = b""
    verdict = decided(run, moody, 3)
    chosen = verdict.plans["none"]
    simulated = next(finalist for finalist in verdict.finalists if finalist.contender.plan == chosen).contender.simulated
    (packed,) = run[1].packed
    fastest = encoded(packed, "program", compile_plan(run[1].compiler, chosen), chosen.segments, simulated).container
    again = decided(run, moody, 3)
    assert chosen not in again.plans.values()
    failed = next(finalist for finalist in again.finalists if finalist.contender.plan == chosen)
    assert failed.cycles["severe"] is None
    assert set(failed.standing.values()) == {"failed"}
    assert failed.cycles["none"] == verdict.cycles(chosen, "none")


def twins(run: tuple[Path, LoweredModel], *instructions: int) -> list[Contender]:
    """The baseline as contenders of so many instructions, the last one as the baseline."""
    plan = Plan.model_validate_json((run[0] / "plans" / "baseline.json").read_text())
    (packed,) = run[1].packed
    (one,) = contenders(packed, [plan], LEVELS)
    return [replace(one, plan=plan.model_copy(update={"model": f"{count}"}), instructions=count) for count in instructions]


def test_simplest_is_by_segments_instructions_then_digest(run: tuple[Path, LoweredModel]) -> None:
    short, long, base = twins(run, 900, 1000, 5)
    fewer = replace(long, plan=long.plan.model_copy(update={"segments": long.plan.segments[1:]}))
    for entered, simplest in (((long, short), short), ((short, fewer), fewer)):
        verdict = decide_finals(entered, base, LEVELS, 400, lambda turns: [[7] * len(turn.programs) for turn in turns])
        assert set(verdict.plans.values()) == {simplest.plan}
    same = replace(short, plan=short.plan.model_copy(update={"model": "x"}))
    assert short.simplicity[:2] == same.simplicity[:2]
    assert short.simplicity != same.simplicity


def test_spread_is_over_successful_readings(run: tuple[Path, LoweredModel]) -> None:
    one, other, base = twins(run, 1, 2, 3)
    readings = {0: [1000, 1010, 990, 1020, 980, 0, 5000], 1: [0, 0, 0, 0, 2000, 2010, 2020], 2: [9000] * 7}
    rounds = {level: iter(range(7)) for level in LEVELS}

    def board(turns: Sequence[Turn]) -> list[list[int]]:
        return [[readings[program][at] for program in turn.programs] for turn in turns for at in [next(rounds[turn.level])]]

    verdict = decide_finals([one, other], base, LEVELS, 7, board)
    assert verdict.finalists[0].spread["none"] == round(1.4826 * 15 / 1005, 6)
    assert (verdict.finalists[1].spread["none"], verdict.finalists[1].cycles["none"]) == (0.0, None)
    assert verdict.baselines[0].spread["none"] == 0
    assert verdict.cycles(one.plan, "none") == 1005


def test_a_baseline_that_fails_is_said(run: tuple[Path, LoweredModel]) -> None:
    entered, base = twins(run, 1, 2)
    with pytest.raises(BoardFailedError, match=naming("baseline")):
        decide_finals([entered], base, LEVELS, 20, lambda turns: [[FAILED if at == 1 else 7 for at in turn.programs] for turn in turns])


def test_turn_that_kills_its_worker_is_reported() -> None:
    def gone(turn: Turn) -> list[int]:
        raise RuntimeError("gone")

    with (
        each_here(lambda: gone) as farm,
        pytest.raises(TilefarmError, match=naming("level slight", "RuntimeError: gone", "--resume")),
    ):
        list(read(farm, [Turn("slight", (0, 1))]))


def test_a_board_that_fails_is_said(run: tuple[Path, LoweredModel]) -> None:
    def dead(program: Encoded, level: str) -> Reading:
        return Reading(None, "timeout", "gone") if level == "slight" else Reading(5)

    with pytest.raises(BoardFailedError, match=naming("every finalist", "--resume")):
        decided(run, dead, 2)
