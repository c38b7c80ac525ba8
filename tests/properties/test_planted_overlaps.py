"""Buffers of compiled programs that are given one place though they live at the same time.

Flags keep all accesses in order, so no race says that values are wrong.  What the sanitizer finds of it and what only the comparison of
values finds is counted (`found`, `wrong` in the test report; docs/deviations.md quotes them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import compiler.emit.segment
from compiler.derive.plan import Infeasible, SegmentPlan
from compiler.frontend import lower
from compiler.pipeline import Compiler
from compiler.schedule import memory
from compiler.schedule.blocks import Blocks
from compiler.schedule.memory import Places
from compiler.tile.spec import Unit
from compiler.tile.unit import pack_unit
from simulator.functional import execute
from simulator.host_layout import load_input, read_output
from simulator.npu.machine import BLOCK_BYTES, DataType, load_machine
from simulator.npu.program import Program
from simulator.sanitizer import check
from tests.models import SMALL_MODELS, Floats, random_feeds, small_model
from tests.plans import random_plan

EDGE = load_machine("edge")
PLACE = memory.place


class Overlap:
    """Stands in for `place`: in the `at`-th segment a buffer is put onto another one that is as large and alive at the same time."""

    def __init__(self, seed: int, segments: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.at = int(self.rng.integers(segments))
        self.seen = 0
        self.planted = False

    def __call__(self, strips: Sequence[tuple[Unit, Blocks]], plan: SegmentPlan, flip: bool = False) -> Places | Infeasible:
        places, ((unit, blocks),) = PLACE(strips, plan, flip), strips
        assert isinstance(places, Places)
        if self.seen == self.at:
            wishes = {"l1": memory._l1_wishes(unit, plan, blocks), "ub": memory.ub_wishes(unit, blocks, plan.tilings)}
            pairs = [
                (name, under.name, upper.name)
                for name, all_of in wishes.items()
                for under in all_of
                for upper in all_of
                if under is not upper and under.birth <= upper.death and upper.birth <= under.death and under.size >= upper.size
            ]
            if pairs:
                name, under, upper = pairs[int(self.rng.integers(len(pairs)))]
                at = getattr(places, name)
                places = replace(places, **{name: at | {upper: at[under]}})
                self.planted = True
        self.seen += 1
        return places


def values(constants: NDArray[np.uint8], program: Program, feeds: dict[str, Floats]) -> list[Floats]:
    ddr = np.full(program.memory.size_blocks * BLOCK_BYTES, 0xFF, np.uint8)
    ddr[: constants.size] = constants
    for buffer in program.memory.of_kind("input"):
        load_input(ddr, buffer, feeds[buffer.name], program.memory.dtype)
    execute(program, EDGE, ddr, verify=False)
    return [read_output(ddr, buffer, program.memory.dtype) for buffer in program.memory.of_kind("output")]


def planted(monkeypatch: pytest.MonkeyPatch, names: list[str], seeds: range) -> tuple[int, int]:
    """How many programs the overlap made wrong, and of how many of them the sanitizer says so; it says nothing of the right ones."""
    wrong = found = 0
    for name in names:
        model = small_model(name)
        (unit, constants), feeds = pack_unit(lower(model), EDGE, DataType.float16), random_feeds(model)
        for seed in seeds:
            plan = random_plan(unit, np.random.default_rng(seed))
            good = None if plan is None else Compiler(unit).compile(plan)
            if plan is None or not isinstance(good, Program):
                continue
            overlap = Overlap(seed, len(plan.segments))
            with monkeypatch.context() as patch:
                patch.setattr(compiler.emit.segment, "place", overlap)
                bad = Compiler(unit).compile(plan)
            assert isinstance(bad, Program)
            if not overlap.planted:
                continue
            assert check(good, EDGE) == ()
            kinds = {finding.kind for finding in check(bad, EDGE)}
            assert kinds <= {"overwritten_read"}  # everything stays in order
            same = all(
                np.array_equal(a, b, equal_nan=True)
                for a, b in zip(values(constants, good, feeds), values(constants, bad, feeds), strict=True)
            )
            wrong += not same
            found += bool(kinds) and not same
    return wrong, found


def test_some_overlaps_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, found = planted(monkeypatch, ["residual_block"], range(6))
    assert wrong >= found >= 1


@pytest.mark.slow
def test_how_many_overlaps_are_found(monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, Any], None]) -> None:
    wrong, found = planted(monkeypatch, list(SMALL_MODELS), range(24))
    record_property("wrong", wrong)
    record_property("found", found)
    assert found >= wrong // 3 >= 20
