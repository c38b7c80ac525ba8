"""Optuna over the hyper-parameters of the search: batches of trials, the same on any cluster and after any kill.

One driver owns the study.  Batch b: B trials of a new sampler seeded by (seed, b) and told of all earlier batches, and their runs.  A batch
is *done* once its file `batches/<b>.json` exists; these files are the study, and the unfinished batch of a killed driver is asked again.
The last batch may be short: with more trials it is asked again, and keeps its results.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import optuna

from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from tuner.config import TuneConfig, load_config
from tuner.farm.isolated_map import IsolatedMap, Make
from tuner.log.digests import digest
from tuner.measure.merit import speedup
from tuner.platform.local_files import LocalPath
from tuner.runs.folder import SETTINGS, Identity, RunFolder, read_json, write_json
from tuner.runs.list_runs import SUMMARY
from tuner.runs.study_summary import VERSION
from tuner.study.curve import CellCurve, areas, mean_curve, pruner_rungs, reading_counts
from tuner.study.optuna_storage import StudyStorage
from tuner.study.trials import Pruner, Record, ask_trials, best_trial, check_space, front, may_stop

WORK = ".work"  # searches of the current batch


class RunCell(Protocol):
    """Search on the serial backend up to the last of the counts, resumed from its folder if present.  Picklable."""

    def __call__(self, model: str, machine: str, config: TuneConfig, seed: int, counts: Sequence[int], folder: str) -> CellCurve: ...


class TrialRun(NamedTuple):
    """Unit of work: one trial on one network with one seed, up to the last of `counts`.  folder: folder of this search only."""

    model: str
    machine: str
    config: TuneConfig
    seed: int
    counts: tuple[int, ...]
    folder: str


@dataclass(frozen=True)
class TrialWorker:
    """Worker that runs one cell."""

    run_cell: RunCell

    def __call__(self, cell: TrialRun) -> CellCurve:
        return self.run_cell(*cell)


@dataclass(frozen=True)
class StudySpec:
    """Specification of a study.

    inputs: other inputs of a cell's result, as texts for people (data type, digests of files): a resumed study must have the same.
    """

    models: tuple[str, ...]
    machine: str
    seeds: tuple[int, ...]
    config: TuneConfig
    trials: int
    seed: int = 0
    storage: str | None = None
    inputs: tuple[str, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """Counts of readings at which curves are evaluated."""
        return reading_counts(self.config.study.measurements, self.config.study.points)


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
    def from_spec(cls, spec: StudySpec) -> StudyIdentity:
        config = spec.config
        study = digest(config.study.model_dump(mode="json"))
        return cls(spec.models, Path(spec.machine).stem, spec.seeds, spec.seed, config.digest, study, spec.inputs)


Cells = IsolatedMap[TrialRun, CellCurve]
CellsOn = Callable[[Make[TrialRun, CellCurve]], AbstractContextManager[Cells]]


def run_study(
    folder: Path, spec: StudySpec, run_cell: RunCell, workers: CellsOn, resume: bool = False, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Run or resume a study in `folder`; returns the content of `summary.json`.

    `summary.json` and `best.yaml`, for `tune --config`, are written after every batch, over the trials so far.

    workers: opens the workers of the cells (`tuner.farm.isolated_map`) for a factory of `TrialWorker`.
    """
    folder = LocalPath(folder)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    size = spec.config.study.batch
    check_space(spec.config)
    differs = partial(_differs, folder, spec.config)
    explain = {"study_digest": differs, "config_digest": differs}
    with RunFolder(folder, StudyIdentity.from_spec(spec), resume, folders=("batches",), explain=explain) as run:
        atomic_write(folder / SETTINGS, [spec.config.to_yaml().encode()])
        records = _load(folder, size)
        storage = StudyStorage(folder, spec.storage, run.run)
        storage.publish(records, spec.config, spec.counts)
        summary = _write_summary(folder, spec, run.run, records)
        say(_trial_line(spec))
        if spec.trials > len(records):
            with workers(partial(TrialWorker, run_cell)) as cells:
                # a short last batch is asked again: its records are replaced, not extended
                for b in range(len(records) // size, math.ceil(spec.trials / size)):
                    batch = _batch(folder, spec, b, records, cells)
                    write_json(_path(folder, b), {"version": VERSION, "trials": [asdict(record) for record in batch]})
                    records[b * size :] = batch
                    storage.publish(records, spec.config, spec.counts)
                    summary = _write_summary(folder, spec, run.run, records)
                    best = summary["best"]
                    best_text = "none yet" if best is None else f"{_gain(best['value'])}, trial {best['trial']}"
                    say(f"{len(records)} of {spec.trials} trials, best: {best_text}")
        return summary


def _gain(value: float | None) -> str:
    return f"{speedup(math.exp(-(value or 0.0)))} the untuned plan"


def _trial_line(spec: StudySpec) -> str:
    """Line that describes a trial."""
    networks, seeds, counts = len(spec.models), len(spec.seeds), spec.counts
    stops = ", ".join(f"{counts[rung - 1]:,}" for rung in pruner_rungs(counts)[:-1])
    condition = f"after {stops} one behind the median is stopped, once {max(1, spec.config.study.startup)} have come to their end"
    return (
        f"a trial is {networks} x {seeds} = {networks * seeds} searches (networks x seeds) of {counts[-1]:,} readings; "
        f"{condition if stops else 'none is stopped early'}"
    )


def _differs(folder: LocalPath, config: TuneConfig) -> list[str]:
    """Settings that differ from those of the study in the folder."""
    path = folder / SETTINGS
    if not path.is_file():
        return []
    recorded = load_config(str(path))
    (old, new), changes = (settings.study.model_dump(mode="json") for settings in (recorded, config)), config.changed_since(path)
    for key in old:
        if key != "parameters" and old[key] != new[key]:
            changes.append(f"study.{key} {old[key]!r}, not {new[key]!r}")
    spans, new_spans = old["parameters"], new["parameters"]
    for name in (*spans, *(name for name in new_spans if name not in spans)):
        if spans.get(name) != new_spans.get(name):
            changes.append(f"study.parameters.{name} {spans.get(name, 'not there')}, not {new_spans.get(name, 'there')}")
    return changes


def _path(folder: LocalPath, batch_number: int) -> LocalPath:
    return folder / "batches" / f"{batch_number:06d}.json"


def _load(folder: LocalPath, size: int) -> list[Record]:
    """Trials of all batch files; the last may be short."""
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


def _batch(folder: LocalPath, spec: StudySpec, number: int, records: Sequence[Record], cells: Cells) -> list[Record]:
    """Ask and run batch `number`, limited to the study's trials; existing results in `records` stay."""
    size = spec.config.study.batch
    earlier, existing = records[: number * size], list(records[number * size :])
    trials = ask_trials(spec.config, spec.seed, number, min(size, spec.trials - number * size), earlier, spec.counts)
    if [record.params for record in trials[: len(existing)]] != [record.params for record in existing]:
        raise BadInputError(f"{_path(folder, number)}: optuna {optuna.__version__} asks other trials than these; give another --out")
    new = trials[len(existing) :]
    work = folder / WORK
    try:
        _clear(work)
        _run_batch(new, spec, cells, earlier, work)
    finally:
        _clear(work)
    return existing + new


def _clear(work: Path) -> None:
    """Delete the searches of a batch; no later batch resumes them."""
    shutil.rmtree(work, ignore_errors=True)


def _run_batch(records: Sequence[Record], spec: StudySpec, cells: Cells, earlier: Sequence[Record], work: Path) -> None:
    """Fill in curves and values, rung by rung; all searches of one rung go out together, network by network."""
    config, counts = spec.config, spec.counts
    rungs = pruner_rungs(counts) if may_stop(config, earlier) else (len(counts),)
    pruner = Pruner(config, counts, earlier) if len(rungs) > 1 else None
    configs = {record.number: config.replaced({**record.params, "farm.backend": "serial"}) for record in records}
    for rung in rungs:
        running = [record for record in records if record.error is None and not record.pruned]
        searches = [(index, model, seed, record) for index, model in enumerate(spec.models) for record in running for seed in spec.seeds]
        outcomes = cells(
            [
                TrialRun(model, spec.machine, configs[record.number], seed, counts[:rung], str(work / f"{record.number}-{index}-{seed}"))
                for index, model, seed, record in searches
            ]
        )
        for (index, model, seed, record), (curve, reason) in zip(searches, outcomes, strict=True):
            if curve is None:
                record.error = record.error or f"{model}: {reason}"
            elif not curve.levels or not all(len(row) == rung and all(map(math.isfinite, row)) for row in curve.levels.values()):
                record.error = record.error or f"{model}: not a finite number per level and count: {dict(curve.levels)}"
            else:
                record.cells[f"{index} {seed}"] = dict(curve.levels)
                record.cpu_s = round(record.cpu_s + curve.cpu_s, 2)
        # a search failed for any of its networks fails its trial
        for record in running:
            if record.error is None:
                record.curve = mean_curve(list(record.cells.values()))
                record.pruned = rung < len(counts) and pruner is not None and pruner.stops(record)
    for record in records:
        if record.error is None and not record.pruned:
            record.value = areas(record.curve)[-1]


def _row(record: Record, batch: int) -> dict[str, Any]:
    """Row of a trial in the summary; curves of its searches are in its batch file."""
    row = asdict(record)
    del row["cells"]
    return {"batch": record.number // batch, **row}


def _write_summary(folder: LocalPath, spec: StudySpec, run: str, records: Sequence[Record]) -> dict[str, Any]:
    """Write `summary.json` and `best.yaml` over the trials so far; returns the content of the former."""
    best = best_trial(records)
    summary = {
        "version": VERSION,
        "study": run,
        "models": list(spec.models),
        "machine": spec.machine,
        "seeds": list(spec.seeds),
        "seed": spec.seed,
        "counts": list(spec.counts),
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
        "front": [{"readings": count, "trial": trial, "value": value} for count, trial, value in front(records, spec.counts)],
        "cpu_s": round(sum(record.cpu_s for record in records), 2),
        "trials": [_row(record, spec.config.study.batch) for record in records],
    }
    if best is not None:
        text = spec.config.replaced(best.params).to_yaml()
        parameters = ", ".join(spec.config.study.parameters)  # the file tells its origin
        head = f"# best of {len(records)} trials over {parameters}: {_gain(best.value)}\n"
        atomic_write(folder / "best.yaml", [(head + text).encode()])
    write_json(folder / SUMMARY, summary)
    return summary
