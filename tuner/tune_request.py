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

STORE = "store"  # folder of a sweep or a study, whose runs share what they measure
NO_STORE = "none"
Backend = Literal["ray", "serial"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Progress of a run.  `best` and `baseline`: cycles by level; `failures`: tasks by status; `measured`: whole programs.

    `readings`: task x level x repeat, the canary among them.
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

    measurements: readings, task x level x repeat, finals among them.  config: a preset's name or a YAML file; overrides: `a.b=c` texts over
    it.  address: of a running Ray cluster; wait_s: seconds to wait for CPUs.  target: what times plans (`tuner.measure.target`); runner:
    what measures programs (`tuner.measure.runners`); resource: of Ray, that each worker takes one of.
    store: folder or URL of measurements that runs share (`tuner.store.pack_store`).
    """

    measurements: int | None = None
    config: str | None = None
    overrides: tuple[str, ...] = ()
    backend: Backend | None = None
    address: str | None = None
    workers: int | None = None
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

    candidates: measured programs; measurements: readings; seconds: wall time; at most one of the three.
    machine: a preset's name or a YAML file.  level_weights: level -> weight among parents.
    tag: `k=v` texts joined by commas, sorted by key.
    warm_start: folders of earlier runs whose measurements count here.  start: plan files that the search begins with.
    prior: file of a cost model (`tilefarm train`) that proposes candidates in the beginning, `none` for the estimate alone; None: the
    one that comes along.
    objective: `latency`, one frame of the model in a run, or `throughput`, so many `frames` in each (None: FRAMES).
    min_npu_share: of the multiply-accumulates, below which nothing is searched.
    champions: of another model with the same computation in the store stand for a search (`tuner.farm.champion_cache`).
    mirror: URL of a folder that the run folder is copied to while it grows.  strategy: what is measured next (`tuner.search.strategy`).
    variants: that ship at most; None for one of every level.  insure: by what fraction what ships may be slower than a level's champion
    (`tuner.selection.robustness_filter`).  quiet: nothing on stderr.  progress: is told where the search stands, after every few jobs.

    Paths may be given as texts.  Raises `BadInputError` for a data type or a style that does not exist, for no variants, for a negative
    `insure`, and for frames without throughput.
    """

    model: Path
    machine: str
    out: Path
    candidates: int | None = None
    seconds: float | None = None
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

    seeds: runs per model with seeds 0 .. seeds - 1.  store: of what the runs measure, so that no other does again; None: `out / STORE`,
    `NO_STORE`: none.
    """

    out: Path
    seeds: int = 1
    quiet: bool = False


@dataclass(frozen=True)
class StudyRequest(FarmRequest):
    """Optuna over the hyper-parameters of the search, on every model and seed.

    measurements: of every search; None: `study.measurements`.  storage: a database URL; None: a journal in `out`.
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
