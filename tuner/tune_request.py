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
NO_STORE = "none"
Backend = Literal["ray", "serial"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Progress of a run.  `best` and `baseline`: level -> cycles.  `failures`: status -> tasks.  `measured`: number of whole programs.

    `readings`: task x level x repeat, with the canary.
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

    measurements: readings, task x level x repeat, finals included.  config: preset or YAML file; overrides: `a.b=c` texts over it.
    address: address of a running Ray cluster; workers: their number, or {"min": N, "max": M}; wait_s: seconds to wait for CPUs.
    target: target that times plans (`tuner.measure.target`).
    runner: runner that measures programs (`tuner.measure.runners`).  resource: Ray resource, one of which each worker takes.
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

    candidates: measured programs; seconds: wall time.  At most one of the two and `measurements`.  machine: preset or YAML file.
    max_core_hours: limit beside these, CPU hours of workers.
    level_weights: level -> weight among parents.  tag: `k=v` texts joined by commas, sorted by key.
    warm_start: folders of earlier runs whose measurements are reused.  start: plan files that the search begins with.
    prior: file of a cost model (`tilefarm train`) that proposes the first candidates; `none`: the estimate only; None: the packaged model.
    objective: `latency` (a run computes one frame) or `throughput` (a run computes `frames` frames; None: FRAMES).
    min_npu_share: least share of the multiply-accumulates on the NPU; below it the run is refused.
    champions: use stored champions of another model with the same computation instead of a search (`tuner.farm.champion_cache`).
    mirror: URL to which the run folder is copied while it grows.  strategy: search strategy (`tuner.search.strategy`).
    variants: most shipped programs; None: one per level.  insure: fraction by which a shipped program may be slower than a level's champion
    (`tuner.selection.robustness_filter`).  quiet: nothing on stderr.  progress: called with a `Snapshot` after every few jobs.

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
        return frames_of(self.objective, self.frames)


@dataclass(frozen=True, kw_only=True)
class FarmRequest(RequestOptions):
    """Fields that requests for many runs share.

    seeds: runs per model with seeds 0 .. seeds - 1.  store: shared measurements of the runs; None: `out / STORE`, `NO_STORE`: none.
    """

    out: Path
    seeds: int = 1
    quiet: bool = False


@dataclass(frozen=True)
class StudyRequest(FarmRequest):
    """Request for Optuna over the hyper-parameters of the search, on every model and seed.

    measurements: readings of every search; None: `study.measurements`.  storage: database URL; None: a journal in `out`.
    """

    models: tuple[Path, ...]
    machine: str
    trials: int = 50
    seed: int = 0
    storage: str | None = None
    random_weights: int | None = None


@dataclass(frozen=True)
class SweepRequest(FarmRequest):
    """Every model on every machine with every seed, each a run of its own below `out`.

    models: files (or names of built networks), each with the seed of its random weights or None.  mirror: URL of a copy of `out`.
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
