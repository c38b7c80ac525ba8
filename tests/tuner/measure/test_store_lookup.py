"""What one run measured stands in for measuring it again, and nothing else does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import simulator
from compiler.ops.lower_graph import make_unit
from compiler.space.gene import Gene
from compiler.space.initial import single_operators
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import small_graph
from tuner.farm.store_client import Scopes
from tuner.log.drift import NO_BOARD, BoardReading
from tuner.log.record import RESULTS
from tuner.measure.evaluator import Evaluator
from tuner.measure.npu_target import Npu
from tuner.measure.request import Measurement, Request
from tuner.measure.store_lookup import Memo
from tuner.platform.local_files import LocalPath
from tuner.store.pack_store import PackStore
from tuner.store.packs import Conditions, Measured, words

LEVELS = ("none", "slight", "severe")
CYCLES = RESULTS.index("cycles")


def target_graph(name: str = "conv_chain", machine: str = "edge", dtype: DataType = DataType.float16) -> TargetGraph:
    return make_unit(small_graph(name), load_machine(machine), dtype)


def requests(u: TargetGraph) -> list[Request]:
    """Two segments, and programs of which the first is of single operators."""
    genome = single_operators(u)
    assert isinstance(genome, tuple)
    pairs = [Gene(0, 2, blocks) for blocks in (1, 2, 4)]
    segments = [Request("segment", (Gene(1, 2),)), *(Request("segment", (pair,)) for pair in pairs)]
    return [Request("program", genome), *segments, *(Request("program", (pair, *genome[2:])) for pair in pairs)]


def store(folder: Path, u: TargetGraph, board: str | None = None) -> PackStore:
    runner = "simulator" if board is None else "m:f"
    return PackStore(LocalPath(folder), Conditions("edge", u.machine.digest, LEVELS, simulator.VERSION, runner))


def kept(folder: Path, u: TargetGraph, measured: Sequence[tuple[Request, Measurement]], board: str | None = None) -> None:
    """As a run puts what its log says."""
    scopes, ok = Scopes(u), [(request, each) for request, each in measured if each.values is not None]
    boards = np.array([[board, board]] * len(ok), object).reshape(-1, 2)
    of = np.array([scopes.scope(request.task_kind, each.payload) for request, each in ok], np.uint64)
    values = np.array([each.values for _, each in ok])
    where = store(folder, u, board)
    where.put(where.encoded({"run": "r"}, Measured(of, words([each.task for _, each in ok]), values, boards)))


def memo(folder: Path, u: TargetGraph, board: str | None = None) -> Memo | None:
    packed = store(folder, u, board).find_tasks(Scopes(u).all_scopes).packed
    return Memo(packed, len(LEVELS), board is None) if packed else None


def evaluator(u: TargetGraph, found: Memo | None) -> Evaluator:
    made = Evaluator(u, LEVELS)
    made.memo = found
    return made


def measured(u: TargetGraph, found: Memo | None = None) -> list[Measurement]:
    return list(map(evaluator(u, found).measure, requests(u)))


@pytest.fixture(autouse=True)
def _none_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """But where a test says so."""
    monkeypatch.setattr("tuner.measure.store_lookup.CHECK_INTERVAL", 1 << 40)


def test_what_one_measured_another_is_told(tmp_path: Path) -> None:
    u, again = target_graph(), target_graph()
    before = measured(u)
    kept(tmp_path, u, list(zip(requests(u), before, strict=True)))
    asked = requests(again)
    second = evaluator(again, memo(tmp_path, again))
    for request, found, was in zip(asked, map(second.measure, asked), before, strict=True):
        assert (found.status, found.error, found.task, found.payload) == (was.status, was.error, was.task, was.payload)
        np.testing.assert_array_equal(found.features, was.features)
        np.testing.assert_array_equal(found.values, was.values)
        assert bool(found.pack) or request.kind == "program"
    assert second.memo is not None
    assert second.memo.take_reports() == ()


def test_nothing_that_is_told_is_compiled(tmp_path: Path) -> None:
    u = target_graph()
    kept(tmp_path, u, list(zip(requests(u), measured(u), strict=True)))
    second = evaluator(target_graph(), memo(tmp_path, target_graph()))
    assert all(second.measure(request).pack for request in requests(u) if request.kind == "segment")
    assert isinstance(second.target, Npu)
    assert not second.target.compiler._cache


def test_known_segments_cross_networks_and_programs_do_not(tmp_path: Path) -> None:
    u = target_graph()
    kept(tmp_path, u, list(zip(requests(u), measured(u), strict=True)))
    other = replace(u, operators=tuple(replace(spec, name=f"other.{spec.name}") for spec in u.operators))
    assert [bool(each.pack) for each, request in zip(measured(other, memo(tmp_path, other)), requests(u), strict=True)
            if request.kind == "segment"] == [True] * 4  # fmt: skip
    assert Scopes(other).model_scope != Scopes(u).model_scope
    assert memo(tmp_path, target_graph("vector_chain")) is None
    assert len({Scopes(each).model_scope for each in (u, target_graph(dtype=DataType.float32), target_graph("vector_chain"))}) == 3


def test_a_champion_is_measured(tmp_path: Path) -> None:
    """Whatever the store says, what is best here at any level was measured here, and so was the program of single operators."""
    u = target_graph()
    before = measured(u)
    kept(tmp_path, u, list(zip(requests(u), before, strict=True)))
    for order in (1, -1):
        asked = requests(u)[::order]
        second = evaluator(u, memo(tmp_path, u))
        found = [(request, second.measure(request)) for request in asked]
        programs = [each for request, each in found if request.kind == "program" and each.values is not None]
        for level in range(len(LEVELS)):
            best = min(programs, key=lambda each: (int(each.cycles[level]), each.task))  # type: ignore[index]
            assert not best.pack
        single = next(each for request, each in found if request.kind == "program" and all(g.stop - g.start == 1 for g in request.genome))
        assert not single.pack


def test_one_percent_is_remeasured_and_differences_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    u = target_graph()
    pairs = list(zip(requests(u), measured(u), strict=True))
    segments = [(request, each) for request, each in pairs if request.kind == "segment"]
    wrong = [(request, replace(each, values=each.values + 1)) for request, each in segments if each.values is not None]
    kept(tmp_path, u, wrong)
    monkeypatch.setattr("tuner.measure.store_lookup.CHECK_INTERVAL", 1)
    found = evaluator(u, memo(tmp_path, u))
    first = found.measure(segments[0][0])
    np.testing.assert_array_equal(first.values, segments[0][1].values)
    assert not first.pack
    assert found.memo is not None
    ((pack, task),) = found.memo.take_reports()
    assert (pack in str(list(tmp_path.rglob("*.parquet"))), task) == (True, first.task)
    monkeypatch.setattr("tuner.measure.store_lookup.CHECK_INTERVAL", 1 << 40)
    assert not any(found.measure(request).pack for request, _ in segments), "nothing of that pack is told any more"
    assert found.memo.take_reports() == ()


@pytest.mark.parametrize(("here", "told"), [("B7", True), ("B8", False), (None, False)])
def test_a_boards_readings_are_for_that_board(tmp_path: Path, here: str | None, told: bool) -> None:
    u = target_graph()
    kept(tmp_path, u, list(zip(requests(u), measured(u), strict=True)), board="B7")
    found = memo(tmp_path, u, board="B7")
    assert found is not None
    task = measured(u)[1].task
    said = NO_BOARD if here is None else BoardReading(here, here)
    assert (found.find(task, said) is not None) == told
    assert found.find(task, BoardReading(here, "other firmware")) is None


def test_a_board_is_believed_within_its_noise(tmp_path: Path) -> None:
    u = target_graph()
    pairs = list(zip(requests(u), measured(u), strict=True))
    kept(tmp_path, u, pairs, board="B7")
    said = BoardReading("B7", "B7")
    for factor, differs in ((1.05, False), (0.95, False), (1.2, True)):
        found = memo(tmp_path, u, board="B7")
        assert found is not None
        request, each = pairs[1]
        assert each.values is not None
        stored = found.find(each.task, said)
        values = each.values.copy()
        values[:, CYCLES] = np.round(values[:, CYCLES] * factor)
        found.measured(request, each.task, values, stored)
        assert bool(found.take_reports()) == differs
