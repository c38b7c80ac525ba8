"""The rule in C and the rule in Python: one rule, two languages."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from pathlib import Path

import pytest

from simulator.bundle import c_rule
from simulator.bundle.bundle_files import C_SOURCES, package_file
from simulator.bundle.c_rule import CThresholdRule, c_library
from simulator.controller import Observation, ThresholdRule
from simulator.npu.controller_table import MAX_THRESHOLD, RHO_UNIT
from simulator.npu.errors import BadInputError
from tests.c_rules import DRIVER, SANITIZER, compiled_program, compiler, decided
from tests.messages import naming

MOST = (1 << 64) - 1


def up_to(rng: random.Random, bits: int) -> int:
    """Any number of digits is as likely as any other."""
    return rng.getrandbits(rng.randint(0, bits))


def random_rule(rng: random.Random) -> ThresholdRule:
    positions = rng.randint(1, 6)
    t_min, t_max = ([rng.choice((1, MAX_THRESHOLD, 1 + up_to(rng, 31), up_to(rng, 18) + 1)) for _ in range(positions - 1)] for _ in "ab")
    slice_cycles = rng.choice((0, 0, 1, up_to(rng, 12), up_to(rng, 40)))
    return ThresholdRule(tuple(rng.sample(range(10), positions)), tuple(t_min), tuple(t_max), slice_cycles)


def random_steps(rng: random.Random, rule: ThresholdRule, steps: int) -> list[Observation]:
    """Counters of any size, half of them at a threshold or one beside it; inferences of up to 2^30 cycles, back to back."""
    found, now = [], up_to(rng, 60)
    for _ in range(steps):
        end = now + up_to(rng, rng.choice((4, 12, 30)))
        moving = rng.choice((0, MOST, up_to(rng, 64), up_to(rng, 32), up_to(rng, 20)))
        compute = rng.choice((0, MOST, up_to(rng, 64), up_to(rng, 32)))
        if rule.t_min and rng.random() < 0.5:
            threshold = rng.choice((*rule.t_min, *rule.t_max))
            compute = min(max(0, threshold * moving // RHO_UNIT + rng.randint(-1, 1)), MOST)
        found.append(Observation(0, now, end, compute, moving, 0))
        now = end
    return found


def by_python(rule: ThresholdRule, seen: list[Observation]) -> list[tuple[int, ...]]:
    state = rule.start()
    found: list[tuple[int, ...]] = [(state.variant,)]
    for one in seen:
        state = rule.step(state, one)
        found.append((state.variant, state.position, state.leaning, state.since))
    return found


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver, which ends with a line on stderr at the first undefined operation."""
    compiler()
    folder = tmp_path_factory.mktemp("driver")
    for name in C_SOURCES:
        (folder / name).write_bytes(package_file(name))
    return compiled_program(folder, DRIVER, *SANITIZER)


def same(program: Path, seed: int, rules: int, steps: int) -> None:
    rng = random.Random(seed)
    asked = [(rule, random_steps(rng, rule, steps)) for rule in (random_rule(rng) for _ in range(rules))]
    expected = [line for rule, seen in asked for line in by_python(rule, seen)]
    assert decided(program, asked) == expected
    # they did not all stand still
    moves = sum(len(line) == 4 and line[1:3] != before[1:3] for before, line in pairwise(expected))
    assert moves > 0.1 * rules * steps


def test_c_decides_as_python(program: Path) -> None:
    same(program, 1, rules=200, steps=100)


@pytest.mark.slow
def test_c_decides_as_python_a_million_times(program: Path) -> None:
    for seed in range(2, 12):
        same(program, seed, rules=500, steps=200)


def test_no_float_and_no_heap() -> None:
    """What the compiler cannot be asked on every host."""
    text = re.sub(r"/\*.*?\*/", "", "".join(package_file(name).decode() for name in C_SOURCES), flags=re.DOTALL)
    assert set(re.findall(r"#include (\S+)", text)) == {"<stdint.h>", '"controller.h"'}  # so there is nothing to call
    assert set(re.findall(r"\b(?:u?int\w*|float|double|char|void|long)\b", text)) == {"uint32_t", "int32_t", "uint64_t"}


def test_the_adapter_has_the_states_of_python() -> None:
    compiler()
    rng = random.Random(5)
    for _ in range(20):
        rule = random_rule(rng)
        in_c = CThresholdRule(rule)
        one, two = rule.start(), in_c.start()
        for seen in random_steps(rng, rule, 50):
            assert one == two
            one, two = rule.step(one, seen), in_c.step(two, seen)
        assert one == two


@pytest.fixture
def no_library() -> object:
    c_library.cache_clear()
    yield
    c_library.cache_clear()


@pytest.mark.usefixtures("no_library")
def test_without_a_compiler_it_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInputError, match=naming("cc, gcc, clang", "--controller threshold")):
        CThresholdRule(ThresholdRule((0,), (), ()))


@pytest.mark.usefixtures("no_library")
def test_a_compiler_that_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler()
    monkeypatch.setattr(c_rule, "package_file", lambda name: b"int f(void) { return 1.5f * x; }\n")
    with pytest.raises(BadInputError, match=r"cannot compile controller.c: controller.c:1.*error") as caught:
        CThresholdRule(ThresholdRule((0,), (), ()))
    assert "\n" not in str(caught.value)
