"""The benchmark of small commands: what it counts, and what it divides."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts import bench_cli


def test_time_of_what_a_command_starts_counts() -> None:
    spin = "import time\nwhile time.process_time() < 0.2: pass"
    alone = bench_cli.cpu_s([sys.executable, "-c", spin])
    both = bench_cli.cpu_s([sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}], check=True)"])
    assert alone >= 0.2
    assert both >= 0.2
    with pytest.raises(SystemExit, match="ended with 3: what was wrong"):
        bench_cli.cpu_s([sys.executable, "-c", "import sys; sys.stderr.write('what was wrong'); sys.exit(3)"])


def test_medians_of_rounds_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first round is left out; the unit takes 1, 2, 3 and every command ten times as long."""
    rounds: list[int] = []

    def took(command: list[str]) -> float:
        if command == bench_cli.UNIT:
            rounds.append(len(rounds))
        return (100.0, 1.0, 2.0, 3.0)[rounds[-1]] * (1 if command == bench_cli.UNIT else 10)

    monkeypatch.setattr(bench_cli, "cpu_s", took)
    bench_cli.main(tmp_path / "RUN", rounds=3, out=tmp_path / "b.json")
    rows = json.loads((tmp_path / "b.json").read_text())
    assert {row["cpu_s"] for row in rows[1:]} == {20.0}
    assert {row["ratio"] for row in rows[1:]} == {10.0}
    verdicts = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in capsys.readouterr().out.splitlines()[2:]}
    assert verdicts["--help"] == verdicts["status"] == "not reached"
    assert verdicts["doctor"] == "reached"
