"""Configuration of a search: a frozen model is the schema, `configs/tune/*.yaml` hold the values.

`configs/tune/default.yaml` has every value; another file, and `--set a.b=c`, are laid over it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, field_validator, model_serializer, model_validator

from compiler.space.mutators import MOVES
from compiler.space.operator_order import Order
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import configs_folder, read_yaml
from simulator.npu.validation import validation_line
from tuner.log.digests import digest

NPU = "npu"  # the built-in target
BUILT_IN = "simulator"  # the built-in runner, without a board

Rate = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class SearchSettings(_Section):
    strategy: Annotated[str, Field(min_length=1)]
    lag: Count
    generation: PositiveInt
    changes: Count
    proposed: Rate
    order: Order
    moves: list[str] | None

    @field_validator("moves")
    @classmethod
    def _moves_exist(cls, moves: list[str] | None) -> list[str] | None:
        for name in moves or ():
            if name not in MOVES:
                raise ValueError(f"{name!r}: no such move{closest_key(name, MOVES)}; moves: {', '.join(MOVES)}")
        if moves is not None and not moves:
            raise ValueError("an empty list; null takes all moves")
        return moves

    @property
    def shards(self) -> int:
        """Shards of an epoch: a job lacks those of the epoch before and of its own, so fewer than `lag`."""
        return max(1, self.lag // 2)

    @property
    def behind(self) -> int:
        """Complete epochs that a job lacks."""
        return int(self.lag > 1)


class Segments(_Section):
    candidates: PositiveInt
    measured: PositiveInt
    epsilon: Rate
    random: Rate
    singles: Rate


class PlacementSettings(_Section):
    every: PositiveInt
    annealing: Count
    gain: Rate
    longest: PositiveInt
    stages: PositiveInt
    group_clusters: PositiveInt
    groups: PositiveInt
    states: PositiveInt


class ModelSettings(_Section):
    name: Annotated[str, Field(min_length=1)]
    min_rows: Annotated[int, Field(ge=10)]
    growth: Annotated[float, Field(gt=0)]
    rounds: PositiveInt
    max_depth: Annotated[int, Field(ge=1, le=16)]
    learning_rate: Annotated[float, Field(gt=0, le=1)]
    subsample: Annotated[float, Field(gt=0, le=1)]
    column_sample: Annotated[float, Field(gt=0, le=1)]
    min_child_weight: Annotated[float, Field(ge=0)]
    l2: Annotated[float, Field(ge=0)]
    hold_out: Annotated[float, Field(gt=0, lt=1)]


class Use(_Section):
    segmentations: bool
    cost_model: bool
    packaged_model: bool
    window: bool
    block_fusion: bool
    cores: bool
    halo_cache: bool
    passes: bool
    held: bool
    prefetch: bool
    lookahead: bool
    placement: bool


class BudgetSettings(_Section):
    """Exactly one of candidates, measurements and seconds; two limits beside it."""

    candidates: PositiveInt | None
    measurements: PositiveInt | None
    seconds: Positive | None
    core_hours: Positive | None
    least_gain: Rate | None

    @model_validator(mode="after")
    def _check_single_budget(self) -> Self:
        if sum(amount is not None for amount in (self.candidates, self.measurements, self.seconds)) != 1:
            raise ValueError("give one of candidates, measurements and seconds, the others null")
        return self

    @property
    def kind(self) -> Literal["candidates", "measurements", "seconds"]:
        """Kind of the budget: the field that is set."""
        return "candidates" if self.candidates is not None else "measurements" if self.measurements is not None else "seconds"

    @property
    def amount(self) -> float:
        """Amount of the budget, in its kind."""
        amount = getattr(self, self.kind)
        assert amount is not None
        return float(amount) if self.kind == "seconds" else int(amount)


class TargetSettings(_Section):
    name: Annotated[str, Field(min_length=1)]


class RunnerSettings(_Section):
    name: Annotated[str, Field(min_length=1)]
    repeats: PositiveInt
    tries: PositiveInt
    timeout_s: Positive
    finalists: PositiveInt
    readings: PositiveInt
    canary: PositiveInt


class WorkerRange(_Section):
    """Workers of a farm: `min` from the beginning, up to `max` while there is room.  A number stands for both."""

    min: PositiveInt
    max: int

    @model_validator(mode="before")
    @classmethod
    def _read_number(cls, raw: Any) -> Any:
        if isinstance(raw, int):
            return {"min": raw, "max": raw}
        if not isinstance(raw, Mapping):
            raise ValueError("expected a number, or {min: N, max: M}")
        return raw

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")
        return self

    @model_serializer
    def _write_number(self) -> int | dict[str, int]:
        return self.min if self.min == self.max else {"min": self.min, "max": self.max}


class Farm(_Section):
    backend: Literal["ray", "serial"]
    workers: WorkerRange | None
    idle_s: Positive
    resource: Annotated[str, Field(min_length=1)] | None
    wait_s: Annotated[float, Field(ge=0)]
    item_timeout_s: Positive
    checkpoint_every_s: Positive

    @property
    def min_workers(self) -> int | None:
        """Workers from the beginning; None: one for every free CPU."""
        return None if self.workers is None else self.workers.min

    @property
    def max_workers(self) -> int | None:
        """Most workers; None: one for every free CPU."""
        return None if self.workers is None else self.workers.max


class Range(_Section):
    """Range from which a study draws; integers if both ends are."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low {self.low}: a logarithmic range starts above 0")
        return self


