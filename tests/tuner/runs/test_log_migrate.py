"""Logs of older versions become logs of today's, row for row; what cannot become one is refused and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from simulator.npu.errors import BadInputError
from simulator.npu.level import GRANTED
from tests.messages import naming
from tests.rows import Row, put, write_part
from tuner.cli import main
from tuner.log.part import read_part
from tuner.log.read import each_part, read_log, read_tasks
from tuner.log.record import READABLE, SCHEMA_VERSION, FeatureSet
from tuner.log.writer import Origin, RunLog
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.runs.migrate import STEPS, MigratedDataset, MigrationStep, Steps, migrate_run
from tuner.runs.repair import verify_run

FEATURES = (FeatureSet("s", ("m", "k")),)
LAST, FIRST = READABLE - 1, READABLE - 2
LONG_AGO: Steps = {
    "log": STEPS["log"]
    | {
        FIRST: MigrationStep(renamed={"engine": "kind", "run_time": "cycles"}, dropped_columns=("comment",)),
        LAST: MigrationStep(
            new_columns={"runner": "simulator", "wall_s": lambda table: pc.divide(table["wall_ms"], 1000.0)},
            dropped_columns=("wall_ms",),
        ),
    },
    "tasks": {**STEPS["tasks"], FIRST: MigrationStep(), LAST: MigrationStep(new_columns={"parents": ""})},
}
"""Steps between versions that there never were."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of today with five rows in two parts, one of which failed."""
    folder = tmp_path / "run"
    with RunLog(LocalPath(folder), REAL, Origin("r1", "net", "tiny", "1"), FEATURES) as log:
        for seq in range(5):
            status = "crash" if seq == 3 else "ok"
            values: dict[str, Any] = {"feature_set": "s", "features": [seq, 2.5], "wall_s": 0.25 * seq}
            put(log, Row(seq, {"n": seq}, 7 * seq, status, **values), sets=FEATURES)
            if seq == 2:
                log.flush()
    return folder


def aged(run: Path, out: Path) -> Path:
    """The same rows as a program two versions ago would have written them."""
    for name in ("log", "tasks"):
        (out / name).mkdir(parents=True)
        for part in (run / name).iterdir():
            table = pq.read_table(part)
            metadata = {**table.schema.metadata, b"schema_version": str(FIRST).encode()}
            at = table.column_names.index("schema_version")
            table = table.set_column(at, "schema_version", pa.array([FIRST] * table.num_rows, pa.int16()))
            if name == "log":
                table = table.append_column("wall_ms", pc.multiply(table["wall_s"], 1000.0)).drop_columns(["wall_s", "runner"])
                table = table.append_column("comment", pa.array([""] * table.num_rows))
                table = table.rename_columns([{"kind": "engine", "cycles": "run_time"}.get(each, each) for each in table.column_names])
            else:
                table = table.drop_columns(["parents"])
            pq.write_table(table.replace_schema_metadata(metadata), out / name / part.name)
    return out


