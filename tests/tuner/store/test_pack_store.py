"""A store of packs: what was put is found, nothing else is, whoever writes, dies or damages beside it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator
from simulator.npu.errors import BadInputError
from tests.messages import naming
from tests.object_store import object_store
from tests.tuning import ROOT
from tuner.cli import main
from tuner.log.columns import from_bytes
from tuner.log.record import RESULTS
from tuner.platform.files import AnyPath
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.platform.remote_files import store_place
from tuner.store import pack_store
from tuner.store.pack_store import STORED, PackStore, collect, entries
from tuner.store.packs import Conditions, Measured, PackError, decoded_pack, encoded_pack, pack_name, words

EDGE = Conditions("edge", "e" * 32, ("none", "severe"), simulator.VERSION, "simulator")
WHOSE = {"run": "r", "model": "m", "tag": ""}
EVERYWHERE = np.array([1, 2, 3], np.uint64)


@pytest.fixture(params=["folder", "object store"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield (tmp_path / "store").as_uri()
        return
    with object_store() as store:
        yield store.url("bucket/store")


@pytest.fixture
def root(url: str) -> AnyPath:
    return store_place(url)


def measured(*tasks: str, scope: int = 1, first: int = 1, board: str | None = None) -> Measured:
    """Tasks whose digests are one digit, again and again."""
    count = len(tasks)
    values = np.arange(first, first + count * 2 * len(RESULTS)).reshape(count, 2, len(RESULTS))
    boards = np.array([[board, board]] * count, object).reshape(-1, 2)
    return Measured(np.full(count, scope, np.uint64), words([task * 32 for task in tasks]), values, boards)


def known(root: AnyPath, conditions: Conditions = EDGE, scopes: Any = EVERYWHERE) -> dict[str, list[int]]:
    """Task -> its cycles, as whoever measures is told."""
    found = PackStore(root, conditions).find_tasks(scopes)
    if not found.packed:
        return {}
    columns = from_bytes(found.packed, STORED)
    tasks = columns["task"].reshape(-1, 2)
    assert tasks.tolist() == sorted(tasks.tolist())
    cycles = columns["values"].reshape(len(tasks), len(conditions.levels), len(RESULTS))[:, :, 0]
    return {f"{a:016x}{b:016x}"[0]: row for (a, b), row in zip(tasks.tolist(), cycles.tolist(), strict=True)}


def test_what_one_puts_another_finds(root: AnyPath) -> None:
    store = PackStore(root, EDGE)
    assert known(root) == {}
    store.put(store.encoded(WHOSE, measured("b", "a")))
    store.put(store.encoded(WHOSE, measured("c", scope=2, first=1000)))
    assert known(root) == {"a": [1 + 2 * len(RESULTS), 1 + 3 * len(RESULTS)], "b": [1, 1 + len(RESULTS)], "c": [1000, 1000 + len(RESULTS)]}
    assert set(known(root, scopes=EVERYWHERE[:1])) == {"a", "b"}, "of what can be met"


@pytest.mark.parametrize("change", [
    {"machine_digest": "f" * 32}, {"simulator": "of another time"}, {"levels": ("none", "slight")}, {"runner": "m:f"}, {"repeats": 3},
])  # fmt: skip
def test_other_conditions_have_a_place_of_their_own(tmp_path: Path, change: dict[str, Any]) -> None:
    root, other = LocalPath(tmp_path), replace(EDGE, **change)
    store = PackStore(root, EDGE)
    store.put(data := store.encoded(WHOSE, measured("a")))
    assert known(root, other) == {}
    (root / other.folder / f"{pack_name(data)}.parquet").put([data])
    assert known(root, other) == {}, "a pack that somebody moved"
    assert "other conditions" in PackStore(root, other).find_tasks(EVERYWHERE).damaged[0]


def test_pack_is_parquet_with_its_owner(tmp_path: Path) -> None:
    store = PackStore(LocalPath(tmp_path), EDGE)
    store.put(store.encoded(WHOSE, measured("a", "b", board="B7")))
    (path,) = tmp_path.rglob("*.parquet")
    frame = pq.read_table(path).to_pandas()
    assert frame["task"].map(bytes.hex).tolist() == ["a" * 32, "a" * 32, "b" * 32, "b" * 32]
    assert frame["level"].tolist() == ["none", "severe"] * 2
    assert set(frame["board"]) == {"B7"}
    assert json.loads(pq.read_schema(path).metadata[b"tilefarm_pack"])["whose"] == WHOSE


INTEGERS = st.integers(1, 2**62)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(min_size=16, max_size=16), INTEGERS, st.none() | st.text()), max_size=20))
@settings(max_examples=50)
def test_a_pack_says_what_it_was_made_of(rows: list[tuple[int, bytes, int, str | None]]) -> None:
    values = np.array([[[cycles] * len(RESULTS)] * 2 for _, _, cycles, _ in rows], np.int64).reshape(len(rows), 2, len(RESULTS))
    boards = np.array([[board, board] for *_, board in rows], object).reshape(-1, 2)
    given = Measured(np.array([s for s, *_ in rows], np.uint64), words([t.hex() for _, t, _, _ in rows]), values, boards)
    data = encoded_pack(EDGE, WHOSE, given)
    found = decoded_pack(data, pack_name(data))
    assert (found.conditions, found.whose) == (EDGE, WHOSE)
    for mine, theirs in zip(given, found.measured, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert encoded_pack(EDGE, WHOSE, found.measured) == data


@given(st.data())
@settings(max_examples=60)
def test_damage_is_never_read(data: st.DataObject) -> None:
    whole = encoded_pack(EDGE, WHOSE, measured("a", "b"))
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(st.sampled_from([whole[:at], whole[:at] + bytes([whole[at] ^ 1 << (at % 8)]) + whole[at + 1 :], whole + b"x"]))
    with pytest.raises(PackError):
        decoded_pack(damaged, pack_name(whole))


@pytest.mark.parametrize("raw", [b"", b"PAR1", b"no Parquet", bytes(1000)])
def test_a_name_that_fits_makes_no_pack(raw: bytes) -> None:
    with pytest.raises(PackError):
        decoded_pack(raw, pack_name(raw))


def test_parquet_of_something_else_is_no_pack(tmp_path: Path) -> None:
    pq.write_table(pq.read_table(pa.BufferReader(encoded_pack(EDGE, WHOSE, measured("a")))).select(["task"]), tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    with pytest.raises(PackError, match="other columns"):
        decoded_pack(data, pack_name(data))


def test_rows_that_no_measurement_gives_are_left_out() -> None:
    given = measured("a", "b", "c", "d")
    given.values[1, 1, RESULTS.index("cycles")] = 0
    given.values[2, 0, RESULTS.index("ddr_read_bytes")] = -1
    given.values[3, 1] = 0  # does not fit what a level grants
    data = encoded_pack(EDGE, WHOSE, given)
    assert decoded_pack(data, pack_name(data)).measured.tasks.tolist() == given.tasks[[0, 3]].tolist()


def test_what_packs_disagree_about_is_not_told(root: AnyPath) -> None:
    """One of them is wrong.  A board may say another thing of the same."""
    store = PackStore(root, EDGE)
    for first in (1, 1, 9):
        store.put(store.encoded({"run": str(first)}, measured("a", first=first)))
        store.put(store.encoded({"run": str(first)}, measured("b", first=first, board="B7")))
    store.put(store.encoded(WHOSE, measured("c")))
    assert set(known(root)) == {"b", "c"}


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"", lambda data: data[1:], lambda data: b"PAR1" + data[4:-4] + b"PAR2"]
)
def test_damaged_pack_is_omitted_and_others_count(root: AnyPath, damage: Callable[[bytes], bytes]) -> None:
    store = PackStore(root, EDGE)
    good, bad = store.encoded(WHOSE, measured("a")), store.encoded(WHOSE, measured("b"))
    store.put(good)
    path = store.folder / f"{pack_name(bad)}.parquet"
    path.put([damage(bad)])
    assert set(known(root)) == {"a"}
    (line,) = PackStore(root, EDGE).find_tasks(EVERYWHERE).damaged
    assert pack_name(bad) in line
    assert "\n" not in line


def test_a_dropped_pack_is_not_read_and_stays(root: AnyPath) -> None:
    store = PackStore(root, EDGE)
    good, bad = store.encoded(WHOSE, measured("a")), store.encoded(WHOSE, measured("a", "b", first=7))
    for data in (good, bad):
        store.put(data)
    store.drop(pack_name(bad), "it is not right")
    assert known(root) == {"a": [1, 1 + len(RESULTS)]}
    assert sorted(entry.state for entry in entries(root)) == ["dropped", "used"]


# what deletes


def test_gc_deletes_unread_and_joins_small_packs(root: AnyPath) -> None:
    store = PackStore(root, EDGE)
    packs = [store.encoded({"run": f"r{at}"}, measured(*tasks)) for at, tasks in enumerate(("ab", "a", "acb"), 1)]
    for data in packs:
        store.put(data)
    dropped = store.encoded(WHOSE, measured("e"))
    store.put(dropped)
    store.drop(pack_name(dropped), "it is not right")
    (store.folder / f"{'0' * 32}.parquet").put([b"half"])
    older = replace(EDGE, simulator="of another time")
    PackStore(root, older).put(encoded_pack(older, WHOSE, measured("f")))
    before = known(root)
    says: list[str] = []
    assert collect(root, REAL.clock.epoch_us(), says.append) > 0
    assert sum(line.endswith("deleted") for line in says) == 3
    assert known(root) == before
    (entry,) = entries(root)
    assert (entry.state, entry.tasks) == ("used", 4), "a, c, and b, about which two disagree"
    assert entry.pack is not None
    assert sorted(entry.pack.whose["run"].split()) == ["r1", "r2", "r3"]
    assert collect(root, REAL.clock.epoch_us(), says.append) == 0, "nothing is left to do"


def test_gc_keeps_large_packs_and_unfinished_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = LocalPath(tmp_path)
    store = PackStore(root, EDGE)
    for task in "ab":
        store.put(store.encoded(WHOSE, measured(task)))
    monkeypatch.setattr(pack_store, "PACK_BYTES", 1)
    (half := (store.folder / "x.parquet").beside()).put([b"half"])
    assert collect(root, REAL.clock.epoch_us(), lambda line: None) == 0
    assert half.exists()
    assert sorted(entry.state for entry in entries(root)) == ["half written", "used", "used"]
    assert collect(root, REAL.clock.epoch_us() + 25 * 3600 * 10**6, lambda line: None) == 4
    assert not half.exists()


def test_a_killed_gc_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The large pack is there before the small ones go."""

    class KilledError(BaseException):
        pass

    root = LocalPath(tmp_path)
    store = PackStore(root, EDGE)
    for at, task in enumerate("abc"):
        store.put(store.encoded(WHOSE, measured(task, first=10 * at + 1)))
    before, remove, left = known(root), LocalPath.remove, [1]

    def killed(self: LocalPath) -> None:
        if not left.pop():
            raise KilledError
        left.append(0)
        remove(self)

    monkeypatch.setattr(LocalPath, "remove", killed)
    with pytest.raises(KilledError):
        collect(root, REAL.clock.epoch_us(), lambda line: None)
    monkeypatch.undo()
    assert known(root) == before
    collect(root, REAL.clock.epoch_us(), lambda line: None)
    assert known(root) == before


