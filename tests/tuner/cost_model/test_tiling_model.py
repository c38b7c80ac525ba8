"""Tilings by a model alone: the model decides, nothing is measured, and a model of something else is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.cost.features import FEATURES, raw_features, scale_features
from compiler.cost.operator_space import operator_space
from compiler.model import ModelSpec, lower_model
from compiler.pipeline import Compiler
from compiler.plan.plan import ConvTiling, SegmentPlan
from simulator.compiled import read_compiled
from simulator.npu.container_file import decode
from simulator.npu.errors import BadInputError, InfeasibleError
from simulator.npu.machine_file import load_machine
from simulator.onnx_container import read_container
from tests.graphs import conv, max_pool, target_graph
from tests.messages import naming
from tests.plans import resized
from tests.tuning import quick, save_small
from tuner.cli import main
from tuner.cost_model.tiling_model import load_models, pick_tilings, plan_tilings, shortlist, single_block_counts

EDGE = load_machine("edge")


class Taste:
    """Expects what one feature says."""

    def __init__(self, feature: str, sign: float) -> None:
        self._of = (FEATURES.index(feature), sign)

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        at, sign = self._of
        return np.exp2(sign * features[:, at].astype(np.float64))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short run on one network, with enough segments to learn from."""
    folder = tmp_path_factory.mktemp("tile")
    few = ("segments.measured=16", "segments.candidates=48", "use.cost_model=false")
    quick(save_small("residual_block", folder), folder / "RUN", 24, *few)
    assert main(["train", str(folder / "RUN"), "--out", str(folder / "m.model"), "--set", "model.rounds=60", "--quiet"]) == 0
    return folder / "m.model"


def test_the_model_decides() -> None:
    """Of the same short list, one model takes the fewest products, the other the most; each level asks its own."""
    u = target_graph(EDGE, (1, 64, 28, 28), conv("y", "x", (64, 64)))
    chosen = pick_tilings(Compiler(u), 0, {"none": Taste("products", 1), "slight": Taste("products", -1), "severe": Taste("load_bytes", 1)})
    space = operator_space(u, 0, single_block_counts(u, 0))
    listed = shortlist(u, space, tuple(EDGE.contention))
    assert len(set(listed.tolist())) == len(listed) <= 3 * 256

    def feature(name: str, plan: SegmentPlan) -> float:
        return float(scale_features(raw_features(u, plan, 0))[FEATURES.index(name)])

    products = [feature("products", space.plan(int(i))) for i in listed]
    assert feature("products", chosen["none"]) == min(products) < max(products) == feature("products", chosen["slight"])
    assert feature("load_bytes", chosen["severe"]) == min(feature("load_bytes", space.plan(int(i))) for i in listed)


def test_the_short_list_is_the_best_by_estimate() -> None:
    u = target_graph(EDGE, (1, 64, 28, 28), conv("y", "x", (64, 64)))
    space = operator_space(u, 0, single_block_counts(u, 0))
    expected = np.maximum(space.bound(u, "severe"), space.estimate)
    listed = shortlist(u, space, ["severe"], 10)
    assert expected[listed].tolist() == sorted(expected.tolist())[:10]


def test_equal_operators_get_equal_tilings_that_compile() -> None:
    u = target_graph(EDGE, (1, 32, 20, 20), conv("a", "x", (32, 32)), max_pool("p", "a", 3, 1, 1), conv("b", "p", (32, 32)))
    compiler = Compiler(u)
    (plan,) = plan_tilings(compiler, {"none": Taste("busiest_cycles", 1)}).values()
    assert [segment.operators for segment in plan.segments] == [("a",), ("p",), ("b",)]
    assert plan.segments[0].tilings == plan.segments[2].tilings
    assert isinstance(plan.segments[0].tilings[0], ConvTiling)
    assert isinstance(compiler.parts(plan), list)


def test_an_operator_that_fits_in_no_way() -> None:
    u = target_graph(resized(EDGE, L1=2048), (1, 64, 20, 20), conv("y", "x", (64, 64)))
    with pytest.raises(InfeasibleError, match=naming("edge", "y", "2,048 B of L1")):
        pick_tilings(Compiler(u), 0, {"none": Taste("products", 1)})


def test_another_network_is_compiled_by_a_model(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant per level, the same bytes twice, values right; the two simulations are those of the report, none is for a choice."""
    network, out = save_small("conv_chain", tmp_path), tmp_path / "out.onnx"
    words = ["compile", str(network), "--machine", "edge", "--model", str(model), "--layerwise", "--out"]
    assert main([*words, str(out)]) == 0
    assert main([*words, str(tmp_path / "again.onnx")]) == 0
    assert out.read_bytes() == (tmp_path / "again.onnx").read_bytes()
    assert main(["run", str(out), "--input", "random", "--check"]) == 0
    opened = lower_model(ModelSpec(network, EDGE))
    monkeypatch.setattr("simulator.timing.simulate_levels", None)
    plans = plan_tilings(opened.compiler, load_models(model, opened.target_graph))
    assert {v.level: v.plan_digest for v in decode(read_container(out)).variants} == {level: plan.digest for level, plan in plans.items()}
    assert all(len(segment.operators) == 1 for plan in plans.values() for segment in plan.segments)


def test_segments_are_predicted_by_a_model(model: Path, tmp_path: Path) -> None:
    """Without `--layerwise`; no slower than what it tiles operator by operator, values right."""
    network, out = save_small("conv_chain", tmp_path), tmp_path / "out.onnx"
    words = ["compile", str(network), "--machine", "edge", "--model", str(model)]
    assert main([*words, "--out", str(out)]) == 0
    assert main([*words, "--layerwise", "--out", str(tmp_path / "tiled.onnx")]) == 0
    quick, tiled = (read_compiled(path) for path in (out, tmp_path / "tiled.onnx"))
    for level in quick.levels:
        ours, theirs = quick.cycles(level)[level], tiled.cycles(level)[level]
        assert ours is not None
        assert theirs is not None
        assert ours < theirs
    assert main(["run", str(out), "--input", "random", "--check"]) == 0


def test_model_of_one_machine_serves_another(model: Path) -> None:
    """It says something of each of its levels, by their conditions."""
    u = target_graph(load_machine("tiny"), (1, 16, 8, 8), conv("y", "x", (16, 16)))
    found = load_models(model, u)
    features = np.tile(scale_features([raw_features(u, plan, 0) for plan in [pick_tilings(Compiler(u), 0, found)["none"]]]), (2, 1))
    cycles = {level: each.predict(features) for level, each in found.items()}
    assert set(cycles) == set(u.machine.contention)
    assert (cycles["severe"] > cycles["none"]).all()


def test_no_file_decides_which_module_is_imported(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "m.model"
    other.write_bytes(model.read_bytes().replace(b'"kind":"boosted_trees"', b'"kind":"antigravity:fly"'))
    with pytest.raises(BadInputError, match=naming("antigravity:fly", "boosted_trees")):
        load_models(other, target_graph(EDGE, (1, 16, 8, 8), conv("y", "x", (16, 16))))
    assert "antigravity" not in sys.modules


def test_options_that_exclude_each_other(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["compile", str(save_small("conv_chain", tmp_path)), "--machine", "edge", "--out", str(tmp_path / "o.onnx")]
    assert main([*words, "--model", str(model), "--plan", str(model)]) == 2
    assert "--model: makes plans, so it does not go with --plan" in capfd.readouterr().err
