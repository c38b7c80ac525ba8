"""A run that begins with a model: asked from the first segments on, copied, and the same however often the run is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.npu.errors import BadInputError
from tests.tuning import assert_equal_runs, quick, save_small
from tuner.cli import main
from tuner.learn.trained import load_trained
from tuner.store.read import read_log
from tuner.store.runfolder import read_json

PLAIN = "use.cost_model=null"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a run on one network, and another network."""
    folder = tmp_path_factory.mktemp("prior")
    quick(save_small("residual_block", folder), folder / "EARLIER", 8, "use.cost_model=false")
    assert main(["train", str(folder / "EARLIER"), "--out", str(folder / "m.model"), "--set", "model.rounds=20", "--quiet"]) == 0
    save_small("conv_chain", folder)
    return folder


def test_it_predicts_from_the_first_segments_on_and_is_the_one_to_beat(folder: Path) -> None:
    model, run = folder / "conv_chain.onnx", folder / "RUN"
    quick(model, run, 32, PLAIN, prior=folder / "m.model")
    kept = load_trained(folder / "m.model")
    log = read_log(run, ("generation", "model_version", "predicted_cycles", "kind")).dropna(subset=["predicted_cycles"])
    first = log[log["generation"] <= 2]
    assert set(first["model_version"]) == {kept.model.version}
    assert len(first) > 10
    assert (run / "models" / "prior.model").read_bytes() == (folder / "m.model").read_bytes()
    assert len(read_json(run / "run.json")["prior"]) == 32
    history = read_json(run / "models" / "history.json")
    assert history, "it goes on being trained"


def test_a_run_that_is_resumed_uses_its_copy(folder: Path, tmp_path: Path) -> None:
    model, own = folder / "conv_chain.onnx", tmp_path / "own.model"
    own.write_bytes((folder / "m.model").read_bytes())
    quick(model, tmp_path / "whole", 24, PLAIN, prior=own)
    quick(model, tmp_path / "parts", 8, PLAIN, prior=own)
    own.unlink()
    quick(model, tmp_path / "parts", 24, PLAIN, resume=True)
    assert_equal_runs(tmp_path / "whole", tmp_path / "parts")
    with pytest.raises(BadInputError, match=r"--model \S+own.model: cannot be read"):
        quick(model, tmp_path / "parts", 28, PLAIN, resume=True, prior=own)
    assert main(["train", str(tmp_path / "whole"), "--out", str(own), "--set", "model.rounds=20", "--quiet"]) == 0
    with pytest.raises(BadInputError, match=r"own.model: \w{8}; \S+parts began with \w{8}; leave --model out"):
        quick(model, tmp_path / "parts", 28, PLAIN, resume=True, prior=own)


def test_what_does_not_go_together(folder: Path, tmp_path: Path) -> None:
    model, prior = folder / "conv_chain.onnx", folder / "m.model"
    with pytest.raises(BadInputError, match=r"--model: use.cost_model is false; expected true, or null"):
        quick(model, tmp_path / "a", 8, "use.cost_model=false", prior=prior)
    with pytest.raises(BadInputError, match=r"trained by boosted_trees, and model.name is linear:Linear; expected the same"):
        quick(model, tmp_path / "a", 8, PLAIN, "model.name=linear:Linear", prior=prior)
    with pytest.raises(BadInputError, match=r"conv_chain.onnx: not a cost model of this version; expected a file of `tilefarm train`"):
        quick(model, tmp_path / "a", 8, PLAIN, prior=model)
    assert not (tmp_path / "a").exists()
