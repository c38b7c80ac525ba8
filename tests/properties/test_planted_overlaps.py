"""Buffers of compiled programs that are given one place though they live at the same time.

Flags keep all accesses in order, so no race says that values are wrong.  What the sanitizer finds of it and what the comparison of values
finds is counted (`found`, `shown` and `wrong` in the test report; docs/deviations.md quotes them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import compiler.segment.segment
import tests.inline_reference
from compiler.frontend import lower
from compiler.model import ModelSpec, lower_model
from compiler.ops.lower_graph import pack_unit
from compiler.package import write_body
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment import memory_plan
from compiler.segment.blocks import Blocks
from compiler.segment.memory_plan import Places
from compiler.segment.persistent import PersistentLayout
from compiler.target.target_graph import TargetGraph
from simulator.functional import execute
from simulator.host_layout import load_input, read_output
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Memory
from simulator.npu.program import Program
from simulator.sanitizer import sanitize_program
from tests.models import SMALL_MODELS, Floats, random_feeds, small_model
from tests.plans import random_plan
from tuner.verify.reference import ReferenceValues, StoredTensors, run_reference
from tuner.verify.values import TensorComparison, compare_tensor

EDGE = load_machine("edge")
PLACE = memory_plan.place_segment


class Overlap:
    """Stands in for `place_segment`: in the `at`-th segment a buffer is put onto another one that is as large and alive at the same
    time."""

    def __init__(self, seed: int, segments: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.at = int(self.rng.integers(segments))
        self.seen = 0
        self.planted = False

    def __call__(
        self, strips: Sequence[tuple[TargetGraph, Blocks]], plan: SegmentPlan, flip: bool, told: bool, held: PersistentLayout
    ) -> Places | Infeasible:
        places = PLACE(strips, plan, flip, told, held)
        assert isinstance(places, Places)
        if self.seen == self.at:
            requests = {"l1": places.requests[Memory.L1], "ub": places.requests[Memory.UB]}
            pairs = [
                (name, under.buffer, upper.buffer)
                for name, all_of in requests.items()
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


@dataclass
class Count:
    """Programs that the overlap made wrong; those of which the sanitizer says so; those whose values are beyond the limit."""

    wrong: int = 0
    found: int = 0
    shown: int = 0


def expected(path: Path, feeds: dict[str, Floats]) -> ReferenceValues:
    """As `run --check` has it."""
    opened = lower_model(ModelSpec(path, EDGE))
    body = path.with_suffix(".body.onnx")
    write_body(opened.part, body)
    names = [buffer.name for buffer in opened.target_graph.memory.buffers if buffer.kind != "constant"]
    with mock.patch("tuner.verify.reference._run", tests.inline_reference.run):
        return run_reference(body, feeds, StoredTensors(names, DataType.float16))


def planted(monkeypatch: pytest.MonkeyPatch, folder: Path, names: list[str], seeds: range) -> Count:
    """The sanitizer says nothing of the right ones.  Whatever is more than 1e-2 off is beyond the limit, which is below that here."""
    count = Count()
    for name in names:
        model = small_model(name)
        onnx.save(model, folder / f"{name}.onnx")
        (target_graph, constants), feeds = pack_unit(lower(model), EDGE, DataType.float16), random_feeds(model)
        right = expected(folder / f"{name}.onnx", feeds)
        for seed in seeds:
            plan = random_plan(target_graph, np.random.default_rng(seed))
            good = None if plan is None else Compiler(target_graph).compile(plan)
            if plan is None or not isinstance(good, Program):
                continue
            overlap = Overlap(seed, len(plan.segments))
            with monkeypatch.context() as patch:
                patch.setattr(compiler.segment.segment, "place_segment", overlap)
                bad = Compiler(target_graph).compile(plan)
            assert isinstance(bad, Program)
            if not overlap.planted:
                continue
            assert sanitize_program(good, EDGE) == ()
            kinds = {finding.kind for finding in sanitize_program(bad, EDGE)}
            assert kinds <= {"overwritten_read"}  # everything stays in order
            made, spoilt = values(constants, good, feeds), values(constants, bad, feeds)
            same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(made, spoilt, strict=True))
            outputs = [buffer.name for buffer in good.memory.of_kind("output")]
            assert all(one.ok for one in compared(right, outputs, made)), name
            errors = compared(right, outputs, spoilt)
            if not same:
                count.wrong += 1
                count.found += bool(kinds)
                count.shown += not all(one.ok for one in errors)
            assert all(not one.ok for one in errors if not one.error <= 1e-2), (name, seed, errors)
    return count


def compared(right: ReferenceValues, names: list[str], made: list[Floats]) -> list[TensorComparison]:
    return [
        compare_tensor(right, name, mine.reshape(right.values[name].shape), DataType.float16)
        for name, mine in zip(names, made, strict=True)
    ]


def test_some_overlaps_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    count = planted(monkeypatch, tmp_path, ["residual_block"], range(6))
    assert count.wrong >= count.found >= 1
    assert count.wrong >= count.shown >= 1


@pytest.mark.slow
def test_how_many_overlaps_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record_property: Callable[[str, Any], None]) -> None:
    count = planted(monkeypatch, tmp_path, list(SMALL_MODELS), range(24))
    for name, number in asdict(count).items():
        record_property(name, number)
    assert count.found >= count.wrong // 3 >= 20
    assert count.shown >= count.wrong * 9 // 10
