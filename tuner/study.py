"""Optuna over the hyper-parameters of the search: batches of trials that are the same on any cluster and after any kill.

One driver owns the study.  Batch b: a new sampler seeded by (seed, b), B asks, the runs, B tells in the order of trial
numbers.  A batch is *done* when its file `batches/<b>.json` is there, written before the first tell: a driver that comes
back tells what is missing, discards trials that belong to no done batch (they count as failed, which the sampler does
not look at), and goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, Protocol

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from tuner.candidate import digest
from tuner.config import Range, TuneConfig
from tuner.farm.backend import Backend
from tuner.folder.runfolder import Identity, RunFolder, read_json, write_json
from tuner.shared import FOLDER as SHARED

VERSION = 1
JOURNAL = "journal.log"


class RunCell(Protocol):
    """One tuning run on the serial backend: log(cycles ÷ baseline) of the champion, for every level.  Picklable."""

    def __call__(self, model: str, machine: str, config: TuneConfig, seed: int) -> Sequence[float]: ...


class Cell(NamedTuple):
    """The unit of work: one trial on one network with one seed."""

    model: str
    machine: str
    config: TuneConfig
    seed: int


@dataclass(frozen=True)
class CellWorker:
    """A farm's worker that runs cells."""

    run_cell: RunCell

    def run(self, batch: list[Cell]) -> list[list[float]]:
        return [[float(value) for value in self.run_cell(*cell)] for cell in batch]


@dataclass(frozen=True)
class StudySpec:
    """What to study.  `models` in the order in which they are run (and pruned); `trials` is rounded up to whole batches.

    inputs: what else a cell's result follows from, as texts for people (data type, digests of files): a study is not resumed with others.
    """

    models: tuple[str, ...]
    machine: str
    seeds: tuple[int, ...]
    config: TuneConfig
    trials: int
    seed: int = 0
    storage: str | None = None
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyIdentity(Identity):
    models: tuple[str, ...]
    machine: str
    seeds: tuple[int, ...]
    seed: int
    config_digest: str
    study_digest: str
    inputs: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        return f"study-{self.machine}-{digest(asdict(self))[:8]}"

    @classmethod
    def of(cls, spec: StudySpec) -> StudyIdentity:
        config = spec.config
        study = {"study": config.study.model_dump(mode="json"), "budget": config.budget.model_dump(mode="json")}
        return cls(spec.models, Path(spec.machine).stem, spec.seeds, spec.seed, config.digest, digest(study), spec.inputs)


@dataclass
class Record:
    """One trial as its batch file holds it.  `means[k]`: running mean after k + 1 networks; `value` None: failed."""

    number: int
    params: dict[str, int | float]
    means: list[float] = field(default_factory=list)
    value: float | None = None
    pruned: bool = False
    error: str | None = None


def derive(seed: int, batch: int) -> int:
    """The sampler's seed of one batch."""
    return int(digest(["study", seed, batch])[:8], 16)


def open_storage(folder: Path, url: str | None) -> BaseStorage:
    """A journal on the local disk, or the user's database.  The folder's lock is held: what a killed owner left is cleared."""
    if url is not None:
        try:
            return RDBStorage(url)
        except Exception as error:  # noqa: BLE001  one class per database driver; all mean the same to the user
            raise BadInputError(f"--storage {url}: {' '.join(str(error).split())[:200]}") from None
    path = folder / JOURNAL
    for left in folder.glob(f"{JOURNAL}.lock*"):
        left.unlink()
    if path.exists() and not (raw := path.read_bytes()).endswith(b"\n"):
        atomic_write(path, [raw[: raw.rfind(b"\n") + 1]])
    return JournalStorage(JournalFileBackend(str(path)))


def distribution(span: Range) -> IntDistribution | FloatDistribution:
    """What a value is drawn from: whole numbers where both ends are."""
    if isinstance(span.low, int) and isinstance(span.high, int):
        return IntDistribution(span.low, span.high, log=span.log)
    return FloatDistribution(span.low, span.high, log=span.log)


def behind(mean: float, network: int, earlier: Sequence[Record], startup: int) -> bool:
    """Is a running mean worse than the median of earlier batches at the same network?  Needs `startup` of them."""
    seen = [record.means[network] for record in earlier if len(record.means) > network]
    return len(seen) >= max(1, startup) and mean > median(seen)


