"""A kernel is never older than what it calls."""

from __future__ import annotations

import ast
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator import kernel_cache
from simulator.kernel_cache import _PATIENCE_S, kernel_sources, sources_digest
from tests.tuning import ROOT

ASK = "import simulator, numba; from simulator.npu.access import MAX_RANGES; print(numba.config.CACHE_DIR)"


def folder_of(root: Path, **environment: str) -> Path:
    env = {**os.environ, "PYTHONPATH": str(root), **environment}
    return Path(subprocess.run([sys.executable, "-c", ASK], cwd=root, env=env, capture_output=True, text=True, check=True).stdout.strip())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in ("simulator", "compiler", "tuner"):
        shutil.copytree(ROOT / package, tmp_path / "tree" / package, ignore=shutil.ignore_patterns("__pycache__", "configs"))
    return tmp_path / "tree"


def test_what_a_kernel_calls_names_its_folder(copy: Path) -> None:
    before = sources_digest(kernel_sources(copy))
    changed = copy / "simulator/npu/access.py"
    text = changed.read_text()
    changed.write_text(text + "\n# another rule\n")
    assert sources_digest(kernel_sources(copy)) != before
    changed.write_text(text)
    (copy / "tuner/log/writer.py").write_text("# no kernel here\n")
    assert sources_digest(kernel_sources(copy)) == before
    (copy / "compiler/ops/registry.py").write_text("# constants of kernels\n")
    assert sources_digest(kernel_sources(copy)) != before


def test_what_kernels_import_names_their_folder() -> None:
    """By another reading of the imports, and there are none of another form."""
    sources, packages = kernel_sources(ROOT), ("simulator", "compiler", "tuner")
    for path in [path for path, text in sources.items() if b"njit" in text]:
        for node in ast.walk(ast.parse(sources[path])):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith(packages) for alias in node.names), f"{path}:{node.lineno}"
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith(packages):
                module = Path(*node.module.split("."))
                for name in (alias.name for alias in node.names):
                    assert {module.with_suffix(".py"), module / f"{name}.py"} & sources.keys(), f"{path}:{node.lineno}: {name}"


KERNEL = """
from simulator import kernels_for_a_test

kernels_for_a_test.twice(21)
stats = kernels_for_a_test.twice.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def test_trees_with_the_same_sources_share_their_kernels(copy: Path, tmp_path: Path) -> None:
    (copy / "simulator/kernels_for_a_test.py").write_text(
        "from numba import njit\n\n\n@njit(cache=True)\ndef twice(x):\n    return 2 * x\n"
    )
    other = tmp_path / "other"
    shutil.copytree(copy, other)

    def hits_and_misses(root: Path) -> list[int]:
        env = {**os.environ, "PYTHONPATH": str(root), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run([sys.executable, "-c", KERNEL], cwd=root, env=env, capture_output=True, text=True, check=True)
        return [int(word) for word in done.stdout.split()]

    assert [hits_and_misses(root) for root in (copy, other, copy)] == [[0, 1], [1, 0], [1, 0]]
    (other / "simulator/kernels_for_a_test.py").write_text(
        "from numba import njit\n\n\n@njit(cache=True)\ndef twice(x):\n    return x + x\n"
    )
    assert [hits_and_misses(root) for root in (other, copy)] == [[0, 1], [1, 0]]


def test_folder_of_the_user_is_passed_on_once(copy: Path, tmp_path: Path) -> None:
    mine = folder_of(copy, NUMBA_CACHE_DIR=str(tmp_path / "mine"))
    assert mine.parent == tmp_path / "mine"
    assert mine.name == f"kernels-{sources_digest(kernel_sources(copy))}"
    assert folder_of(copy, NUMBA_CACHE_DIR=str(mine)) == mine
    other = mine.parent / "kernels-0123456789abcdef"  # of a parent with other sources
    assert folder_of(copy, NUMBA_CACHE_DIR=str(other)) == mine


def test_old_folders_go(copy: Path, tmp_path: Path) -> None:
    base = tmp_path / "cache"
    old, young = base / "kernels-old", base / "kernels-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    long_ago = time.time() - 40 * 86_400
    os.utime(old, (long_ago, long_ago))
    folder_of(copy, NUMBA_CACHE_DIR=str(base))
    assert not old.exists()
    assert young.exists()


WORKER = """
import sys, time
import simulator
from simulator.kernel_cache import compiling
with compiling() as here:
    began = time.time()
    time.sleep(0.4 * here)
    if here and "dies" in sys.argv:
        sys.exit(1)
