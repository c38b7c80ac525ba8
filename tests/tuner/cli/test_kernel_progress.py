"""A command that compiles kernels says so: at once where a cache is empty, and then every few seconds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from simulator import kernel_cache
from simulator.kernel_compiling import CompiledKernel, listeners
from tuner.cli import kernel_progress


@pytest.mark.parametrize("cached", [0, 30])
def test_what_is_said(cached: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(cached):
        (tmp_path / f"{number}.nbi").touch()
    seconds = iter([100.0, 103.0, 106.5, 107.0, 112.0])
    monkeypatch.setattr(kernel_cache, "own_folder", lambda: tmp_path)
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(kernel_progress, "EVERY_S", 5.0)
    monkeypatch.setattr(kernel_progress, "_FEW", 20)
    before = list(listeners)
    with kernel_progress.report_kernels():
        for kernel in (None, CompiledKernel("one", 1, 3.0, 3.0), None, CompiledKernel("two", 3, 0.5, 0.5), None):
            listeners[-1](kernel)
    assert listeners == before
    first = [] if cached else ["compiling kernels, once for this version on this computer: a minute or two"]
    said = ["compiling kernels: 1 done in 6 s", "compiling kernels: 2 done in 12 s"]
    assert capsys.readouterr().err.splitlines() == [*first, *said]
