"""What happens to a run when something happens to its machines and disks: real processes, killed and stopped."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.ray_heads import Head, ray_head
from tests.tuning import QUICK, ROOT, Driver, assert_equal_runs, quick, save_small
from tuner.runs.repair import verify_run

N = 48  # measured programs: seconds of work, so that a kill lands in the middle


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("conv_chain", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    quick(model, out, N)
    return out


@pytest.fixture
def cluster() -> Iterator[Head]:
    """A head and a second node, one CPU each."""
    with ray_head(nodes=2) as head:
        yield head


def on_cluster(model: Path, run: Path, address: str) -> Driver:
    return Driver(model, run, N, options=("--backend", "ray", "--address", address, "--workers", "2"))


@pytest.mark.slow  # that its death is told from a process's is tested by default, and what follows then, in simulation
def test_a_node_that_dies_costs_no_row(model: Path, whole: Path, tmp_path: Path, cluster: Head) -> None:
    driver = on_cluster(model, tmp_path / "run", cluster.address)
    driver.wait_for_parts(4)
    cluster.kill_last_node()
    code, errors = driver.wait()
    assert code == 0, errors
    assert_equal_runs(tmp_path / "run", whole)


def on_elastic_cluster(model: Path, run: Path, address: str, count: int) -> Driver:
    return Driver(model, run, count, options=("--backend", "ray", "--address", address, "--workers", "1:3"))


def await_extra_workers(run: Path, seconds: float = 10.0) -> None:
    """A node that joined has work within 10 s."""
    end_s = time.monotonic() + seconds
    while not extra_workers(run):
        assert time.monotonic() < end_s
        time.sleep(0.1)


def extra_workers(run: Path) -> set[str]:
    """Workers beyond the first that have rows in the log."""
    return {str(name) for name in pd.read_parquet(run / "log", columns=["worker"])["worker"].unique() if not str(name).startswith("w0@")}


@pytest.mark.slow  # a minute; in simulation by default
def test_a_drained_node_costs_no_row(model: Path, tmp_path: Path) -> None:
    run, whole, many = tmp_path / "run", tmp_path / "whole", 5 * N
    quick(model, whole, many)
    with ray_head() as head:
        driver = on_elastic_cluster(model, run, head.address, many)
        driver.wait_for_parts(2)
        head.add_node()
        await_extra_workers(run, 60.0)
        head.drain_last_node()
        code, errors = driver.wait()
    assert code == 0, errors
    assert re.search(r"node [0-9a-f]{8} leaves in \d+ s; its 1 workers take no more work", errors)
    assert "item by item" not in errors
    assert_equal_runs(run, whole)


@pytest.mark.slow  # a minute; in simulation by default
def test_a_node_joins_a_run_and_leaves_it(model: Path, tmp_path: Path) -> None:
    run, whole, many = tmp_path / "run", tmp_path / "whole", 5 * N
    quick(model, whole, many)
    with ray_head() as head:
        driver = on_elastic_cluster(model, run, head.address, many)
        driver.wait_for_parts(4)
        assert not extra_workers(run)
        head.add_node()
        await_extra_workers(run)
        head.kill_last_node()
        code, errors = driver.wait()
    assert code == 0, errors
    assert "waits for room" not in errors
    assert_equal_runs(run, whole)


def limit_files() -> None:
    """In a child: no file grows beyond 64 KiB, as on a disk that is full (the same OSError, another number)."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))


def test_full_disk_is_reported_and_the_log_readable(model: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [word for text in QUICK for word in ("--set", text)]
    command = [sys.executable, "-m", "tests.command", "tune", str(model), "--machine", "edge", "--out", str(run), "--backend", "serial"]
    done = subprocess.run(
        [*command, "--candidates", str(N), "--quiet", *words], cwd=ROOT, preexec_fn=limit_files, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "cannot be written: File too large" in done.stderr
    assert len(pd.read_parquet(run / "log"))
    assert verify_run(run) == []
    quick(model, run, N, resume=True)
    assert_equal_runs(run, whole)


def obey_modes() -> None:
    """In a child: modes of files hold for root as well (without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH after exec)."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; refused, and not needed, for other users


@pytest.fixture(scope="module")
def begun(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few programs."""
    out = tmp_path_factory.mktemp("begun") / "run"
    quick(model, out, 8)
    return out


@pytest.mark.parametrize("locked", ["", "log", "checkpoint"])
def test_unwritable_folder_is_reported_and_the_log_readable(model: Path, begun: Path, tmp_path: Path, locked: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(begun, run)
    before = pd.read_parquet(run / "log")
    command = [sys.executable, "-m", "tests.command", "tune", str(model), "--machine", "edge", "--out", str(run), "--backend", "serial"]
    words = [word for text in QUICK for word in ("--set", text)]
    if not locked:
        (run / ".lock").unlink()
    (run / locked).chmod(0o555)
    try:
        done = subprocess.run(
            [*command, "--candidates", "16", "--resume", "--quiet", *words],
            cwd=ROOT, preexec_fn=obey_modes, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    finally:
        (run / locked).chmod(0o755)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert f"{run / locked}" in done.stderr
    assert "cannot be written: Permission denied" in done.stderr
    assert verify_run(run) == []
    assert set(before["row_id"]) <= set(pd.read_parquet(run / "log")["row_id"])


WRITER = """
import sys, time
from pathlib import Path
from tuner.log import writer as run_log
from tuner.log.writer import Origin, RunLog
from tests.rows import Row, put
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
run_log.PUBLISH_ROWS = 5
with RunLog(LocalPath(Path(sys.argv[1])), REAL, Origin(sys.argv[2], "net", "tiny", "1")) as log:
    for seq in range(200):
        put(log, Row(seq, {"n": seq}, seq))
        time.sleep(0.004)
"""


def test_logs_are_readable_among_writers_and_a_kill(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    names = ["a", "b", "c"]
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / name), name], env=environment) for name in names]
    seen = dict.fromkeys(names, 0)
    killed = False
    deadline = time.monotonic() + 90
    while any(writer.poll() is None for writer in writers) and time.monotonic() < deadline:
        for name in names:
            if (tmp_path / name / "log").exists():
                frame = pd.read_parquet(tmp_path / name / "log")
                assert frame["seq"].tolist() == list(range(len(frame)))
                assert len(frame) >= seen[name]
                seen[name] = len(frame)
        time.sleep(0.01)
        if not killed and seen["b"] > 20:
            writers[1].send_signal(signal.SIGKILL)
            killed = True
    assert killed
    for name, writer in zip(names, writers, strict=True):
        assert writer.wait() == (-signal.SIGKILL if name == "b" else 0)
        assert verify_run(tmp_path / name) == []
    everything = pd.concat([pd.read_parquet(tmp_path / name / "log") for name in names])
    counts = everything["run"].astype("str").value_counts()
    assert counts["a"] == counts["c"] == 200
    assert seen["b"] <= counts["b"] < 200
