"""What earlier runs measured, for a new one: segments that need not be measured again, and programs to begin with.

A task of an earlier log counts where its digest would be the same here: equal computation (of any network), equal way to run it, equal
machine, and measured by this version of the simulator.  Everything else is left out and counted.  Segments enter the table of segments and
train the first cost model; of programs of the same unit the best of each level are measured again, before anything else is proposed.

What was taken is kept in `RUN/warm_start.parquet`, so that a run can be resumed whatever became of the earlier ones since.

| column           | dtype   | meaning                                                                    |
|------------------|---------|----------------------------------------------------------------------------|
| `task`, `kind`   | string  | digest of the task; operator, segment or program                           |
| `genome`         | string  | its genes as JSON, at the first place where this network has the structure |
| `moved_bytes`    | int64   | to and from DDR                                                            |
| `cycles_<level>` | int64   | what was measured                                                          |
| `f_<feature>`    | float32 | features, as in `tasks/`; NaN where the log has none of this program's set |
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import ValidationError

import simulator
from compiler.derive.gene import MAX_SEGMENT, Gene, Genome, Structures, gene_json, gene_values
from compiler.derive.gene_of import gene_of, genome_of
from compiler.derive.plan import Plan, SegmentPlan
from compiler.tile.features import FEATURE_SET, FEATURES
from compiler.tile.spec import Unit
from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from tuner.candidate import FEATURE_PREFIX, canonical_json, digest, text_digest
from tuner.log import read_log, read_tasks
from tuner.runs import Run, open_run

FILE = "warm_start.parquet"
RUNNER = "simulator"
_SEGMENTS = ("operator", "segment")
_REASONS = {
    "machine": "of another machine",
    "simulator": "of another simulator",
    "runner": "of another runner",
    "result": "without a result at every level",
    "poisoned": "poisoned",
    "elsewhere": "of segments that this network does not have",
    "unnamed": "that no gene names",
}


@dataclass(frozen=True)
class Source:
    """An earlier run.  usable: how many of its tasks count here; digest: of these; left_out: how many do not, by reason."""

    run: str
    tasks: int
    usable: int
    digest: str
    left_out: Mapping[str, int]

    def __str__(self) -> str:
        reasons = "".join(f"; {count} {_REASONS[name]}" for name, count in self.left_out.items() if count)
        return f"{self.run}: {self.usable} of {self.tasks} tasks usable{reasons}"


@dataclass(frozen=True, eq=False)
class WarmStart:
    """segments: task, gene, bytes moved of those that are known.  programs: genomes to begin with.

    cycles: int64 [segments, levels].  features: float32 [segments, F], rows of NaN where there are none.
    """

    sources: tuple[Source, ...]
    levels: tuple[str, ...]
    tasks: tuple[str, ...]
    genes: tuple[Gene, ...]
    moved_bytes: NDArray[np.int64]
    cycles: NDArray[np.int64]
    features: NDArray[np.float32]
    programs: tuple[Genome, ...]

    @property
    def identity(self) -> tuple[str, ...]:
        """What a run's results follow from, for `run.json`: a line per source."""
        return tuple(f"{source.run} {source.usable} tasks {source.digest}" for source in self.sources)

    def save(self, folder: Path) -> None:
        """Write `folder`/warm_start.parquet."""
        count, blank = len(self.programs), np.zeros(len(self.programs), np.int64)
        columns: dict[str, Any] = {
            "task": [*self.tasks, *[""] * count],
            "kind": [*("operator" if gene.stop - gene.start == 1 else "segment" for gene in self.genes), *["program"] * count],
            "genome": [canonical_json([gene_json(gene) for gene in genome]) for genome in (*((g,) for g in self.genes), *self.programs)],
            "moved_bytes": np.concatenate([self.moved_bytes, blank]),
        }
        columns |= {f"cycles_{level}": np.concatenate([self.cycles[:, i], blank]) for i, level in enumerate(self.levels)}
        features = np.concatenate([self.features, np.full((count, len(FEATURES)), np.nan, np.float32)])
        columns |= {FEATURE_PREFIX + name: features[:, i] for i, name in enumerate(FEATURES)}
        sources = canonical_json([asdict(source) | {"left_out": dict(source.left_out)} for source in self.sources])
        table = pa.table(columns).replace_schema_metadata({"feature_set": FEATURE_SET, "sources": sources})
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        atomic_write(folder / FILE, [sink.getvalue()])

    @classmethod
    def load(cls, folder: Path, levels: tuple[str, ...]) -> Self:
        """What `save` wrote.  Raises `BadInputError`."""
        path = folder / FILE
        try:
            table = pq.read_table(path)
            metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
            sources = tuple(Source(**raw) for raw in json.loads(metadata["sources"]))
            frame = table.to_pandas()
            genomes = [tuple(Gene._make(gene_values(gene)) for gene in json.loads(text)) for text in frame["genome"]]
            known = (frame["kind"] != "program").to_numpy()
            if metadata["feature_set"] != FEATURE_SET:
                raise BadInputError(f"{path}: features {metadata['feature_set']!r}; this program has {FEATURE_SET!r}")
            return cls(
                sources,
                levels,
                tuple(frame["task"][known]),
                tuple(genome[0] for genome, segment in zip(genomes, known, strict=True) if segment),
                frame["moved_bytes"][known].to_numpy(np.int64),
                frame.loc[known, [f"cycles_{level}" for level in levels]].to_numpy(np.int64),
                frame.loc[known, [FEATURE_PREFIX + name for name in FEATURES]].to_numpy(np.float32),
                tuple(genome for genome, segment in zip(genomes, known, strict=True) if not segment),
            )
        except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
            raise BadInputError(f"{path}: not what a warm start left: {error}") from None


