"""Costs of kernels: a case begins with an empty cache, and a command that fails is told."""

from __future__ import annotations

import pytest

from scripts import bench_cold


def test_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = "compile made:randwire-small,nodes=3 --machine tiny --layerwise --dump plan"
    monkeypatch.setitem(bench_cold.CASES, "plan", ["machines", compiled])
    found = bench_cold.run_case("plan")
    assert found["reference_cpu_s"] > 0
    assert found["functions"] >= found["kernels"] == len(found["slowest"]) > 0
    assert found["kernels_cpu_s"] == pytest.approx(sum(row["cpu_s"] for row in found["slowest"]))
    assert found["kernels_cpu_s"] < found["cpu_s"]
    text = list(bench_cold.describe("plan", found, 1))
    assert len(text) == 3
    assert text[0].endswith(f"{found['kernels']} kernels of {found['functions']} functions")
    assert text[2].endswith(found["slowest"][0]["name"])


def test_a_command_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench_cold.CASES, "wrong", ["machines no_such_machine"])
    with pytest.raises(SystemExit, match=r"machines no_such_machine: tilefarm: .*no_such_machine"):
        bench_cold.run_case("wrong")