# writers beside each other

WRITER = """
import sys
from tests.tuner.store.test_pack_store import EDGE, WHOSE, measured
from tuner.store.pack_store import PackStore
from tuner.platform.remote_files import store_place
store = PackStore(store_place(sys.argv[1]), EDGE)
for at in range(int(sys.argv[3])):
    store.put(store.encoded({"run": sys.argv[2] if at % 2 else "both"}, measured(*"abcdef", first=at + 1)))
    print("put", flush=True)
"""


def writer(url: str, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, url, name, str(count)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)


def test_writers_beside_each_other_lose_nothing(root: AnyPath, url: str) -> None:
    writers = [writer(url, name, 20) for name in ("one", "two")]
    while any(each.poll() is None for each in writers):
        assert not PackStore(root, EDGE).find_tasks(EVERYWHERE).damaged, "at any moment"
        time.sleep(0.01)
    assert [each.wait() for each in writers] == [0, 0]
    found = [entry for entry in entries(root) if entry.state == "used"]
    assert len(found) == 10 + 2 * 10, "of equal packs one"


def test_a_writer_that_is_killed_leaves_whole_packs(tmp_path: Path) -> None:
    for at in range(2):
        process = writer(str(tmp_path), f"w{at}", 2000)
        assert process.stdout is not None
        for _ in range(5 + 7 * at):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    states = [entry.state for entry in entries(LocalPath(tmp_path))]
    assert states.count("used") >= 12
    assert set(states) <= {"used", "half written"}
    assert not PackStore(LocalPath(tmp_path), EDGE).find_tasks(EVERYWHERE).damaged


