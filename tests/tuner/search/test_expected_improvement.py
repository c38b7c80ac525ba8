"""What measuring a segment promises, and what measurements say of predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from compiler.space.gene import Gene
from tests.tuner.search.searching import LEVELS, Local, LocalSearch
from tests.tuner.search.test_epoch import target_graph
from tuner.measure.budgeted import MeasureBudget
from tuner.measure.grants import NEVER
from tuner.search.ask_tell import run_to_end
from tuner.search.epoch import EVOLVING
from tuner.search.expected_improvement import ERROR, corrections, expected_gain, expected_savings
from tuner.search.table import WAYS


def test_the_expected_improvement_is_the_mean_of_draws() -> None:
    rng = np.random.default_rng(0)
    room, price = np.array([100.0, 100.0, 100.0, -5.0]), np.array([80.0, 100.0, 115.0, 50.0])
    draws = price * np.exp(ERROR * rng.standard_normal((400_000, 1)))
    assert expected_gain(room, price) == pytest.approx(np.maximum(0, room - draws).mean(0), abs=0.05)


def test_two_segments_that_pay_only_together_promise_something() -> None:
    """Beside what is measured each of them is worth nothing: the rest of the model has no other way."""
    u = target_graph("conv_chain")
    count = len(u.operators)
    search = LocalSearch(u)
    context = search.context(epoch=EVOLVING)
    whole, halves = Gene(0, count), [Gene(0, count // 2), Gene(count // 2, count)]
    context.table.add(whole, np.full(3, 1000))
    for k in range(count):
        context.table.add(Gene(k, k + 1), np.full(3, 1000))
    predicted = np.full((2, 3), 300.0)

    def promised(genes: list[Gene]) -> list[float]:
        asking = expected_savings(context, genes, predicted[: len(genes)], range(3), None)
        return [float(each) for each in run_to_end(asking, MeasureBudget(Local(u)))]

    assert min(promised(halves)) > 0.3
    assert max(promised(halves[:1])) < 1e-6
    predicted[0, :] = NEVER
    assert promised(halves)[0] == 0.0


def test_predictions_of_what_shares_operators_are_corrected() -> None:
    u = target_graph("conv_chain")
    context = LocalSearch(u).context(epoch=EVOLVING)
    gene = Gene(0, 2)
    assert corrections(context, [gene]).tolist() == [[1.0] * len(LEVELS)], "nothing is known"
    run_to_end(context.measure_segments([gene]), MeasureBudget(Local(u), (context.known,)))
    (raw,) = run_to_end(context.features([gene]), MeasureBudget(Local(u)))
    assert raw is not None
    cycles = context.table.find_cycles(gene)
    assert cycles is not None
    off = np.log(cycles) - np.log(context.predict(raw[None])[0])
    same, wider, elsewhere = (np.log(each) for each in corrections(context, [gene._replace(blocks=2), Gene(0, 3), Gene(2, 3)]))
    assert same == pytest.approx(off / 1.5, rel=0.02), "as if half a measurement had said that nothing is wrong"
    assert wider == pytest.approx(off * (share := (2 / 3) ** 2) / (share + 0.5), rel=0.02)
    assert math.isclose(float(np.abs(elsewhere).max()), 0.0, abs_tol=1e-12)


def test_fastest_of_a_structure_survive_further_measurements() -> None:
    """As if all that was ever measured were sorted anew, also after what was known only for a while is forgotten."""
    table = LocalSearch(target_graph("conv_chain")).context(epoch=EVOLVING).table
    rng, measured = np.random.default_rng(0), dict[int, list[tuple[float, bytes]]]()

    def add(slots: int) -> tuple[int, float, bytes]:
        start, look = int(rng.integers(2)), rng.bytes(8)
        cycles = rng.integers(1, 9, 3) if rng.random() < 0.8 else np.array([5, NEVER, 5])
        fits, gene = (cycles < NEVER).all(), Gene(start, start + 1, blocks=2, prefetch=slots)
        table.add(gene, None if rng.random() < 0.1 else cycles, features=look)
        known = table.find_cycles(gene)
        return start, float(np.log(cycles).mean()) if fits and known is not None else math.inf, look

    for slots in range(1, 60):
        with table.temporary():
            add(1000 + slots)
        start, merit, look = add(slots)
        if merit < math.inf:
            measured.setdefault(start, []).append((merit, look))
        kept = {start: [way[:2] for way in table.fastest.get(table.structures.structure(start, start + 1), ())] for start in measured}
        assert kept == {start: sorted(ways)[:WAYS] for start, ways in measured.items()}
    assert all(len(ways) > WAYS for ways in measured.values())
