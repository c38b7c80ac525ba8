"""Digests of what is compiled: the same twice, others for other genomes, and each of its own part."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compiler.compiler_stages import DUMPED
from scripts.hash_programs import EVERYDAY, LARGER, PARTS, digests
from scripts.studies import network_list
from tests.scripting import run_script
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Measurement, Request

SMALL = "made:bert_base-small"


def parts(gene_count: int = 10, seed: int = 0) -> dict[str, str]:
    found = dict(re.findall(r"(\w+) ([0-9a-f]{12})(?:, |$)", digests(SMALL, "edge", "float16", gene_count, 2, seed)))
    assert tuple(found) == PARTS
    return found


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {part for part in PARTS if one[part] != other[part]}


def test_digests_are_of_the_genomes() -> None:
    first = parts()
    assert parts() == first
    assert differing(first, parts(seed=1)) == set(PARTS)
    assert differing(first, parts(gene_count=9)) == set(PARTS) - {"file"}  # which holds programs alone


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("tasks", lambda found: {"payload": found.payload + " "}),
        ("features", lambda found: {"features": np.nextafter(found.features, np.inf)}),
        ("times", lambda found: {"values": found.values + (np.arange(found.values.size) == 0).reshape(found.values.shape)}),
    ],
)
def test_what_differs_shows_where_it_does(part: str, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, truly = parts(), Evaluator.measure

    def measure(self: Evaluator, request: Request) -> Measurement:
        found = truly(self, request)
        return found if found.values is None else replace(found, **change(found))

    monkeypatch.setattr(Evaluator, "measure", measure)
    assert differing(first, parts()) == {part}


def test_unfit_network_is_a_line_of_its_own() -> None:
    assert digests(SMALL, "edge:buffers_bytes.L1=512", "float16", 10, 2, 0).startswith("does not compile: edge")


def test_a_line_per_network_machine_and_data_type() -> None:
    words = ("--networks", SMALL, "--machines", "edge,tpu-like", "--dtypes", "float16,float32", "--genes", 2, "--genomes", 0)
    done = run_script("hash_programs", *words)
    cells = [line.partition(": plans")[0] for line in done.stdout.splitlines()]
    assert cells == [f"{SMALL} {machine} {dtype}" for machine in ("edge", "tpu-like") for dtype in ("float16", "float32")]


def test_texts_have_a_digest_of_every_stage() -> None:
    line = digests(SMALL, "edge", "float16", 0, 0, 0, texts=True)
    assert re.findall(r"(\w+) [0-9a-f]{12}", line) == [*PARTS, *DUMPED]


@pytest.mark.parametrize(("word", "value"), [("--networks", "made:nothing"), ("--machines", "nothing"), ("--dtypes", "float64")])
def test_what_does_not_exist_is_an_error(word: str, value: str) -> None:
    done = run_script("hash_programs", "--networks", SMALL, word, value)
    assert done.returncode == 2
    assert value in done.stderr


def test_every_network_of_the_matrix_exists() -> None:
    assert network_list(",".join((*EVERYDAY, *LARGER))) == [*EVERYDAY, *LARGER]
