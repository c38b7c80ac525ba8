"""Settings are checked with their path and value; what cannot change a result is not in the digest."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from simulator.npu.errors import BadInputError
from tuner.config import load_config


def test_default_is_complete_and_frozen() -> None:
    config = load_config()
    assert config == load_config("default")
    with pytest.raises(ValidationError, match="frozen"):
        config.search.generation = 3


def test_yaml_round_trip(tmp_path: Path) -> None:
    config = load_config(None, ["search.proposed=0.25", "level_weights.severe=3"])
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    assert load_config(str(tmp_path / "c.yaml")) == config


def test_file_and_overrides_are_laid_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("search: {changes: 8}\nbudget: {candidates: null, seconds: 30}\n")
    config = load_config(str(file), ["search.generation=3", "use.cost_model=false", "farm.workers=3"])
    assert (config.search.changes, config.search.generation, config.budget.seconds) == (8, 3, 30)
    assert config.use.cost_model is False
    assert load_config(None, ["segments.epsilon=1e-3"]).segments.epsilon == 0.001
    assert config.search.lag == load_config().search.lag


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("search.generation=abc", r"search\.generation: .*integer \(got 'abc'\)"),
        ("search.generation=1.5", r"search\.generation: .*integer.*1\.5"),
        ("search.proposed=1.5", r"search\.proposed: .*less than or equal to 1 \(got 1\.5\)"),
        ("segments.epsilon=.nan", r"segments\.epsilon"),
        ("search.generatoin=4", r"no such setting \(did you mean search\.generation\?\)"),
        ("search=4", "no such setting"),
        ("search.generation", r"expected a\.b=value"),
        ("use.segmentations=1", r"use\.segmentations: .*boolean"),
        ("budget.seconds=4", "give one of candidates, measurements and seconds"),
        ("search.generation=[", "not a YAML value"),
        ("level_weights.none=-1", r"level_weights\.none: .*greater than 0"),
        ("farm.workers={min: 4, max: 2}", r"farm\.workers: max 2 is below min 4"),
        ("farm.workers={min: 0, max: 2}", r"farm\.workers\.min: .*greater than 0 \(got 0\)"),
        ("farm.workers=0", r"farm\.workers\.min: .*greater than 0 \(got 0\)"),
        ("farm.workers=many", r"farm\.workers: expected a number, or \{min: N, max: M\} \(got 'many'\)"),
        ("study.parameters={search.generaton: {low: 1, high: 2}}", r"'search\.generaton' is not a number.*did you mean search\.generation"),
    ],
)
def test_errors_name_path_and_value(override: str, text: str) -> None:
    with pytest.raises(BadInputError, match=text) as caught:
        load_config(None, [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "low", "high"), [("null", None, None), ("4", 4, 4), ("{min: 2, max: 9}", 2, 9)])
def test_workers_are_a_number_or_a_range(text: str, low: int | None, high: int | None, tmp_path: Path) -> None:
    config = load_config(None, [f"farm.workers={text}"])
    assert (config.farm.min_workers, config.farm.max_workers) == (low, high)
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml())
    assert load_config(str(file)) == config
    assert load_config(str(file)).given({"farm.workers": 3}).farm.max_workers == 3, "an option takes the place of a range"
    assert config.model_dump(mode="json")["farm"]["workers"] == yaml.safe_load(text), "a number stays a number"


def test_file_mistakes_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("search: {generatoin: 3, lag: two, proposed: 7}\nmodel: {rounds: -1}\nfoo: 3\n")
    with pytest.raises(BadInputError) as caught:
        load_config(str(path))
    told = str(caught.value)
    assert "search.generatoin: no such key (got 3) (did you mean search.generation?)" in told
    for part in ("search.lag: ", "(got 'two')", "search.proposed: ", "model.rounds: ", "foo: no such key (got 3)"):
        assert part in told
    assert "\n" not in told


def test_override_mistakes_are_reported_together() -> None:
    with pytest.raises(BadInputError) as caught:
        load_config(None, ["search.generatoin=3", "use.segmentations=1", "search.lag=4", "model.rounds", "segments.epsilon=7"])
    told = str(caught.value)
    for part in (
        "search.generatoin: no such setting",
        "model.rounds: expected a.b=value",
        "use.segmentations: ",
        "(got 1)",
        "segments.epsilon: ",
    ):
        assert part in told
    assert "search.lag: " not in told
    assert "\n" not in told


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("search: {populatin: 8}\n")
    with pytest.raises(BadInputError, match=r"bad\.yaml: search\.populatin"):
        load_config(str(file))
    file.write_text("- 1\n")
    with pytest.raises(BadInputError, match="expected a mapping"):
        load_config(str(file))
    with pytest.raises(BadInputError, match=r"presets: .*default"):
        load_config("nowhere")


def test_digest_covers_exactly_what_changes_a_result() -> None:
    config = load_config()
    assert config.replaced({"segments.epsilon": 0.2}).digest != config.digest
    assert config.replaced({"use.window": False}).digest != config.digest
    same = config.replaced({"farm.workers": 7, "budget.candidates": 9, "study.batch": 2})
    assert same != config
    assert same.digest == config.digest
