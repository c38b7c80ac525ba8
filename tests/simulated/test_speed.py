"""A slow worker holds nobody up: workers of speeds 1 : 2 : 4 do nearly what their summed speed allows."""

from __future__ import annotations

import pytest

from tests.simulated.speed import used


@pytest.mark.parametrize("workers", [4, 8, 16, 32, pytest.param(64, marks=pytest.mark.slow)])
def test_workers_of_unequal_speed_do_what_they_could(workers: int) -> None:
    """Where an epoch has a few jobs for each."""
    assert used(workers, 4 * workers, epochs=24) >= 0.9


@pytest.mark.parametrize(("shards_each", "least"), [(1, 0.65), (2, 0.78)])
@pytest.mark.parametrize("workers", [4, 16])
def test_slow_workers_rest_where_shards_are_fewer(workers: int, shards_each: int, least: float) -> None:
    assert used(workers, shards_each * workers, epochs=24) >= least
