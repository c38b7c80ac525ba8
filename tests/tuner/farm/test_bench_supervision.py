"""The benchmark of supervision does the jobs that it counts."""

from __future__ import annotations

import json

import pytest

from scripts import bench_supervision


def test_every_finished_job_is_followed_by_another() -> None:
    farm = bench_supervision.VirtualFarm(5)
    assert farm.jobs == 10
    farm.run(40)
    assert farm.jobs >= 50
    assert farm.now_s > 50 * bench_supervision.SHORTEST_S / 5 / max(bench_supervision.SPEEDS)


@pytest.mark.usefixtures("local_ray")
def test_figures_are_microseconds_of_each_farm(capsys: pytest.CaptureFixture[str]) -> None:
    bench_supervision.main([2, 3], jobs=20, actors=1, as_json=True)
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == ["supervision of 2 slots", "supervision of 3 slots", "1 actors on Ray"]
    assert all(0 < us < 1e5 for us in figures.values())
