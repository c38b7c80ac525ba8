"""A command that compiles kernels says so: at once where a cache is empty, and then every few seconds; idle cores help it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from simulator import kernel_cache, kernel_list
from simulator.kernel_compiling import CompiledKernel, listeners
from tuner.cli import kernel_progress


@pytest.mark.parametrize("cached", [0, 30])
def test_what_is_said(cached: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seconds, begun = iter([100.0, 101.0, 105.0, 106.0, 110.0]), list[tuple[int, bool]]()
    monkeypatch.setattr(kernel_cache, "own_folder", lambda: tmp_path)
    monkeypatch.setattr(kernel_list, "listed_kernels", lambda search: [("", "", [])] * 40)
    monkeypatch.setattr(kernel_list, "compile_beside", lambda processes, search: begun.append((processes, search)))
    monkeypatch.setattr(kernel_progress, "usable_cpus", lambda: 3)
    monkeypatch.setattr(kernel_progress, "EVERY_S", 2.0)  # of tests it says nothing
    monkeypatch.setattr(kernel_progress, "_FEW", 20)
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    for number in range(cached):
        (tmp_path / f"{number}.nbi").touch()
    before = list(listeners)
    with kernel_progress.report_kernels(search=True):
        for number in range(5):
            listeners[-1](CompiledKernel("one", (), 1, 3.0, 3.0) if number % 2 else None)
            for more in range(4):
                (tmp_path / f"{cached + 4 * number + more}.nbi").touch()
    assert listeners == before
    said = ["compiling kernels, once for this version on this computer", "compiling kernels: 8 of about 40, about 20 s"]
    assert begun == ([] if cached else [(2, True)])
    assert capsys.readouterr().err.splitlines() == ([] if cached else [*said, "compiling kernels: 16 of about 40, about 15 s"])
