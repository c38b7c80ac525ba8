"""The benchmark of a worker: it runs, its numbers are consistent, and it names networks that do not exist."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts import bench_evaluate
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import make_case
from tests.models import small_model
from tests.scripting import run_script
from tests.tuning import save_small


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    words = (
        "--networks",
        "made:mobilenet_v1-small,made:mobilenet_v2-small,quantised=qdq",
        "--seconds",
        "0.1",
        "--cold",
        save_small("conv_chain", folder),
        "--json",
    )
    done = run_script("bench_evaluate", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(params=[0, 1], ids=["float16", "int8"])
def one(found: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What was found of a network."""
    result: dict[str, Any] = found["networks"][request.param]
    return result


def test_networks_stand_beside_each_other(found: dict[str, Any]) -> None:
    assert found["machine"] == "edge"
    names = [(each["network"], each["levels"]) for each in found["networks"]]
    assert names == [("made:mobilenet_v1-small", 3), ("made:mobilenet_v2-small,quantised=qdq", 3)]


def test_rates_are_counts_over_time(one: dict[str, Any]) -> None:
    for name in ("programs", "tilings", "segments", "features"):
        r = one[name]
        assert r["per_s"] == pytest.approx(1e3 / r["ms"])
        assert r["count"] * r["ms"] >= 100  # all of the CPU time that was asked for
        assert r["longest_ms"] >= r["ms"]
        assert 0 < r["fitting_share"] <= 1
    assert one["programs"]["fitting_share"] == 1  # mutations are repaired before they are measured
    assert one["features"]["ms"] < one["segments"]["ms"] < one["programs"]["ms"]
    assert one["without_mechanisms"]["fitting_share"] == 1


def test_without_mechanisms_no_persistence_passes_or_prefetch() -> None:
    target_graph = make_case(small_model("residual_block"), load_machine("edge"), DataType.float16).target_graph
    genomes = list(islice(bench_evaluate.mutations(target_graph, 0, mechanisms=False), 40))
    assert all(gene.lookahead == 1 and gene.passes == 1 and not gene.held for genome in genomes for gene in genome)
    assert any(gene.held for genome in islice(bench_evaluate.mutations(target_graph, 0), 40) for gene in genome)


@pytest.mark.parametrize("name", ["program_stages", "segment_stages"])
def test_shares_add_up(one: dict[str, Any], name: str) -> None:
    stages = one[name]
    assert sum(stages["share"].values()) == pytest.approx(1)
    total = sum(stages["ms"][stage] for stage in stages["share"])
    for stage, share in stages["share"].items():
        assert stages["ms"][stage] == pytest.approx(share * total)
    records = total - stages["ms"]["synchronise"] + stages["ms"]["link"] + stages["ms"]["prepare"]
    assert stages["record_times"] == pytest.approx(records / total)
    assert stages["instructions"] > 100
    assert stages["us_per_instruction"] == pytest.approx(1e3 * total / stages["instructions"])
    assert stages["us_per_instruction"] < stages["us_per_operator"] < 1e3 * total


def test_operator_and_instruction_sums_exclude_interruptions(found: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    operators, instructions = rng.integers(1, 9, 400), rng.integers(10, 9000, 400)
    times = 900 + 250 * operators + 0.4 * instructions + np.where(np.arange(400) % 20, 0, 1e6)
    assert bench_evaluate.marginal(np.column_stack((operators, instructions, times))) == pytest.approx(
        {"us_per_segment": 900, "us_per_operator": 250, "us_per_instruction": 0.4}, rel=1e-2
    )
    assert all(each["marginal"].keys() == {"us_per_segment", "us_per_operator", "us_per_instruction"} for each in found["networks"])


def test_ratios_to_the_first_network_have_intervals(found: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)

    def rows(per_instruction: float, most: int) -> Any:
        operators, instructions = rng.integers(1, 9, 400), rng.integers(10, most, 400)
        times = 900 + 250 * operators + per_instruction * instructions
        return np.column_stack((operators, instructions, times * rng.uniform(0.9, 1.1, 400)))

    ratios = bench_evaluate.compare_costs(rows(0.5, 4500), rows(0.4, 9000))
    added = ratios["us_per_instruction"]
    assert added["ratio"] == pytest.approx(1.25, rel=0.1)
    assert added["low"] < 1.25 < added["high"] < added["low"] + 0.4
    assert ratios["at_its_costs"] == pytest.approx((1 + 2025 / (0.4 * 2250)) / (1 + 2025 / (0.4 * 4500)), rel=0.1)
    assert ratios["mean"]["ratio"] > ratios["at_its_costs"]
    first, second = found["networks"]
    assert first["beside_first"] is None
    assert second["beside_first"]["mean"]["low"] <= second["beside_first"]["mean"]["high"]


def test_whole_programs_are_timed_layer_by_layer(one: dict[str, Any]) -> None:
    layers = one["layer_by_layer"]
    assert layers["instructions"] > one["operators"]
    took = layers["count"] * layers["instructions"] * (layers["compile_ns"] + layers["simulate_ns"])
    assert 0.3e8 < took < 3e9  # of 0.1 s that were asked for
    assert layers["simulate_ns"] < layers["compile_ns"]


def test_a_cold_compile_is_measured(found: dict[str, Any]) -> None:
    (cold,) = found["cold"]
    assert cold["model"].endswith("conv_chain.onnx")
    assert 0.2 < cold["cpu_s"] < 100  # a Python that imports numpy and onnx, at least
    assert 50 < cold["peak_mb"] < 4096
    assert cold["instructions"] > 50


def test_missing_model_is_named_before_any_measurement(tmp_path: Path) -> None:
    done = run_script("bench_evaluate", "--networks", "squeezenet", "--cold", "missing.onnx", cwd=tmp_path)
    assert done.returncode == 2
    assert "missing.onnx: no such file" in done.stderr


def test_a_model_that_does_not_compile_is_named(tmp_path: Path) -> None:
    (tmp_path / "odd.onnx").write_bytes(b"odd")
    with pytest.raises(BadInputError, match=r"--cold \S*odd\.onnx: tilefarm: \S*odd\.onnx: "):
        bench_evaluate.cold_compile(str(tmp_path / "odd.onnx"), "edge")


def test_an_unknown_network_is_named(tmp_path: Path) -> None:
    done = run_script("bench_evaluate", "--networks", "resnet51", cwd=tmp_path)
    assert done.returncode == 2
    assert "light:resnet51: no such network" in done.stderr
    assert "light:resnet50" in done.stderr
