"""Random graphs are right with every plan; and what is wrong is found, cut down and printed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from onnx import helper

from compiler.frontend import load_model
from compiler.frontend.handlers.activations import ACTIVATIONS
from compiler.frontend.handlers.dynamic_zero_points import split_products
from compiler.frontend.handlers.qdq_fusion import fuse_groups
from compiler.frontend.lower import SUPPORTED
from simulator.npu.parts import DataType
from simulator.session import InferenceSession, NodeArg
from tests.fuzz.as_test import assert_right, regular, sample_of, text_of
from tests.fuzz.builder import Sample
from tests.fuzz.campaign import DIED, Job, Tally, judge_seed, outcomes
from tests.fuzz.graphs import draw_graph, draw_single
from tests.fuzz.integer_operators import INTEGER_OPERATORS
from tests.fuzz.operators import OPERATORS
from tests.fuzz.outcome import Outcome, outcome_line
from tests.fuzz.perturbed import rounding_explains
from tests.fuzz.shrink import shrink
from tests.fuzz.views import VIEWS

ROOT = Path(__file__).parent.parent.parent
SEEDS = {"edge": 150, "edge-int8": 80, "ascend310": 110, "ethos-u65-512": 60, "tiny": 100}  # 500: of each as many as take the same time
MANY = 4000
TRIES = 200
# genomes: few, as all others are of the slow test
CONFIGURATIONS = {
    "edge": Job("edge", "float16", genomes=1, predicted=4),
    "edge-int8": Job("edge", "int8", genomes=1, predicted=4),
    "ascend310": Job("ascend310", "float32", genomes=1, predicted=4),
    "ethos-u65-512": Job("ethos-u65-512", "int8", genomes=1, predicted=4),
    "tiny": Job("tiny", "float16", genomes=1, predicted=0),
}


def test_the_table_has_what_the_frontend_supports() -> None:
    ours = {name for name in SUPPORTED if name.startswith("tilefarm.integers.")}  # made of others by `fuse_groups`
    assert SUPPORTED.keys() - ours <= OPERATORS.keys() | INTEGER_OPERATORS.keys()
    assert (OPERATORS.keys() | INTEGER_OPERATORS.keys()) - SUPPORTED.keys() <= VIEWS.keys()
    seen = set[str]()
    for seed in range(TRIES):
        nodes = fuse_groups(split_products(load_model(draw_graph(seed, quantised=True).model))).model.graph.node
        seen |= {f"{node.domain}.{node.op_type}" for node in nodes} & ours
        if seen == ours:
            break
    assert seen == ours


@pytest.mark.parametrize("name", sorted({**OPERATORS, **INTEGER_OPERATORS}))
def test_each_of_the_table_is_drawn(name: str) -> None:
    for seed in range(TRIES):
        sample = draw_single(name, seed)
        if sample is not None and any(node.op_type == name.rpartition(".")[2] for node in sample.model.graph.node):
            return
    pytest.fail(f"{name} is in none of {TRIES} graphs")


@pytest.mark.parametrize("quantised", [False, True])
def test_a_seed_is_a_graph(quantised: bool) -> None:
    for seed in range(5):
        (one, feeds), (other, again) = (draw_graph(seed, quantised) for _ in range(2))
        assert one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)
        assert all(np.array_equal(feeds[name], again[name]) for name in feeds)


@pytest.mark.parametrize("name", list(CONFIGURATIONS))
def test_random_graphs_are_right(name: str) -> None:
    tally = Tally()
    for seed in range(SEEDS[name]):
        tally.add(seed, judge_seed(CONFIGURATIONS[name], seed))
    assert not tally.faults, "\n".join(f"seed {seed}: {outcome_line(one)}" for seed, one in tally.faults.items())
    assert tally.kinds["right"] > SEEDS[name] // 2


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CONFIGURATIONS))
def test_many_random_graphs_are_right(name: str) -> None:
    """20,000 in all."""
    job = CONFIGURATIONS[name]
    options = ["--machine", job.machine, "--dtype", job.dtype, "--workers", str(os.cpu_count()), "--shrink", "10"]
    words = [sys.executable, "scripts/fuzz_graphs.py", "--seeds", f"{SEEDS[name]}:{SEEDS[name] + MANY}", *options]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fault_is_found_and_cut_down() -> None:
    job = Job("edge", "float16", genomes=0, predicted=0)
    with mock.patch.dict(ACTIVATIONS, {"Softsign": ACTIVATIONS["Tanh"]}):
        seed, fault = next(
            (seed, found)
            for seed in range(500)
            if any(node.op_type == "Softsign" for node in draw_graph(seed, False).model.graph.node)
            and (found := judge_seed(job, seed)).what == "value"
        )
        small, last = shrink(draw_graph(seed, False), fault, job.target(seed), seed)
        assert [node.op_type for node in small.model.graph.node] == ["Softsign"]
        text = text_of(small, last, job.machine_of(seed), "float16", seed)
        names = {"helper": helper, "np": np, "regular": regular, "assert_right": assert_right}
        exec(text, names)
        (test,) = re.findall(r"def (\w+)\(", text)
        with pytest.raises(AssertionError, match="wrong: value"):
            names[test]()  # type: ignore[operator]
    names[test]()  # type: ignore[operator]


def test_outputs_in_another_order_are_found() -> None:
    """Of a session that has them in the order in which they were made."""
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Sigmoid", ["a"], ["b"])]
    outputs = dict.fromkeys(("b", "a"), ("float32", (1, 4)))
    backwards = mock.patch("tests.fuzz.trial.InferenceSession.get_outputs", lambda self: sorted(_ports(self), key=lambda port: port.name))
    with backwards, pytest.raises(AssertionError, match="wrong: order"):
        assert_right(nodes, {"x": regular((1, 4))}, outputs, {}, 17, "edge", "float16", ("layer by layer",))


def _ports(session: InferenceSession) -> list[NodeArg]:
    return session._ports(session._outputs)


def _difference() -> Sample:
    """A sigmoid less almost the same."""
    x = regular((1, 8))
    constants = {"c": 1 / (1 + np.exp(-x)) - np.float32(1e-3)}
    nodes = [helper.make_node("Sigmoid", ["x"], ["a"]), helper.make_node("Sub", ["a", "c"], ["y"])]
    return sample_of(nodes, {"x": x}, {"y": ("float32", (1, 8))}, constants, 17)


def test_rounding_is_told_from_a_fault() -> None:
    """A small difference of large sums is what rounding makes of it; half of it is not, nor is either in float32."""
    sample = _difference()
    y = np.full((1, 8), 1e-3, np.float32)
    assert rounding_explains(sample, "y", y + np.float32(5e-4), DataType.float16)
    assert not rounding_explains(sample, "y", y + np.float32(5e-4), DataType.float32)
    assert not rounding_explains(sample, "y", y + np.float32(0.1), DataType.float16)
    assert not rounding_explains(sample, "y", y * np.float32("nan"), DataType.float16)


def _die_of_three(job: Job, seed: int) -> Outcome:
    if seed == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome("right")


@pytest.mark.slow
def test_seed_that_kills_its_process_is_a_crash() -> None:
    found = dict(outcomes(CONFIGURATIONS["edge"], range(6), workers=1, judged=_die_of_three))
    assert {seed: one.kind for seed, one in found.items()} == {seed: "crash" if seed == 3 else "right" for seed in range(6)}
    assert found[3].what == DIED


def test_the_script_says_what_it_found() -> None:
    words = [sys.executable, "scripts/fuzz_graphs.py", "--seeds", "0:6", "--genomes", "1", "--json", "--shrink", "0"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    told = json.loads(done.stdout)
    assert told["models"] == sum(told["outcomes"].values()) == 6
    assert done.returncode == int(bool(told["faults"]))
    assert told["coverage"]
