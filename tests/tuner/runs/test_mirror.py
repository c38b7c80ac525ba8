"""A mirror is a run folder that is right at any moment and whole in the end, or the run says that it is not."""

from __future__ import annotations

import json
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from simulator.npu.errors import BadInputError
from tests.messages import naming
from tests.rows import Row, put
from tests.tuner.study.test_sweep import request
from tests.tuning import Driver, assert_equal_runs, quick, save_small
from tuner.cli import main
from tuner.log.read import read_log, read_tasks
from tuner.log.writer import Origin, RunLog
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.platform.remote_files import RemotePath, place, url_below
from tuner.runs import mirror as mirror_module
from tuner.runs.folder import read_json, write_json
from tuner.runs.mirror import Mirror, MirrorError, mirror_place
from tuner.runs.repair import verify_run
from tuner.study.sweep import sweep

N = 16


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "POLL_S", 0.02)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("conv_chain", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def mirrored(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run, and where its mirror lies."""
    folder = tmp_path_factory.mktemp("mirrored")
    quick(model, folder / "run", N, mirror=(folder / "copy").as_uri())
    return folder / "run", folder / "copy"


def contents(folder: Path) -> dict[str, bytes]:
    """By name, without what is only for the processes that work on a folder."""
    names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    own = (".lock", "attempts.jsonl")
    return {name: path.read_bytes() for name, path in sorted(names.items()) if path.name not in own and not name.startswith("store/")}


def test_a_mirror_is_the_run_folder(mirrored: tuple[Path, Path]) -> None:
    run, copy = mirrored
    assert contents(copy) == contents(run)
    assert_equal_runs(copy, run)


def test_a_mirror_can_be_resumed(model: Path, mirrored: tuple[Path, Path], tmp_path: Path) -> None:
    for name, folder in zip(("a", "b"), mirrored, strict=True):
        shutil.copytree(folder, tmp_path / name)
        quick(model, tmp_path / name, 24, resume=True)
    assert_equal_runs(tmp_path / "a", tmp_path / "b")


def test_readers_take_urls(mirrored: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, copy = mirrored
    url = copy.as_uri()
    pd.testing.assert_frame_equal(read_log(url), read_log(run), check_categorical=False)
    pd.testing.assert_frame_equal(read_tasks(url), read_tasks(run), check_categorical=False)
    shown = []
    for where in (str(run), url):
        assert main(["status", where, "--json"]) == 0
        status = json.loads(capsys.readouterr().out)
        assert main(["best", where, "--json"]) == 0
        best = json.loads(capsys.readouterr().out)
        assert best["file"] == f"{where}/best.onnx"
        assert main(["compare", str(run), where]) == 0
        compared = capsys.readouterr().out
        assert main(["report", where, "--out", str(tmp_path / "page.html")]) == 0
        shown.append((status["programs"], status["best_cycles"], status["state"], best["levels"], compared.replace(where, str(run))[-40:]))
        capsys.readouterr()
    assert shown[0] == shown[1]
    assert main(["ls", copy.parent.as_uri(), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(entry["path"], entry["state"]) for entry in listed] == [(url, "done"), (url_below(copy.parent.as_uri(), "run"), "done")]
    assert main(["ls", copy.parent.as_uri()]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("copy ")
    assert main(["report", url]) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("nowhere://x/y", "nowhere://x/y: .*expected a path, or a URL"),
        ("file:///no/such/folder", "no run.json here"),
        ("s3://key:secret@bucket/run?region=x&nonsense=1", "s3://bucket/run: "),
    ],
)
def test_urls_that_cannot_be_read(url: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["best", url]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "secret" not in said
    assert re.search(text, said), said


def test_mirror_of_a_killed_driver_reads_and_resumes(model: Path, tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    driver = Driver(model, run, 32, options=("--backend", "serial", "--mirror", copy.as_uri()))
    end = time.monotonic() + 60
    while len(list((copy / "log").glob("0*.parquet"))) < 2 and driver.process.poll() is None and time.monotonic() < end:
        if (copy / "log" / "00000000.parquet").exists():
            rows = set(read_log(copy)["task"])
            assert rows <= set(read_tasks(copy)["task"])
        time.sleep(0.01)
    driver.stop(signal.SIGKILL)
    assert verify_run(copy) == []
    quick(model, run, 32, resume=True, mirror=copy.as_uri())
    assert contents(copy) == contents(run)


# the thread


def identity(folder: Path, run: str = "r") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(LocalPath(folder / "run.json"), {"run": run})


def add_rows(log: RunLog, first: int, count: int) -> None:
    put(log, *(Row(seq, {"n": seq}) for seq in range(first, first + count)))
    log.flush()


def test_what_is_there_is_readable_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every single file that is put there: every row has its task, and no checkpoint knows more rows than there are."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    identity(run)
    (run / "checkpoint").mkdir()
    put, looked = Mirror._write, 0

    def put_and_look(self: Mirror, name: str, data: bytes) -> None:
        nonlocal looked
        put(self, name, data)
        rows = read_log(copy) if (copy / "log").exists() else None
        if rows is not None:
            assert set(rows["task"]) <= set(read_tasks(copy)["task"])
        if (copy / "checkpoint" / "state.json").exists():
            assert rows is not None
            assert read_json(copy / "checkpoint" / "state.json")["rows"] <= len(rows)
            looked += 1

    monkeypatch.setattr(Mirror, "_write", put_and_look)
    said: list[str] = []
    with (
        Mirror(LocalPath(run), mirror_place(copy.as_uri()), REAL, said.append),
        RunLog(LocalPath(run), REAL, Origin("r", "net", "tiny", "1")) as log,
    ):
        for step in range(12):
            add_rows(log, 3 * step, 3)
            write_json(LocalPath(run / "checkpoint" / "state.json"), {"rows": len(read_log(run))})
            time.sleep(0.01)
    assert said == []
    assert looked
    assert contents(copy) == contents(run)


def test_errors_are_said_once_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    identity(run)
    said: list[str] = []
    put = Mirror._write
    broken = threading.Event()

    def fail(self: Mirror, name: str, data: bytes) -> None:
        if broken.is_set():
            raise OSError(28, "No space left on device")
        put(self, name, data)

    monkeypatch.setattr(Mirror, "_write", fail)
    with (
        Mirror(LocalPath(run), mirror_place(copy.as_uri()), REAL, said.append),
        RunLog(LocalPath(run), REAL, Origin("r", "net", "tiny", "1")) as log,
    ):
        add_rows(log, 0, 2)
        broken.set()
        add_rows(log, 2, 2)
        time.sleep(0.4)
        broken.clear()
        end = time.monotonic() + 10
        while len(said) < 2 and time.monotonic() < end:
            time.sleep(0.02)
    assert len(said) == 2
    assert said[0].startswith(f"--mirror {copy.as_uri()}: cannot be written, will be tried again: ")
    assert said[1].endswith("is written again")
    assert contents(copy) == contents(run)


def test_missing_mirror_in_the_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    identity(run)

    def fail(self: Mirror, name: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    def until(end: Exception | None) -> None:
        with monkeypatch.context() as patch, Mirror(LocalPath(run), mirror_place(copy.as_uri()), REAL, said.append):
            patch.setattr(Mirror, "_write", fail)
            (run / "source.json").write_text("{}")
            time.sleep(0.1)
            if end is not None:
                raise end

    said: list[str] = []
    with pytest.raises(MirrorError, match=naming("No space left on device", "--resume")):
        until(None)
    assert len(said) == 1
    with pytest.raises(KeyError, match="the run's own"):
        until(KeyError("the run's own"))
    assert "not all of" in said[-1]
    Mirror(LocalPath(run), mirror_place(copy.as_uri()), REAL, said.append).close()
    assert contents(copy) == contents(run)


def test_what_a_mirror_is_not_laid_over(tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    identity(run)
    with RunLog(LocalPath(run), REAL, Origin("r", "net", "tiny", "1")) as log:
        add_rows(log, 0, 3)
    Mirror(LocalPath(run), mirror_place(copy.as_uri()), REAL, print).close()
    identity(tmp_path / "other", "other")
    with pytest.raises(BadInputError, match="holds r; give another"):
        Mirror(LocalPath(tmp_path / "other"), mirror_place(copy.as_uri()), REAL, print)
    identity(tmp_path / "again")
    with pytest.raises(BadInputError, match=r"holds tasks/00000001\.parquet of r"):
        Mirror(LocalPath(tmp_path / "again"), mirror_place(copy.as_uri()), REAL, print)
    with pytest.raises(BadInputError, match="expected a URL"):
        Mirror(LocalPath(run), mirror_place(str(copy)), REAL, print)
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInputError, match="cannot be written"):
        Mirror(LocalPath(run), mirror_place((tmp_path / "file" / "below").as_uri()), REAL, print)


def test_uncounted_part_is_not_copied(tmp_path: Path) -> None:
    """Its name may not be on the disk yet: after a crash the copy would be ahead of the run, and refused."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    identity(run)
    with RunLog(LocalPath(run), REAL, Origin("r", "net", "tiny", "1")) as log:
        add_rows(log, 0, 3)
        log.flush()
        counted = (run / "parts.json").read_bytes()
        add_rows(log, 3, 3)
    (run / "parts.json").write_bytes(counted)
    Mirror(LocalPath(run), mirror_place(copy.as_uri()), REAL, print).close()
    assert {path.name for path in (copy / "log").iterdir()} == {"00000000.parquet", "00000001.parquet"}
    for name in ("log", "tasks"):
        (run / name / "00000002.parquet").unlink()
    Mirror(LocalPath(run), mirror_place(copy.as_uri()), REAL, print).close()
    assert contents(copy) == contents(run)


def test_run_removed_before_rows_may_begin_again(tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    identity(run)
    RunLog(LocalPath(run), REAL, Origin("r", "net", "tiny", "1")).close()
    Mirror(LocalPath(run), mirror_place(copy.as_uri()), REAL, print).close()
    assert (copy / "log" / "00000000.parquet").is_file()
    shutil.rmtree(run)
    identity(run)
    with (
        Mirror(LocalPath(run), mirror_place(copy.as_uri()), REAL, print),
        RunLog(LocalPath(run), REAL, Origin("r", "net", "tiny", "1")) as log,
    ):
        add_rows(log, 0, 3)
    assert contents(copy) == contents(run)


def test_places_and_urls() -> None:
    there = place("s3://key:secret@bucket/a/b?region=eu-west-1")
    assert isinstance(there, RemotePath)
    assert str(there / "c") == "s3://bucket/a/b/c"
    assert ((there / "c").parent.location, there.name) == ("bucket/a/b", "b")
    assert url_below("s3://k:s@bucket/a?region=x", "b") == "s3://k:s@bucket/a/b?region=x"
    assert place("RUN/log") == Path("RUN/log")


def test_a_sweep_has_a_mirror_of_every_cell(model: Path, tmp_path: Path) -> None:
    out, copy = tmp_path / "sweep", tmp_path / "copy"
    asked = request((model,), out, seeds=2, mirror=copy.as_uri())
    sweep(asked, lambda line: None)
    index = pd.read_parquet(copy / "index.parquet")
    assert set(index["state"]) == {"done"}
    assert contents(copy) == contents(out)
    shutil.rmtree(copy / "conv_chain-edge-s1")
    sweep(request((model,), out, seeds=2, mirror=copy.as_uri(), resume=True), lambda line: None)
    assert contents(copy) == contents(out)
