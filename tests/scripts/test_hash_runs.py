"""Digests of searches: the same twice and after a kill, others for another seed, and each of its own part of a run folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from scripts.hash_runs import MACHINES, NETWORKS, PARTS, run_digests
from scripts.studies import network_list
from simulator.npu.machine_file import load_machine
from tests.scripting import run_script
from tests.tuning import FEW, quick, save_small

SMALL = "made:bert_base-small"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("conv_chain", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    quick(model, out, 12, *FEW)
    return out


def differing_parts(one: Path, other: Path) -> set[str]:
    first, second = run_digests(one), run_digests(other)
    assert tuple(first) == tuple(second) == PARTS
    return {part for part in PARTS if first[part] != second[part]}


def test_digests_are_of_the_search(model: Path, run: Path, tmp_path: Path) -> None:
    quick(model, tmp_path / "again", 12, *FEW)
    assert differing_parts(tmp_path / "again", run) == set()
    quick(model, tmp_path / "other", 12, *FEW, seed=1)
    assert differing_parts(tmp_path / "other", run) >= {"log", "tasks", "checkpoint", "summary"}


@pytest.mark.parametrize(
    ("part", "file"),
    [("checkpoint", "checkpoint/findings.bin"), ("models", "models/new.model"), ("plans", "plans/none.json"), ("file", "best.onnx")],
)
def test_what_differs_shows_where_it_does(part: str, file: str, run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    with (copy / file).open("ab") as stream:
        stream.write(b" ")
    assert differing_parts(copy, run) == {part}


def test_line_has_digests_of_whole_and_killed_runs() -> None:
    output = run_script("hash_runs", "--networks", SMALL, "--machines", "edge", "--programs", 2)
    (line,) = output.stdout.splitlines()
    name, first, second = re.fullmatch(r"(.*?): (log .*); resumed: (log .*)", line).groups()  # type: ignore[union-attr]
    assert name == f"{SMALL} edge"
    assert re.findall(r"(\w+) [0-9a-f]{12}", first) == list(PARTS)
    assert second == first


@pytest.mark.parametrize(("word", "value"), [("--networks", "made:nothing"), ("--machines", "nothing")])
def test_what_does_not_exist_is_an_error(word: str, value: str) -> None:
    output = run_script("hash_runs", "--networks", SMALL, word, value)
    assert output.returncode == 2
    assert value in output.stderr


def test_every_network_and_machine_exists() -> None:
    assert ",".join(network_list(NETWORKS)) == NETWORKS
    for machine in MACHINES.split(","):
        load_machine(machine)
