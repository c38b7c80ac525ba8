"""Client of a search for the store: reads results of its tasks, and adds its own.

It adds only rows that the log has published, so a store never has more than the logs, and a killed run adds the remaining rows when it is
resumed.  Packs are written at fixed points: after a checkpoint, if there are enough rows for a pack, and at the end of the search.
Write errors are reported once and tried again; the search does not depend on the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compiler.plan.plan import Plan
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from tuner.farm.search_spec import SearchSpec
from tuner.log.digests import digest
from tuner.log.read import each_part
from tuner.log.record import BOARD, RESULTS, TaskRows
from tuner.measure.store_lookup import WORKER
from tuner.platform.files import AnyPath
from tuner.store.champions import Champion, StoredChampions, put_champions
from tuner.store.pack_store import PACK_BYTES, PackStore
from tuner.store.packs import Conditions, Measured, keys, words

_FIRST_TRY = 4096  # tasks of the first pack, whose size is not known yet
_STRUCTURE = re.compile(r',"structure":"([0-9a-f]{16})"}\Z')  # the last key of a payload, canonical JSON
_LOG = ("run", "task", "seq", "level_index", "status", "worker", "drifted", *BOARD, *RESULTS)


class Scopes:
    """Scopes in which a task can occur.  Segments: every network with their structure; stages and programs: the same computation.

    A segment's task includes how its operators are connected, a program's does not: two networks may have operators of equal names and
    sizes.
    """

    def __init__(self, target_graph: TargetGraph) -> None:
        self._structures = Structures(target_graph)
        names = [spec.name for spec in target_graph.operators]
        self.model_scope = int(digest([target_graph.digest, self._structures.structure(0, len(names)), names])[:16], 16)

    @cached_property
    def all_scopes(self) -> NDArray[np.uint64]:
        """uint64: ascending."""
        scopes = {int(structure, 16) for structure in self._structures.places()} | {self.model_scope}
        return np.array(sorted(scopes), np.uint64)

    def scope(self, kind: str, payload: str) -> int:
        """Scope of a task; a task without a plan is a segment without a structure, and has no results."""
        if kind not in ("operator", "segment"):
            return self.model_scope
        structure = _STRUCTURE.search(payload)
        return int(structure[1], 16) if structure else 0


class StoreClient:
    """Client.  folder: folder of the run, whose log is read.  say: prints a line.  Raises `BadInputError` if the store is not usable."""

    def __init__(self, root: AnyPath, folder: AnyPath, spec: SearchSpec, say: Callable[[str], None]) -> None:
        origin, machine = spec.origin, spec.target_graph.machine
        conditions = Conditions(machine.name, machine.digest, spec.levels, origin.simulator, origin.runner, spec.repeats)
        self._store, self._folder, self._spec, self._say = PackStore(root, conditions), folder, spec, say
        self._scopes = Scopes(spec.target_graph)
        stored_tasks = self._store.find_tasks(self._scopes.all_scopes)
        self.packed = stored_tasks.packed
        self._known_tasks = set(stored_tasks.keys)
        self._task_scopes: dict[str, int] = {}
        self._read_parts = {"log": 0, "tasks": 0}  # parts
        self._unsent: list[Measured] = []
        self._count = self._tasks_seen = 0
        self._send_at, self._failing = _FIRST_TRY, False
        for line in stored_tasks.damaged:
            say(f"--store {line}; left out, `tilefarm store gc` deletes it")
        say(f"store {root}: {len(stored_tasks.keys):,} results for tasks of this network, in {stored_tasks.packs} packs")

    def drop(self, pack: str, task: str) -> None:
        """Drop a pack of the store, because a second measurement of one of its tasks differs."""
        origin = self._store.whose.get(pack, "nobody knows whom")
        conflict = f"task {task} was measured again, with another result"
        self._say(f"--store {self._store.folder / pack}: {conflict}; the pack of {origin} is dropped")
        try:
            self._store.drop(pack, f"{conflict} by run {self._spec.origin.run}")
        except OSError as error:
            self._failed(error)

    def step(self, tasks: int) -> None:
        """Write packs after a checkpoint.  tasks: number of tasks with rows in the log."""
        if tasks - self._tasks_seen + self._count >= self._send_at:
            self._tasks_seen = tasks
            self._read()
            self._send(last=False)

    def close(self) -> None:
        """Write the remaining packs at the end of the search, whose log is published."""
        self._read()
        self._send(last=True)

    def keep(self, model_digest: str, by_level: Mapping[str, Champion], robust: Plan | None, programs: int, readings: int) -> None:
        """Store the champions of a finished search, by level, for models with the same computation.  programs, readings: measured by the
        search."""
        origin = self._spec.origin
        champions = StoredChampions(
            run=origin.run,
            model=origin.model,
            model_digest=model_digest,
            programs=programs,
            readings=readings,
            of=dict(by_level),
            robust=robust,
        )
        try:
            put_champions(self._store.folder, self._scopes.model_scope, champions)
        except OSError as error:
            self._failed(error)

    def _send(self, last: bool) -> None:
        """Write all waiting rows, if they are enough for a pack."""
        if not self._count or not (last or self._count >= self._send_at):
            return
        origin = self._spec.origin
        measured = Measured.joined(self._unsent)
        data = self._store.encoded({"run": origin.run, "model": origin.model, "tag": origin.tag}, measured)
        if not last and len(data) < PACK_BYTES:
            self._send_at = self._count * PACK_BYTES // len(data) + self._count // 16 + 1
            return
        try:
            self._store.put(data)
        except OSError as error:
            self._failed(error)
            return
        self._unsent, self._count = [], 0

    def _failed(self, error: OSError) -> None:
        if not self._failing:
            reason = " ".join(str(error.strerror or error).split())[:300]
            self._say(f"--store {self._store.root}: cannot be written: {reason}; the run goes on, and --resume adds what is missing")
        self._failing = True

    def _read(self) -> None:
        """Read rows that the log has published and the store does not have yet."""
        for task, kind, payload in self._tasks():
            self._task_scopes[task] = self._scopes.scope(kind, payload)
        for part in self._parts("log", _LOG):
            if (measured := self._measured(part)) is not None:
                self._unsent.append(measured)
                self._count += len(measured.tasks)

    def _parts(self, name: str, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        for table in each_part(self._folder, name, columns, self._read_parts[name]):
            self._read_parts[name] += 1
            yield table

    def _tasks(self) -> Iterator[tuple[str, str, str]]:
        for table in self._parts("tasks", ("task", "kind", "payload")):
            yield from zip(*(table[name].cast(pa.string()).to_pylist() for name in ("task", "kind", "payload")), strict=True)

    def _measured(self, rows: pa.Table) -> Measured | None:
        """Tasks of a part that this run measured, and that fit some level."""
        levels = len(self._spec.levels)
        own_rows = pc.and_(pc.equal(rows["run"].cast(pa.string()), self._spec.origin.run), pc.invert(rows["drifted"]))
        from_store = pc.fill_null(pc.starts_with(rows["worker"].cast(pa.string()), WORKER), False)
        tasks = TaskRows(rows.filter(pc.and_(own_rows, pc.invert(from_store))), levels, selector_column="seq")
        if not len(tasks):
            return None
        names, values, boards = tasks.column("task").to_pylist(), tasks.values(), tasks.boards()
        usable = np.any(values, axis=(1, 2))
        if self._spec.differs:  # measurements without a named board are not shared
            usable &= np.array([board is not None for board in boards[:, 0]])
        scopes = np.array([self._task_scopes[name] if ok else 0 for name, ok in zip(names, usable, strict=True)], np.uint64)
        measured = Measured(scopes, words(names), values, boards)
        new = usable & np.array([key not in self._known_tasks for key in keys(measured)])
        measured = measured.select(new)
        self._known_tasks.update(keys(measured))
        return measured if len(measured.tasks) else None
