"""Kernels of one cache serve a process with another cache, if both have the same sources and kind of processor."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from simulator import kernel_archive
from simulator.kernel_archive import KernelArchive
from tests.tuning import ROOT

PACKING = """
import pickle, sys
import simulator
from simulator.kernel_archive import pack_kernels
from simulator.kernel_cache import compiling
from simulator.interval_union import compute_union
from simulator.kernel_list import listed_kernels, types_of
assert pack_kernels() is None
with compiling() as missing:
    assert missing
    (kinds,) = [kinds for module, name, kinds in listed_kernels(True) if name == "compute_union"]
    compute_union.compile(types_of(kinds))
sys.stdout.buffer.write(pickle.dumps(pack_kernels()))
"""
UNPACKING = """
import pickle, sys
import simulator
from simulator.kernel_archive import KernelArchive, unpack_kernels
from simulator.kernel_cache import compiled_note
from simulator.interval_union import compute_union
from simulator.kernel_list import listed_kernels, types_of
unpack_kernels(KernelArchive(*pickle.load(sys.stdin.buffer)))
(kinds,) = [kinds for module, name, kinds in listed_kernels(True) if name == "compute_union"]
compute_union.compile(types_of(kinds))
print(sum(compute_union.stats.cache_hits.values()), int(compiled_note().is_file()))
"""


def run_python(code: str, cache: Path, text: bytes = b"") -> bytes:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, "-c", code], env=env, input=text, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> KernelArchive:
    return KernelArchive(*pickle.loads(run_python(PACKING, tmp_path_factory.mktemp("first"))))


def test_another_cache_loads_packed_kernels(archive: KernelArchive, tmp_path: Path) -> None:
    assert run_python(UNPACKING, tmp_path, pickle.dumps(tuple(archive))).split() == [b"1", b"1"]


def test_kernels_of_other_sources_are_not_unpacked(archive: KernelArchive, tmp_path: Path) -> None:
    other = archive._replace(key=archive.key.replace("kernels-", "kernels-0"))
    assert run_python(UNPACKING, tmp_path, pickle.dumps(tuple(other))).split() == [b"0", b"0"]


def test_a_cache_that_cannot_be_written_is_left(archive: KernelArchive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(kernel_archive, "shared_folder", lambda: tmp_path / "file")
    monkeypatch.setattr("simulator.kernel_cache.compiled_note", lambda: tmp_path / "note")
    kernel_archive.unpack_kernels(archive)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
