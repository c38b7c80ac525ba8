"""Tilings by a model alone: the model decides, nothing is measured, and a model of something else is refused."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.cost.features import FEATURE_SET, FEATURES, raw_features, scaled
from compiler.cost.operator_space import operator_space
from compiler.pipeline import Compiler
from compiler.plan.plan import ConvTiling, SegmentPlan
from compiler.source import Source, open_source
from simulator.npu.container import decode
from simulator.npu.errors import BadInputError, InfeasibleError
from simulator.npu.machine import load_machine
from simulator.onnx_container import read_container
from tests.graphs import conv, max_pool, unit
from tests.plans import resized
from tests.tuning import quick, save_small
from tuner.cli import main
from tuner.learn.tile_model import load_models, pick, shortlist, single_block_counts, tiled_plans

EDGE = load_machine("edge")


class Taste:
    """Expects what one feature says."""

    def __init__(self, feature: str, sign: float) -> None:
        self._of = (FEATURES.index(feature), sign)

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        at, sign = self._of
        return np.exp2(sign * features[:, at].astype(np.float64))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on one network, with enough segments for models of every level to earn their place."""
    folder = tmp_path_factory.mktemp("tile")
    quick(save_small("residual_block", folder), folder / "RUN", 24, "segments.measured=64", "segments.candidates=192", "model.rounds=60")
    return folder / "RUN"


def test_the_model_decides() -> None:
    """Of the same short list, one model takes the fewest products, the other the most; each level asks its own."""
    u = unit(EDGE, (1, 64, 28, 28), conv("y", "x", (64, 64)))
    chosen = pick(Compiler(u), 0, {"none": Taste("products", 1), "slight": Taste("products", -1), "severe": Taste("load_bytes", 1)})
    space = operator_space(u, 0, single_block_counts(u, 0))
    listed = shortlist(u, space, tuple(EDGE.contention))
    assert len(set(listed.tolist())) == len(listed) <= 3 * 256

    def feature(name: str, plan: SegmentPlan) -> float:
        return float(scaled(raw_features(u, plan, 0))[FEATURES.index(name)])

    products = [feature("products", space.plan(int(i))) for i in listed]
    assert feature("products", chosen["none"]) == min(products) < max(products) == feature("products", chosen["slight"])
    assert feature("load_bytes", chosen["severe"]) == min(feature("load_bytes", space.plan(int(i))) for i in listed)


def test_the_short_list_is_the_best_by_estimate() -> None:
    u = unit(EDGE, (1, 64, 28, 28), conv("y", "x", (64, 64)))
    space = operator_space(u, 0, single_block_counts(u, 0))
    expected = np.maximum(space.bound(u, "severe"), space.estimate)
    listed = shortlist(u, space, ["severe"], 10)
    assert expected[listed].tolist() == sorted(expected.tolist())[:10]


def test_equal_operators_get_equal_tilings_and_all_of_them_compile() -> None:
    u = unit(EDGE, (1, 32, 20, 20), conv("a", "x", (32, 32)), max_pool("p", "a", 3, 1, 1), conv("b", "p", (32, 32)))
    compiler = Compiler(u)
    (plan,) = tiled_plans(compiler, {"none": Taste("busiest_cycles", 1)}).values()
    assert [segment.operators for segment in plan.segments] == [("a",), ("p",), ("b",)]
    assert plan.segments[0].tilings == plan.segments[2].tilings
    assert isinstance(plan.segments[0].tilings[0], ConvTiling)
    assert isinstance(compiler.parts(plan), list)


def test_an_operator_that_fits_in_no_way() -> None:
    u = unit(resized(EDGE, L1=2048), (1, 64, 20, 20), conv("y", "x", (64, 64)))
    with pytest.raises(InfeasibleError, match=r"edge: y: no tiling fits 2,048 B of L1"):
        pick(Compiler(u), 0, {"none": Taste("products", 1)})