print(int(here), began, time.time())
"""


def test_one_process_compiles_while_others_wait(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}

    def workers(*words: str) -> list[tuple[int, list[float]]]:
        running = [subprocess.Popen([sys.executable, "-c", WORKER, *words], env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        return [(process.wait(), [float(word) for word in process.communicate()[0].split()]) for process in running]

    assert all(code == 1 for code, _ in workers("dies")), "what is not whole is not noted"
    told = sorted(numbers for code, numbers in workers() if code == 0)
    assert [numbers[0] for numbers in told] == [0, 0, 1]
    assert all(began >= told[-1][2] - 0.1 for _, began, _ in told[:2]), "the others began when it had ended"
    assert [numbers[0] for _, numbers in workers()] == [0, 0, 0]


def test_a_lease_that_nobody_renews_is_taken(tmp_path: Path) -> None:
    """As of a process that was killed, on another computer, with another clock."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}
    killed = subprocess.Popen([sys.executable, "-c", WORKER.replace("0.4", "600")], env=env, stdout=subprocess.PIPE)
    # the file is there before its owner is written in it
    while not any(socket.gethostname() in lease.read_text() for lease in tmp_path.rglob("*.lease")):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.communicate()
    (lease,) = tmp_path.rglob("*.lease")
    lease.write_text(lease.read_text().replace(socket.gethostname(), "elsewhere"))
    os.utime(lease, (2e9, 2e9))
    began = time.monotonic()
    told = subprocess.run([sys.executable, "-c", WORKER], env=env, capture_output=True, text=True, check=True).stdout
    assert told.startswith("1 ")
    assert _PATIENCE_S <= time.monotonic() - began < 3 * _PATIENCE_S
    assert not lease.exists()


def test_where_files_cannot_be_made_everybody_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "compiled_note", lambda: tmp_path / "file" / "note")
    (tmp_path / "file").write_text("")
    for _ in range(2):
        with kernel_cache.compiling() as here:
            assert here


def test_each_kind_of_processor_has_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from llvmlite import binding

    here = kernel_cache.compiled_note()
    assert kernel_cache.compiled_note() == here
    monkeypatch.setattr(binding, "get_host_cpu_name", lambda: "another")
    assert kernel_cache.compiled_note() != here


LOADS = """
import simulator
from simulator.kernel_cache import own_folder
from simulator import kernels_for_a_test
kernels_for_a_test.twice(21)
print(own_folder(), sum(kernels_for_a_test.twice.stats.cache_hits.values()))
"""


@pytest.mark.parametrize("why", ["a file", "no home"])
def test_unwritable_cache_falls_back_to_temporary_files(why: str, copy: Path, tmp_path: Path) -> None:
    (copy / "simulator/kernels_for_a_test.py").write_text(
        "from numba import njit\n\n\n@njit(cache=True)\ndef twice(x):\n    return 2 * x\n"
    )
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    env = {key: value for key, value in os.environ.items() if key not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME")}
    env |= {"PYTHONPATH": str(copy), "TMPDIR": str(tmp_path / "tmp")}
    words = [sys.executable, "-c", LOADS]
    if why == "a file":
        env["HOME"] = str(tmp_path / "file")
    else:
        words[2] = f"import pathlib; pathlib.Path.home = classmethod(lambda _: (_ for _ in ()).throw(RuntimeError()))\n{LOADS}"
    private = tmp_path / "tmp" / f"tilefarm-{os.getuid()}"
    for hits in "01":  # the second process finds what the first one has compiled
        done = subprocess.run(words, cwd=copy, env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(private / f"kernels-{sources_digest(kernel_sources(copy))}"), hits]
        assert f"compiled kernels are kept in {private}" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    private.chmod(0o777)
    done = subprocess.run(words, cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert "no folder for compiled kernels" in done.stderr.splitlines()[-1]
    assert done.returncode


def test_a_cache_that_is_only_read_is_used(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base, temporary = tmp_path / "cache", tmp_path / "tmp"
    (base / "kernels-1/of/simulator").mkdir(parents=True)
    (base / "kernels-1/of/simulator/one.nbi").write_bytes(b"kernel")
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr(kernel_cache, "write_error", lambda _: "Read-only file system")  # of root nothing is kept back
    folder = kernel_cache._writable(base, "kernels-1")
    assert folder.is_relative_to(temporary)
    assert (folder / "of/simulator/one.nbi").read_bytes() == b"kernel"
    assert f"{base}: Read-only file system" in capsys.readouterr().err


def test_compilation_options_are_a_source_of_kernels() -> None:
    """Else a mend of what writes their instructions would leave compiled ones as they were."""
    names = ("compiling", "indexing", "shortcuts")
    assert {Path(f"simulator/kernel_{name}.py") for name in names} <= kernel_sources(ROOT).keys()
