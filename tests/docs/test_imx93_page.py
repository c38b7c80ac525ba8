"""The C code of docs/imx93.md finds the sections of a file of raw words, level by level."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from compiler.ethosu.driver_file import write_raw
from simulator.ethosu.raw_streams import read_raw_file
from tests.c_rules import compiler
from tests.compiler.ethosu.test_level_streams import LEVELS, streams_of_all
from tests.docs.fences import ROOT, blocks


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    text = next(block.text for block in blocks(ROOT / "docs/imx93.md", "c"))
    (folder / "load_u65.c").write_text(text, encoding="utf-8")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]
    subprocess.run([compiler(), *flags, "load_u65.c", "-o", "load_u65"], cwd=folder, check=True)
    return folder / "load_u65"


def run(program: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def test_sections_of_every_level(program, tmp_path):
    data = write_raw(streams_of_all("table_activations"))
    (tmp_path / "x.u65").write_bytes(data)
    file = read_raw_file(data)
    assert len(file.variants) > 1
    for level in LEVELS:
        done = run(program, tmp_path / "x.u65", level)
        assert done.returncode == 0, done.stderr
        constants, *parts = done.stdout.splitlines()
        place = int(constants.split()[-1])
        assert data[place : place + len(file.constants[0])] == file.constants[0].tobytes()
        for line, stream in zip(parts, file.streams(level), strict=True):
            numbers = [int(word.strip(",:")) for word in line.split() if word.strip(",:").isdecimal()]
            _, size, place, arena, sram = numbers
            assert np.frombuffer(data, "<u4", size // 4, place).tolist() == list(stream.words)
            assert (arena, sram) == (stream.arena, stream.fast)


@pytest.mark.parametrize(
    ("content", "level", "message"), [(b"else", "none", "expected a file of raw words"), (None, "other", "level other: not in")]
)
def test_other_files_and_levels_are_refused(program, tmp_path, content, level, message):
    data = content or write_raw(streams_of_all("table_activations"))
    (tmp_path / "x.u65").write_bytes(data)
    done = run(program, tmp_path / "x.u65", level)
    assert done.returncode == 2
    assert message in done.stderr