def test_todays_version_is_copied_and_checked(run: Path, tmp_path: Path) -> None:
    assert migrate_run(run, tmp_path / "out") == {"tasks": MigratedDataset(SCHEMA_VERSION, 5), "log": MigratedDataset(SCHEMA_VERSION, 5)}
    for read in (read_log, read_tasks):
        pd.testing.assert_frame_equal(read(tmp_path / "out"), read(run), check_categorical=False)
    (run / "log" / "00000001.parquet").write_bytes(b"rubbish")
    with pytest.raises(BadInputError, match=naming("log/00000001.parquet", "`tilefarm log repair")):
        migrate_run(run, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_two_versions_are_walked_through(run: Path, tmp_path: Path) -> None:
    old = aged(run, tmp_path / "old")
    before = {path: path.read_bytes() for path in old.rglob("*.parquet")}
    with pytest.raises(BadInputError, match=naming(f"schema {FIRST}", SCHEMA_VERSION, "`tilefarm log migrate")):
        read_log(old)
    assert migrate_run(old, tmp_path / "out", LONG_AGO) == {"tasks": MigratedDataset(FIRST, 5), "log": MigratedDataset(FIRST, 5)}
    for read in (read_log, read_tasks):
        pd.testing.assert_frame_equal(read(tmp_path / "out"), read(run), check_categorical=False)
    assert verify_run(tmp_path / "out") == []
    for name in ("log", "tasks"):
        part = "00000000.parquet"
        today = pq.read_schema(run / name / part)
        assert pq.read_schema(tmp_path / "out" / name / part).equals(today, check_metadata=True)
    assert {path: path.read_bytes() for path in old.rglob("*.parquet")} == before


def test_what_does_not_become_todays_leaves_nothing(run: Path, tmp_path: Path) -> None:
    old = aged(run, tmp_path / "old")
    out = tmp_path / "out"
    with pytest.raises(BadInputError, match=f"no step from {FIRST} to {LAST}"):
        migrate_run(old, out, {name: {key: step for key, step in steps.items() if key != FIRST} for name, steps in LONG_AGO.items()})
    with pytest.raises(BadInputError, match=naming("columns runner")):
        migrate_run(old, out, {**LONG_AGO, "log": {**LONG_AGO["log"], LAST: LONG_AGO["log"][LAST]._replace(new_columns={"wall_s": 1.0})}})
    wrong = LONG_AGO["log"][LAST]._replace(new_columns={**LONG_AGO["log"][LAST].new_columns, "wall_s": "long"})
    with pytest.raises(BadInputError, match=r"00000001\.parquet: .*'long'"):
        migrate_run(old, out, {**LONG_AGO, "log": {**LONG_AGO["log"], LAST: wrong}})
    assert not out.exists()


def test_a_log_without_proposers_is_read(run: Path, tmp_path: Path) -> None:
    """Of version 5, and it is migrated; what is written beside it would be of another schema."""
    old = tmp_path / "old"
    for name in ("log", "tasks"):
        (old / name).mkdir(parents=True)
        for part in sorted((run / name).iterdir()):
            table = pq.read_table(part)
            table = table.drop_columns(["proposed_by"] if name == "log" else [])
            metadata = {**table.schema.metadata, b"schema_version": b"5"}
            write_part(old / name / part.name, table.replace_schema_metadata(metadata))
    new = read_log(run)
    assert new["proposed_by"].notna().all()
    there = read_log(old)
    assert there["proposed_by"].isna().all()
    pd.testing.assert_frame_equal(there[new.columns.drop("proposed_by")], new.drop(columns="proposed_by"))
    assert read_log(old, ("seq", "proposed_by")).columns.tolist() == ["seq", "proposed_by"]
    assert read_log(old, ("seq",)).columns.tolist() == ["seq"]
    for table in each_part(old, "log", ("seq", "proposed_by")):
        assert table["proposed_by"].null_count == len(table)
    with pytest.raises(BadInputError, match="another schema"):
        RunLog(LocalPath(old), REAL, Origin("r1", "net", "tiny", "1"), FEATURES)
    assert migrate_run(old, tmp_path / "out")["log"] == MigratedDataset(5, 5)
    pd.testing.assert_frame_equal(
        read_log(tmp_path / "out").drop(columns="schema_version"), there[new.columns].drop(columns="schema_version")
    )


def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "migrate", str(run), "--out", str(tmp_path / "a"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["log"] == {"version": SCHEMA_VERSION, "rows": 5}
    assert main(["log", "migrate", str(run), "--out", str(tmp_path / "b")]) == 0
    assert f"5 rows, was schema {SCHEMA_VERSION} already" in capsys.readouterr().out
    assert main(["log", "migrate", str(run), "--out", str(tmp_path / "a")]) == 2
    for part in (run / "log").iterdir():
        table = read_part(LocalPath(part)).table
        write_part(part, table.replace_schema_metadata({**table.schema.metadata, b"schema_version": b"99"}))
    capsys.readouterr()
    assert main(["log", "migrate", str(run), "--out", str(tmp_path / "c")]) == 2
    assert "log: schema 99 is newer than this program" in capsys.readouterr().err
    assert main(["log", "verify", str(run)]) == 2
    assert main(["status", str(run)]) == 2


SHARED = ("shared_read_bytes", "shared_write_bytes", "peak_shared_bytes")
BOARDS = ("readings", "board", "firmware", "canary_cycles", "drift", "drifted")
NEW = ("level_latency_cycles", *(f"level_{key}" for key in GRANTED), *SHARED, *BOARDS, "proposed_by")


def test_older_rows_lack_latency_sharing_and_board(run: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    for name in ("log", "tasks"):
        (old / name).mkdir(parents=True)
        for part in (run / name).iterdir():
            table = pq.read_table(part)
            at = table.column_names.index("schema_version")
            table = table.set_column(at, "schema_version", pa.array([2] * table.num_rows, pa.int16()))
            table = table.drop_columns([c for c in table.column_names if c in NEW]) if name == "log" else table
            metadata = {**table.schema.metadata, b"schema_version": b"2"}
            write_part(old / name / part.name, table.replace_schema_metadata(metadata))
    assert migrate_run(old, tmp_path / "out") == {"tasks": MigratedDataset(2, 5), "log": MigratedDataset(2, 5)}
    found = read_log(tmp_path / "out")
    assert found["level_latency_cycles"].tolist() == [0] * 5
    for name in SHARED:
        assert found[name].isna().tolist() == [False, False, False, True, False], "null where nothing was measured"
        assert found[name].dropna().tolist() == [0] * 4
    assert found["readings"].tolist() == [1] * 5
    assert found[list(BOARDS[1:-1])].isna().all(axis=None)
    assert not found["drifted"].any()
    assert found["proposed_by"].isna().all()
    assert read_log(tmp_path / "out").columns.tolist() == read_log(run).columns.tolist()
    assert verify_run(tmp_path / "out") == []


def test_repeats_are_those_of_the_runner() -> None:
    old = pa.table({"runner": ["board:b (median of 5)", "simulator", "board:b (median of 5)"], "status": ["ok", "crash", "infeasible"]})
    assert STEPS["log"][4].migrate(old)["readings"].to_pylist() == [5, 1, 0]


def test_steps_lead_to_todays_version() -> None:
    """What is in the table of this program: every version from the first has a step, and none leads further."""
    for steps in STEPS.values():
        assert sorted(steps) == list(range(1, SCHEMA_VERSION))