def warm_start(paths: Sequence[Path], out: Path, resume: bool, unit: Unit, levels: tuple[str, ...], elites: int) -> WarmStart | None:
    """For a run in `out`; None where it has none.  elites: programs of each level that are taken of one earlier run.

    A run that is resumed takes what it began with; paths may be left out then.  Raises `BadInputError` where they name other runs, or a
    folder is no run.
    """
    if not (resume and (out / FILE).is_file()):
        return read_warm_start(paths, unit, levels, elites) if paths else None
    saved = WarmStart.load(out, levels)
    began, asked = [source.run for source in saved.sources], [open_run(path).identity["run"] for path in paths]
    if asked and asked != began:
        other = next((run for run in (*asked, *began) if (run in asked) != (run in began)), "their order")
        raise BadInputError(f"--warm-start: {out} began with {', '.join(began)}, not {', '.join(asked)}; {other} differs")
    return saved


def read_warm_start(paths: Sequence[Path], unit: Unit, levels: tuple[str, ...], elites: int) -> WarmStart:
    """The usable tasks of earlier runs, in their order; of equal tasks the first.  Raises `BadInputError`."""
    readers = [_Reader(open_run(path), unit, levels, elites) for path in paths]
    segments: dict[str, _Segment] = {}
    for reader in readers:
        for task, segment in reader.segments.items():
            segments.setdefault(task, segment)
    programs = dict.fromkeys(genome for reader in readers for genome in reader.programs)
    rows = list(segments.values())
    return WarmStart(
        tuple(reader.source for reader in readers),
        levels,
        tuple(segments),
        tuple(row.gene for row in rows),
        np.array([row.moved_bytes for row in rows], np.int64),
        np.array([row.cycles for row in rows], np.int64).reshape(len(rows), len(levels)),
        np.array([row.features for row in rows], np.float32).reshape(len(rows), len(FEATURES)),
        tuple(programs),
    )


@dataclass(frozen=True, eq=False)
class _Segment:
    gene: Gene
    moved_bytes: int
    cycles: NDArray[np.int64]
    features: NDArray[np.float32]


