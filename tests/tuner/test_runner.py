"""Questions become log rows: exact budgets, every outcome written down, features free of charge."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.derive.gene import Gene, single_operators
from compiler.derive.plan import Infeasible
from compiler.tile.features import FEATURE_SET, FEATURES
from compiler.tile.spec import Unit
from compiler.tile.unit import make_unit
from simulator.npu.machine import DataType, load_machine
from tests.models import small_graph
from tuner.backend import Outcome, SerialBackend
from tuner.candidate import FeatureSet
from tuner.evaluate import Answer, Ask, Evaluator, EvaluatorSpec
from tuner.log import Origin, RunLog, read_log, read_tasks
from tuner.runner import Budget, BudgetSpent, Runner
from tuner.search.champions import Champions
from tuner.search.search import Question

LEVELS = ("none", "slight", "severe")
CRASHES = Gene(0, 1, 1, 1, 1, 0, False, (7,))


class Fragile(Evaluator):
    """Dies on one gene."""

    def answer(self, ask: Ask) -> Answer:
        if CRASHES in ask.genome:
            raise RuntimeError("this gene is bad")
        return super().answer(ask)


@pytest.fixture(scope="module")
def unit() -> Unit:
    return make_unit(small_graph("conv_chain"), load_machine("tiny"), DataType.float16)


MakeRunner = Callable[[Budget], Runner]


@pytest.fixture
def make_runner(unit: Unit, tmp_path: Path) -> Iterator[MakeRunner]:
    with RunLog(tmp_path, Origin("r", "m", "tiny", "v"), (FeatureSet(FEATURE_SET, FEATURES),)) as log:

        def make(budget: Budget) -> Runner:
            return Runner(unit, "m", LEVELS, SerialBackend(lambda: Fragile(unit, LEVELS)), log, Champions(len(LEVELS)), budget)

        yield make


def program(unit: Unit, blocks: int = 1, **values: Any) -> Question:
    genome = single_operators(unit)
    assert not isinstance(genome, Infeasible)
    return Question(Ask("program", (genome[0]._replace(blocks=max(blocks, genome[0].blocks)), *genome[1:])), 1, 5, **values)


def rows_of(runner: Runner, path: Path) -> Any:
    runner.log.flush()
    return read_log(path)


def test_a_budget_of_candidates_is_exact(unit: Unit, make_runner: MakeRunner, tmp_path: Path) -> None:
    runner = make_runner(Budget(candidates=5))
    questions = [program(unit, blocks) for blocks in (1, 2, 3, 4, 5, 6, 7)]
    assert len(runner(questions[:3])) == 3
    with pytest.raises(BudgetSpent):
        runner(questions[3:])
    assert runner.champions.programs == 5
    with pytest.raises(BudgetSpent):
        runner([Question(Ask("segment", (Gene(0, 1),)), -1, 0)])
    rows = rows_of(runner, tmp_path)
    assert sorted(set(rows["seq"])) == [0, 1, 2, 3, 4]
    assert runner.seq == 5


def test_the_last_program_of_a_budget_is_answered(unit: Unit, make_runner: MakeRunner) -> None:
    runner = make_runner(Budget(candidates=2))
    assert len(runner([program(unit, 1), program(unit, 2)])) == 2
    with pytest.raises(BudgetSpent):
        runner([])


def test_segments_are_free_of_charge(unit: Unit, make_runner: MakeRunner) -> None:
    runner = make_runner(Budget(candidates=1))
    questions = [Question(Ask("segment", (Gene(k, k + 1, blocks),)), -1, 0) for k in range(2) for blocks in (1, 2)]
    assert [reply.answer.status for reply in runner(questions) if reply.answer] == ["ok"] * 4
    assert runner.champions.programs == 0


def test_a_deadline_ends_a_run_but_not_before_its_first_program(unit: Unit, make_runner: MakeRunner) -> None:
    runner = make_runner(Budget(deadline=time.monotonic() - 1))
    assert len(runner([program(unit)])) == 1
    assert runner.champions.programs == 1
    assert runner.champions.baseline is not None
    with pytest.raises(BudgetSpent):
        runner([program(unit, 2)])
    assert runner.champions.programs == 1


def test_features_are_no_measurement(unit: Unit, make_runner: MakeRunner, tmp_path: Path) -> None:
    runner = make_runner(Budget(candidates=9))
    (reply,) = runner([Question(Ask("segment", (Gene(0, 1),), False), -1, 0)])
    assert reply.answer is not None
    assert reply.answer.features is not None
    assert (reply.task, runner.seq) == ("", 0)
    assert rows_of(runner, tmp_path).empty


def test_every_outcome_is_written_down(unit: Unit, make_runner: MakeRunner, tmp_path: Path) -> None:
    runner = make_runner(Budget(candidates=9))
    huge = Gene(0, len(unit.kernels), 1, choices=(63,) * len(unit.kernels))
    asks = [Ask("segment", (Gene(0, 1),)), Ask("segment", (CRASHES,)), Ask("segment", (Gene(0, 2, 2),)), Ask("segment", (huge,))]
    replies = runner([Question(ask, -1, 3, np.array([1.0, 2.0, 3.0])) for ask in asks])
    replies += runner([program(unit, predicted=np.array([10.0, 20.0, 30.0]))])
    assert [reply.question.ask for reply in replies[:4]] == asks, "in the order of the questions"
    assert replies[1].answer is None
    rows = rows_of(runner, tmp_path)
    assert rows["seq"].tolist() == [seq for seq in range(5) for _ in LEVELS]
    assert rows["level"].tolist() == [*LEVELS] * 5
    assert rows["ddr_share"].tolist() == [1.0, 0.5, 0.25] * 5
    kinds = rows.drop_duplicates("seq")
    assert kinds["kind"].tolist() == ["operator", "operator", "segment", "segment", "program"]
    assert kinds["status"].tolist()[:3] == ["ok", "crash", "ok"]
    assert kinds["error"].tolist()[1] == "RuntimeError: this gene is bad"
    assert set(kinds["workload"]) == {f"m:{unit.kernels[0].name}", f"m:{unit.kernels[0].name}..{unit.kernels[1].name}", "m",
                                      f"m:{unit.kernels[0].name}..{unit.kernels[-1].name}"}  # fmt: skip
    ok = rows[rows["status"] == "ok"]
    assert ok["cycles"].notna().all()
    assert rows[rows["status"] != "ok"]["cycles"].isna().all()
    expected = {status: int(count) for status, count in kinds["status"].astype(str).value_counts().items() if status != "ok"}
    assert dict(runner.failures) == expected
    assert expected["crash"] == 1
    assert (kinds["island"].tolist()[-1], kinds["generation"].tolist()[-1]) == (1, 5)
    tasks = read_tasks(tmp_path).set_index("task")
    assert set(rows["task"]) == set(tasks.index)
    assert [reply.task for reply in replies] == kinds["task"].tolist()
    features = tasks[[f"f_{name}" for name in FEATURES]]
    assert features.loc[replies[0].task].notna().all()
    assert features.loc[replies[1].task].isna().all()


def test_predictions_are_logged_with_the_model_of_their_level(unit: Unit, make_runner: MakeRunner, tmp_path: Path) -> None:
    runner = make_runner(Budget(candidates=9))
    runner([Question(Ask("segment", (Gene(0, 1),)), -1, 0, np.array([1.0, 2.0, 3.0]))])
    runner.model_versions = ["a", None, "c"]
    runner([Question(Ask("segment", (Gene(0, 1, 2),)), -1, 0, np.array([4.0, 5.0, 6.0]))])
    runner([program(unit, predicted=np.array([7.0, 8.0, 9.0]))])
    rows = rows_of(runner, tmp_path)
    predicted = [None if np.isnan(value) else value for value in rows["predicted_cycles"]]
    assert predicted == [None, None, None, 4.0, None, 6.0, 7.0, 8.0, 9.0]
    versions = [value if isinstance(value, str) else None for value in rows["model_version"]]
    assert versions == [None, None, None, "a", None, "c", "a", None, "c"]


def test_champions_are_the_fastest_of_every_level(unit: Unit, make_runner: MakeRunner, tmp_path: Path) -> None:
    runner = make_runner(Budget(candidates=9))
    whole = Question(Ask("program", (Gene(0, len(unit.kernels), 4),)), 0, 0)
    runner([program(unit, 1), program(unit, 4), whole])
    rows = rows_of(runner, tmp_path)
    best = rows[rows["kind"] == "program"].groupby("level", observed=True)["cycles"].min()
    found = [m.cycles[i] for i, m in enumerate(runner.champions.best) if m is not None]
    assert found == [best[level] for level in LEVELS]
    assert runner.champions.baseline is not None
    assert len(runner.champions.baseline.genome) == len(unit.kernels), "the baseline is made of single operators"
    again = Champions(len(LEVELS))
    again.restore(runner.champions.state())
    assert again.state() == runner.champions.state()
    assert again.best[0] is not None
    assert again.best[0].genome == runner.champions.best[0].genome  # type: ignore[union-attr]


def test_pieces_change_nothing(unit: Unit, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """More questions than one piece: all are answered, in order; a repeat writes no row and is free of charge."""
    runner = make_runner(Budget(candidates=100))
    shown: list[int] = []
    runner.on_reply = lambda: shown.append(runner.seq)
    questions = [program(unit, 1 + at % 5) for at in range(40)]
    replies = runner(questions)
    assert [reply.question for reply in replies] == questions
    assert shown == [5, 5, 5]
    assert runner.champions.programs == 5


def test_the_spec_makes_what_the_backend_runs(unit: Unit) -> None:
    with SerialBackend(EvaluatorSpec(unit, LEVELS)) as backend:
        backend.submit([Ask("segment", (Gene(0, 1),))])
        (outcome,) = backend.collect(1)
    assert isinstance(outcome, Outcome)
    assert outcome.value is not None
    assert outcome.value.status == "ok"
