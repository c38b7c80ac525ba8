"""Vela's streams on the executor: the parts that need neither Vela nor LiteRT, and with both the whole."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter

import pytest

from scripts.run_ethosu_streams import DEVIATIONS, deviation, network_lines, operator_lines
from tests.scripting import run_script


def test_a_deviation_is_of_a_compiler_and_type():
    assert deviation("FULLY_CONNECTED", "regor", "int16") == deviation("FULLY_CONNECTED", "python", "int16") != ""
    assert not deviation("FULLY_CONNECTED", "python", "int8")
    assert deviation("MEAN", "python", "int8")
    assert not deviation("MEAN", "regor", "int8")
    assert not deviation("LOGISTIC", "regor", "int8")
    assert not any(deviation("CONV_2D", compiler, dtype) for compiler in ("regor", "python") for dtype in ("int8", "uint8", "int16"))
    assert all(why for why in DEVIATIONS.values())


def test_tables_have_a_line_for_each_row():
    row = {
        "network": "residual",
        "compiler": "regor",
        "state": "equal",
        "inputs": 50,
        "values": 1000,
        "why": "",
        "seconds": 0.05,
        "macs": 12_500_000,
    }
    counts = {"bytes": {"dram/inputs": (3000, 2000), "dram/results": (1000, 1000), "sram/weights": (500, 400)}}
    _, line = network_lines([row | counts])
    assert line.split()[:5] == ["residual", "regor", "equal", "50", "1000"]
    assert line.endswith("dram 4 (3), sram 0 (0)")
    states = {"states": Counter(equal=3, differs=1), "worst": 1, "deviation": "rounds once", "example": "seed 7"}
    _, line, total = operator_lines([{"operator": "ADD", "compiler": "python", **states}])
    assert line.split() == ["ADD", "python", "3", "0", "1", "0", "0", "0", "1", "rounds", "once", "seed", "7"]
    assert total == "3 equal, 1 differs"


@pytest.mark.skipif(importlib.util.find_spec("ethosu") is not None, reason="Vela is there")
def test_missing_packages_are_told():
    done = run_script("run_ethosu_streams", "--operators", "0:1")
    assert done.returncode == 2
    assert "expected the extras ethos-u and litert" in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_operators_are_those_of_litert(dtype):
    pytest.importorskip("ethosu.vela")
    pytest.importorskip("ai_edge_litert")
    done = run_script("run_ethosu_streams", "--operators", "0:2000" if dtype == "int8" else "0:600", "--dtype", dtype, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert sum(row["states"].get("equal", 0) + row["states"].get("former", 0) for row in rows) > 0.8 * sum(
        sum(row["states"].values()) for row in rows
    )


@pytest.mark.slow
def test_networks_are_those_of_litert():
    pytest.importorskip("ethosu.vela")
    pytest.importorskip("ai_edge_litert")
    done = run_script("run_ethosu_streams", "--inputs", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["state"] for row in json.loads(done.stdout)] == 24 * ["equal"]
