"""What one search measured stands in for measuring it again, and nothing else does."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compiler.kinds.build import make_unit
from compiler.space.gene import Gene
from compiler.space.starts import single_operators
from compiler.unit.unit import Unit
from simulator.npu.errors import BadInputError
from simulator.npu.machine import DataType, load_machine
from tests.models import small_graph
from tests.tuner.world.by_hand import Hand
from tuner.measure.evaluate import Evaluator
from tuner.measure.measurement import Request
from tuner.measure.npu import Npu
from tuner.measure.shared import SharedResults
from tuner.store.columns import schema_of, to_bytes
from tuner.store.digests import task_digest
from tuner.store.schema import RESULTS
from tuner.world.local import LocalPlace
from tuner.world.real import REAL

LEVELS = ("none", "slight", "severe")

SCHEMA = schema_of(task=pa.string(), values=pa.int64())


def unit(name: str = "conv_chain", machine: str = "edge", dtype: DataType = DataType.float16) -> Unit:
    return make_unit(small_graph(name), load_machine(machine), dtype)


def wanted(u: Unit) -> list[Request]:
    genome = single_operators(u)
    assert isinstance(genome, tuple)
    return [Request("program", genome), Request("segment", (Gene(0, 2),)), Request("segment", (Gene(1, 2),))]


def evaluator(u: Unit, shared: SharedResults | None) -> Evaluator:
    found = Evaluator(u, LEVELS)
    found.shared = shared
    return found


def test_what_one_measured_another_is_told(tmp_path: Path) -> None:
    u = unit()
    alone = [evaluator(u, None).measure(request) for request in wanted(u)]
    with SharedResults(LocalPlace(tmp_path), REAL.clock, u, LEVELS) as shared:
        first = [evaluator(u, shared).measure(request) for request in wanted(u)]
    assert not any(measurement.shared for measurement in first)
    again = unit()
    second = evaluator(again, SharedResults(LocalPlace(tmp_path), REAL.clock, again, LEVELS))
    for request, measurement, before, other in zip(wanted(u), map(second.measure, wanted(u)), alone, first, strict=True):
        assert measurement.shared, "a unit made again is the same computation"
        assert measurement.values is not None
        assert (measurement.status, measurement.error, measurement.payload) == (before.status, before.error, before.payload)
        for each in (measurement.features, before.features), (measurement.values, before.values), (other.values, before.values):
            np.testing.assert_array_equal(*each)
        assert second.shared is not None
        assert second.shared.find(task_digest(request.task_kind, measurement.payload)) is not None, "by the log's own name"
    assert isinstance(second.target, Npu)
    assert not second.target.compiler._cache, "nothing was compiled"


@pytest.mark.parametrize(("name", "machine", "levels"), [
    ("vector_chain", "edge", LEVELS), ("conv_chain", "tiny", LEVELS), ("conv_chain", "edge:ddr.latency_cycles=77", LEVELS),
    ("conv_chain", "edge", LEVELS[:2]),
])  # fmt: skip
def test_another_computation_machine_or_level_has_a_place_of_its_own(
    tmp_path: Path, name: str, machine: str, levels: tuple[str, ...]
) -> None:
    with SharedResults(LocalPlace(tmp_path), REAL.clock, unit(), LEVELS) as shared:
        shared.add("0" * 32, np.ones((3, len(RESULTS)), np.int64))
    assert SharedResults(LocalPlace(tmp_path), REAL.clock, unit(), LEVELS).find("0" * 32) is not None
    assert SharedResults(LocalPlace(tmp_path), REAL.clock, unit(name, machine), levels).find("0" * 32) is None


def test_another_file_or_data_type_has_a_place_of_its_own(tmp_path: Path) -> None:
    """Two files may have operators of the same names and sizes, wired in two ways."""
    u = unit()
    others = [replace(u, graph=replace(u.graph, digest="of another file")), unit(dtype=DataType.float32)]
    assert len({SharedResults(LocalPlace(tmp_path), REAL.clock, each, LEVELS).folder for each in (u, *others)}) == 3


def test_another_simulator_has_a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = SharedResults(LocalPlace(tmp_path), REAL.clock, unit(), LEVELS).folder
    monkeypatch.setattr("simulator.VERSION", "of another time")
    assert SharedResults(LocalPlace(tmp_path), REAL.clock, unit(), LEVELS).folder != here


def test_others_are_heard_of_while_they_run(tmp_path: Path) -> None:
    clock = Hand()
    clock.now_s = 100.0
    a, b = (SharedResults(LocalPlace(tmp_path), clock, unit(), LEVELS) for _ in range(2))
    values = np.arange(3 * len(RESULTS)).reshape(3, -1) + 1
    assert b.find("a" * 32) is None
    a.add("a" * 32, values)
    clock.now_s += 3
    assert b.find("a" * 32) is None, "not published yet"
    a.add("b" * 32, values + 1)
    assert b.find("a" * 32) is None, "looked a moment ago"
    clock.now_s += 3
    np.testing.assert_array_equal(b.find("a" * 32), values)
    np.testing.assert_array_equal(b.find("b" * 32), values + 1)
    assert len(list(a.folder.iterdir())) == 1


def written(shared: SharedResults, columns: dict[str, Any], schema: pa.Schema = SCHEMA) -> Path:
    data = to_bytes(columns, schema)
    path = shared.folder / f"{hashlib.sha256(data).hexdigest()[:32]}.bin"
    path.write_bytes(data)
    return path


def test_what_cannot_be_is_left_out(tmp_path: Path) -> None:
    """Rows that no measurement gives; the others of the file count."""
    shared = SharedResults(LocalPlace(tmp_path), REAL.clock, unit(), LEVELS)
    values = np.ones((4, 3, len(RESULTS)), np.int64)
    values[1, 2, RESULTS.index("cycles")] = 0
    values[2, 0, RESULTS.index("ddr_read_bytes")] = -1
    names = [letter * 32 for letter in "abcd"]
    written(shared, {"task": names, "values": values})
    written(shared, {"task": ["e" * 32], "values": [None, *[1] * (3 * len(RESULTS) - 1)]})
    written(shared, {"task": ["f" * 32], "values": values[:1, :2]})
    written(shared, {"task": ["f" * 32], "values": values[:2]})
    written(shared, {"values": values})
    written(shared, {"values": values}, schema_of(values=pa.int64()))
    (shared.folder / "notes.txt").write_text("not a part")
    assert [letter for letter in "abcdef" if shared.find(letter * 32) is not None] == ["a", "d"]


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:-1] + b"\x09", lambda data: b"", lambda data: data[1:]])
def test_a_damaged_file_is_not_read(tmp_path: Path, damage: Any) -> None:
    shared = SharedResults(LocalPlace(tmp_path), REAL.clock, unit(), LEVELS)
    path = written(shared, {"task": ["a" * 32], "values": np.ones((1, 3, len(RESULTS)), np.int64)})
    path.write_bytes(damage(path.read_bytes()))
    assert shared.find("a" * 32) is None


def test_a_folder_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match=r"file/[0-9a-f]{32}: cannot be made: Not a directory"):
        SharedResults(LocalPlace(tmp_path / "file"), REAL.clock, unit(), LEVELS)
