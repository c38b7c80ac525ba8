"""The benchmark of the farm on a small network: it runs, and its figures are what they say."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from scripts import bench_farm
from tests.tuning import QUICK, save_small
from tuner.config import load_config
from tuner.farm.coordinator import SerialJobs
from tuner.search.epoch import EVOLVING

FEW = [*QUICK, "model.rounds=5", "segments.candidates=8", "segments.measured=4"]


@pytest.mark.usefixtures("local_ray")
def test_rates_are_counts_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Called here: its searches on their own are the script in processes of their own.  Nothing spins beside them: see below."""
    asked: list[bool] = []
    monkeypatch.setattr(bench_farm, "background_load", lambda busy: nullcontext(asked.append(busy)))
    monkeypatch.setattr(bench_farm, "SCORING_S", 0.1)
    monkeypatch.setattr(bench_farm, "SCORED_AT_ONCE", 32)
    out = tmp_path / "deep" / "b.json"
    bench_farm.main(str(save_small("conv_chain", tmp_path)), epochs=3, pairs=1, settings=FEW, busy=True, out=out)
    found = json.loads(out.read_text())
    (pair,) = found["pairs"]
    assert pair["ratio"] == pytest.approx(pair["actors_per_s"] / pair["alone_per_s"])
    assert found["ratio"] == pair["ratio"]
    assert pair["tasks"] > 0
    assert found["beside_busy"]
    assert asked == [True]
    assert pair["work"] > 0
    # no bound: in a window this short, what the computer does between the readings of two clocks is more than what is read
    assert 0 <= pair["waits"] < 1
    assert pair["cpu"] > 0
    assert found["actors_per_driver"] == pytest.approx(2e6 / found["actors_per_s"] / found["driver_us"])
    assert 0 < found["unique_mb"] < found["rss_mb"]
    assert found["scored_per_s"] > 0
    assert found["programs_scored_per_s"] > 0
    said = capsys.readouterr().out
    assert "actors that a driver feeds" in said
    assert "beside a busy one" in said


def test_what_is_busy_is_so_while_it_lasts() -> None:
    with bench_farm.background_load(True) as pid:
        assert pid is not None
        end = time.monotonic() + 30
        while not bench_farm.cpu_s(pid) and time.monotonic() < end:
            time.sleep(0.02)
        assert bench_farm.cpu_s(pid) > 0
    assert not Path(f"/proc/{pid}").exists()
    with bench_farm.background_load(False) as nobody:
        assert nobody is None


def test_window_reads_its_clocks_at_both_ends(tmp_path: Path) -> None:
    config = load_config(None, FEW)
    spec = bench_farm.specification(bench_farm.network(str(save_small("conv_chain", tmp_path)), "edge"), config, 0)
    read: list[float] = []

    def clock() -> float:
        read.append(1.5 * len(read))
        return read[-1]

    begin = time.monotonic()
    with SerialJobs(spec) as jobs:
        found = bench_farm.Window(2).run(spec, jobs, clock)
    assert read == [0.0, 1.5]
    assert found.workers_s == 1.5
    assert 0 < found.wall_s < time.monotonic() - begin
    assert 0 < found.tasks == round(found.rate * found.wall_s)
    assert len(found.findings) >= EVOLVING + 2
