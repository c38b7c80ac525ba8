"""Measurements become rows: every one is written down once, limits are kept, features are free of charge; the ledger keeps what counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from compiler.cost.features import FEATURES
from compiler.ops.lower_graph import make_unit
from compiler.plan.plan import Infeasible
from compiler.space.gene import Gene
from compiler.space.initial import single_operators
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import small_graph
from tuner.config import load_config
from tuner.farm.commit_log import Ledger, RunBudget
from tuner.farm.jobs import JobResult
from tuner.farm.recorder import FEATURE_SETS, Recorder
from tuner.farm.search_spec import SearchSpec
from tuner.farm.uncommitted import read_ahead
from tuner.log.digests import digest
from tuner.log.read import read_log, read_tasks
from tuner.log.wire_format import LOG_ROWS, TASK_ROWS
from tuner.log.writer import Origin, RunLog, row_ids
from tuner.measure.budgeted import BudgetExhausted, Deadline, Limit, MeasureBudget
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Measurement, Proposal, Request
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.search.champions import Champions
from tuner.search.epoch_report import KINDS, Collector
from tuner.search.knowledge import Knowledge

LEVELS = ("none", "slight", "severe")
CRASHES = Gene(0, 1, 1, 1, 1, choices=(7,))


@pytest.fixture(scope="module")
def target_graph() -> TargetGraph:
    return make_unit(small_graph("conv_chain"), load_machine("tiny"), DataType.float16)


class Heard(NamedTuple):
    """The listeners of a job."""

    recorder: Recorder
    collector: Collector

    def result(self) -> JobResult:
        return JobResult(self.recorder.batch(self.collector.pack(len(LEVELS))), True, 0, 0.0)

    def kinds(self) -> list[str]:
        """Of the tasks."""
        opened = self.result().batch.opened()
        return [KINDS[code] for code in opened.epoch["kind"][opened.places]]


class Bench:
    """Recorders over one evaluator, in which one gene crashes."""

    def __init__(self, target_graph: TargetGraph) -> None:
        self.target_graph, self.evaluator = target_graph, Evaluator(target_graph, LEVELS)
        self.spec = SearchSpec(Origin("r", "m", "tiny", "v", seed=3, tag="a=b"), target_graph, LEVELS, load_config())

    def measured(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request in requests:
            if CRASHES in request.genome:
                yield replace(self.evaluator.failed(request, "crash", "RuntimeError: this gene is bad"), worker="w0", wall_s=0.5, attempt=1)
            else:
                yield replace(self.evaluator.measure(request), worker="w0", wall_s=0.25)

    def session(self, limit: Limit = Limit(), version: str | None = None) -> tuple[MeasureBudget, Heard]:  # noqa: B008
        heard = Heard(Recorder(self.spec, 1, 5, version, "mine"), Collector())
        return MeasureBudget(self.measured, heard, limit), heard


@pytest.fixture(scope="module")
def bench(target_graph: TargetGraph) -> Bench:
    return Bench(target_graph)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RunLog]:
    with RunLog(LocalPath(tmp_path), REAL, Origin("r", "m", "tiny", "v", seed=3, tag="a=b"), FEATURE_SETS) as log:
        yield log


def program(target_graph: TargetGraph, blocks: int = 1, predicted: Any = None) -> Request:
    genome = single_operators(target_graph)
    assert not isinstance(genome, Infeasible)
    return Request("program", (genome[0]._replace(blocks=max(blocks, genome[0].blocks)), *genome[1:]), predicted=predicted)


def segment(gene: Gene, predicted: Any = None) -> Request:
    return Request("segment", (gene,), predicted=predicted)


def ledger(log: RunLog, budget: RunBudget) -> Ledger:
    return Ledger(LEVELS, log, Champions(3), budget)


def rows(log: RunLog, path: Path) -> pd.DataFrame:
    log.flush()
    return read_log(path)


def test_a_limit_of_programs_is_exact(target_graph: TargetGraph, bench: Bench) -> None:
    session, heard = bench.session(Limit(3))
    requests = [program(target_graph, blocks) for blocks in (1, 2, 2, 3, 4)]
    with pytest.raises(BudgetExhausted):
        session(requests)
    assert len(session.programs) == 3
    assert heard.kinds() == ["program"] * 3, "a repeat takes nothing off it"
    with pytest.raises(BudgetExhausted):
        session([segment(Gene(0, 1))])
    with pytest.raises(BudgetExhausted):
        bench.session(Limit(1))[0]([program(target_graph)])[:]  # the limit is looked at after the last question too


def test_a_deadline_ends_a_job_between_two_items(target_graph: TargetGraph, bench: Bench) -> None:
    session, _ = bench.session(Limit(None, Deadline(REAL.clock, REAL.clock.monotonic_s() + 1000)))
    assert len(session([segment(Gene(0, 1)), segment(Gene(1, 2))])) == 2
    late, heard = bench.session(Limit(None, Deadline(REAL.clock, REAL.clock.monotonic_s() - 1)))
    with pytest.raises(BudgetExhausted):
        late([program(target_graph)])
    assert heard.kinds() == []


def test_features_are_no_measurement(bench: Bench) -> None:
    session, heard = bench.session()
    (measurement,) = session([Request("segment", (Gene(0, 1),), False)])
    assert measurement.features is not None
    assert measurement.task == ""
    assert heard.kinds() == []


def test_every_outcome_is_written_down(target_graph: TargetGraph, bench: Bench, log: RunLog, tmp_path: Path) -> None:
    huge = Gene(0, len(target_graph.operators), 1, choices=(63,) * len(target_graph.operators))
    requests = [segment(gene, np.array([1.0, 2.0, 3.0])) for gene in (Gene(0, 1), CRASHES, Gene(0, 2, 2), huge)]
    session, heard = bench.session()
    child = replace(program(target_graph, predicted=np.array([10.0, 20.0, 30.0])), proposal=Proposal("change_end,crossover", ("ab", "cd")))
    measurements = session([*requests, child])
    assert measurements[1].status == "crash"
    batch = heard.result().batch
    assert TASK_ROWS.from_bytes(batch.tasks).num_rows == 5
    assert LOG_ROWS.from_bytes(batch.rows).num_rows == 5 * len(LEVELS)
    book = ledger(log, RunBudget(candidates=9))
    book.commit(heard.result(), 1)
    found = rows(log, tmp_path)
    assert found["seq"].tolist() == [seq for seq in range(5) for _ in LEVELS]
    assert found["level"].tolist() == [*LEVELS] * 5
    assert found["ddr_share"].tolist() == [1.0, 0.5, 0.25] * 5
    assert found["row_id"].tolist() == [
        digest(["r", seq, level, attempt]) for seq, level, attempt in zip(found["seq"], found["level"], found["attempt"], strict=True)
    ]
    kinds = found.drop_duplicates("seq")
    assert kinds["kind"].tolist() == ["operator", "operator", "segment", "segment", "program"]
    assert kinds["status"].tolist()[:3] == ["ok", "crash", "ok"]
    assert kinds["proposed_by"].tolist() == ["mine"] * 4 + ["change_end,crossover"]
    assert kinds["error"].tolist()[1] == "RuntimeError: this gene is bad"
    assert kinds["attempt"].tolist() == [0, 1, 0, 0, 0]
    assert kinds["wall_s"].tolist() == pytest.approx([0.25 / 3, 0.5 / 3, *[0.25 / 3] * 3])
    first, second, last = (target_graph.operators[at].name for at in (0, 1, -1))
    assert set(kinds["workload"]) == {f"m:{first}", f"m:{first}..{second}", "m", f"m:{first}..{last}"}
    for name, value in {
        "run": "r",
        "tag": "a=b",
        "model": "m",
        "machine": "tiny",
        "seed": 3,
        "island": 1,
        "generation": 5,
        "worker": "w0",
    }.items():
        assert set(found[name]) == {value}
    ok = found[found["status"] == "ok"]
    assert ok["cycles"].notna().all()
    assert found[found["status"] != "ok"]["cycles"].isna().all()
    values = bench.evaluator.measure(requests[0]).values
    assert values is not None
    assert found[found["seq"] == 0]["cycles"].tolist() == values[:, 0].tolist()
    expected = {status: int(count) for status, count in kinds["status"].astype(str).value_counts().items() if status != "ok"}
    assert dict(book.failures) == expected
    assert expected["crash"] == 1
    tasks = read_tasks(tmp_path).set_index("task")
    assert set(found["task"]) == set(tasks.index)
    assert tasks.loc[kinds["task"], "parents"].tolist() == ["", "", "", "", "ab cd"]
    assert [measurement.task for measurement in measurements] == kinds["task"].tolist()
    features = tasks[[f"f_{name}" for name in FEATURES]]
    assert features.loc[measurements[0].task].notna().all()
    assert features.loc[measurements[1].task].isna().all()


def test_predictions_are_logged_with_their_model_if_any(target_graph: TargetGraph, bench: Bench, log: RunLog, tmp_path: Path) -> None:
    book = ledger(log, RunBudget(candidates=9))
    measure, first = bench.session()
    measure([segment(Gene(0, 1), np.array([1.0, 2.0, 3.0]))])
    measure, second = bench.session(version="a")
    measure(
        [segment(Gene(0, 1, 2), np.array([4.0, 5.0, 6.0])), program(target_graph, predicted=np.array([7.0, 8.0, 9.0])), segment(Gene(1, 2))]
    )
    for heard in (first, second):
        book.commit(heard.result(), 1)
    found = rows(log, tmp_path)
    predicted = [None if np.isnan(value) else value for value in found["predicted_cycles"]]
    assert predicted == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, None, None, None]
    versions = [value if isinstance(value, str) else None for value in found["model_version"]]
    assert versions == [None, None, None, "a", "a", "a", "a", "a", "a", None, None, None]


# the ledger


def several(target_graph: TargetGraph, bench: Bench, *blocks: int) -> JobResult:
    session, heard = bench.session()
    for count in blocks:
        session([segment(Gene(0, 1, count)), program(target_graph, count)])
    return heard.result()


def test_a_budget_of_candidates_is_exact(target_graph: TargetGraph, bench: Bench, log: RunLog, tmp_path: Path) -> None:
    book = ledger(log, RunBudget(candidates=3))
    book.commit(several(target_graph, bench, 1, 2), 1)
    assert not book.spent
    book.commit(several(target_graph, bench, 2, 3, 4), 1)
    assert book.spent
    assert book.programs == 3
    found = rows(log, tmp_path).drop_duplicates("seq")
    assert found["kind"].tolist() == ["operator", "program"] * 3, "repeats have no rows, nor has what was measured behind the last program"
    assert book.counted.tasks == 6
    assert (len(book.tasks), len(book.ahead.tasks)) == (4, 2), "the budget ends within the second result: another session has it whole"


def test_champions_are_the_fastest_of_every_level(target_graph: TargetGraph, bench: Bench, log: RunLog, tmp_path: Path) -> None:
    session, heard = bench.session()
    whole = Request("program", (Gene(0, len(target_graph.operators), 4),))
    session([program(target_graph, 1), program(target_graph, 4), whole])
    book = ledger(log, RunBudget(candidates=9))
    book.commit(heard.result(), 1)
    found = rows(log, tmp_path)
    best = found[found["kind"] == "program"].groupby("level", observed=True)["cycles"].min()
    champions = book.champions
    assert [m.cycles[i] for i, m in enumerate(champions.best) if m is not None] == [best[level] for level in LEVELS]
    baseline = champions.baseline(0)
    assert baseline is not None
    assert len(baseline.genome) == len(target_graph.operators), "the baseline is made of single operators"
    again = Champions(len(LEVELS))
    again.restore(champions.state())
    assert again.state() == champions.state()
    assert again.best[0] is not None
    assert again.best[0].genome == champions.best[0].genome  # type: ignore[union-attr]


def test_passed_deadline_ends_after_the_first_program(target_graph: TargetGraph, bench: Bench, log: RunLog) -> None:
    book = ledger(log, RunBudget(deadline=Deadline(REAL.clock, REAL.clock.monotonic_s() - 1)))
    assert not book.spent
    book.commit(several(target_graph, bench, 1), 1)
    assert book.spent


def test_what_lay_ahead_counts_and_has_rows_once(target_graph: TargetGraph, bench: Bench, tmp_path: Path) -> None:
    """A session whose time is up has results behind one that is not there; the next one measures that one, and then them."""
    origin, never = (
        Origin("r", "m", "tiny", "v", seed=3, tag="a=b"),
        RunBudget(deadline=Deadline(REAL.clock, REAL.clock.monotonic_s() + 1e6)),
    )
    first, missing, behind = (several(target_graph, bench, *blocks) for blocks in ((1,), (2, 3), (3, 4)))
    with RunLog(LocalPath(tmp_path), REAL, origin, FEATURE_SETS) as log:
        book = ledger(log, never)
        assert book.commit(first, 1) == "here"
        book.keep(behind)
        said, numbers = book.counted, book.numbers
        assert (said.tasks, said.champions.programs, book.champions.programs) == (6, 3, 1)
    before = read_log(tmp_path)
    with RunLog(LocalPath(tmp_path), REAL, origin, FEATURE_SETS) as log:
        book = ledger(log, never)
        book.numbers, book.tasks = numbers, log.numbers.names(numbers)
        book.champions.programs = 1
        book.ahead = read_ahead(LocalPath(tmp_path), "r", log.numbers.beyond(numbers), target_graph, Champions(len(LEVELS)))
        again = book.counted
        assert (again.tasks, again.failures, again.champions.programs) == (said.tasks, said.failures, said.champions.programs)
        for mine, theirs in zip(book.ahead.champions.best, said.champions.best, strict=True):
            assert mine is not None
            assert theirs is not None
            assert mine.cycles.tolist() == theirs.cycles.tolist()
            assert (mine.task, mine.plan(target_graph).digest) == (theirs.task, theirs.plan(target_graph).digest)
        assert book.commit(missing, 1) == "here"
        assert book.commit(behind, 1) == "here"
        assert book.ahead.tasks == {}
        assert book.numbers == [[0, 2], [6, 8], [2, 6]]
        assert book.programs == book.champions.programs == 4
    found = read_log(tmp_path)
    pd.testing.assert_frame_equal(found.iloc[: len(before)], before)
    once = found.drop_duplicates("seq")
    assert once["seq"].tolist() == list(range(8))
    assert once["task"].is_unique


def test_rows_of_earlier_sessions_are_not_rewritten(target_graph: TargetGraph, bench: Bench, tmp_path: Path) -> None:
    for blocks in ((1, 2), (1, 2, 3)):
        with RunLog(LocalPath(tmp_path), REAL, Origin("r", "m", "tiny", "v", seed=3, tag="a=b"), FEATURE_SETS) as log:
            ledger(log, RunBudget(candidates=9)).commit(several(target_graph, bench, *blocks), 1)
    found = read_log(tmp_path)
    assert found["seq"].tolist() == [seq for seq in range(6) for _ in LEVELS]
    assert found["row_id"].is_unique
    assert read_tasks(tmp_path)["task"].is_unique


def test_row_ids_are_those_of_single_rows() -> None:
    expected = [digest(['a "b" ü', 1, "none", 0]), digest(['a "b" ü', 22, "sévère", 3])]
    assert row_ids('a "b" ü', [1, 22], ["none", "sévère"], [0, 3]) == expected


def test_gene_of_equal_plan_is_not_logged_again(target_graph: TargetGraph, bench: Bench, log: RunLog, tmp_path: Path) -> None:
    session, heard = bench.session()
    one, twin = Gene(0, 1), Gene(0, 1, choices=(0,))
    assert len({measurement.task for measurement in session([segment(one), segment(twin), program(target_graph)])}) == 2
    book, known = ledger(log, RunBudget(candidates=9)), Knowledge(bench.evaluator.structures, len(LEVELS))
    book.commit(heard.result(), 1)
    known.learn_epoch([heard.result().findings])
    assert rows(log, tmp_path).drop_duplicates("seq")["kind"].tolist() == ["operator", "program"]
    assert all(known.table.known(gene) for gene in (one, twin))
    values = bench.evaluator.measure(program(target_graph)).values
    assert values is not None
    found = rows(log, tmp_path)
    assert found.loc[found["kind"] == "program", "cycles"].tolist() == values[:, 0].tolist(), "rows lie where their values do"