def test_another_network_is_compiled_by_the_models_of_a_run(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant per level, the same bytes twice, values right; the two simulations are those of the report, none is for a choice."""
    model, out = save_small("conv_chain", tmp_path), tmp_path / "out.onnx"
    words = ["compile", str(model), "--machine", "edge", "--tile-model", str(run), "--out"]
    assert main([*words, str(out)]) == 0
    assert main([*words, str(tmp_path / "again.onnx")]) == 0
    assert out.read_bytes() == (tmp_path / "again.onnx").read_bytes()
    assert main(["run", str(out), "--input", "random", "--check"]) == 0
    opened = open_source(Source(model, EDGE))
    monkeypatch.setattr("simulator.timing.simulate_levels", None)
    plans = tiled_plans(opened.compiler, load_models(run / "models", opened.unit))
    assert {v.level: v.plan_digest for v in decode(read_container(out)).variants} == {level: plan.digest for level, plan in plans.items()}
    assert all(len(segment.operators) == 1 for plan in plans.values() for segment in plan.segments)


def test_a_run_of_several_pieces_has_the_models_of_the_piece_that_learnt_most(run: Path, tmp_path: Path) -> None:
    """A folder of models for each piece, as `tuner.store.runfolder` makes them."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for piece in ("npu", "npu1"):
        shutil.copytree(run / "models", copy / "models" / piece)
    for path in (copy / "models").iterdir():
        if path.is_file():
            path.unlink()
    for path in (copy / "models" / "npu").glob("*-*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"trained_rows": 3}))
    u = unit(EDGE, (1, 16, 8, 8), conv("y", "x", (16, 16)))
    found, whole = load_models(copy, u), load_models(run, u)
    assert {level: model.model.save() for level, model in found.items()} == {level: model.model.save() for level, model in whole.items()}
    shutil.rmtree(copy / "models" / "npu1")
    assert len(load_models(copy, u)) == 3, "what is left, although it learnt least"


def test_no_file_decides_which_module_is_imported(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for path in (copy / "models").glob("*-*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"kind": "antigravity:fly"}))
    with pytest.raises(BadInputError, match=r"trained by antigravity:fly, which is not installed .* expected one of boosted_trees"):
        load_models(copy, unit(EDGE, (1, 16, 8, 8), conv("y", "x", (16, 16))))
    assert "antigravity" not in sys.modules


def _no_models(run: Path) -> None:
    (run / "models" / "history.json").unlink()


def _none_promoted(run: Path) -> None:
    path = run / "models" / "history.json"
    path.write_text(json.dumps([row | {"promoted": row["level"] != "slight"} for row in json.loads(path.read_text())]))


def _other_features(run: Path) -> None:
    for path in (run / "models").glob("none-*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"width": 3}))


@pytest.mark.parametrize(
    ("damage", "machine", "message"),
    [
        (_no_models, "edge", "no cost model of level none earned its place in that run; tune with --set use.cost_model=true, or longer"),
        (_none_promoted, "edge", "no cost model of level slight earned its place"),
        (_other_features, "edge", rf"none-\d+.model takes 3 features, feature set {FEATURE_SET} has \d+"),
        (lambda _: None, "tiny", r"trained for machine edge \(\w{32}\), this is \w{32}"),
        (shutil.rmtree, "edge", "not a run folder|no such run folder"),
    ],
)
def test_models_of_something_else(run: Path, tmp_path: Path, damage: Callable[[Path], None], machine: str, message: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    damage(copy)
    with pytest.raises(BadInputError, match=message):
        load_models(copy, unit(load_machine(machine), (1, 16, 8, 8), conv("y", "x", (16, 16))))


def test_options_that_exclude_each_other(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = save_small("conv_chain", tmp_path)
    words = ["compile", str(model), "--machine", "edge", "--out", str(tmp_path / "o.onnx"), "--tile-model", str(run)]
    assert main([*words, "--plan", str(run / "plans" / "none.json")]) == 2
    assert "--tile-model: chooses the tilings, so it does not go with --plan" in capfd.readouterr().err
