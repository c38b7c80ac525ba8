"""A search begins with the plans that `compile` would take: no champion is slower, whatever the budget."""

from __future__ import annotations

from pathlib import Path

import pytest

import tuner
from compiler.autoplan import quick_plans
from compiler.build import measure
from compiler.model import ModelSpec
from simulator.npu.machine_file import load_machine
from tests.tuning import FEW
from tuner.zoo.load import open_network


@pytest.mark.parametrize("network", ["made:vit_b16-small", "made:mobilenet_v1-small"])
def test_no_champion_is_slower_than_what_compile_takes(network: str) -> None:
    """Layer by layer is one program, each level's plan another: all of a budget of four."""
    machine = load_machine("edge")
    opened = open_network(ModelSpec(Path(network), machine, random_weights=0))
    compiled = measure(opened, quick_plans(opened))
    found = tuner.Search(opened.target_graph, None, FEW, candidates=4).run()
    for level, cycles in found.cycles.items():
        assert cycles <= compiled[level].timings[level].cycles
