"""The cost model learns to rank, is judged on workloads it has not seen, and never gets worse."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler.cost.features import FEATURES, estimate_cycles, expected_cycles, model_input, scale_features
from compiler.cost.level_conditions import condition_of, join_condition
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.messages import naming
from tuner.config import load_config
from tuner.cost_model.boosted_trees import BoostedTrees
from tuner.cost_model.interface import AtLevel, TrainingRows, predict_at
from tuner.cost_model.judge import retrain, train_with_judge
from tuner.cost_model.metrics import evaluate_ranking, held_out_rows, metrics_by_level
from tuner.cost_model.model_file import decode_model, load_trained, model_requirements
from tuner.log import record
from tuner.platform.local_files import LocalPath

PARAMS = load_config(None, ["model.rounds=60"]).model


EDGE = load_machine("edge")
CONDITION = condition_of(EDGE, DataType.float16, "slight")
SIZES = slice(len(FEATURES), len(FEATURES) + 5)


def synthetic(n: int = 600, groups: int = 4, seed: int = 0) -> TrainingRows:
    """cycles = max(compute, traffic) of two sizes, as a roofline has it, times the workload's own scale; five sizes behind the features."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, len(FEATURES) + 5), np.float32)
    x[:, SIZES] = sizes = rng.integers(1, 64, (n, 5))
    group = rng.integers(0, groups, n)
    cycles = np.maximum(sizes[:, 0] * sizes[:, 1] * 4, sizes[:, 2] * 40) * (1 + group) + 100
    return TrainingRows.at_levels(x, cycles[:, None], [f"net{g}" for g in group], {"slight": CONDITION})


def with_cycles(rows: TrainingRows, cycles: NDArray[np.float64]) -> TrainingRows:
    return rows._replace(cycles=cycles)


def first(rows: TrainingRows, count: int) -> TrainingRows:
    return rows.select(np.arange(len(rows.cycles)) < count)


def test_learns_to_rank_an_unseen_workload() -> None:
    model = train_with_judge(BoostedTrees, synthetic(), 1, PARAMS)
    metrics = model.metrics["slight"]
    assert metrics.spearman > 0.9
    assert metrics.pair_accuracy > 0.85
    assert metrics.regret["8"] < 0.3
    assert metrics.groups >= 1
    assert 0 < metrics.rows < model.trained_rows == 600


def test_used_model_has_all_rows_and_unbiased_judge() -> None:
    rows = synthetic()
    model = train_with_judge(BoostedTrees, rows, 1, PARAMS)
    back = held_out_rows(rows, 1, PARAMS.hold_out)
    used, judge = model.load(BoostedTrees), model.judge_of(BoostedTrees)
    errors = [
        float(np.abs(np.log2(predicted / rows.cycles))[back].mean())
        for predicted in (each.predict(rows.features) for each in (used, judge))
    ]
    assert errors[0] < errors[1] / 2
    assert metrics_by_level(judge.predict(rows.features[back]), rows.select(back)) == model.metrics


def test_one_model_knows_every_level_by_its_condition() -> None:
    """The same segments four times as slow at one level: a prediction at either is as near."""
    x = synthetic().features[:, : -len(CONDITION)]
    fast = synthetic().cycles
    conditions = {level: condition_of(EDGE, DataType.float16, level) for level in ("none", "severe")}
    rows = TrainingRows.at_levels(x, np.stack([fast, 4 * fast], 1).astype(np.int64), ["a", "b"] * 300, conditions)
    model = train_with_judge(BoostedTrees, rows, 1, load_config(None, ["model.rounds=200"]).model)
    assert set(model.metrics) == {"none", "severe"}
    assert all(metrics.rows == 300 for metrics in model.metrics.values())
    loaded = model.load(BoostedTrees)
    levels = [AtLevel(loaded, condition) for condition in conditions.values()]
    none, severe = (level.predict(x) for level in levels)
    assert np.median(severe / none) == pytest.approx(4, rel=0.05)
    for rows_asked in (1, 7, 300):  # together as one by one, to the bit, whoever else is asked
        other = AtLevel(model.load(BoostedTrees), conditions["none"])
        found = predict_at([levels[1], other, levels[0]], x[:rows_asked])
        assert (found == np.stack([severe, none, none], 1)[:rows_asked]).all()


def test_trees_see_engine_shares_of_the_guess() -> None:
    """A segment that does twice as much in as many blocks: twice the guess, and the same shares."""
    once = np.full((1, len(FEATURES)), 1e7)
    twice = 2 * once
    once[:, FEATURES.index("iterations")] = twice[:, FEATURES.index("iterations")] = 1000.0
    (a, guess), (b, double) = (model_input(join_condition(scale_features(raw), CONDITION)) for raw in (once, twice))
    np.testing.assert_allclose(double, 2 * guess, rtol=1e-2)
    np.testing.assert_allclose(a[:, len(FEATURES) :], b[:, len(FEATURES) :], atol=1e-2)
    assert (a[:, : len(FEATURES)] != b[:, : len(FEATURES)]).any()


