"""Tests that every cost model (`tuner.cost_model.interface.CostModel`) must pass, on measured segments of a small model."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from compiler.cost.level_conditions import CONDITIONS, join_condition
from tuner.config import load_config
from tuner.cost_model.interface import CostModel, TrainingRows
from tuner.cost_model.judge import train_with_judge
from tuner.cost_model.metrics import merit, metrics_by_level
from tuner.testing.pickles import is_pickle
from tuner.testing.samples import sample_rows

SEED = 3


class CostModelContract:
    """Base class of a test.  model: tested class.  settings: `a.b=c` texts over the default configuration.  machine: of the segments."""

    model: ClassVar[type[CostModel]]
    settings: tuple[str, ...] = ()
    machine = "edge"

    @cached_property
    def rows(self) -> TrainingRows:
        return sample_rows(self.machine)

    def trained(self, rows: TrainingRows | None = None) -> CostModel:
        return self.model.train(rows or self.rows, SEED, load_config(None, self.settings).model)

    @cached_property
    def once(self) -> CostModel:
        return self.trained()

    def predicted(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self.once.predict(features))

    def test_it_has_a_version(self) -> None:
        assert isinstance(self.model.version, str), f"version {self.model.version!r}, expected a text"
        assert self.model.version, "version '', expected a text that is not empty"

    def test_the_same_rows_give_the_same_bytes(self) -> None:
        assert self.once.save() == self.trained().save(), "the same rows, seed and settings gave other bytes"

    def test_what_is_loaded_predicts_the_same(self) -> None:
        data = self.once.save()
        assert isinstance(data, bytes), f"saved a {type(data).__name__}, expected bytes"
        loaded_model = self.model.load(data)
        assert np.array_equal(loaded_model.predict(self.rows.features), self.predicted(self.rows.features)), "after load, other cycles"
        assert loaded_model.save() == data, "after load, other bytes"

    def test_nothing_is_pickled(self) -> None:
        assert not is_pickle(self.once.save()), "saved a pickle, which runs what whoever wrote the file likes"

    def test_every_row_has_cycles_of_its_own(self) -> None:
        """Predictions are finite, above 0, and independent of the other rows."""
        features = self.rows.features
        cycles = self.predicted(features)
        assert cycles.shape == (len(features),), f"cycles of shape {cycles.shape} for features of shape {features.shape}"
        assert (np.isfinite(cycles) & (cycles > 0)).all(), "cycles that are not finite, or not above 0"
        for row in (0, len(features) // 2):
            single = self.predicted(features[row : row + 1])
            assert np.allclose(single, cycles[row], rtol=1e-6), f"row {row}: {single} alone, {cycles[row]} among {len(features)}"

    def test_features_that_nobody_has_seen_have_cycles_too(self) -> None:
        segment_features, condition = np.hsplit(self.rows.features, [-len(CONDITIONS)])
        for strange in (np.zeros_like(segment_features[:2]), 2 * segment_features.max(0, keepdims=True)):
            cycles = self.predicted(join_condition(strange, condition[0]))
            assert (np.isfinite(cycles) & (cycles > 0)).all(), f"{cycles}: not finite, or not above 0"

    def test_two_rows_are_enough(self) -> None:
        two = self.rows.select(np.arange(len(self.rows.cycles)) < 2)
        assert len(self.trained(two).predict(self.rows.features)) == len(self.rows.cycles)

    def test_it_ranks_what_it_has_seen(self) -> None:
        pairs, *_ = merit(metrics_by_level(self.predicted(self.rows.features), self.rows))
        assert pairs > 0.5, f"{pairs:.1%} of pairs in order, no better than a coin"

    def test_it_goes_through_the_gate(self) -> None:
        """Training as in a run: a judge that has not seen the held-out rows, metrics, and bytes that are read back."""
        rows = self.rows
        trained = train_with_judge(self.model, rows, SEED, load_config(None, self.settings).model)
        assert trained.trained_rows == len(rows.cycles)
        assert np.array_equal(trained.load(self.model).predict(rows.features), self.predicted(rows.features))
