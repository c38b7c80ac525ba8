"""Optuna over the hyper-parameters of the search: batches of trials that are the same on any cluster and after any kill.

One driver owns the study.  Batch b: B trials of a new sampler seeded by (seed, b) that has heard of the batches before, and their runs.  A
batch is *done* when its file `batches/<b>.json` is there; those files are the study, and what a killed driver was at is asked again.  The
last batch may be short: with more trials it is asked again, and keeps the results that it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Protocol

import optuna

from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from tuner.config import TuneConfig
from tuner.farm.each import Each, Make
from tuner.measure.merit import speedup
from tuner.store.digests import digest
from tuner.store.runfolder import Identity, RunFolder, read_json, write_json
from tuner.store.runs import SUMMARY
from tuner.store.studies import VERSION
from tuner.study.storage import StudyStorage
from tuner.study.trials import INSTANCES, Record, ask, behind, best_of, pruned_value, stops
from tuner.world.local import LocalPlace


class RunCell(Protocol):
    """One tuning run on the serial backend: log(cycles ÷ baseline) of the champion, for every level.  Picklable."""

    def __call__(self, model: str, machine: str, config: TuneConfig, seed: int) -> Sequence[float]: ...


class TrialRun(NamedTuple):
    """The unit of work: one trial on one network with one seed."""

    model: str
    machine: str
    config: TuneConfig
    seed: int


@dataclass(frozen=True)
class TrialWorker:
    """Runs a cell."""

    run_cell: RunCell

    def __call__(self, cell: TrialRun) -> list[float]:
        return [float(value) for value in self.run_cell(*cell)]


@dataclass(frozen=True)
class StudySpec:
    """What to study.  `models` in the order in which they are run (and trials are stopped).

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


Cells = Each[TrialRun, list[float]]
CellsOn = Callable[[Make[TrialRun, list[float]]], AbstractContextManager[Cells]]


