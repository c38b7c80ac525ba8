"""A search of which more is expected to bring next to nothing ends, at the same place however it is run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuning import FEW, assert_equal_runs, quick, save_small
from tuner.farm import saturation as saturation_module
from tuner.farm.commit_log import Order
from tuner.farm.coordinator import Coordinator
from tuner.farm.epoch_schedule import EpochSchedule
from tuner.farm.jobs import Broadcast, JobResult
from tuner.farm.saturation import FEWEST, Saturation
from tuner.log.columns import to_bytes
from tuner.log.read import read_log
from tuner.log.record import EPOCH
from tuner.log.writer import Batch
from tuner.measure.gain_line import describe_gain
from tuner.measure.grants import NEVER
from tuner.runs.folder import read_json


def findings(*programs: Sequence[int]) -> bytes:
    """Findings of a job with programs of these cycles by level."""
    return to_bytes({"fit_cycles": np.array(programs, np.int64)}, EPOCH)


def course(cycles: Sequence[Sequence[int]], size: int = 8, least: float | None = None) -> Saturation:
    """Course of a search with a program in each epoch, counted as `size`."""
    saturation = Saturation(least, len(cycles[0]))
    for epoch, levels in enumerate(cycles, 1):
        saturation.epoch_done(size * epoch, [findings(levels)])
    return saturation


CYCLES = st.lists(st.tuples(st.integers(100, 10_000), st.integers(100, 10_000)), min_size=16, max_size=80)


@settings(max_examples=25)
@given(CYCLES)
def test_expectation_is_of_champions_alone(cycles: list[tuple[int, int]]) -> None:
    best = np.minimum.accumulate(np.array(cycles), 0)
    seen, champions = course(cycles), course(best.tolist())
    assert (seen.gain, seen.expected) == (champions.gain, champions.expected)
    assert 0 <= seen.gain < 1
    assert seen.expected is not None
    assert 0 <= seen.expected <= seen.gain + 1e-12
    assert seen.gain == pytest.approx(1 - math.exp(float(np.log(best[-1] / best[0]).mean())), abs=1e-9)
    assert course([(10 * a, 7 * b) for a, b in cycles]).expected == pytest.approx(seen.expected, abs=1e-9)
    several = Saturation(None, 2)  # jobs of an epoch, one of them without a program that fits
    for epoch, levels in enumerate(cycles, 1):
        several.epoch_done(8 * epoch, [findings(), findings((NEVER, levels[1]), (levels[0], NEVER))])
    assert several.expected == seen.expected


@settings(max_examples=25)
@given(st.integers(1, 20), st.floats(0.001, 0.3))
def test_steady_and_ended_gains(doublings: int, gain: float) -> None:
    """A gain that every doubling brings is expected again; one that came before those that count is not."""
    programs = [FEWEST * 2**k for k in range(doublings + 1)]
    steady, ended = Saturation(None, 1), Saturation(0.0005, 1)
    for k, count in enumerate([1, *(FEWEST >> k for k in (3, 2, 1)), *programs]):
        steady.epoch_done(count, [findings([round(1e15 * (1 - gain) ** k)])])
        ended.epoch_done(count, [findings([10_000 if count < FEWEST / 4 else 9_000])])
    assert steady.expected == pytest.approx(gain, rel=1e-6)
    assert ended.expected == 0
    assert ended.reached
    assert not steady.reached


def test_too_few_programs_say_nothing() -> None:
    few = course([(100, 100)] * (FEWEST // 8 - 1), least=1.0)
    assert few.expected is None
    assert not few.reached
    assert course([(100, NEVER)] * FEWEST, least=1.0).expected is None, "a level has no program"
    assert "too few" in describe_gain({"candidates": 9, "search_gain": {"gain": 0.5, "expected": None, "saturated": False}})


class Late:
    """`Jobs` and ledger of a run whose time is up when the one job that everybody waits for is done."""

    workers, free, late = 4, True, (2, 1)
    core_hours_spent = False
    budget = SimpleNamespace(candidates=None, readings=None, deadline=object(), seconds=lambda: 1.0)
    levels, failures, logged, readings, core_s = (), Counter[str](), None, 0, 0.0

    def __init__(self) -> None:
        self.running, self.broadcast = list[Any](), Broadcast()
        self.spent = False
        self.champions = SimpleNamespace(programs=0, best=())
        self.tasks, self.kept = list[JobResult](), list[JobResult]()

    def start(self, key: Any, job: Any) -> None:
        self.running.append(key)

    def finished(self, patience_s: float) -> list[Any]:
        ready = [key for key in self.running if key != self.late] or self.running
        self.spent = self.late in ready
        self.running = [key for key in self.running if key not in ready]
        return [(key, JobResult(Batch(repr(key).encode(), b"", b"", 0), True, 0, 0.0)) for key in ready]

    def commit(self, result: JobResult, epoch: int) -> Order:
        self.tasks.append(result)
        return "here"

    def keep(self, result: JobResult) -> None:
        self.kept.append(result)


class ReachedAfter:
    """Reached behind the third epoch that it hears of."""

    epochs = 0

    @property
    def reached(self) -> bool:
        return self.epochs == 3

    def epoch_done(self, programs: int, findings: object) -> None:
        self.epochs += 1


def test_saturation_and_deadline_commit_nothing_more() -> None:
    late = Late()
    conductor = Coordinator(late, EpochSchedule(4), late, None, saturation=ReachedAfter())  # type: ignore[arg-type]
    conductor.begin(())
    conductor.run()
    assert [result.findings for result in late.tasks[-4:]] == [b"(2, 0)", b"(2, 1)", b"(2, 2)", b"(2, 3)"]
    assert [result.findings for result in late.kept] == [b"(3, 0)", b"(3, 1)", b"(3, 2)", b"(3, 3)"]


def test_a_run_ends_early_and_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturation_module, "FEWEST", 18)
    model = save_small("conv_chain", tmp_path)
    early = (*FEW, "budget.least_gain=0.9")  # the search ends as soon as there are enough programs to say
    summary = quick(model, tmp_path / "early", 400, *early)
    assert summary.stopped == ("saturated",)
    assert 18 <= summary.candidates < 18 + 8
    assert summary.search_gain is not None
    assert summary.search_gain.saturated
    assert "; saturated: twice as many" in describe_gain(read_json(tmp_path / "early/summary.json"))
    before = read_log(tmp_path / "early")
    quick(model, tmp_path / "again", 10, *early)
    again = quick(model, tmp_path / "again", 400, *early, resume=True)
    assert again.search_gain == summary.search_gain
    assert_equal_runs(tmp_path / "early", tmp_path / "again")
    assert quick(model, tmp_path / "early", 800, *early, resume=True).stopped == ("saturated",)
    assert len(read_log(tmp_path / "early")) == len(before)
    whole = summary.candidates + 8
    assert quick(model, tmp_path / "early", whole, *FEW, resume=True).stopped == ("budget",)
    quick(model, tmp_path / "whole", whole, *FEW)
    assert_equal_runs(tmp_path / "early", tmp_path / "whole")


def test_core_hours_end_a_run(tmp_path: Path) -> None:
    model = save_small("conv_chain", tmp_path)
    few = quick(model, tmp_path / "few", 400, *FEW, max_core_hours=1e-6)
    assert few.stopped == ("core hours",)
    assert 1e-6 <= few.core_hours < 1e-2
    assert 0 < few.candidates < 24
    more = quick(model, tmp_path / "few", 24, *FEW, resume=True)
    assert more.stopped == ("budget",)
    assert more.core_hours > few.core_hours, "hours of all sessions count"
    assert quick(model, tmp_path / "few", 400, *FEW, resume=True, max_core_hours=more.core_hours / 2).candidates == 24
    quick(model, tmp_path / "whole", 24, *FEW)
    assert_equal_runs(tmp_path / "few", tmp_path / "whole")
