"""Requests of `tune`, `study` and `sweep`: every option of the command line, and its default; checked for form only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from simulator.npu.errors import BadInputError
from simulator.npu.parts import DTypeName
from simulator.objective import Objective, frames_of
from simulator.onnx_names import Style

STORE = "store"  # folder in a sweep or a study with the shared measurements of its runs
NO_STORE = "none"  # `FarmRequest.store`: the runs share no measurements
Backend = Literal["ray", "serial"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Progress of a run.

    measured: number of measured programs.  best, baseline: level -> cycles of the best program, and of the model layer by layer.
    failures: status -> number of tasks.  note: epoch and number of tasks, as text.
    readings: number of readings, task x level x repeat, with those of the canary.
    """

    measured: int
    best: Mapping[str, int] = field(default_factory=dict)
    baseline: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    readings: int = 0


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """Fields of requests for one run and for many.  None: the configuration's own value.

    measurements: budget in readings, task x level x repeat, finals included.
    config: preset or YAML file of settings.  overrides: settings over it, texts `a.b=c`.
    backend: `ray`, a farm of actors, or `serial`, this process.
    address: address of a running Ray cluster.  workers: number of workers, or {"min": N, "max": M}.  wait_s: seconds to wait for CPUs.
    resource: name of a Ray resource; each worker takes one unit of it.
    resume: whether to continue the run in the output folder.
    dtype: data type of floats on the NPU.
    target: target that times plans (`tuner.measure.target`).  runner: runner that measures programs (`tuner.measure.runners`).
    store: folder or URL of measurements that runs share (`tuner.store.pack_store`).
    """

    measurements: int | None = None
    config: str | None = None
    overrides: tuple[str, ...] = ()
    backend: Backend | None = None
    address: str | None = None
    workers: int | Mapping[str, int] | None = None
    wait_s: float | None = None
    resume: bool = False
    dtype: DTypeName = "float16"
    target: str | None = None
    runner: str | None = None
    resource: str | None = None
    store: str | None = None


@dataclass(frozen=True)
class TuneRequest(RequestOptions):
    """One tuning run.  None: the configuration's own value.

    model: ONNX file, or name of a built network.  machine: preset or YAML file.  out: folder of the run.
    candidates: budget in measured programs.  seconds: budget in wall time.  At most one of `candidates`, `seconds` and `measurements`.
    max_core_hours: limit beside these, CPU hours of workers.
    seed: seed of everything random.  level_weights: level -> weight of the level when parents are drawn.
    style: form of the compiled file.  tag: texts `k=v` joined by commas, sorted by key, for every row of the log.
    shapes: dimensions of dynamic inputs.  random_weights: seed of weights that replace the model's; None: the model's own.
    quiet: whether nothing is printed on stderr.  progress: called with a `Snapshot` after every few jobs.
    mirror: URL to which the run folder is copied while it grows.  strategy: search strategy (`tuner.search.strategy`).
    variants: largest number of shipped programs; None: one per level.
    insure: fraction by which a shipped program may be slower than a level's champion (`tuner.selection.robustness_filter`).
    warm_start: folders of earlier runs whose measurements are reused.  start: plan files that the search begins with.
    prior: file of a cost model (`tilefarm train`) that proposes the first candidates; `none`: the estimate only; None: the packaged model.
    min_npu_share: least share of the multiply-accumulates on the NPU; below it the run is refused.
    champions: whether stored champions of another model with the same computation replace a search (`tuner.farm.champion_cache`).
    objective: `latency` (a run computes one frame) or `throughput` (a run computes several).
    frames: number of frames for `throughput`; None: `simulator.objective.DEFAULT_FRAMES`.

    Paths may be given as texts.  Raises `BadInputError` for an unknown data type or style, for variants below 1, for a negative
    `insure`, and for frames without throughput.
    """

    model: Path
    machine: str
    out: Path
    candidates: int | None = None
    seconds: float | None = None
    max_core_hours: float | None = None
    seed: int = 0
    level_weights: Mapping[str, float] = field(default_factory=dict)
    style: Style = "function"
    tag: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    random_weights: int | None = None
    quiet: bool = True
    mirror: str | None = None
    strategy: str | None = None
    variants: int | None = None
    insure: float | None = None
    warm_start: tuple[Path, ...] = ()
    start: tuple[Path, ...] = ()
    prior: Path | None = None
    min_npu_share: float | None = None
    champions: bool = True
    progress: Callable[[Snapshot], None] | None = None
    objective: Objective = "latency"
    frames: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (("dtype", DTypeName), ("style", Style)):
            if getattr(self, name) not in get_args(choices):
                raise BadInputError(f"{name} {getattr(self, name)!r}: expected one of {', '.join(get_args(choices))}")
        frames_of(self.objective, self.frames)
        if self.variants is not None and self.variants < 1:
            raise BadInputError(f"variants {self.variants}: expected 1 or more")
        if self.insure is not None and not self.insure >= 0:
            raise BadInputError(f"insure {self.insure}: expected a fraction, 0 or more")
        paths: dict[str, object] = {"model": Path(self.model), "out": Path(self.out), "warm_start": tuple(map(Path, self.warm_start))}
        paths |= {"start": tuple(map(Path, self.start)), "prior": None if self.prior is None else Path(self.prior)}
        for name, value in paths.items():
            object.__setattr__(self, name, value)

    @property
    def frames_of_run(self) -> int:
        """Number of frames that a run of the compiled model computes."""
        return frames_of(self.objective, self.frames)


@dataclass(frozen=True, kw_only=True)
class FarmRequest(RequestOptions):
    """Fields that requests for many runs share.

    out: folder of all runs.  seeds: number of runs per model, with seeds 0 .. seeds - 1.  quiet: whether nothing is printed on stderr.
    store: measurements that the runs share; None: `out / STORE`; `NO_STORE`: none.
    """

    out: Path
    seeds: int = 1
    quiet: bool = False


@dataclass(frozen=True)
class StudyRequest(FarmRequest):
    """Request for Optuna over the hyper-parameters of the search, on every model and seed.

    models: ONNX files or names of built networks.  machine: preset or YAML file.
    trials: number of trials.  seed: seed of Optuna's sampler.
    measurements: budget of every search in readings; None: `study.measurements`.
    storage: URL of Optuna's database; None: a journal in `out`.  random_weights: seed of the models' weights; None: the models' own.
    """

    models: tuple[Path, ...]
    machine: str
    trials: int = 50
    seed: int = 0
    storage: str | None = None
    random_weights: int | None = None


@dataclass(frozen=True)
class SweepRequest(FarmRequest):
    """Request for a run of every model on every machine with every seed, each in a folder of its own below `out`.

    models: files (or names of built networks), each with the seed of its random weights or None.  machines: presets or YAML files.
    candidates, style, tag, warm_start: as in `TuneRequest`, for every run.  mirror: URL of a copy of `out`.
    min_npu_share: a model with less on a machine fails there.
    """

    models: tuple[tuple[Path, int | None], ...]
    machines: tuple[str, ...]
    candidates: int | None = None
    style: Style = "function"
    tag: str = ""
    mirror: str | None = None
    warm_start: tuple[Path, ...] = ()
    min_npu_share: float | None = None
