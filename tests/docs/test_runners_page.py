"""The board of the page on boards: it keeps the contract of runners, and a run by it is paid for, named, and seen to drift."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.fences import ROOT, blocks
from tests.tuning import QUICK, save_small
from tuner.cli import main
from tuner.log.read import read_log
from tuner.runs.folder import read_json

PAGE = ROOT / "docs/runners.md"
SETTINGS = [word for text in (*QUICK, "use.cost_model=false") for word in ("--set", text)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for block in blocks(PAGE, "python"):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importlib.import_module("shaky").Board, "nap_s", 0.0001)
    yield tmp_path
    monkeypatch.undo()


def test_shaky_board_run_is_paid_named_and_flagged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_small("residual_block", here)
    words = ["tune", str(model), "--machine", "edge", "--backend", "serial", "--runner", "shaky:Board", "--quiet", *SETTINGS]
    assert main([*words, "--measurements", "1200", "--out", "RUN"]) == 0
    log, use = read_log(here / "RUN"), read_json(here / "RUN" / "summary.json")["measurements"]
    assert use["search"] == log["readings"].sum()
    assert sum(use[name] for name in ("search", "canary", "finals")) <= 1200
    assert (set(log["board"]), set(log["firmware"])) == ({"shaky-1"}, {"fw 3"})
    last = log[log["seq"] >= log["seq"].max() - 20]
    assert last["drift"].between(0.02, 0.10).all(), "6% warmer, give or take its noise"
    capsys.readouterr()
    assert main(["status", "RUN"]) == 0
    shown = capsys.readouterr().out
    assert "shaky-1 (firmware fw 3)" in shown
    assert f"of {1200:,}, finals and canary beside" in shown
    assert main(["report", "RUN"]) == 0
    page = (here / "RUN" / "report.html").read_text()
    assert "<h3>Boards</h3>" in page
    assert "shaky-1" in page


def test_boards_are_not_mixed(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, board = save_small("residual_block", here), importlib.import_module("shaky").Board
    words = ["tune", str(model), "--machine", "edge", "--backend", "serial", "--runner", "shaky:Board", "--quiet", *SETTINGS]
    assert main([*words, "--measurements", "150", "--out", "A"]) == 0
    monkeypatch.setattr(board, "board", lambda self: ("shaky-2", "fw 3"))
    assert main([*words, "--measurements", "150", "--out", "B"]) == 0
    assert main([*words, "--measurements", "300", "--out", "A", "--resume"]) == 2
    assert "board shaky-2: this run has measurements of shaky-1; go on there, or give another --out" in capsys.readouterr().err
    assert main([*words, "--measurements", "150", "--out", "C", "--warm-start", "A"]) == 2
    assert "board shaky-2: this run has measurements of shaky-1" in capsys.readouterr().err
    assert main(["compare", "A", "B"]) == 2
    assert "cycles do not compare (--force to see them)" in capsys.readouterr().err
    assert main(["compare", "A", "B", "--force"]) == 0
    capsys.readouterr()
    assert main(["train", "A", "B", "--out", "m.model"]) == 2
    assert "a model learns from one board: train them apart" in capsys.readouterr().err
