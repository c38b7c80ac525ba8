"""A champion of a noisy board is measured again beside its rivals before it is named one."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from compiler.derive.plan import Plan
from simulator.npu.container import decode
from simulator.npu.machine import DataType, load_machine
from tests.tuning import quick, save_small
from tuner.build import Opened, compile_plan, open_source
from tuner.farm.backend import SerialBackend
from tuner.log.read import read_log, read_tasks
from tuner.runners.encode import encoded
from tuner.runners.finals import FinalsWorker, read
from tuner.runners.reading import Bench, Encoded, Measure, Reading
from tuner.runners.simulated import measure
from tuner.runners.verdict import BoardFailedError, Verdict, contenders, decide, finalists
from tuner.source import Source

LEVELS = ("none", "slight", "severe")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Opened]:
    folder = tmp_path_factory.mktemp("run")
    model = save_small("conv_chain", folder)
    quick(model, folder / "run", 24)
    return folder / "run", open_source(Source(model, load_machine("edge"), DataType.float16))


def decided(run: tuple[Path, Opened], board: Measure, budget: int = 9) -> Verdict:
    folder, opened = run
    summary = json.loads((folder / "summary.json").read_text())
    plans = finalists(read_log(folder), read_tasks(folder), summary["run"], LEVELS, 3)
    (packed,) = opened.packed
    # one of the best may be the same program as another, by a plan that differs in what has no effect
    baseline = Plan.model_validate_json((folder / "plans" / "baseline.json").read_text())
    *entered, base = contenders(packed, [*(plan for plan in plans if plan.digest != baseline.digest), baseline], LEVELS)
    worker = FinalsWorker(Bench(board), tuple(each.program for each in (*entered, base)))
    with SerialBackend(lambda: worker) as farm:
        return decide(entered, base, LEVELS, budget, partial(read, farm))


def test_the_best_programs_of_every_level_are_finalists(run: tuple[Path, Opened]) -> None:
    folder, _ = run
    log = read_log(folder)
    plans = finalists(log, read_tasks(folder), log["run"].iloc[0], LEVELS, 2)
    digests = {plan.digest for plan in plans}
    levels = json.loads((folder / "summary.json").read_text())["levels"]
    assert {levels[level]["plan"] for level in LEVELS} <= digests
    assert 2 <= len(plans) == len(digests) <= 6


def test_a_board_that_is_the_simulator_says_what_the_simulator_says(run: tuple[Path, Opened]) -> None:
    verdict = decided(run, measure, 400)
    for finalist in (*verdict.finalists, verdict.baseline):
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
    assert verdict.baseline.standing == {}


def test_the_bytes_that_a_board_gets_are_a_whole_program(run: tuple[Path, Opened]) -> None:
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
    assert sum(segment.operators for segment in container.variants[0].segments) == len(run[1].units[0].kernels)
    # all equal: the simplest one wins at every level
    simplest = min(verdict.finalists, key=lambda each: each.contender.simplicity)
    assert set(verdict.plans.values()) == {simplest.contender.plan}


def test_a_program_that_fails_at_one_level_wins_at_none(run: tuple[Path, Opened]) -> None:
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


def test_a_board_that_fails_is_said(run: tuple[Path, Opened]) -> None:
    def dead(program: Encoded, level: str) -> Reading:
        return Reading(None, "timeout", "gone") if level == "slight" else Reading(5)

    with pytest.raises(BoardFailedError, match=r"every finalist failed in half of the rounds .*; --resume tries it again"):
        decided(run, dead, 2)
