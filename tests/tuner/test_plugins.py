"""Plug-ins are found by name, with what a run's identity says of them; what is none is refused in one sentence."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path

import pytest

from simulator.npu.errors import BadInputError
from tests.messages import naming
from tuner import plugins
from tuner.config import BUILT_IN, load_config
from tuner.cost_model import boosted_trees
from tuner.farm.plugin_identity import external_plugins
from tuner.plugins import COST_MODELS, KINDS, RUNNERS, Plugin, files_digest, find, offered_names

MODEL = """
class Constant:
    version = "3"
    train = predict = save = load = None
class Half:
    version = "3"
    train = predict = None
def function(): ...
for name in COST_MODEL: setattr(function, name, "")
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is searched, with a module of models in it."""
    path = tmp_path / "models_of_mine.py"
    path.write_text(MODEL.replace("COST_MODEL", repr(COST_MODELS.needs)))
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop("models_of_mine", None)


def test_by_module_and_name(home: Path) -> None:
    found = find(COST_MODELS, "models_of_mine:Constant")
    digest = hashlib.sha256(home.read_bytes()).hexdigest()[:32]
    assert found.plugin == Plugin("cost model", "models_of_mine:Constant", "3", digest)
    assert (found.object.__name__, found.where) == ("Constant", str(home))
    assert str(found.plugin) == f"cost model models_of_mine:Constant 3 (source {digest[:8]})"


def test_the_source_is_that_of_the_definition(home: Path) -> None:
    (home.parent / "elsewhere_of_mine.py").write_text("from models_of_mine import Constant\n")
    assert find(COST_MODELS, "elsewhere_of_mine:Constant").plugin.digest == files_digest(str(home))
    del sys.modules["elsewhere_of_mine"]


def test_by_entry_point(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(COST_MODELS, "boosted_trees").object is boosted_trees.BoostedTrees
    metadata = home.parent / "mine-1.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.5\n")
    point = EntryPoint("flat", "models_of_mine:Constant", COST_MODELS.group)._for(Distribution.at(metadata))  # type: ignore[attr-defined]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == COST_MODELS.group else [])
    assert [list(offered_names(kind)) for kind in KINDS if kind is COST_MODELS] == [["flat"]]
    found = find(COST_MODELS, "flat")
    assert (found.plugin.version, found.where) == ("3", f"mine 1.5, {home}"), "a version of its own comes first"
    with pytest.raises(BadInputError, match=naming("model.name flt", "boosted_trees, flat")):
        find(COST_MODELS, "flt")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("models_of_mine:Half", r"Half of models_of_mine has no save, load \(.*models_of_mine.py\); expected a CostModel"),
        ("models_of_mine:function", r"function of models_of_mine is no class"),
        ("models_of_mine:Nobody", r"models_of_mine has nothing to call by the name Nobody"),
        ("models_of_mine:__name__", r"models_of_mine has nothing to call by the name __name__"),
        ("nobody_of_mine:Constant", r"no module nobody_of_mine; looked for in "),
    ],
)
@pytest.mark.usefixtures("home")
def test_what_is_no_cost_model(name: str, text: str) -> None:
    with pytest.raises(BadInputError, match=f"model.name {name}: {text}"):
        external_plugins(load_config(None, ["use.cost_model=true", f"model.name={name}"]), True, None)


def test_identity_has_used_and_external_plugins_only() -> None:
    assert external_plugins(load_config(None), True, None) == ()
    assert external_plugins(load_config(None, ["use.cost_model=false", "model.name=no:Where"]), True, None) == (), "nothing is learnt"
    away = load_config(None, ["runner.name=no:where", "use.cost_model=false"])
    assert external_plugins(away, False, "head:6379") == (Plugin("runner", "no:where", "", ""),), "only the workers know"


def test_packaged_plugins_are_found_by_the_same_finder() -> None:
    assert BUILT_IN in RUNNERS.built_in
    config = load_config()
    assert {config.search.strategy, config.model.name, config.runner.name} <= {name for kind in KINDS for name in kind.built_in}
    for kind in KINDS:
        for name in kind.built_in:
            assert find(kind, name).plugin.kind == kind.name
