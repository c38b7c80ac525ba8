"""The plan file: it comes back as it was, and what is wrong with one is said in one line with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.pipeline import Compiler
from compiler.plan.plan import MAX_BLOCKS, Plan, parse_plan
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.npu.program import Program
from tests.compiled import Case, make_case
from tests.models import small_model
from tests.plans import random_plan

TINY = load_machine("tiny")


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case(small_model("conv_chain"), TINY, DataType.float16)


@pytest.fixture(scope="module")
def plan(case: Case) -> Plan:
    """A random plan that fits."""
    for seed in range(50):
        found = random_plan(case.target_graph, np.random.default_rng(seed))
        if found is not None and isinstance(Compiler(case.target_graph).compile(found), Program):
            return found
    raise AssertionError("no plan fits")


def test_round_trip_compiles_to_the_same_bytes(case: Case, plan: Plan) -> None:
    again = parse_plan(plan.to_json())
    assert again == plan
    assert again.digest == plan.digest
    assert again.to_json() == plan.to_json()
    assert [s.key for s in again.segments] == [s.key for s in plan.segments]
    first, second = Compiler(case.target_graph).compile(plan), Compiler(case.target_graph).compile(again)
    assert isinstance(first, Program)
    assert isinstance(second, Program)
    assert first.digest == second.digest


def test_the_digest_is_of_the_meaning(plan: Plan) -> None:
    """Not of spaces or the order of keys; any value changes it."""
    raw = json.loads(plan.to_json())
    shuffled = json.dumps(dict(reversed(list(raw.items()))), indent=None)
    assert parse_plan(shuffled).digest == plan.digest
    raw["segments"][0]["blocks"] += 1
    assert parse_plan(json.dumps(raw)).digest != plan.digest


def test_caches_of_a_plan_are_not_its_copies(plan: Plan) -> None:
    segment = plan.segments[0]
    as_it_was = segment.model_copy()
    changed = segment.model_copy(update={"blocks": segment.blocks + 1})
    assert len({segment.key, as_it_was.key, changed.key}) == 2
    assert changed.model_copy(update={"blocks": segment.blocks}).key == segment.key
    assert segment == as_it_was.model_copy()
    assert "key" not in segment.model_dump()


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(raw: Any) -> None:
        *where, last = path.split(".")
        for part in where:
            raw = raw[int(part)] if part.isdigit() else raw[part]
        raw[int(last) if last.isdigit() else last] = value

    return change


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (_set("version", 2), "version"),
        (_set("dtype", "bfloat16"), "dtype"),
        (_set("colour", "red"), "colour"),
        (_set("segments.0.blocks", 0), "segments.0.blocks"),
        (_set("segments.0.blocks", MAX_BLOCKS + 1), "segments.0.blocks"),
        (_set("segments.0.blocks", 10**30), "segments.0.blocks"),
        (_set("segments.0.prefetch", 5), "segments.0.prefetch"),
        (_set("segments.0.window", 0), "segments.0.window"),
        (_set("segments.0.window", "none"), "segments.0.window"),
        (_set("segments.0.ahead_kib", 64), "segments.0.ahead_kib: Input should be 0 (got 64)"),
        (_set("segments.0.tilings", []), "segments.0: 6 operators need"),
        (_set("segments.0.tilings.0.kind", "scalar"), "segments.0.tilings.0"),
        (_set("segments.0.tilings.0.tile_m", 17), "segments.0.tilings.0.conv.tile_m"),
        (_set("segments.0.tilings.0.weights", "lost"), "segments.0.tilings.0.conv.weights"),
        (_set("segments.0.tilings.0.tile_rows", 2), "segments.0.tilings.0.conv.tile_rows"),
    ],
)
def test_wrong_values_are_named(plan: Plan, change: Callable[[dict[str, Any]], None], where: str) -> None:
    raw = json.loads(plan.to_json())
    change(raw)
    with pytest.raises(BadInputError) as caught:
        parse_plan(json.dumps(raw), "my.json")
    assert str(caught.value).startswith("my.json: ")
    assert where in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe", "[" * 100_000, '{"version": 1}', "[]", "null", "9" * 5000])
def test_what_is_no_plan(text: str | bytes) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_plan(text, "my.json")
    assert str(caught.value).startswith("my.json: ")