# the command line


def test_ls_and_gc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = PackStore(LocalPath(tmp_path), EDGE)
    store.put(data := store.encoded(WHOSE, measured("a", "b")))
    (store.folder / f"{'0' * 32}.parquet").put([b"half"])
    assert main(["store", "ls", str(tmp_path), "--json"]) == 0
    damaged, used = json.loads(capsys.readouterr().out)
    assert (damaged["state"], damaged["tasks"], used["state"], used["tasks"]) == ("damaged", None, "used", 2)
    assert (used["file"], used["bytes"], used["whose"]) == (f"{EDGE.folder}/{pack_name(data)}.parquet", len(data), WHOSE)
    assert main(["store", "ls", tmp_path.as_uri()]) == 0
    out = capsys.readouterr().out
    assert "run r of m" in out
    assert f"{tmp_path}: 2 tasks in packs that are used: 1 (1 damaged, 1 used)" in out
    assert main(["store", "gc", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}: 4 bytes freed\n"
    assert re.search(r"0{32}\.parquet: damaged: .*: deleted", said.err)


@pytest.mark.parametrize("command", ["ls", "gc"])
def test_a_store_that_is_none_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main(["store", command, str(tmp_path / "no")]) == 2
    assert capsys.readouterr().err == f"tilefarm: {tmp_path}/no: no store there\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match=naming("--store", "Not a directory")):
        PackStore(LocalPath(tmp_path / "file"), EDGE)
