"""SoMa's machine has the numbers of its configuration, and models of integers take and give integers."""

from __future__ import annotations

import json

import onnx
import pytest

from scripts.compare_soma import SOMA_CYCLES, soma_machine
from scripts.integer_borders import with_integer_borders
from simulator.npu.parts import DataType
from tests.scripting import run_script
from tuner.zoo.load import load_network

SMALL = "made:mobilenet_v2-small"


@pytest.mark.parametrize("dtype", [DataType.int8, DataType.float16])
def test_the_machine(dtype: DataType) -> None:
    machine, times = soma_machine(dtype), dtype.size_bytes
    assert machine.macs_per_cycle[dtype.name] == 8192
    assert (machine.ddr.deliverable, machine.ddr.latency_cycles, machine.buffers_bytes.L1) == (16 * times, 0, times << 23)


def test_borders_are_integers() -> None:
    model = load_network(f"{SMALL},quantised=qdq")
    cut = with_integer_borders(model)
    onnx.checker.check_model(cut)
    types = [item.type.tensor_type.elem_type for item in (*cut.graph.input, *cut.graph.output)]
    assert types == [onnx.TensorProto.UINT8] * 2
    assert len(cut.graph.node) == len(model.graph.node) - 2
    assert with_integer_borders(cut) == cut


def test_a_row(tmp_path) -> None:
    done = run_script("compare_soma", "--network", SMALL, "--dtypes", "int8,float16", "--candidates", 2, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr  # a small network is faster than ResNet-50
    rows = json.loads(done.stdout)
    assert [row["dtype"] for row in rows] == ["int8", "float16"]
    for row in rows:
        assert row["soma"] == SOMA_CYCLES
        assert 0 < row["once"] <= row["cycles"]
        assert sum(row["traffic"].values()) <= min(row["cycles"], row["packed"])