class _Reader:
    """One earlier run."""

    def __init__(self, run: Run, unit: Unit, levels: tuple[str, ...], elites: int) -> None:
        self.unit, self.levels, self.elites = unit, levels, elites
        self.segments: dict[str, _Segment] = {}
        self.programs: list[Genome] = []
        log, tasks = read_log(run.path), read_tasks(run.path)
        log = log[log["task"].isin(tasks["task"])]
        left_out: Counter[str] = Counter(dict.fromkeys(_REASONS, 0))
        count = log["task"].nunique()
        if run.identity.get("machine_digest") != unit.machine.digest:
            left_out["machine"] = count
        else:
            self._read(log, tasks.drop_duplicates("task").set_index("task"), left_out)
        used = [[task, segment.cycles.tolist()] for task, segment in self.segments.items()]
        usable = count - left_out.total()
        self.source = Source(
            run.identity["run"], count, usable, digest([used, [[gene_json(g) for g in p] for p in self.programs]]), left_out
        )

    def _read(self, log: pd.DataFrame, tasks: pd.DataFrame, left_out: Counter[str]) -> None:
        reason = _reasons(log, self.levels)
        left_out.update(reason.values())
        log = log[~log["task"].isin(list(reason))]
        cycles = log.drop_duplicates(["task", "level"], keep="last").pivot(index="task", columns="level", values="cycles")
        cycles = cycles.reindex(list(dict.fromkeys(log["task"])))[list(self.levels)].astype(np.int64)
        first = log[log["level"] == self.levels[0]].drop_duplicates("task", keep="last").set_index("task")
        moved = (first["ddr_read_bytes"] + first["ddr_write_bytes"]).astype(np.int64)
        features = tasks[[name for name in map(FEATURE_PREFIX.__add__, FEATURES) if name in tasks.columns]]
        whole: list[tuple[NDArray[np.int64], str, Plan]] = []
        for task, values in zip(cycles.index, cycles.to_numpy(), strict=True):
            kind, payload = str(tasks.at[task, "kind"]), str(tasks.at[task, "payload"])
            if text_digest(f"{kind}:{payload}") != task:
                left_out["poisoned"] += 1
                continue
            found = self._content(kind, json.loads(payload))
            if isinstance(found, str):
                left_out[found] += 1
            elif isinstance(found, Plan):
                whole.append((values, task, found))
            else:
                described = tasks.at[task, "feature_set"] == FEATURE_SET and features.shape[1] == len(FEATURES)
                row = features.loc[task].to_numpy(np.float32) if described else np.full(len(FEATURES), np.nan, np.float32)
                self.segments[task] = _Segment(found, int(moved[task]), values, row)
        self._best(whole)

    def _content(self, kind: str, content: Mapping[str, Any]) -> Gene | Plan | str:
        """What a task is here, or the reason for which it is nothing."""
        try:
            if kind == "program":
                return Plan.model_validate(content["plan"]) if content["unit"] == self._unit_digest else "elsewhere"
            place = self._places.get(content["structure"]) if kind in _SEGMENTS else None
            if place is None:
                return "elsewhere"
            names = tuple(spec.name for spec in self.unit.kernels[slice(*place)])
            return gene_of(self.unit, SegmentPlan.model_validate({**content["plan"], "operators": names}), place[0]) or "unnamed"
        except (KeyError, TypeError, ValidationError):  # a task of a program with other plans
            return "unnamed"

    def _best(self, whole: Sequence[tuple[NDArray[np.int64], str, Plan]]) -> None:
        chosen: dict[str, Plan] = {}
        for level in range(len(self.levels)):
            order = sorted(whole, key=lambda item: (int(item[0][level]), item[1]))
            chosen.update((task, plan) for _, task, plan in order[: self.elites])
        genomes = (genome_of(self.unit, plan) for plan in chosen.values())
        self.programs = list(dict.fromkeys(genome for genome in genomes if genome is not None))

    @cached_property
    def _unit_digest(self) -> str:
        return self.unit.digest

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Structure -> where it is first."""
        structures, count = Structures(self.unit), len(self.unit.kernels)
        spans = [(i, j) for i in range(count) for j in range(i + 1, min(count, i + MAX_SEGMENT) + 1)]
        return {structures.structure(i, j): (i, j) for i, j in reversed(spans)}


def _reasons(log: pd.DataFrame, levels: tuple[str, ...]) -> dict[str, str]:
    """Tasks that are left out for what their rows say -> why."""
    out: dict[str, str] = {}

    def mark(tasks: pd.Series, why: str) -> None:
        for task in tasks:
            out.setdefault(task, why)

    mark(log.loc[log["simulator"] != simulator.VERSION, "task"], "simulator")
    mark(log.loc[log["runner"] != RUNNER, "task"], "runner")
    measured = log[log["status"] == "ok"]
    mark(measured.loc[~_sound(measured), "task"], "poisoned")
    have = measured[measured["level"].isin(levels)].drop_duplicates(["task", "level"]).groupby("task", sort=False).size()
    complete = set(have.index[have == len(levels)])
    mark(log.loc[~log["task"].isin(complete), "task"], "result")
    return out


def _sound(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Rows whose cycles and bytes are whole numbers, cycles above zero."""
    columns = ["cycles", "ddr_read_bytes", "ddr_write_bytes"]
    values = rows[columns].to_numpy(np.float64, na_value=np.nan)
    good: NDArray[np.bool_] = (np.isfinite(values) & (values == np.floor(values)) & (values >= [1, 0, 0])).all(1)
    return good


def lines(found: WarmStart) -> Iterator[str]:
    """For a person."""
    for source in found.sources:
        yield f"warm start: {source}"
    yield f"warm start: {len(found.genes)} segments are known, {len(found.programs)} programs are measured first"
