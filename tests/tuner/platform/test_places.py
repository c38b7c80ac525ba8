"""Places of this computer and behind URLs keep the contract; what is said to be durable was asked to be, in the right order."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write, make_folder, put_atomically
from tests.messages import naming
from tests.rows import Row, put
from tests.tuner.platform.by_hand import Disk
from tests.tuner.platform.place_contract import PlaceContract, ReaderContract
from tests.tuner.platform.recording import Call, Recording, forgotten
from tuner.log.dataset import DatasetWriter
from tuner.log.record import log_schema
from tuner.log.writer import Origin, RunLog
from tuner.platform.files import AnyPath
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.platform.remote_files import RemotePath, place, url_place
from tuner.runs.checkpoint import Checkpoint
from tuner.runs.folder import RunFolder, RunIdentity
from tuner.runs.repair import compact_run, repair_run

IDENTITY = RunIdentity("net", "0" * 32, "tiny", "1" * 32, "2" * 32, "1", 0, ("none",))


class TestLocal(PlaceContract):
    def fresh(self, tmp_path: Path) -> AnyPath:
        return LocalPath(tmp_path)

    def test_it_is_a_path_and_stays_a_place(self, tmp_path: Path) -> None:
        local = LocalPath(tmp_path)
        assert local == tmp_path
        assert isinstance(local, Path)
        (local / "sub").mkdir()
        for other in (local / "sub", local.parent, next(local.iterdir()), next(local.glob("**/sub")), local.resolve()):
            assert type(other) is LocalPath
        assert pickle.loads(pickle.dumps(local)) == local

    def test_links_are_followed_even_into_nowhere(self, tmp_path: Path) -> None:
        local = LocalPath(tmp_path)
        (local / "elsewhere").mkdir()
        (local / "link").symlink_to("elsewhere/file")
        put_atomically(local / "link", [b"1"])
        assert (local / "link").is_symlink()
        assert (local / "elsewhere" / "file").read_bytes() == b"1"
        (local / "circle").symlink_to("circle")
        with pytest.raises(OSError, match="symbolic links"):
            put_atomically(local / "circle" / "file", [b"1"])

    def test_only_a_link_to_a_folder_is_removed(self, tmp_path: Path) -> None:
        local = LocalPath(tmp_path)
        (local / "kept").mkdir()
        (local / "link").symlink_to("kept")
        (local / "link").remove()
        assert [path.name for path in local.iterdir()] == ["kept"]


class TestUrl(ReaderContract):
    def fresh(self, tmp_path: Path) -> AnyPath:
        return url_place(tmp_path.as_uri())

    def test_it_is_not_added_to_nor_locked(self, folder: RemotePath) -> None:
        (folder / "file").put([b"1"], 0)
        with pytest.raises(OSError, match="cannot be added to"):
            (folder / "file").put([b"2"], 1)
        with pytest.raises(OSError, match="nothing can be locked"):
            (folder / ".lock").lock()
        assert (folder / ".lock").is_locked() is None

    def test_what_a_killed_mirror_left_is_written_over(self, folder: RemotePath) -> None:
        file = folder / "state.json"
        file.beside().put([b"half"])
        put_atomically(file, [b"whole"])
        assert [path.name for path in folder.iterdir()] == ["state.json"]


def test_a_place_is_what_a_user_named(tmp_path: Path) -> None:
    assert type(place(str(tmp_path))) is type(place(tmp_path)) is LocalPath
    assert place(here := Recording(tmp_path)) is here
    assert place(there := url_place(tmp_path.as_uri())) is there
    assert isinstance(place(tmp_path.as_uri()), RemotePath)


def test_atomic_write_is_the_same_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}").rpartition("/")[2])
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noting)
    atomic_write(tmp_path / "out.onnx", [b"1"])
    assert synced[0].startswith(".out.onnx.")
    assert synced[1:] == [tmp_path.name]


# what is durable


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    monkeypatch.setattr(Recording, "calls", [], raising=False)
    return Recording(tmp_path)


def test_file_then_name_are_durable_before_the_report(disk: Recording) -> None:
    put_atomically(disk / "state.json", [b"1"])
    staged = disk.calls[0].path
    assert disk.calls == [
        Call("put", staged), Call("fsync", staged), Call("replace", staged), Call("name", f"{disk}/state.json"), Call("fsync", str(disk)),
    ]  # fmt: skip


def test_folders_outlive_a_crash_with_those_above_them(disk: Recording) -> None:
    make_folder(disk / "a" / "b" / "c")
    assert forgotten(disk.calls) == set()
    assert [call.what for call in disk.calls].count("mkdir") == 3


def write_run(disk: Recording) -> None:
    with RunFolder(disk / "deep" / "run", IDENTITY) as folder, RunLog(folder.path, REAL, Origin("r", "net", "tiny", "1")) as log:
        place = folder.place("piece")
        put(log, Row(0, {"n": 0}))
        Checkpoint(place.checkpoint, log).save({"numbers": [[0, 1]]}, [b"found"])


def begun(disk: Recording) -> None:
    (disk / "run").mkdir()
    disk.fsync()
    DatasetWriter(disk / "run" / "log", log_schema(), disk / "run" / ".tmp")


def put_aside(disk: Recording) -> None:
    write_run(disk)
    os.truncate(disk / "deep/run/log/00000001.parquet", 50)
    disk.calls.clear()
    assert repair_run(disk / "deep" / "run")


def compacted(disk: Recording) -> None:
    write_run(disk)
    disk.calls.clear()
    compact_run(disk / "deep" / "run", disk / "some" / "where")


@pytest.mark.parametrize("work", [write_run, begun, put_aside, compacted])
def test_crash_takes_nothing_that_was_reported(disk: Recording, work: Callable[[Recording], None]) -> None:
    work(disk)
    assert disk.calls
    assert forgotten(disk.calls) == set()


def test_resumed_run_makes_its_folders_durable(disk: Recording) -> None:
    RunFolder(disk / "run", IDENTITY).close()
    disk.calls.clear()
    RunFolder(disk / "run", IDENTITY, resume=True).close()
    synced = {call.path for call in disk.calls if call.what == "fsync"}
    assert {str(disk), str(disk / "run")} <= synced


@pytest.mark.parametrize("calls", range(6))
def test_whose_a_folder_is_goes_last(disk: Recording, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """A process that is killed while it takes away what it brought leaves what the next one may go on with."""

    class KilledError(BaseException):
        pass

    folder = RunFolder(disk / "run", IDENTITY)
    for number in range(4):
        (folder.path / f"z{number}").put([b"1"])
    done: list[str] = []

    def killed(call: Callable[..., object]) -> Callable[..., object]:
        def one(self: Recording, *to: Recording) -> object:
            if len(done) == calls:
                raise KilledError
            done.append(self.name)
            return call(self, *to)

        return one

    for name in ("replace", "remove"):
        monkeypatch.setattr(Recording, name, killed(getattr(Recording, name)))
    with pytest.raises(KilledError), folder:
        raise BadInputError("no")
    folder.close()  # a lock ends with its process
    monkeypatch.undo()
    RunFolder(LocalPath(disk / "run"), IDENTITY, resume=True).close()


class PassedThrough(LocalPath):
    """Below a folder that one may not read."""

    def fsync(self) -> None:
        if self.name == "closed":
            raise PermissionError(13, "Permission denied")
        super().fsync()


def test_folder_below_an_unreadable_one_works(tmp_path: Path) -> None:
    out = PassedThrough(tmp_path / "closed" / "run")
    out.mkdir(parents=True)
    RunFolder(out, IDENTITY).close()
    RunFolder(out, IDENTITY, resume=True).close()


def test_initial_disk_refusal_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunFolder(LocalPath(tmp_path), IDENTITY).close()
    shutil.rmtree(tmp_path / "plans")
    (tmp_path / "plans").write_text("a file")
    with pytest.raises(BadInputError, match=naming("plans", "File exists")):
        RunFolder(LocalPath(tmp_path), IDENTITY, resume=True)
    monkeypatch.setattr(Disk, "full", "0")
    with pytest.raises(BadInputError, match=naming("tasks", "No space left on device")):
        RunLog(Disk(tmp_path), REAL, Origin("r", "net", "tiny", "1"))
    monkeypatch.setattr(Disk, "full", "-")
    RunLog(Disk(tmp_path), REAL, Origin("r", "net", "tiny", "1")).close()
