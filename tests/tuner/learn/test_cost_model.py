"""The cost model learns to rank, is judged on workloads it has not seen, and never gets worse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.cost.features import FEATURES, scaled, seen
from simulator.npu.errors import BadInputError
from simulator.npu.level import Level
from tuner.config import load_config
from tuner.learn.cost_model import TrainingRows
from tuner.learn.metrics import evaluate, held_out
from tuner.learn.promotion import retrain, train
from tuner.learn.trained import load_trained
from tuner.learn.trees import BoostedTrees
from tuner.world.local import LocalPlace

PARAMS = load_config(None, ["model.rounds=60"]).model


LEVEL = Level(share=0.5, latency_cycles=30)


def synthetic(n: int = 600, groups: int = 4, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float64], list[str]]:
    """cycles = max(compute, traffic) of two sizes, as a roofline has it, times the workload's own scale; the sizes in the last columns."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, len(FEATURES) + 5), np.float32)
    x[:, -5:] = rng.integers(1, 64, (n, 5))
    group = rng.integers(0, groups, n)
    cycles = np.maximum(x[:, -5] * x[:, -4] * 4, x[:, -3] * 40) * (1 + group) + 100
    return x, cycles.astype(np.float64), [f"net{g}" for g in group]


def test_learns_to_rank_an_unseen_workload() -> None:
    model = train(BoostedTrees, *synthetic(), level=LEVEL, seed=1, settings=PARAMS)
    assert model.metrics.spearman > 0.9
    assert model.metrics.pair_accuracy > 0.85
    assert model.metrics.regret["8"] < 0.3
    assert model.metrics.groups >= 1
    assert 0 < model.metrics.rows < model.trained_rows == 600


def test_what_is_used_has_learnt_from_every_row_and_is_judged_by_what_has_not() -> None:
    x, cycles, groups = synthetic()
    model = train(BoostedTrees, x, cycles, groups, level=LEVEL, seed=1, settings=PARAMS)
    back = held_out(TrainingRows(x, cycles, np.array(groups)), 1, PARAMS.hold_out)
    used, judge = model.load(BoostedTrees), model.judge_of(BoostedTrees)
    errors = [float(np.abs(np.log2(predicted / cycles))[back].mean()) for predicted in (used.predict(x), judge.predict(x))]
    assert errors[0] < errors[1] / 2
    assert (
        evaluate(model.judge_of(BoostedTrees).predict(x[back]), TrainingRows(x[back], cycles[back], np.array(groups)[back]), 1)
        == model.metrics
    )


def test_trees_see_what_engines_take_in_shares_of_the_guess() -> None:
    """A segment that does twice as much in as many blocks: twice the guess, and the same shares."""
    once = np.full((1, len(FEATURES)), 1e7)
    twice = 2 * once
    once[:, FEATURES.index("iterations")] = twice[:, FEATURES.index("iterations")] = 1000.0
    (a, guess), (b, double) = (seen(scaled(raw), LEVEL) for raw in (once, twice))
    np.testing.assert_allclose(double, 2 * guess, rtol=1e-2)
    np.testing.assert_allclose(a[:, len(FEATURES) :], b[:, len(FEATURES) :], atol=1e-2)
    assert (a[:, : len(FEATURES)] != b[:, : len(FEATURES)]).any()


def test_noise_cannot_be_learnt() -> None:
    x, cycles, groups = synthetic()
    shuffled = np.random.default_rng(3).permutation(cycles)
    result = train(BoostedTrees, x, shuffled, ["one"] * len(groups), level=LEVEL, seed=1, settings=PARAMS)
    assert abs(result.metrics.spearman) < 0.3


def test_hold_out_is_by_workload_and_stays_when_rows_arrive() -> None:
    x, cycles, groups = synthetic(400, groups=8)
    rows = TrainingRows(x, cycles, np.array(groups))
    back = held_out(rows, 5, 0.3)
    assert 0 < back.sum() < len(back)
    assert not set(rows.groups[back]) & set(rows.groups[~back])
    half = TrainingRows(x[:200], cycles[:200], np.array(groups[:200]))
    np.testing.assert_array_equal(held_out(half, 5, 0.3), back[:200])
    one = TrainingRows(np.vstack([x, x[:1]]), np.append(cycles, 1), np.array(["one"] * 401))
    mask = held_out(one, 5, 0.3)
    assert 0.2 < mask.mean() < 0.4
    assert mask[0] == mask[400], "equal features are on one side"
    two = TrainingRows(x[:2], cycles[:2], np.array(["a", "b"]))
    assert held_out(two, 0, 0.01).sum() == 1


