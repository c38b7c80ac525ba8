"""A run folder belongs to one run and to one driver at a time; a checkpoint never runs ahead of the log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from simulator.npu.errors import BadInputError
from tests.messages import naming
from tests.rows import Row, put
from tests.simulated.disk import SimDisk, SimPlace
from tests.simulated.faults import Faults
from tests.simulated.kernel import Crash, Kernel, Process
from tuner.log.read import read_log
from tuner.log.writer import Origin, RunLog
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.runs.checkpoint import FINDINGS, VERSION, Checkpoint
from tuner.runs.folder import FOLDERS, RunFolder, RunIdentity, read_json, write_json
from tuner.runs.repair import repair_run

IDENTITY = RunIdentity("net", "a" * 32, "tiny", "b" * 32, "c" * 32, "1", 0, ("none", "severe"))


def test_new_folder_is_laid_out_and_not_reused(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    with RunFolder(LocalPath(out), IDENTITY) as folder:
        assert folder.run.startswith("net-tiny-s0-")
        assert not folder.resumed
        assert folder.plans.is_dir()
        assert read_json(out / "run.json")["run"] == folder.run
    with pytest.raises(BadInputError, match=naming("run net-tiny-s0", "--resume", "--out")):
        RunFolder(LocalPath(out), IDENTITY)
    with pytest.raises(BadInputError, match=naming("seed 0", "not 1", "--out")):
        RunFolder(LocalPath(out), replace(IDENTITY, seed=1), resume=True)
    with RunFolder(LocalPath(out), IDENTITY, resume=True) as folder:
        assert folder.resumed


def test_session_killed_while_claiming_leaves_folder_claimable(tmp_path: Path) -> None:
    """`atomic_write` is killed before it has renamed its file."""
    (tmp_path / ".lock").touch()
    (tmp_path / ".run.json.d58e2142.tmp").write_text("{")
    with RunFolder(LocalPath(tmp_path), IDENTITY, resume=True) as folder:
        assert not folder.resumed
    (tmp_path / "run.json").unlink()
    (tmp_path / ".run.yaml.d58e2142.tmp").touch()
    with pytest.raises(BadInputError, match=r"holds other files \(\.run\.yaml\.d58e2142\.tmp\)"):
        RunFolder(LocalPath(tmp_path), IDENTITY, resume=True)


def test_leftovers_of_a_killed_driver_are_swept(tmp_path: Path) -> None:
    with RunFolder(LocalPath(tmp_path / "run"), IDENTITY):
        pass
    left = [tmp_path / "run" / name for name in (".summary.json.d58e2142.tmp", "models/.none-0000069.ubj.59427e80.tmp")]
    mine = tmp_path / "run" / "models" / ".notes.tmp"
    for path in (*left, mine):
        path.touch()
    with RunFolder(LocalPath(tmp_path / "run"), IDENTITY, resume=True):
        assert not any(path.exists() for path in left)
        assert mine.exists()


def claimed(disk: SimDisk, faults: Faults) -> bool:
    """A session that claims a folder; returns whether it came to its end."""
    kernel = Kernel(0)
    process = Process(kernel, faults)

    def session() -> None:
        with RunFolder(SimPlace(disk, ("runs", "RUN"), kernel, process), IDENTITY, resume=True) as folder:
            folder.place("piece")

    try:
        kernel.run(process, session)
    except Crash:
        return False
    return True


def test_claimed_folder_of_killed_session_outlives_a_crash() -> None:
    """Whoever made it was killed before its name was on the disk; whoever goes on finds it, and must not take it for safe."""
    call, ended = 0, False
    while not ended:
        call += 1
        for seed in range(4):
            disk = SimDisk(Random(seed))
            SimPlace(disk, ("runs",)).mkdir()
            SimPlace(disk, ()).fsync()
            ended = claimed(disk, Faults(crash_at=call))
            assert claimed(disk, Faults())
            disk.power_cut()
            run = SimPlace(disk, ("runs", "RUN"))
            there = {path.relative_to(run) for path in run.glob("**/*")}
            assert there >= {"run.json", *FOLDERS, "models/piece", "checkpoint/piece"}, (call, seed)
    assert call > 20


def test_resume_of_nothing_starts(tmp_path: Path) -> None:
    with RunFolder(LocalPath(tmp_path / "new"), IDENTITY, resume=True) as folder:
        assert not folder.resumed


def mistaken(out: Path, error: type[BaseException], makes: str = "checkpoint/state.json", **options: bool) -> None:
    """A session that makes one file and ends by an error."""

    def session() -> None:
        with RunFolder(LocalPath(out), replace(IDENTITY, seed=1), **options) as folder:
            (folder.path / makes).parent.mkdir(parents=True, exist_ok=True)
            (folder.path / makes).touch()
            raise error

    with pytest.raises(error):
        session()


def test_a_mistake_before_there_are_results_claims_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    mistaken(out, BadInputError, "log/00000000.parquet")
    assert not out.exists()
    (out / "models").mkdir(parents=True)
    (out / "models" / "mine.onnx").touch()
    mistaken(out, BadInputError)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine.onnx", "models", "run"], "what was there stays"
    with RunFolder(LocalPath(out), replace(IDENTITY, seed=1)):
        pass
    mistaken(out, BadInputError, resume=True)
    assert (out / "run.json").exists(), "another session's"


@pytest.mark.parametrize("result", ["log/00000001.parquet", "net-s0/log/00000001.parquet", "batches/000000.json"])
def test_what_has_results_or_was_interrupted_stays(tmp_path: Path, result: str) -> None:
    mistaken(tmp_path / "a", BadInputError, result)
    assert (tmp_path / "a" / result).exists()
    assert (tmp_path / "a" / "run.json").exists()
    mistaken(tmp_path / "b", KeyboardInterrupt)
    assert (tmp_path / "b" / "run.json").exists()


def test_other_files_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(BadInputError, match=r"holds other files \(thesis\.tex\)"):
        RunFolder(LocalPath(tmp_path), IDENTITY)
    assert not (tmp_path / ".lock").exists()
    with pytest.raises(BadInputError, match="a file is there"):
        RunFolder(LocalPath(tmp_path / "thesis.tex"), IDENTITY)


def test_two_drivers_on_one_folder(tmp_path: Path) -> None:
    with RunFolder(LocalPath(tmp_path / "run"), IDENTITY):
        with pytest.raises(BadInputError, match=naming(f"process {os.getpid()}")):
            RunFolder(LocalPath(tmp_path / "run"), IDENTITY, resume=True)
        code = f"""
