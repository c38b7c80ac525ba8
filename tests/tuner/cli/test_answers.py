"""What every command has in common: help, exit codes, schemas, lists."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from tuner.cli import app
from tuner.log.record import FeatureSet
from tuner.log.writer import Origin, RunLog
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL


def paths(command: Any, name: str = "") -> Iterator[str]:
    """Every command below one, groups too."""
    yield name
    for each, child in getattr(command, "commands", {}).items():
        yield from paths(child, f"{name} {each}".strip())


@pytest.mark.parametrize("command", paths(typer.main.get_command(app)))
def test_every_command_has_help(cli, command):
    code, out, err = cli(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert "Usage" in out


@pytest.mark.parametrize("group", ["", "log", "plan"])
def test_a_group_alone_shows_its_help(cli, group):
    _, out, err = cli(*group.split())
    assert (out + err).rstrip("\n") == cli(*group.split(), "--help")[1].rstrip("\n")


def test_interrupted_is_130(cli, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.npu.machine_file.preset_names", stop)
    assert cli("machines") == (130, "", "tilefarm: interrupted\n")


@pytest.fixture
def bug(monkeypatch):
    """`machines` and `status` fail as nobody foresaw."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("nobody foresaw")

    monkeypatch.setattr("simulator.npu.machine_file.load_machine", fail)
    monkeypatch.setattr("tuner.runs.list_runs.kind_of", fail)


@pytest.mark.usefixtures("bug")
def test_a_bug_is_one_line_and_a_file(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, out, err = cli("machines", "an edge")
    (path,) = tmp_path.glob("tilefarm-crash-*.txt")
    assert (code, out, err.count("\n")) == (70, "", 1)
    assert err.startswith(
        "tilefarm: `tilefarm machines 'an edge'` met a bug of tilefarm's: ZeroDivisionError: nobody foresaw; please report it"
    )
    assert f"its details are in {path}" in err
    assert path.stat().st_mode & 0o077 == 0
    text = path.read_text()
    assert text.startswith("tilefarm machines 'an edge'\nPython ")
    assert "Traceback (most recent call last)" in text
    assert 'raise ZeroDivisionError("nobody foresaw")' in text


@pytest.mark.usefixtures("bug")
def test_file_lies_in_the_run_folder_if_any(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = tmp_path / "run"
    run.mkdir()
    assert f"its details are in {tmp_path}/tilefarm-crash-" in cli("status", run)[2]  # no run's: its files are nobody's here
    (run / "run.json").write_text("{}")
    assert f"its details are in {run}/crash-" in cli("status", run)[2]
    assert len(list(run.glob("crash-*.txt"))) == 1
    monkeypatch.setattr("tuner.platform.crash.atomic_write", lambda path, _: (_ for _ in ()).throw(BadInputError(f"{path}: no room")))
    assert f"its details are in {tmp_path}/tilefarm-crash-" in cli("status", run)[2]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert "which no file could be written about" in cli("status", run)[2]


@pytest.mark.usefixtures("bug")
@pytest.mark.parametrize("words", [("--debug", "machines"), ("machines", "--debug")])
def test_debug_shows_it_all(cli, tmp_path, monkeypatch, words):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, _, err = cli(*words)
    assert code == 70
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("tilefarm: `tilefarm machines` met a bug")
    code, _, err = cli("plan", "show", tmp_path / "none.json", "--debug")
    assert code == 2
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("tilefarm: ")


def test_machines(cli, tmp_path):
    code, out, _ = cli("machines")
    assert code == 0
    assert {"ascend310", "edge", "tiny"} <= {line.split()[0] for line in out.splitlines()[1:]}
    assert "buffers_bytes.L1" in cli("machines", "edge")[1]
    raw = json.loads(cli("machines", "edge", "--json")[1])
    assert raw["digest"] == load_machine("edge").digest
    assert [m["name"] for m in json.loads(cli("machines", "--json")[1])] == sorted(
        m["name"] for m in json.loads(cli("machines", "--json")[1])
    )


def test_plain_lines_when_not_a_terminal(cli):
    assert cli("machines")[1].isascii()


@pytest.mark.parametrize("name", ["config", "machine", "plan", "summary"])
def test_schemas_are_printed(cli, name):
    code, out, _ = cli("schema", name)
    schema = json.loads(out)
    assert code == 0
    assert schema["additionalProperties"] is False
    assert {"config": "search", "machine": "clock_hz", "plan": "segments", "summary": "levels"}[name] in schema["properties"]


def test_log_commands(cli, tmp_path):
    run = tmp_path / "run"
    with RunLog(LocalPath(run), REAL, Origin(run="r1", model="net", machine="tiny", simulator="1"), (FeatureSet("s", ("m",)),)):
        pass
    assert cli("log", "verify", run)[0] == 0
    assert cli("log", "compact", run, "--out", tmp_path / "small")[0] == 0
    assert cli("log", "verify", tmp_path / "small")[0] == 0
    (run / "log" / "notes.txt").write_text("not a part")
    code, out, _ = cli("log", "verify", run)
    assert code == 1
    assert "notes.txt" in out
    assert cli("log", "repair", run)[0] == 0
    assert json.loads(cli("log", "verify", run, "--json")[1])["faults"] == []
    assert cli("log", "verify", tmp_path / "nowhere")[0] == 2
