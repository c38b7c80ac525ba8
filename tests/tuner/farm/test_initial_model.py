"""A run that begins with a model: asked from the first segments on, copied, and the same however often the run is stopped."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from unittest import mock

import pytest

from simulator.npu.errors import BadInputError
from tests.messages import naming
from tests.tuning import assert_equal_runs, quick, save_small
from tuner.cli import main
from tuner.config import load_config
from tuner.cost_model.messages import describe_proposers
from tuner.cost_model.model_file import decode_model, load_trained, model_requirements
from tuner.cost_model.packaged import CARD, FILE, MOST_BYTES, compress_model, packaged_model
from tuner.log.read import read_log
from tuner.runs.folder import read_json

PLAIN = "use.cost_model=true"
PACKAGED = ("use.packaged_model=true", "model.min_rows=40")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a run on one network, and another network."""
    folder = tmp_path_factory.mktemp("prior")
    quick(save_small("residual_block", folder), folder / "EARLIER", 8, "use.cost_model=false")
    assert main(["train", str(folder / "EARLIER"), "--out", str(folder / "m.model"), "--set", "model.rounds=20", "--quiet"]) == 0
    save_small("conv_chain", folder)
    return folder


def test_initial_model_predicts_at_once_and_is_baseline(folder: Path) -> None:
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
    with pytest.raises(BadInputError, match=r"own\.model: \w{8}; \S+parts .*\w{8}; .*--model"):
        quick(model, tmp_path / "parts", 28, PLAIN, resume=True, prior=own)


def test_what_does_not_go_together(folder: Path, tmp_path: Path) -> None:
    model, prior = folder / "conv_chain.onnx", folder / "m.model"
    with pytest.raises(BadInputError, match=naming("--model", "use.cost_model", "false")):
        quick(model, tmp_path / "a", 8, "use.cost_model=false", prior=prior)
    with pytest.raises(BadInputError, match=naming("boosted_trees", "model.name", "linear:Linear")):
        quick(model, tmp_path / "a", 8, PLAIN, "model.name=linear:Linear", prior=prior)
    with pytest.raises(BadInputError, match=naming("conv_chain.onnx", "`tilefarm train`")):
        quick(model, tmp_path / "a", 8, PLAIN, prior=model)
    assert not (tmp_path / "a").exists()


def test_the_packaged_model_is_for_this_program() -> None:
    """Where this fails, features, simulator or what models read of a log have changed: make the model anew, and commit both."""
    data, kept = packaged_model()
    assert kept.kind == load_config().model.name
    assert len(data) <= MOST_BYTES
    card = json.loads((files("tuner.cost_model") / CARD).read_bytes())
    assert (card["model_version"], card["made_for"]) == (kept.model.version, model_requirements())
    assert all(name.startswith("drawn") for name in card["saw"]["networks"]), "named networks are for judging"


def test_run_begins_with_packaged_model_by_default(folder: Path, tmp_path: Path) -> None:
    data, kept = packaged_model()
    model = folder / "conv_chain.onnx"
    quick(model, tmp_path / "own", 24, *PACKAGED)
    assert (tmp_path / "own" / "models" / "prior.model").read_bytes() == data
    log = read_log(tmp_path / "own", ("generation", "model_version", "predicted_cycles")).dropna(subset=["predicted_cycles"])
    assert set(log[log["generation"] <= 2]["model_version"]) == {kept.model.version}
    quick(model, tmp_path / "other", 8, *PACKAGED, prior=folder / "m.model")
    assert (tmp_path / "other" / "models" / "prior.model").read_bytes() == (folder / "m.model").read_bytes()
    alone = quick(model, tmp_path / "none", 24, *PACKAGED, prior=Path("none"))
    assert [each.chosen for each in alone.proposers] == ["estimate"]
    assert not list((tmp_path / "none" / "models").glob("*.model"))
    assert read_log(tmp_path / "none", ("model_version",))["model_version"].isna().all()


def test_resumed_run_uses_its_own_copy_of_model(folder: Path, tmp_path: Path) -> None:
    model, other = folder / "conv_chain.onnx", (folder / "m.model").read_bytes()
    quick(model, tmp_path / "whole", 24, *PACKAGED)
    quick(model, tmp_path / "parts", 8, *PACKAGED)
    with mock.patch("tuner.farm.initial_model.packaged_model", return_value=(other, decode_model(other, "other"))):
        quick(model, tmp_path / "parts", 24, *PACKAGED, resume=True)
    assert_equal_runs(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("what", ["features", "simulator", "columns"])
def test_packaged_model_for_something_else_is_one_line(folder: Path, tmp_path: Path, what: str, capfd: pytest.CaptureFixture[str]) -> None:
    data, facts = packaged_model()[0], model_requirements()
    changed = compress_model(data.replace(f'"{what}":"{facts[what]}"'.encode(), f'"{what}":"other"'.encode()))
    (tmp_path / FILE).write_bytes(changed)
    with mock.patch("tuner.cost_model.packaged.files", return_value=tmp_path):
        summary = quick(folder / "conv_chain.onnx", tmp_path / "RUN", 8, *PACKAGED, quiet=False)
    said = [line for line in capfd.readouterr().err.splitlines() if "packaged" in line]
    assert said == [
        f"the packaged cost model: made for {what} other, this program has {facts[what]}; `python scripts/make_cost_model.py`; "
        "the built-in estimate goes on without it"
    ]
    assert summary.proposers[0].chosen == "estimate"
    assert read_json(tmp_path / "RUN" / "run.json")["prior"] == ""


def test_who_says_what_to_measure_is_one_line(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    quick(folder / "conv_chain.onnx", tmp_path / "RUN", 48, *PACKAGED, quiet=False)
    said = capfd.readouterr().err.splitlines()
    digest = read_json(tmp_path / "RUN" / "run.json")["prior"][:8]
    assert any(digest in line for line in said)
    assert any(re.match(r"cost model after \d+ segments .+ \d+\.\d% of unseen pairs in order ", line) for line in said)
    summary = read_json(tmp_path / "RUN" / "summary.json")
    assert summary["proposers"][0] == {"search": summary["run"], "segments": 0, "chosen": "prior", "pairs": {}}
    assert [each["segments"] for each in summary["proposers"]] == sorted({each["segments"] for each in summary["proposers"]})
    assert set(summary["proposers"][1]["pairs"]) == {"estimate", "prior", "new"}
    assert f"{summary['proposers'][-1]['segments']:,} segments" in describe_proposers(summary)