class Choice(_Section):
    """Words from which a study draws."""

    choices: Annotated[tuple[str, ...], Field(min_length=2, strict=False)]


class Study(_Section):
    measurements: PositiveInt
    points: PositiveInt
    batch: PositiveInt
    startup: Count
    parameters: Annotated[dict[str, Range | Choice], Field(min_length=1)]


class TuneConfig(_Section):
    """All settings of a search; `configs/tune/default.yaml` explains each."""

    search: SearchSettings
    segments: Segments
    placement: PlacementSettings
    model: ModelSettings
    use: Use
    level_weights: dict[str, Positive]
    budget: BudgetSettings
    target: TargetSettings
    runner: RunnerSettings
    farm: Farm
    study: Study

    @model_validator(mode="after")
    def _parameters_exist(self) -> Self:
        settings = dict(leaves(self.model_dump(exclude={"study"})))
        for path, span in self.study.parameters.items():
            value, words = settings.get(path), isinstance(span, Choice)
            if isinstance(value, bool) or not isinstance(value, str if words else int | float):
                kind = "word" if words else "number"
                raise ValueError(f"study.parameters: {path!r} is not a {kind} of this configuration{closest_key(path, settings)}")
        return self

    @model_validator(mode="after")
    def _programs_for_a_runner(self) -> Self:
        if self.target.name != NPU and self.runner.name != BUILT_IN:
            raise ValueError(f"runner.name: {self.runner.name!r} runs programs of the NPU, and target.name is {self.target.name!r}")
        return self

    @property
    def digest(self) -> str:
        """32 hex digits over all that can change a result, so without the budget (a run may be resumed with more), the farm and the
        study."""
        return digest(self._that_counts())

    def _that_counts(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"budget", "farm", "study"})

    def changed_since(self, path: Path) -> list[str]:
        """`a.b 4, not 5` for every setting that can change a result, and has another value in a file of settings."""
        recorded = dict(leaves(_read(path)))
        current = dict(leaves(self._that_counts()))
        return [f"{key} {recorded.get(key)!r}, not {value!r}" for key, value in current.items() if recorded.get(key) != value]

    def replaced(self, values: Mapping[str, Any]) -> TuneConfig:
        """A copy with other values by dotted path; `BadInputError` names path and value."""
        raw = self.model_dump(mode="json")
        for path, value in values.items():
            _set_value(raw, path, value)
        return _validated(raw, "configuration")

    def given(
        self, options: Mapping[str, Any], candidates: int | None = None, seconds: float | None = None, measurements: int | None = None
    ) -> TuneConfig:
        """Configuration with a command's own options, by dotted path; None: not given.  The last three replace the budget."""
        values = {path: value for path, value in options.items() if value is not None}
        if candidates is not None or seconds is not None or measurements is not None:
            values |= {"budget.candidates": candidates, "budget.measurements": measurements, "budget.seconds": seconds}
        return self.replaced(values) if values else self

    def to_yaml(self) -> str:
        """Text that `load_config` reads back to an equal configuration."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


# mappings that are replaced whole
_OPEN = ("level_weights", "study.parameters", "farm.workers")


def leaves(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of everything in nested mappings."""
    for key, value in raw.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and path not in _OPEN:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def _paths(section: type[BaseModel], prefix: str = "") -> dict[str, None]:
    """Dotted paths of every key of the schema, sections included."""
    paths: dict[str, None] = {}
    for name, field in section.model_fields.items():
        paths[f"{prefix}{name}"] = None
        if isinstance(field.annotation, type) and issubclass(field.annotation, _Section):
            paths |= _paths(field.annotation, f"{prefix}{name}.")
    return paths


