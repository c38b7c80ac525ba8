"""Measurements that a search is given again come back as they were, and so do those that a log has."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.rows import Row, put
from tuner.log.record import RESULTS
from tuner.log.writer import Origin, RunLog
from tuner.measure.replay import pack_measurements, read_published, unpack_measurements
from tuner.measure.request import Measurement
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL


def test_measurements_come_back_as_they_were() -> None:
    values = np.arange(2 * len(RESULTS)).reshape(2, -1)
    given = [Measurement("ok", None, "a", values=values), Measurement("crash", "it died", "b", attempt=2)]
    found = unpack_measurements(pack_measurements(given, 2), 2)
    assert [*found] == ["a", "b"]
    for one, other in zip(given, found.values(), strict=True):
        assert (one.status, one.error, one.task, one.attempt) == (other.status, other.error, other.task, other.attempt)
        assert np.array_equal(np.array(one.values), np.array(other.values))


def test_log_answers_for_tasks_of_its_run(tmp_path: Path) -> None:
    rows = [Row(0, "x", 7), Row(1, "y", 9, status="crash", attempt=1), Row(2, "z", 3)]
    with RunLog(LocalPath(tmp_path), REAL, Origin("r", "net", "tiny", "1")) as log:
        put(log, *rows[:2])
        log.flush()
        put(log, rows[2])
    found = unpack_measurements(read_published(LocalPath(tmp_path), "r", [rows[2].task, rows[1].task, rows[0].task], 1), 1)
    assert [found[row.task].status for row in rows] == ["ok", "crash", "ok"]
    assert [found[row.task].error for row in rows] == [None, "it died", None]
    assert found[rows[1].task].attempt == 1
    assert {int(found[row.task].values[0, 0]) for row in rows if found[row.task].values is not None} == {7, 3}
    assert unpack_measurements(read_published(LocalPath(tmp_path), "another", [rows[0].task], 1), 1) == {}
    assert unpack_measurements(read_published(LocalPath(tmp_path), "r", [], 1), 1) == {}
