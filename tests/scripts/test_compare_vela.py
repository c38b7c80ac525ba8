"""The parts of the comparison with Vela that need no Vela: layers, configurations, what its report says, the goal."""

from __future__ import annotations

import configparser

import numpy as np
import onnx
import pytest

from scripts.compare_streams import goals_reached, summarise, table_lines
from scripts.compare_vela import CONFIGS, Moved, describe_row, layer_table, moved_bytes, reached, scaled
from simulator.npu.machine_file import load_machine
from tests.models import Builder
from tests.scripting import ROOT, run_script
from tuner.zoo.load import load_network

INI = """\
; comment
[System_Config.Ethos_U65_High_End]
Dram_clock_scale=0.234375
Dram_ports_used=1

[System_Config.Other]
Dram_clock_scale=1.0
"""


def test_layers_of_a_small_network() -> None:
    b = Builder(np.random.default_rng(0), (1, 16, 9, 9))
    y = b.conv("x", 16, stride=(2, 2), groups=16)
    y = b.concat(b.relu(b.conv(y, 8, kernel=(1, 1), pads=(0, 0, 0, 0))), b.conv(y, 24))
    model = onnx.shape_inference.infer_shapes(b.model(b.max_pool(y)))
    found = layer_table(model)
    assert found["input"] == [1, 9, 9, 16]
    kinds = [(each["kind"], len(each["inputs"]), each.get("padding"), each.get("groups")) for each in found["layers"]]
    assert kinds == [
        ("conv", 1, "SAME", 16), ("conv", 1, "SAME", 1), ("relu", 1, None, None), ("conv", 1, "SAME", 1), ("concat", 2, None, None),
        ("max_pool", 1, "VALID", None),
    ]  # fmt: skip
    assert found["layers"][0]["inputs"] == [""]
    assert found["layers"][-1]["inputs"] == [found["layers"][-2]["output"]]


def test_every_network_of_the_comparison_has_layers() -> None:
    model = onnx.shape_inference.infer_shapes(load_network("made:mobilenet_v2"))
    kinds = [each["kind"] for each in layer_table(model)["layers"]]
    assert [kinds.count(kind) for kind in ("conv", "relu6", "add", "mean", "dense")] == [52, 35, 10, 1, 1]


def test_bandwidth_share_is_of_one_configuration() -> None:
    parser = configparser.ConfigParser()
    parser.optionxform = str
    parser.read_string(scaled(INI, "Ethos_U65_High_End", 0.25))
    assert dict(parser["System_Config.Ethos_U65_High_End"]) == {"Dram_clock_scale": "0.05859375", "Dram_ports_used": "1"}
    assert parser["System_Config.Other"]["Dram_clock_scale"] == "1.0"


def test_weights_count_as_they_are_without_coding() -> None:
    report = {
        "dram_feature_map_read_bytes": "1000.0", "dram_feature_map_write_bytes": "500.0", "dram_weight_read_bytes": "300.0",
        "dram_weight_write_bytes": "0.0", "total_original_weights": "400", "total_npu_encoded_weights": "200",
    }  # fmt: skip
    assert moved_bytes([report], "Size") == Moved("Size", 1500, 300, 400, 200)
    assert moved_bytes([report], "Size").total == 1500 + 600


def test_the_goal() -> None:
    def row(ours: int, once: int = 1) -> dict[str, int]:
        return {"vela": 100, "ours": ours, "once": once}

    assert reached([row(40), row(60)])
    assert not reached([row(50), row(60)])  # in the mean
    assert not reached([row(20), row(66)])  # one of them
    assert reached([row(20), row(66, once=63)])


def test_a_line() -> None:
    row = {"machine": "m", "network": "n", "share": 0.5, "settings": "Size", "vela": 2000, "vela_weights": 500, "ours": 1500, "once": 9}
    row |= {"champion": 1600, "padding": 1, "again": 2, "spills": 3, "stream": 4}
    assert describe_row(row) == "| m | n | 0.5 | Size | 2,000 | 500 | 1,600 | 1,500 | 0.750 | 9 | 1 | 2 | 3 | 4 |"


def test_each_configuration_is_that_of_its_preset() -> None:
    """Its file says which of Vela's it is made from; its L1 is that memory mode's SRAM."""
    for name, config in CONFIGS.items():
        text = (ROOT / "configs" / "machines" / f"{name}.yaml").read_text(encoding="utf-8")
        assert config.systems[0].split("SYS_")[-1].replace("Ethos_U65_", "").replace("_", "-") in text.replace("_", "-")
        assert int(config.memory.split("_")[2].removesuffix("KB")) << 10 == load_machine(name).buffers_bytes.L1


def test_a_machine_that_there_is_not(tmp_path) -> None:
    done = run_script("compare_vela", "--venv", tmp_path, "--machines", "edge", cwd=tmp_path)
    assert done.returncode == 2
    assert f"edge: accepted: {', '.join(CONFIGS)}" in " ".join(done.stderr.replace("│", " ").split())


ROWS = [
    {
        "network": "a",
        "share": share,
        "bytes": 40,
        "vela_bytes": 100,
        "constants": 20,
        "least": 30,
        "cycles": 90,
        "vela_cycles": 100,
        "vela_compiler": "regor",
    }
    for share in (1.0, 0.25)
]


def test_the_goal_of_streams() -> None:
    """Bytes at most half and cycles at most 1.02 and 0.9 in the geometric mean, no network's bytes above 0.8, or nearly the least."""
    assert goals_reached(ROWS)
    assert summarise(ROWS) == {share: pytest.approx((0.4, 0.3, 0.9)) for share in (1.0, 0.25)}
    assert not goals_reached([*ROWS[:1], ROWS[1] | {"cycles": 91}])
    assert not goals_reached([row | {"bytes": 51} for row in ROWS])
    assert not goals_reached([*ROWS, *(row | {"network": "b", "bytes": 81} for row in ROWS), *(row | {"bytes": 10} for row in ROWS)])
    assert goals_reached([ROWS[0] | {"cycles": 102}, ROWS[1]])
    assert goals_reached([row | {"bytes": 90, "least": 86} for row in ROWS])
    assert not goals_reached([row | {"bytes": 90, "least": 85} for row in ROWS])
    assert not goals_reached([row | {"bytes": 81, "least": 79} for row in ROWS])


def test_streams_have_a_line_for_each_row() -> None:
    lines = table_lines(ROWS)
    assert lines[2] == "| a | 1 | 40 | 100 | 0.400 | 20 | 30 | 0.300 | 90 | 100 | 0.900 | regor |"
    assert lines[-1] == "share 0.25: bytes 0.400 of Vela's in the geometric mean, at least 0.300; cycles 0.900"
    assert len({line.count("|") for line in lines[:4]}) == 1


def test_a_folder_or_streams() -> None:
    done = run_script("compare_vela")
    assert done.returncode == 2
    assert "expected --venv FOLDER, or --streams" in " ".join(done.stderr.replace("│", " ").split())