def closest_key(path: str, values: Mapping[str, Any]) -> str:
    """` (did you mean ...?)` for an unknown path."""
    close = difflib.get_close_matches(path, values, 1, 0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def _set_value(raw: dict[str, Any], path: str, value: Any) -> None:
    settings = dict(leaves(raw))
    section, _, key = path.partition(".")
    if section == "level_weights" and key:
        raw[section][key] = value
        return
    if path not in settings:
        raise BadInputError(f"{path}: no such setting{closest_key(path, settings)}")
    *folders, name = path.split(".")
    for folder in folders:
        raw = raw[folder]
    raw[name] = value


def _overlay(base: dict[str, Any], settings: Mapping[str, Any], prefix: str = "") -> None:
    for key, value in settings.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and isinstance(base.get(key), dict) and path not in _OPEN:
            _overlay(base[key], value, f"{path}.")
        else:
            base[key] = value


def _validated(raw: dict[str, Any], source: str) -> TuneConfig:
    try:
        return TuneConfig.model_validate(raw)
    except ValidationError as error:
        paths = _paths(TuneConfig)
        raise BadInputError(f"{source}: {validation_line(error, hint=lambda path: closest_key(path, paths))}") from None


def _read(path: Path) -> dict[str, Any]:
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise BadInputError(f"{path}: expected a mapping of settings, found {type(raw).__name__}")
    return raw


def config_names() -> list[str]:
    """Names that `load_config` takes without a path."""
    return sorted(path.stem for path in (configs_folder() / "tune").glob("*.yaml"))


def load_config(name_or_path: str | None = None, overrides: Sequence[str] = ()) -> TuneConfig:
    """The default, a named or given file over it, and `a.b=c` texts over that (c is read as YAML).

    Raises `BadInputError` with the file, the dotted path and the value; every fault of a file at once, and every fault of the texts.
    """
    folder = configs_folder() / "tune"
    raw, source = _read(folder / "default.yaml"), "default.yaml"
    if name_or_path is not None:
        path = folder / f"{name_or_path}.yaml" if name_or_path in config_names() else Path(name_or_path)
        if not path.is_file():
            raise BadInputError(f"--config {name_or_path}: no such preset or file; presets: {', '.join(config_names())}")
        source = str(path)
        _overlay(raw, _read(path))
        _validated(raw, source)
    faults = []
    for text in overrides:
        try:
            _set(raw, text)
        except BadInputError as error:
            faults.append(str(error))
        source = "--set " + ", ".join(overrides)
    try:
        config = _validated(raw, source)
    except BadInputError as error:
        faults.append(str(error))
    if faults:
        raise BadInputError("; ".join(faults))
    return config


def _set(raw: dict[str, Any], text: str) -> None:
    path, equals, value_text = text.partition("=")
    if not equals:
        raise BadInputError(f"--set {text}: expected a.b=value")
    try:
        # YAML 1.1 takes 1e-3 for a word
        value = float(value_text) if re.fullmatch(r"\s*[+-]?\d+[eE][+-]?\d+\s*", value_text) else yaml.safe_load(value_text)
    except yaml.YAMLError:
        raise BadInputError(f"--set {text}: {value_text!r} is not a YAML value") from None
    try:
        _set_value(raw, path.strip(), value)
    except BadInputError as error:
        raise BadInputError(f"--set {text}: {error}") from None