@pytest.mark.parametrize("level", [*EDGE.contention])
def test_estimate_of_rows_is_that_of_their_level(level: str) -> None:
    raw = np.random.default_rng(5).uniform(0, 1e6, (40, len(FEATURES)))
    found = estimate_cycles(join_condition(scale_features(raw), condition_of(EDGE, DataType.float16, level)))
    np.testing.assert_allclose(found, 1 + expected_cycles(raw, EDGE.contention[level]), rtol=1e-4)


def test_noise_cannot_be_learnt() -> None:
    rows = synthetic()
    shuffled = with_cycles(rows, np.random.default_rng(3).permutation(rows.cycles))
    result = train_with_judge(BoostedTrees, shuffled._replace(groups=np.full(600, "one")), 1, PARAMS)
    assert abs(result.metrics["slight"].spearman) < 0.3


def test_hold_out_is_by_workload_and_stays_fixed() -> None:
    rows = synthetic(400, groups=8)
    back = held_out_rows(rows, 5, 0.3)
    assert 0 < back.sum() < len(back)
    assert not set(rows.groups[back]) & set(rows.groups[~back])
    np.testing.assert_array_equal(held_out_rows(first(rows, 200), 5, 0.3), back[:200])
    again = rows.select(np.append(np.arange(400), 0))._replace(groups=np.full(401, "one"))
    mask = held_out_rows(again, 5, 0.3)
    assert 0.2 < mask.mean() < 0.4
    assert mask[0] == mask[400], "equal features are on one side"
    assert held_out_rows(first(rows, 2)._replace(groups=np.array(["a", "b"])), 0, 0.01).sum() == 1


def test_metrics_of_perfect_reversed_and_constant_guesses() -> None:
    truth = np.arange(1, 101, dtype=np.float64)
    rows = TrainingRows(np.zeros((100, 1), np.float32), truth, np.array(["a"] * 100), np.array(["none"] * 100))
    perfect = evaluate_ranking(truth, rows)
    assert (perfect.spearman, perfect.pair_accuracy, perfect.regret["1"], perfect.log2_error) == (pytest.approx(1), 1, 0, 0)
    wrong = evaluate_ranking(truth[::-1].copy(), rows)
    assert (wrong.spearman, wrong.pair_accuracy, wrong.regret["1"]) == (pytest.approx(-1), 0, 99)
    constant = evaluate_ranking(np.full(100, 8.0), rows)
    assert (constant.spearman, constant.pair_accuracy) == (0, 0.5)


