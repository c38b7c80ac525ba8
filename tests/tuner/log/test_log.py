"""The log is readable at any moment, whatever is killed, and never says more than is durable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simulator.npu.errors import BadInputError
from tests.messages import naming
from tests.rows import Row, put, write_part
from tests.tuner.platform.by_hand import Disk, Hand, Steps
from tuner.log import writer as run_log
from tuner.log.dataset import DatasetWriter, part_numbers
from tuner.log.digests import digest
from tuner.log.part import PartError, part_name, read_part
from tuner.log.read import each_part, read_log, read_tasks
from tuner.log.record import LOG_COLUMNS, RESULTS, FeatureSet, log_schema
from tuner.log.writer import Origin, RunLog, row_ids
from tuner.platform.interfaces import Platform
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.runs.repair import compact_run, repair_run, verify_run

ORIGIN = Origin(run="r1", model="net", machine="tiny", simulator="1")
FEATURES = (FeatureSet("op1", ("m", "k")), FeatureSet("prog1", ("k", "segments")))


def row(seq: int, number: int | None = None, **values: Any) -> Row:
    number = seq if number is None else number
    return Row(seq, {"n": number}, kind="operator", feature_set="op1", features=[number, 2.5], **values)


def add(log: RunLog, *rows: Row) -> int:
    return put(log, *rows, sets=FEATURES)


def test_digest_ignores_key_order_and_tells_values_apart() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert len(digest(None)) == 32
    ids = [*row_ids("r", [1, 1, 2, 1], ["none", "none", "none", "full"], [0, 1, 0, 0]), *row_ids("q", [1], ["none"], [0])]
    assert len(set(ids)) == 5
    assert ids[0] == digest(["r", 1, "none", 0])


def test_round_trip_keeps_types_nulls_and_meaning(tmp_path: Path) -> None:
    with RunLog(LocalPath(tmp_path), REAL, ORIGIN, FEATURES) as log:
        program = Row(1, {"plan": []}, status="crash", kind="program", feature_set="prog1", features=[4, 9])
        assert add(log, row(0, cycles=7, predicted_cycles=6.5, model_version="m1"), program) == 2
        assert len(read_log(tmp_path)) == 0
    frame = pd.read_parquet(tmp_path / "log")
    assert list(frame.columns) == [column.name for column in LOG_COLUMNS]
    assert frame["status"].tolist() == ["ok", "crash"]
    assert frame["cycles"].tolist()[0] == 7
    assert frame[list(RESULTS)].isna().all(axis=1).tolist() == [False, True]
    assert frame["clock_hz"].tolist() == [10**9, 10**9]
    assert str(frame["time"].dt.tz) == "UTC"
    assert frame["run"].dtype == "category"
    tasks = read_tasks(tmp_path).set_index("task")
    assert tasks.loc[row(0).task, ["f_m", "f_k"]].tolist() == [0, 2.5]
    assert np.isnan(tasks.loc[row(0).task, "f_segments"])
    for part in (tmp_path / "log").iterdir():
        schema = pq.read_schema(part)
        assert schema.equals(log_schema(), check_metadata=True)
        assert schema.field("cycles").metadata[b"unit"] == b"cycles"
        assert schema.field("run").type == pa.dictionary(pa.int32(), pa.string())
    assert verify_run(tmp_path) == []


def test_log_is_readable_early_and_hides_unpublished_rows(tmp_path: Path) -> None:
    with RunLog(LocalPath(tmp_path), REAL, ORIGIN, FEATURES) as log:
        assert len(read_log(tmp_path)) == 0
        add(log, row(0))
        assert len(read_log(tmp_path)) == 0
        log.flush()
        assert len(read_log(tmp_path)) == 1


def test_published_when_due_without_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "PUBLISH_AFTER_S", 0.1)
    with RunLog(LocalPath(tmp_path), REAL, ORIGIN, FEATURES) as log:
        add(log, row(0))
        deadline = time.monotonic() + 10
        while not len(read_log(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(read_log(tmp_path)) == 1


def test_unwritable_task_holds_its_rows_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunLog(Disk(tmp_path), REAL, ORIGIN, FEATURES) as log:
        add(log, row(0))
        monkeypatch.setattr(Disk, "full", "tasks-")
        with pytest.raises(BadInputError, match=naming("tasks/00000001.parquet", "No space left")):
            log.flush()
        assert len(read_log(tmp_path)) == 0
        monkeypatch.undo()
        log.flush()
        assert len(read_log(tmp_path)) == len(read_tasks(tmp_path)) == 1


def test_what_goes_wrong_in_the_background_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, threads = Hand(), Steps()
    log = RunLog(Disk(tmp_path), Platform(clock, threads), ORIGIN, FEATURES)
    step = threads.steps["log-publisher"]
    add(log, row(0))
    assert step() == run_log.PUBLISH_AFTER_S / 10
    assert len(read_log(tmp_path)) == 0
    monkeypatch.setattr(Disk, "full", "log-")
    clock.now_s += run_log.PUBLISH_AFTER_S
    assert step() is None, "it has ended"
    with pytest.raises(BadInputError, match="No space left"):
        add(log, row(1))


@pytest.mark.parametrize("dataset_folder", ["tasks", "log"])
def test_interrupt_during_a_part_doubles_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset_folder: str) -> None:
    """Whoever is interrupted closes the log, which writes what it takes to be waiting."""
    publish = DatasetWriter.publish_table

    def interrupted(self: DatasetWriter, table: pa.Table) -> None:
        publish(self, table)
        if self.folder.name == dataset_folder and not interrupts:
            interrupts.append(1)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    def run() -> None:
        with RunLog(LocalPath(tmp_path), REAL, ORIGIN, FEATURES) as log:
            add(log, row(0), row(1))
            log.flush()

    interrupts = list[int]()
    monkeypatch.setattr(DatasetWriter, "publish_table", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in a shell's background is born without
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert interrupts
    assert read_log(tmp_path)["row_id"].is_unique
    assert len(read_log(tmp_path)) == 2
    assert read_tasks(tmp_path)["task"].is_unique


def test_published_at_the_row_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "PUBLISH_ROWS", 3)
    with RunLog(LocalPath(tmp_path), REAL, ORIGIN, FEATURES) as log:
        for seq in range(4):
            add(log, row(seq, 0))
        assert len(read_log(tmp_path)) == 3
    assert read_tasks(tmp_path)["task"].is_unique


def test_resume_appends_parts_and_drops_duplicates(tmp_path: Path) -> None:
    for session in range(2):
        with RunLog(LocalPath(tmp_path), REAL, ORIGIN, FEATURES) as log:
            rows = [row(seq, 0, attempt=session) for seq in range(2 + session)]
            assert add(log, *rows[:1], *rows[1:]) == (2 if session == 0 else 1)
    assert part_numbers(tmp_path / "log") == [0, 1, 2]
    assert sorted(read_log(tmp_path)["seq"]) == [0, 1, 2]
    assert len(read_tasks(tmp_path)) == 1


def test_another_run_or_another_schema_is_refused(tmp_path: Path) -> None:
    with RunLog(LocalPath(tmp_path), REAL, ORIGIN, FEATURES) as log:
        add(log, row(0))
    with pytest.raises(BadInputError, match="another schema"):
        RunLog(LocalPath(tmp_path), REAL, ORIGIN, FEATURES[:1])
    with pytest.raises(BadInputError, match="rows of run r1"):
        RunLog(LocalPath(tmp_path), REAL, Origin(run="r2", model="net", machine="tiny", simulator="1"), FEATURES)
    with pytest.raises(BadInputError, match="no log here"):
        read_log(tmp_path / ".tmp")


def small_run(run: Path) -> None:
    with RunLog(LocalPath(run), REAL, ORIGIN, FEATURES) as log:
        for number in range(3):
            good = row(2 * number, number, workload=f"net{number}")
            add(log, good, good._replace(seq=2 * number + 1, status="timeout", attempt=1))
            log.flush()


def test_verify_reports_and_repair_moves_unreadable_parts(tmp_path: Path) -> None:
    small_run(tmp_path)
    assert verify_run(tmp_path) == []
    part = tmp_path / "log" / "00000002.parquet"
    part.write_bytes(part.read_bytes()[:-10])
    (tmp_path / "log" / "notes.txt").write_text("x")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "tasks" / "00000004.parquet")
    with pytest.raises(pa.ArrowInvalid):
        pd.read_parquet(tmp_path / "log")
    assert {fault.file for fault in verify_run(tmp_path)} == {"log/00000002.parquet", "log/notes.txt", "tasks/00000004.parquet"}
    with pytest.raises(BadInputError, match="`log repair` first"):
        compact_run(tmp_path, tmp_path / "out")
    assert len(repair_run(tmp_path)) == 3
    assert len(read_log(tmp_path)) == 4
    assert len(read_tasks(tmp_path)) == 3
    assert (tmp_path / "aside" / "log" / "notes.txt").read_text() == "x"
    assert [fault.problem for fault in verify_run(tmp_path)] == []
    first = tmp_path / "log" / "00000000.parquet"
    first.write_bytes(b"PAR1")
    (tmp_path / "log" / "00000003.parquet").unlink()
    (tmp_path / "log" / "00000004.parquet").write_bytes((tmp_path / "log" / "00000002.parquet").read_bytes())
    assert ("log/00000003.parquet", "missing") in {(fault.file, fault.problem) for fault in verify_run(tmp_path)}
    assert {fault.file for fault in repair_run(tmp_path)} == {f"log/{number:08d}.parquet" for number in (0, 3, 4)}
    assert verify_run(tmp_path) == []
    assert len(list((tmp_path / "aside" / "log").iterdir())) == 4, "nothing that an earlier repair moved is gone"
    with RunLog(LocalPath(tmp_path), REAL, ORIGIN, FEATURES) as log:
        assert log.lost == {"log": 4}


def test_every_byte_of_a_part_matters(tmp_path: Path) -> None:
    """Parquet itself would take many of them, in the pages and in the footer."""
    small_run(tmp_path)
    path = tmp_path / "log" / "00000001.parquet"
    good = path.read_bytes()
    for at in range(0, len(good), 29):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        with pytest.raises(PartError):
            read_part(LocalPath(path), ())
    path.write_bytes(good)
    assert read_part(LocalPath(path)).rows == 2


def test_part_changing_during_reads_is_named(tmp_path: Path) -> None:
    small_run(tmp_path)
    tables = each_part(tmp_path, "log", ("task",))
    assert next(tables).num_rows == 0, "of the part that an empty dataset begins with"
    (tmp_path / "log" / "00000001.parquet").write_bytes(b"rubbish")
    with pytest.raises(BadInputError, match=naming("00000001.parquet", "Parquet")):
        next(tables)


def test_repair_leaves_no_gap_before_damaged_parts(tmp_path: Path) -> None:
    small_run(tmp_path)
    (tmp_path / "log" / "00000009.parquet").write_bytes(b"rubbish")
    repair_run(tmp_path)
    assert verify_run(tmp_path) == []


def test_verify_finds_wrong_rows(tmp_path: Path) -> None:
    small_run(tmp_path)
    folder = tmp_path / "log"
    table = read_part(LocalPath(folder / "00000001.parquet")).table
    twice = table.slice(0, 1)
    stranger = table.slice(1, 1).set_column(table.column_names.index("task"), table.schema.field("task"), [["f" * 32]])
    wrong = table.slice(1, 1).set_column(table.column_names.index("cycles"), table.schema.field("cycles"), [[5]])
    for number, rows in enumerate((twice, stranger, wrong), 4):
        write_part(folder / part_name(number), rows.cast(log_schema()))
    assert [fault.problem for fault in verify_run(tmp_path)] == [
        "3 rows have a row_id that is taken",
        "1 rows name a task that is not in tasks/",
        "cycles must be null exactly when status is not ok",
    ]


def test_compact_writes_the_same_rows_elsewhere(tmp_path: Path) -> None:
    small_run(tmp_path / "run")
    assert compact_run(tmp_path / "run", tmp_path / "out") == {"tasks": 3, "log": 6}
    assert part_numbers(tmp_path / "out" / "log") == [0, 1]
    for read in (read_log, read_tasks):
        pd.testing.assert_frame_equal(read(tmp_path / "out"), read(tmp_path / "run"), check_categorical=False)
    assert verify_run(tmp_path / "out") == []
    with pytest.raises(BadInputError, match="exists"):
        compact_run(tmp_path / "run", tmp_path / "out")


WRITER = """
import sys, time
from pathlib import Path
from tuner.log import writer as run_log
from tuner.log.read import each_part, read_log
from tuner.log.writer import Origin, RunLog
from tests.rows import Row, put
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
run_log.PUBLISH_ROWS = 7
run = Path(sys.argv[1])
log = RunLog(LocalPath(run), REAL, Origin("r1", "net", "tiny", "1"))
start = len(read_log(run))
print(f"start {start}", flush=True)
for seq in range(start, 10**9):
    put(log, Row(seq, {"n": seq}, seq))
    time.sleep(0.002)
    if seq % 20 == 0:
        log.flush()
        print(len(read_log(run)), flush=True)