def run_study(
    folder: Path, spec: StudySpec, run_cell: RunCell, workers: CellsOn, resume: bool = False, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Run or resume a study in `folder`; returns what `summary.json` holds.

    That file and `best.yaml`, for `tune --config`, are written after every batch, of the trials so far.

    workers: where cells run (`tuner.farm.each`), for what makes a `TrialWorker`.
    """
    folder = LocalPlace(folder)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    size = spec.config.study.batch
    with RunFolder(folder, StudyIdentity.of(spec), resume, folders=("batches",)) as run:
        records = _load(folder, size)
        storage = StudyStorage(folder, spec.storage, run.run)
        storage.publish(records, spec.config)
        summary = _write_summary(folder, spec, run.run, records)
        say(_stopping(spec))
        if spec.trials > len(records):
            with workers(partial(TrialWorker, run_cell)) as cells:
                for b in range(len(records) // size, math.ceil(spec.trials / size)):
                    batch = _batch(folder, spec, b, records, cells)
                    write_json(_path(folder, b), {"version": VERSION, "trials": [asdict(record) for record in batch]})
                    records[b * size :] = batch
                    storage.publish(records, spec.config)
                    summary = _write_summary(folder, spec, run.run, records)
                    best = summary["best"]
                    found = "none yet" if best is None else f"{_gain(best['value'])}, trial {best['trial']}"
                    say(f"{len(records)} of {spec.trials} trials, best: {found}")
        return summary


def _gain(value: float | None) -> str:
    return f"{speedup(math.exp(-(value or 0.0)))} the untuned plan"


def _stopping(spec: StudySpec) -> str:
    """What becomes of trials that are behind, in one line."""
    networks, seeds = len(spec.models), len(spec.seeds)
    runs = f"runs of a trial: {networks} x {seeds} = {networks * seeds} (networks x seeds)"
    where = stops(networks, seeds)
    if not spec.config.study.prune:
        return f"{runs}; no trial is stopped early: study.prune is false"
    if not where:
        return f"{runs}; no trial is stopped early: that takes {INSTANCES} runs, and a network left"
    return f"{runs}; a trial behind the median after {(where.start + 1) * seeds} or more is stopped"


def _path(folder: LocalPlace, b: int) -> LocalPlace:
    return folder / "batches" / f"{b:06d}.json"


def _load(folder: LocalPlace, size: int) -> list[Record]:
    """The trials of all batch files, of which the last may be short."""
    records: list[Record] = []
    while len(records) % size == 0 and (path := _path(folder, len(records) // size)).exists():
        raw = read_json(path)
        try:
            batch = [Record(**item) for item in raw["trials"]]
        except (KeyError, TypeError) as error:
            raise BadInputError(f"{path}: not a batch of trials: {error!r}") from None
        if raw.get("version") != VERSION or not 0 < len(batch) <= size:
            raise BadInputError(
                f"{path}: version {raw.get('version')!r} with {len(batch)} trials; expected version {VERSION} with 1 to {size}"
            )
        records += batch
    return records


def _batch(folder: LocalPlace, spec: StudySpec, b: int, records: Sequence[Record], cells: Cells) -> list[Record]:
    """Ask and run batch b, as much of it as the study has trials; what `records` has of it stays."""
    size = spec.config.study.batch
    earlier, kept = records[: b * size], list(records[b * size :])
    asked = ask(spec.config, spec.seed, b, min(size, spec.trials - b * size), earlier)
    if [record.params for record in asked[: len(kept)]] != [record.params for record in kept]:
        raise BadInputError(f"{_path(folder, b)}: optuna {optuna.__version__} asks other trials than these; give another --out")
    new = asked[len(kept) :]
    _run_batch(new, spec, cells, earlier)
    return kept + new


def _run_batch(records: Sequence[Record], spec: StudySpec, cells: Cells, earlier: Sequence[Record]) -> None:
    """Fill in means and values, network by network; all cells of one network go out together."""
    configs: dict[int, TuneConfig] = {}
    for record in records:
        try:
            configs[record.number] = spec.config.replaced({**record.params, "farm.backend": "serial", "farm.workers": None})
        except BadInputError as error:
            record.error = str(error)
    totals: dict[int, list[float]] = {record.number: [] for record in records}
    where = stops(len(spec.models), len(spec.seeds)) if spec.config.study.prune else ()
    for network, model in enumerate(spec.models):
        alive = [record for record in records if record.error is None and not record.pruned]
        told = cells([TrialRun(model, spec.machine, configs[record.number], seed) for record in alive for seed in spec.seeds])
        for record in alive:
            for value, why in islice(told, len(spec.seeds)):
                if value is None:
                    record.error = record.error or f"{model}: {why}"
                elif not value or not all(map(math.isfinite, value)):
                    record.error = record.error or f"{model}: not a finite number per level: {value}"
                else:
                    totals[record.number] += value
            if record.error is None:
                record.means.append(fmean(totals[record.number]))
                record.pruned = network in where and behind(record.means[-1], network, earlier, spec.config.study.startup)
    for record in records:
        if record.error is None:
            record.value = pruned_value(record, earlier) if record.pruned else record.means[-1]


def _write_summary(folder: LocalPlace, spec: StudySpec, run: str, records: Sequence[Record]) -> dict[str, Any]:
    """`summary.json` and `best.yaml` of the trials that there are; returns what the former holds."""
    best = best_of(records)
    summary = {
        "version": VERSION,
        "study": run,
        "models": list(spec.models),
        "machine": spec.machine,
        "seeds": list(spec.seeds),
        "seed": spec.seed,
        "parameters": {path: span.model_dump(mode="json") for path, span in spec.config.study.parameters.items()},
        "trials_asked": max(spec.trials, len(records)),
        "trials_done": len(records),
        "best": None
        if best is None
        else {
            "trial": best.number,
            "value": best.value,
            "ratio_to_baseline": math.exp(best.value or 0.0),
            "params": best.params,
            "config_digest": spec.config.replaced(best.params).digest,
        },
        "trials": [{"batch": record.number // spec.config.study.batch, **asdict(record)} for record in records],
    }
    if best is not None:
        text = spec.config.replaced(best.params).to_yaml()
        over = ", ".join(spec.config.study.parameters)
        head = f"# best of {len(records)} trials over {over}: {_gain(best.value)}\n"
        atomic_write(folder / "best.yaml", [(head + text).encode()])
    write_json(folder / SUMMARY, summary)
    return summary
