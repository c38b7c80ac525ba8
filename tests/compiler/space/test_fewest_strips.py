"""What is clear from sums of whether a run needs strips of columns is so when its blocks are laid out."""

from __future__ import annotations

import pytest

from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.space.operator_order import ordered
from compiler.space.strips import _bound_blocks, _has_places
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Memory
from tuner.zoo.load import load_network


@pytest.mark.parametrize("size_bytes", [1 << 16, 1 << 18])
@pytest.mark.parametrize("network", ["made:mobilenet_v2-small", "light:squeezenet"])
def test_run_that_fits_by_sums_has_places(network: str, size_bytes: int) -> None:
    machine = load_machine(f"edge:buffers_bytes.L1={size_bytes}")
    target_graph = ordered(make_unit(lower(load_network(network)), machine, DataType.float16), "depth")
    count, have = len(target_graph.operators), target_graph.machine.buffer_blocks(Memory.L1)
    clear = [(i, j) for i in range(count) for j in range(i + 1, min(count, i + 6) + 1) if _bound_blocks(target_graph, i, j) <= have]
    assert clear
    assert all(_has_places(target_graph, i, j, 1) for i, j in clear)