"""


def test_sigkill_at_any_instant_loses_no_acknowledged_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    acknowledged = 0
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline().startswith("start")
            for _ in range(int(rng.integers(1, 4))):
                acknowledged = int(writer.stdout.readline())
                frame = pd.read_parquet(tmp_path / "log")
                assert len(frame) >= acknowledged
                assert set(frame["task"]) <= set(read_tasks(tmp_path)["task"])
            time.sleep(float(rng.uniform(0, 0.02)))
            writer.send_signal(signal.SIGKILL)
            heard = [int(line) for line in writer.stdout.read().split()]
        acknowledged = max([acknowledged, *heard])
        frame = pd.read_parquet(tmp_path / "log")
        assert len(frame) >= acknowledged
        assert frame["seq"].tolist() == list(range(len(frame)))
        assert verify_run(tmp_path) == []


def test_other_readers_see_the_same_rows(tmp_path: Path) -> None:
    with RunLog(LocalPath(tmp_path), REAL, ORIGIN, FEATURES) as log:
        for seq in range(5):
            add(log, row(seq, cycles=seq, status="crash" if seq == 3 else "ok"))
            log.flush()  # a part each
    expected = pd.read_parquet(tmp_path / "log")
    glob = str(tmp_path / "log" / "*.parquet")
    by_duckdb = duckdb.sql(f"select * from '{glob}' order by seq").df()
    by_polars = polars.scan_parquet(glob).sort("seq").collect().to_pandas()
    for found in (by_duckdb, by_polars):
        assert list(found.columns) == list(expected.columns)
        for name in ("task", "level", "status"):
            assert found[name].astype("str").tolist() == expected[name].astype("str").tolist(), name
        for name in ("seq", "cycles", "ddr_share"):
            np.testing.assert_array_equal(found[name].astype("float64"), expected[name].astype("float64"), name)


def test_a_log_of_a_newer_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = log_schema().with_metadata({"schema_version": "99"})
    DatasetWriter(LocalPath(tmp_path / "log"), newer, LocalPath(tmp_path / ".tmp"))
    with pytest.raises(BadInputError, match=r"schema 99; .* \d+"):
        read_log(tmp_path)
    with pytest.raises(BadInputError, match="schema 99"):
        DatasetWriter(LocalPath(tmp_path / "log"), log_schema(), LocalPath(tmp_path / ".tmp"))