@settings(deadline=None)  # kernels are compiled
@given(st.integers(0, 2**32 - 1))
def test_metrics_are_those_of_a_definition_in_words(seed: int) -> None:
    """Pairs one by one, ranks as pandas has them; groups that took the same throughout say nothing."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    truth, guess = rng.integers(1, 9, n).astype(np.float64), rng.integers(1, 9, n).astype(np.float64)
    groups = rng.integers(0, 3, n).astype(str)
    found = evaluate_ranking(guess, TrainingRows(np.zeros((n, 1), np.float32), truth, groups, np.full(n, "none")))
    pairs, ranks, regrets = [], [], []
    for name in np.unique(groups):
        a, b = guess[groups == name], truth[groups == name]
        if b.min() == b.max():
            continue
        right = [0.5 if a[i] == a[j] else float((a[i] < a[j]) == (b[i] < b[j])) for i, j in combinations(range(len(a)), 2) if b[i] != b[j]]
        pairs.append(np.mean(right))
        ranks.append(0.0 if a.min() == a.max() else pd.Series(a).corr(pd.Series(b), method="spearman"))
        regrets.append(b[np.argsort(a, kind="stable")[:8]].min() / b.min() - 1)
    assert found.groups == len(pairs)
    if pairs:
        assert (found.pair_accuracy, found.spearman, found.regret["8"]) == pytest.approx((np.mean(pairs), np.mean(ranks), np.mean(regrets)))


def test_same_rows_and_seed_give_the_same_bytes() -> None:
    one, two = (train_with_judge(BoostedTrees, synthetic(), 4, PARAMS) for _ in range(2))
    assert one == two
    assert train_with_judge(BoostedTrees, synthetic(), 5, PARAMS).version != one.version


def test_poisoned_rows_are_left_out_and_counted() -> None:
    rows = synthetic()
    clean = train_with_judge(BoostedTrees, rows, 1, PARAMS)
    bad = rows.select(np.append(np.arange(600), np.zeros(6, np.int64)))
    bad.features[-1, SIZES.start], bad.features[-2, SIZES.start] = np.nan, np.inf
    bad.cycles[-6:] = [np.inf, np.nan, -5, 0, 10, 10]
    poisoned = train_with_judge(BoostedTrees, bad, 1, PARAMS)
    assert poisoned.left_out == 6
    assert poisoned.version == clean.version
    with pytest.raises(ValueError, match="0 rows to learn from"):
        train_with_judge(BoostedTrees, with_cycles(first(rows, 3), np.full(3, np.nan)), 1, PARAMS)


def test_the_judge_keeps_the_better_model() -> None:
    rows = synthetic(1200)
    little = retrain(BoostedTrees, first(rows, 60), 1, PARAMS)
    assert little.chosen == "new"
    assert little.models == (little.candidate,)
    more = retrain(BoostedTrees, rows, 1, PARAMS, little.candidate)
    assert more.chosen == "new"
    assert more.pairs["new"] > more.pairs["older"] > more.pairs["estimate"]
    again = retrain(BoostedTrees, rows, 1, PARAMS, more.candidate)
    assert again.chosen == "older", "an equal model is not better"
    assert again.models == (more.candidate,)
    back = held_out_rows(rows, 1, PARAMS.hold_out)
    garbage = with_cycles(rows, np.where(back, rows.cycles, np.random.default_rng(0).permutation(rows.cycles)))
    worse = retrain(BoostedTrees, garbage, 1, PARAMS, more.candidate)
    assert worse.chosen == "older"
    assert worse.models == (more.candidate,)


def test_initial_model_is_judged_with_every_training() -> None:
    """It comes back where what the run learnt later is worse; while it is in use it is compared once."""
    rows = synthetic(1200)
    prior = train_with_judge(BoostedTrees, rows, 1, PARAMS)
    little = retrain(BoostedTrees, first(rows, 60), 1, PARAMS, prior, prior)
    assert little.chosen == "prior"
    assert list(little.pairs) == ["estimate", "prior", "new"]
    back = retrain(BoostedTrees, first(rows, 60), 1, PARAMS, little.candidate, prior)
    assert back.chosen == "prior"
    assert back.models == (prior,)


def test_the_estimate_proposes_where_no_model_ranks_better() -> None:
    """A model that knows no more than a coin, and a prior that has it the wrong way round, are dropped."""
    rows = synthetic(400)
    coin = retrain(BoostedTrees, with_cycles(rows, np.full(400, 7.0)), 1, PARAMS)
    assert coin.chosen == "estimate"
    assert coin.models == ()
    rows.features[:, FEATURES.index("cube_cycles")] = np.random.default_rng(0).uniform(8.0, 16.0, 400)
    expected = estimate_cycles(rows.features)
    true, wrong = with_cycles(rows, expected), train_with_judge(BoostedTrees, with_cycles(rows, 1e9 / expected), 1, PARAMS)
    dropped = retrain(BoostedTrees, true, 1, PARAMS, wrong, wrong)
    assert dropped.chosen == "estimate"
    assert dropped.pairs["estimate"] == 1.0
    assert dropped.pairs["prior"] < 0.5


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "m.model"
    train_with_judge(BoostedTrees, synthetic(), 1, PARAMS).save(LocalPath(path), "boosted_trees")
    return path


def test_a_file_holds_all_of_a_model(saved: Path) -> None:
    x = synthetic().features
    kind, kept = load_trained(saved)
    assert (kind, kept) == ("boosted_trees", train_with_judge(BoostedTrees, synthetic(), 1, PARAMS))
    back = kept.load(BoostedTrees)
    assert back.predict(x[:0]).shape == (0,)
    with pytest.raises(ValueError, match=rf"takes \[n, {x.shape[1]}\]"):
        back.predict(x[:, :3])


@settings(deadline=None)
@given(st.data())
def test_a_file_that_was_changed_is_refused(saved: Path, data: st.DataObject) -> None:
    """One byte anywhere, or the end cut off: one line, and no class of models sees it."""
    raw = bytearray(saved.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw[at] ^= data.draw(st.integers(1, 255))
    else:
        del raw[at:]
    said, kept = "", None
    try:
        kept = decode_model(bytes(raw), "m.model")
    except BadInputError as error:
        said = str(error)
    if kept is None:
        assert re.fullmatch("m.model: .+", said)
    else:  # in the facts, where another number of rows is as good as any
        assert kept.model.raw == load_trained(saved).model.raw


@pytest.mark.parametrize("what", ["features", "simulator", "columns"])
def test_model_made_for_something_else_is_refused(saved: Path, what: str) -> None:
    facts = model_requirements()
    raw = saved.read_bytes().replace(f'"{what}":"{facts[what]}"'.encode(), f'"{what}":"other"'.encode())
    with pytest.raises(BadInputError, match=naming("m.model", f"{what} other", facts[what])):
        decode_model(raw, "m.model")


@pytest.mark.parametrize(
    ("name", "change", "stale"),
    [("cycles", {"unit": "ns"}, True), ("status", {"meaning": "as a board says"}, True), ("wall_s", {"unit": "ms"}, False)],
)
def test_unread_columns_do_not_make_a_log_unfit(
    saved: Path, name: str, change: dict[str, str], stale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that is new, and one that is another than before."""
    others = [column._replace(**change) if column.name == name else column for column in record.LOG_COLUMNS]
    monkeypatch.setattr(record, "LOG_COLUMNS", (record.Column("humidity", pa.float64(), "of the room", "1"), *others))
    if stale:
        with pytest.raises(BadInputError, match=r"^m\.model: made for columns "):
            decode_model(saved.read_bytes(), "m.model")
    else:
        assert decode_model(saved.read_bytes(), "m.model") == load_trained(saved)