import sys; sys.path[:] = {sys.path!r}
from pathlib import Path
from simulator.npu.errors import BadInputError
from tuner.runs.folder import RunFolder, RunIdentity
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
try:
    RunFolder(LocalPath(Path({str(tmp_path / "run")!r})), {IDENTITY!r}, resume=True)
except BadInputError as error:
    print("refused", error)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("refused")
    RunFolder(LocalPath(tmp_path / "run"), IDENTITY, resume=True).close()


def test_run_id_follows_from_the_identity() -> None:
    assert IDENTITY.run == replace(IDENTITY).run
    assert IDENTITY.run != replace(IDENTITY, config_digest="d" * 32).run


def test_checkpoint_publishes_first_and_notices_damage(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    with RunLog(LocalPath(tmp_path), REAL, Origin("r", "net", "tiny", "1")) as log:
        checkpoint = Checkpoint(LocalPath(folder), log)
        assert checkpoint.load() is None
        put(log, Row(0, {"n": 0}, kind="program"))
        checkpoint.save({"numbers": [[0, 1]], "rng": [1, 2.5, "é"]}, [b"one", b""])
        assert len(read_log(tmp_path)) == 1, "a checkpoint must not be ahead of the log"
    with RunLog(LocalPath(tmp_path), REAL, Origin("r", "net", "tiny", "1")) as log:
        assert Checkpoint(LocalPath(folder), log).load() == ({"numbers": [[0, 1]], "rng": [1, 2.5, "é"]}, [b"one", b""])
    file = folder / "state.json"
    good = file.read_text()
    with (
        RunLog(LocalPath(tmp_path / "other"), REAL, Origin("r", "net", "tiny", "1")) as log,
        pytest.raises(BadInputError, match=naming("1 measured tasks")),
    ):
        Checkpoint(LocalPath(folder), log).load()
    with RunLog(LocalPath(tmp_path), REAL, Origin("r", "net", "tiny", "1")) as log:
        for bad, text in [
            (good.replace('"numbers":[[0,1]]', '"numbers":[[0,2]]'), "damaged"),
            (good[:-20], "not JSON"),
            ("[]", "not a checkpoint"),
            (good.replace(f'"version":{VERSION}', '"version":999'), "version 999"),
        ]:
            file.write_text(bad)
            with pytest.raises(BadInputError, match=text):
                Checkpoint(LocalPath(folder), log).load()


def test_rows_behind_a_checkpoint_replace_no_lost_ones(tmp_path: Path) -> None:
    (folder := tmp_path / "checkpoint").mkdir()
    with RunLog(LocalPath(tmp_path), REAL, Origin("r", "net", "tiny", "1")) as log:
        for seq in range(4):
            put(log, Row(seq, {"n": seq}))
            log.flush()
            if seq == 1:
                Checkpoint(LocalPath(folder), log).save({"numbers": [[0, 2]]}, [])
    (tmp_path / "log" / "00000001.parquet").unlink()
    repair_run(tmp_path)
    with (
        RunLog(LocalPath(tmp_path), REAL, Origin("r", "net", "tiny", "1")) as log,
        pytest.raises(BadInputError, match=naming("1 measured tasks")),
    ):
        Checkpoint(LocalPath(folder), log).load()


def test_findings_only_grow_without_those_of_killed_sessions(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    with RunLog(LocalPath(tmp_path), REAL, Origin("r", "net", "tiny", "1")) as log:
        first = Checkpoint(LocalPath(folder), log)
        first.save({"numbers": [], "at": 1}, [b"one"])
        first.save({"numbers": [], "at": 2}, [b"two", b"three"])
        with (folder / FINDINGS).open("ab") as file:
            file.write(b"half of the next")
        second = Checkpoint(LocalPath(folder), log)
        assert second.load() == ({"numbers": [], "at": 2}, [b"one", b"two", b"three"])
        second.save({"numbers": [], "at": 3}, [b"four"])
        assert Checkpoint(LocalPath(folder), log).load() == ({"numbers": [], "at": 3}, [b"one", b"two", b"three", b"four"])
        data = (folder / FINDINGS).read_bytes()
        for bad in (data[:-1], data.replace(b"two", b"TWO")):
            (folder / FINDINGS).write_bytes(bad)
            with pytest.raises(BadInputError, match=r"findings.bin: damaged"):
                Checkpoint(LocalPath(folder), log).load()


def test_json_is_whole_or_absent(tmp_path: Path) -> None:
    write_json(LocalPath(tmp_path / "a.json"), {"x": [1]})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(LocalPath(tmp_path / "a.json"), {"x": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [1]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
