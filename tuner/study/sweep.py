"""Sweep over models x machines x seeds: a run folder for each cell, and one table over all.

A cell is one unit of work for the farm: a complete run on the serial backend, on one CPU.  So as many cells run at once as there are
workers, no actor starts actors, and each cell's result equals that of `tilefarm tune` with the same budget on any worker.  On a cluster
`out` must be visible to all nodes.

`index.parquet` is rewritten whenever a cell ends: a row per cell and level.  A killed sweep continues with `resume`: finished cells are
skipped, others resume from their checkpoints.  More seeds add cells; a larger budget resumes all cells.  Fewer seeds or a smaller budget
are refused, since the table would not describe the folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from simulator.npu.errors import BadInputError, TilefarmError
from simulator.npu.files import atomic_write
from simulator.npu.machine_file import load_machine
from tuner.config import BudgetSettings, TuneConfig, load_config
from tuner.farm.warm_start import sources
from tuner.log.digests import digest
from tuner.log.part import encoded
from tuner.log.record import Column
from tuner.measure.merit import speedup
from tuner.platform.crash import crash_details, write_crash_file
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.platform.remote_files import url_below
from tuner.runs.folder import SETTINGS, Identity, RunFolder, plain_name
from tuner.runs.list_runs import ENDED, INDEX, SUMMARY, open_run
from tuner.runs.mirror import Mirror, mirror_place
from tuner.runs.sweep_progress import INDEX_MARK, read_index
from tuner.study.cells import cells_config, cells_store, cells_workers, locate_model
from tuner.tune_request import SweepRequest, TuneRequest
from tuner.zoo.names import file_digest, model_title

INDEX_COLUMNS = (
    Column("path", pa.string(), "the run folder, below that of the sweep"),
    Column("model", pa.string(), "name of the ONNX model"),
    Column("machine", pa.string(), "name of the machine"),
    Column("seed", pa.int64(), "seed of the run"),
    Column(
        "state",
        pa.string(),
        "done; unconfirmed: done, but its values are not onnxruntime's; failed; waiting: not run yet, or not to its end",
    ),
    Column("error", pa.string(), "why it failed, or what is wrong with its values"),
    Column("run", pa.string(), "id of the run, as in its log"),
    Column("level", pa.string(), "contention level; null where it failed or waits, and so is all that follows"),
    Column("ddr_share", pa.float64(), "share of the deliverable DDR bandwidth that is left"),
    Column("level_latency_cycles", pa.int64(), "latency that the level adds to that of the DDR"),
    Column("cycles", pa.int64(), "of what ships"),
    Column("latency_us", pa.float64(), "of the same, in microseconds"),
    Column("baseline_layerwise_cycles", pa.int64(), "of plans/baseline.json"),
    Column("speedup", pa.float64(), "baseline over champion"),
    Column("roofline_cycles", pa.int64(), "below which no schedule can come"),
    Column("plan", pa.string(), "digest of its plan"),
    Column("same_as", pa.string(), "an earlier level with the same plan"),
    Column("max_rel_error", pa.float64(), "against onnxruntime; null where that is not finite"),
    Column("candidates", pa.int64(), "measured programs"),
    Column("wall_s", pa.float64(), "seconds of the session that ended the run"),
    Column("tasks", pa.int64(), "measured tasks, whoever measured them"),
    Column("stored_tasks", pa.int64(), "of those, taken from the store"),
)
_SCHEMA = pa.schema([pa.field(column.name, column.type, metadata={"meaning": column.meaning}) for column in INDEX_COLUMNS])
_OF_LEVEL = [column.name for column in INDEX_COLUMNS[10:18]]
_OF_RUN = [column.name for column in INDEX_COLUMNS[17:]]


@dataclass(frozen=True)
class SweepIdentity(Identity):
    """Compared fields when a sweep is resumed: without seeds and budget, which may grow."""

    models: tuple[str, ...]
    machines: tuple[str, ...]
    dtype: str
    config_digest: str
    tag: str = ""
    warm_start: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        return f"sweep-{digest(asdict(self))[:8]}"


class SweepCell(NamedTuple):
    """Run of a sweep.  name: name of its folder."""

    name: str
    model: Path
    random_weights: int | None
    machine: str
    machine_name: str
    seed: int


@dataclass(frozen=True)
class SweepWorker:
    """Worker that runs a cell: '' on success, else the reason of the failure."""

    request: SweepRequest
    out: Path
    config: TuneConfig

    def __call__(self, cell: SweepCell) -> str:
        from tuner.driver import tune

        folder, request = self.out / cell.name, self.request
        settings = self.out / ".tmp" / f"{cell.name}.yaml"
        atomic_write(settings, [self.config.to_yaml().encode()])
        run = TuneRequest(
            model=cell.model, machine=cell.machine, out=folder, seed=cell.seed, config=str(settings), backend="serial",
            resume=(folder / "run.json").exists(), style=request.style, tag=request.tag, dtype=request.dtype,
            random_weights=cell.random_weights, quiet=True, mirror=_mirror_folder(request, cell),
            warm_start=tuple(path.resolve() for path in request.warm_start), min_npu_share=request.min_npu_share,
            store=cells_store(request), champions=False,
        )  # fmt: skip
        try:
            tune(run)
        except TilefarmError as error:  # one model that does not fit one machine must not end the sweep
            return " ".join(str(error).split())
        except Exception as error:
            write_crash_file(crash_details(error, f"{cell.name} of a sweep"), [folder])  # the table has one line of it
            raise
        finally:
            settings.unlink(missing_ok=True)
        return ""


def _mirror_folder(request: SweepRequest, cell: SweepCell) -> str | None:
    return None if request.mirror is None else url_below(request.mirror, cell.name)


def sweep_cells(request: SweepRequest) -> tuple[SweepCell, ...]:
    """Cells in the order models, machines, seeds.  Raises `BadInputError` for two cells with one folder, or a missing file."""
    cells: dict[str, SweepCell] = {}
    for model, random_weights in request.models:
        path = locate_model(model)
        for machine in request.machines:
            loaded = load_machine(machine)
            machine_path = str(Path(machine).resolve()) if Path(machine).is_file() else machine
            for seed in range(request.seeds):
                name = f"{plain_name(model_title(model))}-{plain_name(loaded.name)}-s{seed}"
                if name in cells:
                    raise BadInputError(f"{model} on {machine}: {name} is the folder of {cells[name].model} already; names must differ")
                cells[name] = SweepCell(name, path, random_weights, machine_path, loaded.name, seed)
    return tuple(cells.values())


def sweep(request: SweepRequest, say: Callable[[str], None]) -> pd.DataFrame:
    """Run or resume a sweep; returns the index.  say: prints a line whenever a cell ends.  Raises `BadInputError`."""
    cells = sweep_cells(request)
    config = cells_config(request, request.candidates, request.measurements)
    out = LocalPath(request.out).resolve()
    identity = SweepIdentity(
        tuple(f"{model_title(path)} {file_digest(path)} {weights}" for path, weights in request.models),
        tuple(f"{name} {load_machine(name).digest}" for name in request.machines),
        request.dtype,
        config.digest,
        request.tag,
        sources(request.warm_start, out, request.resume),
    )
    if identity.warm_start and not request.warm_start:
        raise BadInputError("--warm-start: name the runs again that the sweep began with: cells that have not begun need them")
    with ExitStack() as stack:
        explain = {"config_digest": lambda: config.changed_since(out / SETTINGS) if (out / SETTINGS).is_file() else []}
        stack.enter_context(RunFolder(out, identity, request.resume, folders=(".tmp",), explain=explain))
        _no_less(out, cells, config.budget)
        atomic_write(out / SETTINGS, [config.to_yaml().encode()])
        errors: dict[str, str] = {}
        # seed by seed: cells that run at once measure different tasks, and a later seed finds the earlier one's in the store
        unfinished = sorted((cell for cell in cells if _summary(out, cell, config.budget) is None), key=lambda cell: cell.seed)
        say(
            f"{len(cells) - len(unfinished)} of {len(cells)} runs done, {_budget(config.budget)} each; "
            f"`{shlex.join(['tilefarm', 'status', str(request.out)])}` says how far they are"
        )
        ended_rows: dict[str, list[dict[str, Any]]] = {}
        write_index(out, cells, config.budget, errors, ended_rows)
        if request.mirror is not None:
            stack.enter_context(Mirror(out, mirror_place(request.mirror), REAL, say, datasets=(), files=(SETTINGS, INDEX)))
            for cell in cells:
                if cell not in unfinished:  # finished earlier, perhaps not copied completely
                    Mirror(out / cell.name, mirror_place(url_below(request.mirror, cell.name)), REAL, say).close()
        if unfinished:
            with cells_workers(request, config, partial(SweepWorker, request, out, config), "sweep", len(unfinished)) as run_cells:
                for number, (cell, (failed, farm_error)) in enumerate(
                    zip(unfinished, run_cells(unfinished), strict=True), len(cells) - len(unfinished) + 1
                ):
                    error = farm_error or failed
                    if error:
                        errors[cell.name] = error
                    write_index(out, cells, config.budget, errors, ended_rows)
                    say(f"{number} of {len(cells)}: {cell.name} {'failed: ' + error if error else _gains(out / cell.name)}")
        return read_index(out)


def _gains(folder: Path) -> str:
    summary = open_run(folder).summary
    assert summary is not None
    return ", ".join(f"{level} {row['cycles']:,} cycles ({speedup(row['speedup'])})" for level, row in summary["levels"].items())


def _no_less(out: LocalPath, cells: tuple[SweepCell, ...], budget: BudgetSettings) -> None:
    """Check that a resumed sweep has at least its earlier seeds and budget.  Raises `BadInputError`."""
    if not (out / INDEX).is_file():
        return
    seeds = 1 + int(read_index(out, ["seed"])["seed"].max())
    if seeds > 1 + max(cell.seed for cell in cells):
        raise BadInputError(f"--out {out}: has runs of {seeds} seeds; give --seeds {seeds} or more")
    if not (out / SETTINGS).is_file():
        raise BadInputError(f"--out {out}: has no {SETTINGS}, the settings of its runs; give another --out")
    recorded_budget = load_config(str(out / SETTINGS)).budget
    if recorded_budget.kind == budget.kind != "seconds":
        if budget.amount < recorded_budget.amount:
            raise BadInputError(
                f"--out {out}: has runs of {_budget(recorded_budget)}; give --{recorded_budget.kind} {recorded_budget.amount} or more"
            )
    elif recorded_budget != budget:
        raise BadInputError(
            f"--out {out}: has runs of {_budget(recorded_budget)}, not of {_budget(budget)}; give that budget, or another --out"
        )


def _budget(budget: BudgetSettings) -> str:
    return f"{budget.amount:g} {({'candidates': 'programs', 'measurements': 'readings', 'seconds': 's'})[budget.kind]}"


def _summary(out: Path, cell: SweepCell, budget: BudgetSettings) -> dict[str, Any] | None:
    """Summary of a cell finished with this budget, else None."""
    summary = open_run(out / cell.name).summary if (out / cell.name / SUMMARY).is_file() else None
    requested = (budget.kind, budget.amount)
    return summary if summary is not None and (summary["budget"]["kind"], summary["budget"]["requested"]) == requested else None


def write_index(
    out: Path, cells: tuple[SweepCell, ...], budget: BudgetSettings, errors: dict[str, str], ended_rows: dict[str, list[dict[str, Any]]]
) -> None:
    """Write `index.parquet` atomically.  ended_rows: rows of finished cells, by name; extended here, so that each summary is read once."""
    rows = []
    for cell in cells:
        cell_rows = ended_rows.get(cell.name) or list(_rows(cell, _summary(out, cell, budget), errors.get(cell.name)))
        if cell_rows[0]["state"] in ENDED:
            ended_rows[cell.name] = cell_rows
        rows += cell_rows
    table = pa.Table.from_pylist(rows, _SCHEMA)
    atomic_write(out / INDEX, [encoded(table, INDEX_MARK)])


def _rows(cell: SweepCell, summary: dict[str, Any] | None, error: str | None) -> Iterator[dict[str, Any]]:
    head: dict[str, Any] = {"path": cell.name, "model": model_title(cell.model), "machine": cell.machine_name, "seed": cell.seed}
    if summary is None:
        yield {**head, "state": "waiting" if error is None else "failed", "error": error}
        return
    reason = summary["unconfirmed"][0] if summary["unconfirmed"] else None
    run_columns = {"state": summary["status"], "error": reason, "run": summary["run"], **{name: summary.get(name) for name in _OF_RUN}}
    for level, row in summary["levels"].items():
        ddr = {"ddr_share": row["ddr"]["share"], "level_latency_cycles": row["ddr"]["latency_cycles"]}
        yield {**head, **run_columns, "level": level, **ddr, **{name: row[name] for name in _OF_LEVEL}}
