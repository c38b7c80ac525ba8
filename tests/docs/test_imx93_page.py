"""The C code of docs/imx93.md finds the sections of a file of raw words level by level, and lets the controller choose the level."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from compiler.ethosu.driver_file import write_raw
from compiler.ethosu.variant_counters import count_variants
from simulator.build_controller_table import table_of_rows
from simulator.bundle.bundle_files import C_SOURCES, package_file
from simulator.bundle.c_table import table_header
from simulator.controller import Observation, ThresholdRule
from simulator.ethosu.raw_streams import read_raw_file
from simulator.npu.controller_table import ControllerTable
from tests.c_rules import compiler
from tests.compiler.ethosu.test_level_streams import LEVELS, machine_of, streams_of_all
from tests.docs.fences import ROOT, blocks

MODEL = "table_activations"
FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-O1")


@cache
def controller() -> ControllerTable:
    return table_of_rows(*count_variants(streams_of_all(MODEL), machine_of(LEVELS)), machine_of(LEVELS))


@cache
def crossing() -> ControllerTable:
    """A table of the same levels, of whose two variants the second is slower at full bandwidth, and faster at a quarter."""
    table = controller()
    small, none = table.variants
    moving = tuple(cycles // 4 for cycles in none.load_store_cycles)
    cycles = tuple(3 * own // (2 if place == 0 else 4) for place, own in enumerate(none.cycles))
    rows = (small.model_copy(update={"cycles": cycles, "load_store_cycles": moving}), none)
    return table_of_rows(rows, table.grid, dict.fromkeys(LEVELS, (0, 0)), streams_of_all(MODEL).levels, machine_of(LEVELS))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Those of the page in its order, with the controller of a bundle."""
    folder = tmp_path_factory.mktemp("page")
    names = ("load_u65", "switch_u65")
    for name, block in zip(names, blocks(ROOT / "docs/imx93.md", "c"), strict=True):
        (folder / f"{name}.c").write_text(block.text, encoding="utf-8")
    (folder / "streams.h").write_bytes(table_header(crossing(), "model", "machine"))
    for name in C_SOURCES:
        (folder / name).write_bytes(package_file(name))
    for name, more in zip(names, ([], ["controller.c"]), strict=True):
        subprocess.run([compiler(), *FLAGS, f"{name}.c", *more, "-o", name], cwd=folder, check=True)
    return folder / names[0], folder / names[1]


def run(program: Path, *words: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *words], capture_output=True, text=True, check=False, input=given)


def test_sections_of_every_level(programs, tmp_path):
    data = write_raw(streams_of_all(MODEL))
    (tmp_path / "x.u65").write_bytes(data)
    file = read_raw_file(data)
    assert len(file.variants) > 1
    for level in LEVELS:
        done = run(programs[0], tmp_path / "x.u65", level)
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
def test_other_files_and_levels_are_refused(programs, tmp_path, content, level, message):
    data = content or write_raw(streams_of_all(MODEL))
    (tmp_path / "x.u65").write_bytes(data)
    done = run(programs[0], tmp_path / "x.u65", level)
    assert done.returncode == 2
    assert message in done.stderr


def test_the_table_has_the_counters_of_the_clock():
    table, streams = controller(), streams_of_all(MODEL)
    assert {row.name: row.variant for row in table.levels} == streams.levels
    for level in ("none", "slight", "severe"):
        place = table.grid.index(LEVELS[level].share_units)
        if level != "slight":  # the level `small` has its share, and less latency
            assert table.variants[streams.levels[level]].cycles[place] == streams.cycles[level]
    for row in table.variants:
        assert list(row.load_store_cycles) == sorted(row.load_store_cycles)  # the less of DRAM, the longer


@pytest.mark.parametrize("level", ["none", "small"])
def test_the_controller_chooses_the_level_as_python_does(programs, level):
    """With the SRAM of a level, by counters of all variants at all shares and some that are drawn."""
    table, granted = crossing(), machine_of(LEVELS).granted(level).l1_bytes
    rules = [(max(row.l1_bytes for row in table.variants), table), *((row.l1_bytes, row) for row in table.granted)]
    row = next(row for size, row in rules if size <= granted)
    rule = ThresholdRule(row.ladder, row.t_min, row.t_max, table.slice_cycles)
    rng, now, state = np.random.default_rng(0), 0, rule.start()
    drawn = rng.integers(1, 1 << 20, (300, 3)).tolist()
    seen = [
        *drawn,
        *(numbers for row in table.variants for numbers in zip(row.cycles, row.compute_cycles, row.load_store_cycles, strict=True)),
    ]
    expected = [table.variants[state.variant].name]
    for cycles, compute, moving in seen:
        state = rule.step(state, Observation(state.variant, now, now + cycles, compute, moving, 1))
        expected.append(table.variants[state.variant].name)
        now += cycles
    done = run(programs[1], str(granted), given="\n".join(" ".join(map(str, numbers)) for numbers in seen))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == expected
    assert len(set(expected)) == len(row.ladder) == (2 if level == "none" else 1)
    assert all(streams_of_all(MODEL).of(name).fast <= granted for name in expected)


def test_without_sram_no_variant_runs(programs):
    done = run(programs[1], "8")
    assert (done.returncode, done.stderr) == (2, "8 bytes of SRAM: no variant fits\n")