def pruned_value(record: Record, earlier: Sequence[Record]) -> float:
    """The value of a pruned trial: the median of the complete ones, plus how far it was behind their median when it stopped.

    Its bare running mean is over other networks than theirs: where the first network gains most, stopping would look like winning.
    """
    complete = [other for other in earlier if other.value is not None and not other.pruned]
    if not complete:
        return record.means[-1]
    last = len(record.means) - 1
    return median(other.means[-1] for other in complete) + record.means[-1] - median(other.means[last] for other in complete)


MakeBackend = Callable[[Callable[[], CellWorker]], Backend[Cell, list[float]]]


def run_study(
    folder: Path, spec: StudySpec, run_cell: RunCell, make_backend: MakeBackend, resume: bool = False, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Run or resume a study in `folder`; returns what `summary.json` holds.  Also writes `best.yaml` for `tune --config`.

    `make_backend` turns a worker's factory into a backend: `SerialBackend`, or
    `lambda make: RayBackend(make, workers, item_timeout_s=None, in_flight=1, max_batch=1)`.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    parameters, size = spec.config.study.parameters, spec.config.study.batch
    with RunFolder(folder, StudyIdentity.of(spec), resume, folders=("batches", SHARED)) as run:
        done = _load_batches(folder, size)
        study = _open_study(folder, spec, run, bool(done))
        _settle(study, done)
        batches = math.ceil(spec.trials / size)
        if batches > len(done):
            with make_backend(partial(CellWorker, run_cell)) as backend:
                for b in range(len(done), batches):
                    records = _ask_batch(study, spec, b)
                    _run_batch(records, spec, backend, [record for batch in done for record in batch])
                    write_json(folder / "batches" / f"{b:06d}.json", {"version": VERSION, "trials": [asdict(record) for record in records]})
                    done.append(records)
                    _tell(study, records)
                    best = best_of(done)
                    say(
                        f"batch {b + 1} of {batches}: best {'none yet' if best is None else f'{math.exp(best.value or 0):.4f} of baseline'}"
                    )
        summary = _summary(spec, run.run, done)
        best = best_of(done)
        if best is not None:
            text = spec.config.replaced(best.params).to_yaml()
            ratio = math.exp(best.value or 0.0)
            head = f"# best of {summary['trials_done']} trials over {', '.join(parameters)}: {ratio:.4f} of the baseline\n"
            atomic_write(folder / "best.yaml", [(head + text).encode()])
        write_json(folder / "summary.json", summary)
        return summary


def best_of(done: Sequence[Sequence[Record]]) -> Record | None:
    """The best trial that ran on every network; the first of equals."""
    complete = [record for batch in done for record in batch if record.value is not None and not record.pruned]
    return min(complete, key=lambda record: (record.value, record.number), default=None)


def _load_batches(folder: Path, size: int) -> list[list[Record]]:
    done: list[list[Record]] = []
    while (path := folder / "batches" / f"{len(done):06d}.json").exists():
        raw = read_json(path)
        try:
            records = [Record(**item) for item in raw["trials"]]
        except (KeyError, TypeError) as error:
            raise BadInputError(f"{path}: not a batch of trials: {error!r}") from None
        if raw.get("version") != VERSION or len(records) != size:
            raise BadInputError(
                f"{path}: version {raw.get('version')!r} with {len(records)} trials; expected version {VERSION} with {size}"
            )
        done.append(records)
    return done


def _open_study(folder: Path, spec: StudySpec, run: RunFolder, resumed: bool) -> optuna.Study:
    study = optuna.create_study(storage=open_storage(folder, spec.storage), study_name=run.run, direction="minimize", load_if_exists=True)
    finished = any(trial.state == TrialState.COMPLETE for trial in study.get_trials(deepcopy=False))
    if finished and not resumed:
        raise BadInputError(
            f"--storage {spec.storage}: holds study {run.run}, of another folder than {folder}; give another --storage or --seed"
        )
    return study


def _settle(study: optuna.Study, done: Sequence[Sequence[Record]]) -> None:
    """Tell what a killed driver had not told; discard what belongs to no done batch."""
    records = [record for batch in done for record in batch]
    there = {trial.number: trial.state for trial in study.get_trials(deepcopy=False)}
    if missing := [record.number for record in records if record.number not in there]:
        raise BadInputError(
            f"study {study.study_name}: its storage does not hold trial {missing[0]}, which batches/ has; give the --storage it had"
        )
    _tell(study, [record for record in records if not there[record.number].is_finished()])
    known = {record.number for record in records}
    for number, state in sorted(there.items()):
        if number not in known and state == TrialState.RUNNING:
            study.tell(number, state=TrialState.FAIL)


def _tell(study: optuna.Study, records: Sequence[Record]) -> None:
    for record in records:
        if record.value is None:
            study.tell(record.number, state=TrialState.FAIL)
        else:
            study.tell(record.number, record.value)


def _ask_batch(study: optuna.Study, spec: StudySpec, b: int) -> list[Record]:
    settings = spec.config.study
    study.sampler = TPESampler(seed=derive(spec.seed, b), multivariate=True, constant_liar=True, n_startup_trials=settings.startup)
    if b == 0 and not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        study.enqueue_trial(_defaults(spec.config))  # so that the best is never worse than what is there
    space: dict[str, BaseDistribution] = {path: distribution(span) for path, span in settings.parameters.items()}
    return [Record(trial.number, trial.params) for trial in (study.ask(space) for _ in range(settings.batch))]


def _defaults(config: TuneConfig) -> dict[str, Any]:
    """The configuration's own values, where they lie in the range."""
    values: dict[str, Any] = {}
    for path, span in config.study.parameters.items():
        value: Any = config
        for part in path.split("."):
            value = getattr(value, part)
        if span.low <= value <= span.high:
            values[path] = value
    return values


def _run_batch(records: Sequence[Record], spec: StudySpec, backend: Backend[Cell, list[float]], earlier: Sequence[Record]) -> None:
    """Fill in means and values, network by network; all cells of one network go out together."""
    configs: dict[int, TuneConfig] = {}
    for record in records:
        try:
            configs[record.number] = spec.config.replaced({**record.params, "farm.backend": "serial", "farm.workers": None})
        except BadInputError as error:
            record.error = str(error)
    totals: dict[int, list[float]] = {record.number: [] for record in records}
    for network, model in enumerate(spec.models):
        alive = [record for record in records if record.error is None and not record.pruned]
        backend.submit(Cell(model, spec.machine, configs[record.number], seed) for record in alive for seed in spec.seeds)
        for record in alive:
            for outcome in backend.collect(len(spec.seeds)):
                if outcome.status != "ok" or outcome.value is None:
                    record.error = record.error or f"{model}: {outcome.error}"
                elif not outcome.value or not all(map(math.isfinite, outcome.value)):
                    record.error = record.error or f"{model}: not a finite number per level: {outcome.value}"
                else:
                    totals[record.number] += outcome.value
            if record.error is None:
                record.means.append(fmean(totals[record.number]))
                last = network == len(spec.models) - 1
                record.pruned = (
                    spec.config.study.prune and not last and behind(record.means[-1], network, earlier, spec.config.study.startup)
                )
    for record in records:
        if record.error is None:
            record.value = pruned_value(record, earlier) if record.pruned else record.means[-1]


def _summary(spec: StudySpec, run: str, done: Sequence[Sequence[Record]]) -> dict[str, Any]:
    best = best_of(done)
    return {
        "version": VERSION,
        "study": run,
        "models": list(spec.models),
        "machine": spec.machine,
        "seeds": list(spec.seeds),
        "seed": spec.seed,
        "parameters": {path: span.model_dump(mode="json") for path, span in spec.config.study.parameters.items()},
        "trials_done": sum(len(batch) for batch in done),
        "best": None
        if best is None
        else {
            "trial": best.number,
            "value": best.value,
            "ratio_to_baseline": math.exp(best.value or 0.0),
            "params": best.params,
            "config_digest": spec.config.replaced(best.params).digest,
        },
        "trials": [{"batch": b, **asdict(record)} for b, batch in enumerate(done) for record in batch],
    }
