"""What every command has in common: help, exit codes, schemas, lists."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from simulator.npu.machine import load_machine
from tuner.candidate import FeatureSet
from tuner.cli import app, main
from tuner.log.run_log import Origin, RunLog


def test_help_answers_without_loading_anything_heavy():
    code = (
        "import sys; from tuner.cli import app, main; main(['--help'])\n"
        "heavy = {'numpy', 'numba', 'onnx', 'onnxruntime', 'ray', 'xgboost', 'optuna', 'pandas', 'pyarrow', 'pydantic'}\n"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "compile" in done.stdout


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


def test_interrupted_is_130(cli, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tuner.commands.inspect.machines", stop)
    assert cli("machines") == (130, "", "tilefarm: interrupted\n")


def test_a_bug_is_not_hidden(monkeypatch):
    def bug(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tuner.commands.inspect.machines", bug)
    with pytest.raises(ZeroDivisionError):
        main(["machines"])


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
    with RunLog(run, Origin(run="r1", model="net", machine="tiny", simulator="1"), (FeatureSet("s", ("m",)),)):
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
