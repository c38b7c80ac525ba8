"""The text of every stage: goldens of a small network, and that what segments say is what the records do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest

from compiler.compiler_stages import DUMPED
from compiler.dump.graph import graph_lines
from compiler.dump.plan import plan_lines
from compiler.dump.records import record_lines
from compiler.dump.segments import segment_lines
from compiler.dump.target_graph import unit_lines
from compiler.frontend.lower import lower
from compiler.ir.graph import Graph
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan
from compiler.space.decode import decode_all
from compiler.space.initial import layer_by_layer, single_operators
from compiler.space.persistent import cut_tensors, holding
from simulator.npu.asm import parse
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.lines import text
from tests.models import Builder, random_model
from tests.plans import random_plan


def network() -> onnx.ModelProto:
    """Two convolutions and a residual, a pool, a softmax; weights that every computer draws alike."""
    b = Builder(np.random.default_rng(0), (1, 16, 8, 8))

    def conv(x: str) -> str:
        weights = b.constant(((np.arange(16 * 16 * 9) % 7 - 3) / 8).astype(np.float32).reshape(16, 16, 3, 3))
        return b.node("Conv", [x, weights, b.constant((np.arange(16) / 4).astype(np.float32))], pads=(1, 1, 1, 1))

    x = b.relu(b.add(conv(b.relu(conv("x"))), "x"))
    return b.model(b.softmax(b.max_pool(x)))


def graph() -> Graph:
    return lower(network(), "0" * 32)


def compiler_and_plan() -> tuple[Compiler, Plan]:
    """The convolutions in blocks on both cores, with cached halo; pool and softmax on the second core."""
    compiler = Compiler(make_unit(graph(), load_machine("tiny"), DataType.float16))
    layers = layer_by_layer(compiler.target_graph)
    assert isinstance(layers, Plan)
    a, b, c, d = layers.segments
    tilings = tuple(tiling.model_copy(update={"tile_m": 32, "tile_k1": 3}) for tiling in a.tilings + b.tilings)
    made = {"operators": a.operators + b.operators, "tilings": tilings, "halo": ("recompute", "cache"), "blocks": 4}
    convolutions = a.model_copy(update={**made, "cores": (0, 1), "split": "rows"})
    rest = c.model_copy(update={"operators": c.operators + d.operators, "tilings": c.tilings + d.tilings, "blocks": 1, "cores": (1,)})
    rest = rest.model_copy(update={"split": "rows"})
    return compiler, layers.model_copy(update={"segments": (convolutions, rest)})


def lines_of(stage: str) -> list[str]:
    if stage == "graph":
        return graph_lines(graph())
    compiler, plan = compiler_and_plan()
    if stage == "records":
        program = compiler.compile(plan)
        assert not isinstance(program, Infeasible)
        return list(record_lines(program))
    return {"unit": unit_lines(compiler.target_graph), "plan": plan_lines(plan), "segments": list(segment_lines(compiler, plan))}[stage]


@pytest.mark.parametrize("stage", DUMPED)
def test_golden(stage: str, golden: Callable[[str, str], None]) -> None:
    golden(f"dump/{stage}.txt", text(lines_of(stage)))


def buffers(lines: list[str]) -> dict[tuple[int, int, str], list[range]]:
    """(segment, core, memory) -> blocks of its buffers; cores that share them come one after the other."""
    found: dict[tuple[int, int, str], list[range]] = {}
    segment, cores, closed = -1, list[int](), True
    for line in lines:
        if m := re.match(r"segment (\d+)", line):
            segment, closed = int(m[1]), True
        elif m := re.match(r"  core (\d+):", line):
            cores, closed = ([] if closed else cores) + [int(m[1])], False
        elif m := re.match(r"    (L1|UB)\[(\d+)\] +([\d,]+) B", line):
            closed, size = True, int(m[3].replace(",", "")) // 32
            for core in cores:
                found.setdefault((segment, core, m[1]), []).append(range(int(m[2]), int(m[2]) + size))
    return found


def touched(lines: list[str]) -> Iterator[tuple[int, int, str, int]]:
    """(segment, core, memory, block) of all operands of records in L1 and UB."""
    core = -1
    for line in lines:
        if m := re.match(r"# core (\d+)", line):
            core = int(m[1])
            continue
        tag = re.search(r"@(\d+)\.", line)
        for memory, block in re.findall(r" (L1|UB)\[(\d+)\]", line):
            yield int(tag[1]) if tag else 0, core, memory, int(block)


def check_places(segments: list[str], records: list[str]) -> None:
    """Records stay inside the buffers that segments show."""
    places, met = buffers(segments), set()
    for segment, core, memory, block in touched(records):
        assert any(block in each for each in places[segment, core, memory]), (segment, core, memory, block)
        met.add((segment, core, memory))
    assert met == set(places)


def test_buffers_are_those_of_the_records() -> None:
    check_places(lines_of("segments"), lines_of("records"))


@pytest.mark.parametrize("seed", range(4))
def test_buffers_of_random_plans(seed: int) -> None:
    compiler = Compiler(make_unit(lower(random_model(seed)), load_machine("tiny"), DataType.float16))
    plan = random_plan(compiler.target_graph, np.random.default_rng(seed), strips=bool(seed % 2))
    assert plan is not None
    program = compiler.compile(plan)
    assert not isinstance(program, Infeasible)
    check_places(list(segment_lines(compiler, plan)), list(record_lines(program)))


@pytest.mark.parametrize("machine", ["tiny", "edge-shared"])
def test_buffers_beside_what_is_held_or_not_granted(machine: str) -> None:
    """Held tensors are shown where they lie, and places within what a level grants are those of the program."""
    compiler = Compiler(make_unit(graph(), load_machine(machine), DataType.float16))
    genome = single_operators(compiler.target_graph)
    assert not isinstance(genome, Infeasible)
    for tensors in ([], cut_tensors(compiler.target_graph, genome)):
        plan = decode_all(compiler.target_graph, holding(genome, tensors))
        assert not isinstance(plan, Infeasible)
        program = compiler.compile(plan)
        assert not isinstance(program, Infeasible)
        lines = list(segment_lines(compiler, plan))
        check_places(lines, list(record_lines(program)))
        assert any(line.endswith("held") for line in lines) == bool(tensors)
        assert not any("read by  " in line for line in lines), "nobody reads it here"


def test_the_text_of_records_is_the_program() -> None:
    compiler, plan = compiler_and_plan()
    program = compiler.compile(plan)
    assert not isinstance(program, Infeasible)
    np.testing.assert_array_equal(parse(text(record_lines(program))), np.concatenate(program.streams))


def test_unfit_part_has_a_reason_beside_the_others() -> None:
    compiler, plan = compiler_and_plan()
    first = plan.segments[0]
    large = first.tilings[0].model_copy(update={"tile_m": 1 << 12})
    first = first.model_copy(update={"tilings": (large, *first.tilings[1:])})
    lines = list(segment_lines(compiler, plan.model_copy(update={"segments": (first, *plan.segments[1:])})))
    at = next(k for k, line in enumerate(lines) if "does not fit" in line)
    assert "a tile needs" in lines[at]
    assert any("makes rows" in line for line in lines[:at])
    fitting = list(segment_lines(compiler, plan))
    # the other segment as if the first one were not there: its core begins with it
    assert lines[at + 1] == next(line for line in fitting if line.startswith("segment 1"))
    assert any("core 1: iterations" in line and line.endswith("bottom") for line in lines[at:])


@pytest.mark.parametrize(("key", "value"), [("columns", 2), ("split", "channels")])
def test_every_strip_and_every_part_is_shown(key: str, value: object) -> None:
    graph = lower(wide(), "0" * 32)
    compiler = Compiler(make_unit(graph, load_machine("tiny"), DataType.float16))
    layers = layer_by_layer(compiler.target_graph)
    assert isinstance(layers, Plan)
    segment = layers.segments[0].model_copy(update={"cores": (0, 1), "split": "rows", "columns": 1, "blocks": 2, key: value})
    plan = layers.model_copy(update={"segments": (segment, *layers.segments[1:])})
    lines = list(segment_lines(compiler, plan))
    found = [line.strip() for line in lines if re.match(r"  (strip|part)", line)]
    assert found == (["strip 0", "strip 1"] if key == "columns" else ["part 0 of the channels", "part 1 of the channels"])
    assert not any("does not fit" in line for line in lines)
    if key == "columns":
        assert [re.findall(r"columns \S+ to DDR (\S+)", line) for line in lines if "columns" in line] == [["0:16"], ["16:32"]]


def wide() -> onnx.ModelProto:
    b = Builder(np.random.default_rng(0), (1, 16, 8, 32))
    return b.model(b.conv("x", 32))
