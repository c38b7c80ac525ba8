"""Grants over time: what is announced holds from the next inference on, and no rule ever runs what does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.controller import EstimatorRule, Observation, Oracle, StaticRule, ThresholdRule
from simulator.ddr import ContentionTrace
from simulator.grant_trace import GrantedRule, GrantTrace, level_grants, read_grants
from simulator.npu.errors import BadInputError
from simulator.npu.grant import Grant
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Memory
from simulator.response import measure_response, share_grid
from simulator.runtime import Runtime
from simulator.timing import prepare
from tests.messages import naming
from tests.programs import copy, program

TINY = load_machine("tiny")
L1 = TINY.buffers_bytes.L1
SIZES = (256, 64, 16)  # blocks that variants load at a time, so many times that each loads as much
NAMES = tuple(f"of{size}" for size in SIZES)
WHOLE = TINY.full_grant


def variants() -> dict[str, tuple[object, ...]]:
    return {
        name: (prepare(program(TINY, [copy(TINY, Memory.DDR, Memory.L1, size, at=64)] * (SIZES[0] // size), []), TINY),)
        for name, size in zip(NAMES, SIZES, strict=True)
    }


NEEDS = tuple(Grant(size * 32, 0, 1) for size in SIZES)
RUNTIME = Runtime(variants(), TINY, needs=NEEDS)  # type: ignore[arg-type]
RESPONSE = measure_response(variants(), share_grid(TINY))  # type: ignore[arg-type]
FULL = ContentionTrace.constant(SHARE_UNIT)
LEVELS = [WHOLE, WHOLE._replace(l1_bytes=64 * 32), WHOLE._replace(l1_bytes=16 * 32)]


def estimators() -> GrantedRule:
    return GrantedRule(NEEDS, lambda fitting: EstimatorRule(RESPONSE.among(fitting)))


def ladders() -> GrantedRule:
    """From each inference to the next one heavier, as long as there is one."""

    def make(fitting: tuple[int, ...]) -> ThresholdRule:
        borders = (1 << 20,) * (len(fitting) - 1)
        return ThresholdRule(tuple(range(len(fitting))), borders, tuple(2 * each for each in borders))

    return GrantedRule(NEEDS, make)


def test_programs_need_what_the_test_says() -> None:
    for size, needs in zip(SIZES, NEEDS, strict=True):
        assert program(TINY, [copy(TINY, Memory.DDR, Memory.L1, size, at=64)], []).needs == needs


grants_over_time = st.lists(st.tuples(st.integers(1, 3000), st.sampled_from(LEVELS)), max_size=8).map(
    lambda steps: GrantTrace((0, *np.cumsum([gap for gap, _ in steps]).astype(int).tolist()), (WHOLE, *(granted for _, granted in steps)))
)


@given(grants_over_time)
def test_no_rule_runs_what_does_not_fit(grants: GrantTrace) -> None:
    for rule in (estimators(), ladders(), Oracle()):
        served = RUNTIME.serve(rule, FULL, inferences=12, grants=grants)
        for start, variant in zip(served.start.tolist(), served.variant.tolist(), strict=True):
            assert NEEDS[variant].fits(grants.at(start))
        waits = grants.longest_wait(served.start.tolist(), served.cycles)
        assert waits <= max(served.latency)


def test_smaller_grant_switches_at_next_inference_and_back() -> None:
    alone = RUNTIME.serve(StaticRule(0), FULL, inferences=1).cycles
    grants = GrantTrace((0, alone + 1, 5 * alone), (WHOLE, LEVELS[1], WHOLE))
    served = RUNTIME.serve(estimators(), FULL, inferences=8, grants=grants)
    assert served.variant[:3].tolist() == [0, 0, 1], "the inference that runs keeps what it has"
    assert served.variant[-1] == 0
    assert served.switches == 2
    assert grants.longest_wait(served.start.tolist(), served.cycles) == alone - 1


def test_rule_resumes_from_its_earlier_state() -> None:
    rule = ladders()
    state = rule.with_grant(None, WHOLE)
    for expected in (1, 2, 2):
        state = rule.step(state, Observation(state.variant, 0, 10, 1, 1, 10))
        assert state.variant == expected
    small = rule.with_grant(state, LEVELS[1])
    assert (small.variant, small.fitting) == (1, (1, 2))
    assert rule.with_grant(small, LEVELS[1]) is small
    assert rule.with_grant(small, WHOLE).variant == 2


def test_without_grants_all_is_granted() -> None:
    rule = EstimatorRule(RESPONSE)
    one = RUNTIME.serve(rule, FULL, inferences=5)
    two = RUNTIME.serve(estimators(), FULL, inferences=5, grants=GrantTrace((0,), (WHOLE,)))
    assert one.variant.tolist() == two.variant.tolist()
    assert one.latency.tolist() == two.latency.tolist()


def test_what_fits_nothing_is_refused() -> None:
    nothing = GrantTrace((0,), (WHOLE._replace(l1_bytes=32),))
    with pytest.raises(BadInputError, match=naming("512 B of L1", 32)):
        estimators().fitting(nothing.grants[0])
    with pytest.raises(BadInputError, match="no variant fits what is granted at cycle 0"):
        RUNTIME.serve(Oracle(), FULL, inferences=1, grants=nothing)
    with pytest.raises(BadInputError, match=naming("variant of256", "cycle 0", "8,192 B of L1")):
        RUNTIME.serve(StaticRule(0), FULL, inferences=1, grants=GrantTrace((0,), (LEVELS[1],)))
    with pytest.raises(BadInputError, match="accepted: one grant per cycle"):
        replace(nothing, cycles=(3,))


def test_levels_along_a_load_grant_as_their_shares() -> None:
    load = ContentionTrace.of([(0, SHARE_UNIT), (10, SHARE_UNIT // 2), (20, SHARE_UNIT // 2 - 1), (30, SHARE_UNIT // 8), (40, SHARE_UNIT)])
    assert level_grants(load, TINY) is None
    levels = {"half": {"share": 0.5, "l1_bytes": 2048}, "quarter": {"share": 0.25, "cores": 1}}
    machine = Machine.model_validate(TINY.model_dump() | {"contention": {"none": 1.0} | levels})
    found = level_grants(load, machine)
    assert found is not None
    assert found.cycles == (0, 10, 30, 40)  # at the step between, the grant goes on
    assert found.grants == (WHOLE, Grant(2048, 0, 2), Grant(2048, 0, 1), WHOLE)


HEADER = "cycle,l1_bytes,shared_bytes,cores\n"


def test_a_file_of_grants(tmp_path: Path) -> None:
    path = tmp_path / "grants.csv"
    path.write_text(HEADER + "0,,,\n100, 2048 ,,1\n200,,,2\n")
    found = read_grants(path, TINY)
    assert found.cycles == (0, 100, 200)
    assert found.grants == (WHOLE, Grant(2048, 0, 1), WHOLE)
    assert [found.at(cycle).cores for cycle in (0, 99, 100, 199, 200, 10**9)] == [2, 2, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"csv:1: ''; accepted: the header cycle,l1_bytes,shared_bytes,cores"),
        ("cycle,share\n0,1\n", r"csv:1: 'cycle,share'; accepted: the header"),
        (HEADER, r"csv: no rows; accepted: at least one row, the first at cycle 0"),
        (HEADER + "0,,\n", r"csv:2: '0,,' has 3 values"),
        (HEADER + "5,,,\n", r"csv:2: cycle 5; accepted: 0 in the first row"),
        (HEADER + "0,,,\n0,,,\n", r"csv:3: cycle 0; accepted: above 0"),
        (HEADER + "x,,,\n", r"csv:2: cycle 'x'; accepted: a whole number"),
        (HEADER + f"0,{L1 + 32},,\n", rf"csv:2: l1_bytes '{L1 + 32}'; accepted: nothing for all, or 1 to {L1}"),
        (HEADER + "0,,,0\n", r"csv:2: cores '0'; accepted: nothing for all, or 1 to 2"),
        (HEADER + "0,,,3\n", r"csv:2: cores '3'"),
        (HEADER + "0,,64,\n", r"csv:2: shared_bytes '64'"),
        (HEADER + "0,-1,,\n", r"csv:2: l1_bytes '-1'"),
    ],
)
def test_file_without_grants_is_refused_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "grants.csv"
    path.write_text(text)
    with pytest.raises(BadInputError, match=said):
        read_grants(path, TINY)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read"):
        read_grants(tmp_path / "none.csv", TINY)
