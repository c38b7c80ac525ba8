"""Store: packs (`tuner.store.packs`) in a folder or behind a URL, which any number of runs read and extend.

    STORE/<machine>-<conditions>/<digest>.parquet    a pack
    STORE/<machine>-<conditions>/<computation>-<digest>.champions    see `tuner.store.champions`
    STORE/<machine>-<conditions>/<digest>.dropped    marks a wrong pack, found by a second measurement: it is not read any more

A pack appears complete under its name and never changes; its name is a digest of its bytes.  So writers need no lock, a killed writer
leaves at most a hidden file, and incomplete or changed files have a wrong name.  Only `collect`, the command `tilefarm store gc`, deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import simulator
from simulator.npu.errors import BadInputError
from simulator.npu.files import leftover_of, put_atomically
from tuner.log.columns import required_schema, to_bytes
from tuner.log.record import BOARD, flat
from tuner.platform.files import AnyPath
from tuner.store import champions
from tuner.store.packs import SUFFIX, Conditions, Measured, Pack, PackError, decoded_pack, encoded_pack, keys, pack_name

PACK_BYTES = 1 << 20  # least size, except of a run's last pack
DROPPED = ".dropped"
STORED = required_schema(task=pa.uint64(), values=pa.int64(), pack=pa.int32(), **flat(*BOARD), packs=pa.string())
"""Stored results for a measurer: per task two words of its digest, ascending, its values at every level, the index of its
pack in `packs` (names), and the board."""

State = Literal["used", "champions", "dropped", "damaged", "half written", "other simulator", "other version"]


class Entry(NamedTuple):
    """File of a store.  name: path below it.  tasks: number of tasks, of a readable pack.  why: damage; for champions, their owner."""

    name: str
    state: State
    size_bytes: int
    tasks: int | None = None
    pack: Pack | None = None
    why: str = ""


class KnownTasks(NamedTuple):
    """Stored results of the tasks that a search can meet.

    packed: columns of `STORED`.  keys: `packs.keys` of the tasks.  packs: number of packs that were read.  damaged: a line for each pack
    that was left out.
    """

    packed: bytes
    keys: frozenset[bytes]
    packs: int
    damaged: tuple[str, ...]


def whose_line(owner: Mapping[str, str]) -> str:
    """Line about the owner of a pack.  owner: keys `run`, `model` and `tag` of the owner (`Pack.whose`)."""
    model, tag = owner.get("model"), owner.get("tag")
    model_text, with_tag = f" of {model}" if model else "", f" ({tag})" if tag else ""
    return f"run {owner.get('run', '?')}{model_text}{with_tag}"


class PackStore:
    """Packs of some conditions; creates their folder.  Raises `BadInputError` if it is not usable."""

    def __init__(self, root: AnyPath, conditions: Conditions) -> None:
        self.root, self.conditions, self.folder = root, conditions, root / conditions.folder
        self.whose: dict[str, str] = {}  # name of a pack -> line about its owner
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._names = {path.name for path in self.folder.glob("*")}  # object stores have no folders: it exists once it has a pack
        except OSError as error:
            raise BadInputError(f"--store {root}: cannot be used: {_line(error)}") from None
        except BadInputError as error:
            raise BadInputError(f"--store {error}") from None

    def find_tasks(self, scopes: NDArray[np.uint64]) -> KnownTasks:
        """Results of tasks in these scopes.  Tasks on which packs disagree are left out: without differing boards, one of the packs is
        wrong."""
        # results of these scopes in every readable pack
        pack_results, counts, names, damaged = list[Measured](), list[int](), list[str](), list[str]()
        for name in sorted(name.removesuffix(SUFFIX) for name in self._names if name.endswith(SUFFIX)):
            if name + DROPPED in self._names:
                continue
            try:
                pack = self._read(name)
            except PackError as error:
                damaged.append(f"{self.folder / name}{SUFFIX}: {error}")
                continue
            in_scopes = pack.measured.select(np.isin(pack.measured.scopes, scopes))
            pack_results.append(in_scopes)
            counts.append(len(in_scopes.tasks))
            names.append(name)
            self.whose[name] = whose_line(pack.whose)
        if not sum(counts):
            return KnownTasks(b"", frozenset(), len(names), tuple(damaged))
        # equal tasks side by side, ascending, of which the usable ones stay
        measured = Measured.joined(pack_results)
        pack_numbers = np.repeat(np.arange(len(pack_results)), counts)
        order = np.lexsort((pack_numbers, measured.tasks[:, 1], measured.tasks[:, 0]))
        usable = order[_usable_results(measured.select(order))]
        measured, pack_numbers = measured.select(usable), pack_numbers[usable]
        columns = {
            "task": measured.tasks,
            "values": measured.values,
            "pack": pack_numbers.astype(np.int32),
            **{name: pa.array(measured.boards[:, index], pa.string()) for index, name in enumerate(BOARD)},
            "packs": names,
        }
        return KnownTasks(to_bytes(columns, STORED), frozenset(keys(measured)), len(names), tuple(damaged))

    def _read(self, name: str) -> Pack:
        try:
            pack = decoded_pack((self.folder / f"{name}{SUFFIX}").mapped(), name)
        except OSError as error:
            raise PackError(f"cannot be read: {_line(error)}") from None
        if pack.conditions != self.conditions:
            raise PackError("measured under other conditions")
        return pack

    def encoded(self, owner: Mapping[str, str], measured: Measured) -> bytes:
        """A pack for `put`."""
        return encoded_pack(self.conditions, owner, measured)

    def put(self, data: bytes) -> None:
        """Write a pack.  Raises OSError, even if the pack may have been written."""
        put_atomically(self.folder / f"{pack_name(data)}{SUFFIX}", [data])

    def drop(self, name: str, reason: str) -> None:
        """Mark a pack as dropped, so that no run reads it.  Raises OSError."""
        put_atomically(self.folder / f"{name}{DROPPED}", [f"{reason}\n".encode()])


def entries(root: AnyPath) -> Iterator[Entry]:
    """Files of a store, by name.  Raises `BadInputError` where it cannot be read."""
    if not root.is_dir():
        raise BadInputError(f"{root}: no store there")
    for folder in sorted((path for path in root.iterdir() if path.is_dir()), key=str):
        paths = {path.name: path for path in folder.iterdir()}
        for name in sorted(paths):
            if leftover_of(name) is not None:
                yield Entry(f"{folder.name}/{name}", "half written", paths[name].version()[1])
            elif name.endswith(champions.SUFFIX):
                yield _champions(folder.name, paths[name])
            elif name.endswith(SUFFIX):
                yield _entry(folder.name, paths[name], name.removesuffix(SUFFIX) + DROPPED in paths)


def _champions(folder: str, path: AnyPath) -> Entry:
    name, size, champion_file = f"{folder}/{path.name}", path.version()[1], champions.read_champions_file(path)
    if champion_file is None:
        return Entry(name, "damaged", size, why="half written, or changed since")
    return Entry(name, "champions", size, why=f"run {champion_file.run} of {champion_file.model}, {champion_file.programs:,} programs")


def _entry(folder: str, path: AnyPath, is_dropped: bool) -> Entry:
    name, size = f"{folder}/{path.name}", path.version()[1]
    try:
        pack = decoded_pack(path.mapped(), path.name.removesuffix(SUFFIX))
    except (PackError, OSError) as error:
        return Entry(name, "damaged", size, why=_line(error))
    state: State = "dropped" if is_dropped else "used"
    if not is_dropped and pack.conditions.simulator != simulator.VERSION:
        state = "other simulator"
    elif not is_dropped and pack.conditions.folder != folder:
        state = "other version"
    return Entry(name, state, size, len(pack.measured.tasks), pack)


def collect(root: AnyPath, now_us: int, say: Callable[[str], None]) -> int:
    """Delete files that no run of this version reads, and join small packs into larger ones; returns the freed bytes.

    Incomplete files are deleted after a day, because a run may still write them.  say: prints a line for each deleted file.
    Raises `BadInputError`.
    """
    freed_bytes, small_packs = 0, dict[str, list[Entry]]()
    try:
        files = list(entries(root))
        stale_folders = {entry.name.partition("/")[0] for entry in files if entry.state == "other simulator"}
        for entry in files:
            folder, _, name = entry.name.partition("/")
            path = root / folder / name
            # files that stay
            if entry.state == "champions" and folder not in stale_folders:
                continue
            if entry.state == "used":
                if entry.size_bytes < PACK_BYTES:
                    small_packs.setdefault(folder, []).append(entry)
                continue
            if entry.state == "half written" and now_us * 1000 - path.version()[0] < _DAY_NS:
                continue
            # files that go, with the mark of a dropped pack
            path.remove()
            (root / folder / (name.removesuffix(SUFFIX) + DROPPED)).remove()
            freed_bytes += entry.size_bytes
            reason = f": {entry.why}" if entry.why else ""
            say(f"{entry.name}: {entry.state}{reason}: deleted")
        for folder, packs in small_packs.items():
            freed_bytes += _join(root / folder, packs, say)
    except OSError as error:
        raise BadInputError(f"{root}: cannot be written: {_line(error)}") from None
    return freed_bytes


_DAY_NS = 24 * 3600 * 10**9


def _join(folder: AnyPath, small: list[Entry], say: Callable[[str], None]) -> int:
    """Join small packs of single runs into one, before they are deleted; of equal tasks the first is kept.  Returns the freed bytes."""
    if len(small) < 2:
        return 0
    packs = [entry.pack for entry in small if entry.pack is not None]
    measured = Measured.joined([pack.measured for pack in packs])
    rows = zip(measured.scopes, keys(measured), measured.values, strict=True)
    row_bytes = [scope.tobytes() + key + values.tobytes() for scope, key, values in rows]
    first_rows = dict[bytes, int]()  # a row's bytes -> number of the first such row
    for number, content in enumerate(row_bytes):
        first_rows.setdefault(content, number)
    runs = " ".join(dict.fromkeys(run for pack in packs for run in pack.whose.get("run", "").split()))
    data = encoded_pack(packs[0].conditions, {"run": runs}, measured.select(np.array(list(first_rows.values()))))
    put_atomically(folder / f"{pack_name(data)}{SUFFIX}", [data])
    for entry in small:
        if (name := entry.name.partition("/")[2]) != f"{pack_name(data)}{SUFFIX}":
            (folder / name).remove()
    say(f"{folder.name}: {len(small)} small packs are one of {len(data):,} bytes now")
    return sum(entry.size_bytes for entry in small) - len(data)


def _usable_results(measured: Measured) -> NDArray[np.bool_]:
    """Mask of usable results.  measured: equal tasks adjacent.

    Simulated results of a task (no board): the first one if all are equal, else none, because a pack is wrong.  Results of boards: all.
    """
    if not len(measured.tasks):
        return np.zeros(0, np.bool_)
    duplicates = np.concatenate([[False], np.all(measured.tasks[1:] == measured.tasks[:-1], axis=1)])
    differs = np.concatenate([[False], np.any(measured.values[1:] != measured.values[:-1], axis=(1, 2))])
    exact = np.array([board is None for board in measured.boards[:, 0]])
    group = np.cumsum(~duplicates) - 1  # number of the row's task
    wrong_groups = np.bincount(group, duplicates & differs & exact) > 0
    usable: NDArray[np.bool_] = ~wrong_groups[group] & (~duplicates | ~exact)
    return usable


def _line(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