def test_metrics_of_a_perfect_a_reversed_and_a_constant_guess() -> None:
    truth = np.arange(1, 101, dtype=np.float64)
    rows = TrainingRows(np.zeros((100, 1), np.float32), truth, np.array(["a"] * 100))
    perfect = evaluate(truth, rows, 0)
    assert (perfect.spearman, perfect.pair_accuracy, perfect.regret["1"], perfect.log2_error) == (pytest.approx(1), 1, 0, 0)
    wrong = evaluate(truth[::-1], rows, 0)
    assert (wrong.spearman, wrong.pair_accuracy, wrong.regret["1"]) == (pytest.approx(-1), 0, 99)
    constant = evaluate(np.full(100, 8.0), rows, 0)
    assert (constant.spearman, constant.pair_accuracy) == (0, 0.5)


def test_same_rows_and_seed_give_the_same_bytes() -> None:
    first, second = (train(BoostedTrees, *synthetic(), level=LEVEL, seed=4, settings=PARAMS) for _ in range(2))
    assert first.version == second.version
    assert first.metrics == second.metrics
    assert train(BoostedTrees, *synthetic(), level=LEVEL, seed=5, settings=PARAMS).version != first.version


def test_poisoned_rows_are_left_out_and_counted() -> None:
    x, cycles, groups = synthetic()
    clean = train(BoostedTrees, x, cycles, groups, level=LEVEL, seed=1, settings=PARAMS)
    bad_x = np.vstack([x, np.repeat(x[:1], 6, axis=0)])
    bad_x[-1, -5], bad_x[-2, -3] = np.nan, np.inf
    bad_cycles = np.concatenate([cycles, [np.inf, np.nan, -5, 0, 10, 10]])
    poisoned = train(BoostedTrees, bad_x, bad_cycles, groups + ["net0"] * 6, level=LEVEL, seed=1, settings=PARAMS)
    assert poisoned.left_out == 6
    assert poisoned.version == clean.version
    with pytest.raises(ValueError, match="0 rows to learn from"):
        train(BoostedTrees, x[:3], np.full(3, np.nan), groups[:3], level=LEVEL, seed=1, settings=PARAMS)


def test_the_gate_keeps_the_better_model() -> None:
    x, cycles, groups = synthetic(1200)
    names = np.array(groups)
    little = retrain(BoostedTrees, TrainingRows(x[:60], cycles[:60], names[:60]), LEVEL, 1, PARAMS, None)
    assert little.promoted
    assert little.model is little.candidate
    more = retrain(BoostedTrees, TrainingRows(x, cycles, names), LEVEL, 1, PARAMS, little.model)
    assert more.promoted
    assert more.incumbent is not None
    assert more.candidate.metrics.pair_accuracy > more.incumbent.pair_accuracy
    again = retrain(BoostedTrees, TrainingRows(x, cycles, names), LEVEL, 1, PARAMS, more.model)
    assert not again.promoted, "an equal model is not better"
    assert again.model is more.model
    back = held_out(TrainingRows(x, cycles, names), 1, PARAMS.hold_out)
    garbage = np.where(back, cycles, np.random.default_rng(0).permutation(cycles))
    worse = retrain(BoostedTrees, TrainingRows(x, garbage, names), LEVEL, 1, PARAMS, more.model)
    assert not worse.promoted
    assert worse.model is more.model


def test_a_model_no_better_than_a_coin_is_not_promoted() -> None:
    x, cycles, groups = synthetic(400)
    rows = TrainingRows(x, np.full(400, 7.0), np.array(groups))
    result = retrain(BoostedTrees, rows, LEVEL, 1, PARAMS, None)
    assert result.model is None
    assert not result.promoted
    assert cycles.std() > 0


def test_save_load_and_damage(tmp_path: Path) -> None:
    x, cycles, groups = synthetic()
    model = train(BoostedTrees, x, cycles, groups, level=LEVEL, seed=1, settings=PARAMS)
    path = LocalPlace(tmp_path / "m.model")
    model.save(path, "boosted_trees")
    kind, kept = load_trained(path)
    assert (kind, kept) == ("boosted_trees", model)
    back = kept.load(BoostedTrees)
    np.testing.assert_array_equal(back.predict(x), model.load(BoostedTrees).predict(x))
    assert back.predict(x[:0]).shape == (0,)
    with pytest.raises(ValueError, match=rf"takes \[n, {len(FEATURES) + 5}\]"):
        back.predict(x[:, :3])
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(BadInputError, match="damaged"):
        load_trained(path)
    facts = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**facts, "metrics": {"x": 1}}))
    with pytest.raises(BadInputError, match="not the facts"):
        load_trained(path)
