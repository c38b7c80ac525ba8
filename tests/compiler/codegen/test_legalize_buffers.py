"""Machines without UB, L0A and L0B: right values, no record that names a memory which is not there, times that pay for what is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.build import containers_of, default_plan, default_plans, measure, package
from compiler.frontend import load_model
from compiler.model import ModelSpec, lower_model
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.target.level_limits import at_level
from simulator.npu import isa
from simulator.npu.asm import parse, print_program
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Memory
from simulator.npu.program import Program
from simulator.sanitizer import sanitize_program
from simulator.session import InferenceSession
from simulator.timing import simulate
from tests.compiled import Case, check_program, check_times, make_case
from tests.compiler.frontend.handlers.test_quantised import HOW, onnxruntime_of, quantised_model
from tests.lacking import without
from tests.messages import naming
from tests.models import random_model, small_model
from tests.plans import random_plan
from tuner.verify.fixed_point import apply_fixed_point
from tuner.verify.reference import StoredTensors, run_reference
from tuner.zoo.builders import build_network

EDGE = load_machine("edge")
LACKING = [without(EDGE, *buffers) for buffers in (("UB",), ("L0A", "L0B"), ("UB", "L0A", "L0B"))]
ETHOS = ["ethos-u65-512", "ethos-u85-1024"]
OF_INTEGERS = [*ETHOS, "ethos-u65-512:rounding=float"]


def programs_of(case: Case, seed: int) -> list[Program]:
    """Operator by operator, and in any plan that fits."""
    compiler = Compiler(case.target_graph)
    plans = [default_plan(case.target_graph), random_plan(case.target_graph, np.random.default_rng(seed), 5, strips=True)]
    found = [compiler.compile(plan) for plan in plans if plan is not None]
    return [program for program in found if not isinstance(program, Infeasible)]


def check_memories(program: Program, machine: Machine) -> None:
    missing = [memory for memory in (Memory.L0A, Memory.L0B, Memory.UB) if not machine.has(memory)]
    for code in program.streams:
        work = code[~np.isin(code[:, isa.OP], (Op.SET, Op.WAIT))]
        assert not np.isin(work[:, [isa.SRC, isa.DST]], missing).any()
        assert (work[work[:, isa.OP] == Op.FIXPIPE, isa.F_SIDE] == (Memory.L1 if Memory.UB in missing else 0)).all()
        if Memory.L0A in missing:
            assert not np.isin(work[:, isa.OP], (Op.MMAD, Op.IM2COL, Op.FRACTAL)).any()
        np.testing.assert_array_equal(parse(print_program(code)), code)


@pytest.mark.parametrize("machine", LACKING, ids=lambda machine: machine.name)
def test_values_do_not_depend_on_available_buffers(machine: Machine) -> None:
    moved = 0
    for seed in range(8):
        case = make_case(random_model(seed), machine, DataType.float16)
        for program in programs_of(case, seed):
            check_program(case, program)
            check_memories(program, machine)
            moved += sum(int(((code[:, isa.SRC] == Memory.L1) & (code[:, isa.DST] == Memory.L1)).sum()) for code in program.streams)
    assert (moved > 0) != machine.has(Memory.UB)


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_integers_on_machines_without_floats(name: str, tmp_path: Path) -> None:
    """The host makes integers of floats and back; all between is the reference's to the bit: onnxruntime, or TFLite's rounding."""
    machine, whole, turned = load_machine(name), 0, 0
    for seed in range(1, 6):
        model, feeds = quantised_model(load_model(random_model(seed)), HOW[seed % len(HOW)], seed)
        opened = lower_model(ModelSpec(Path(f"seed{seed}"), machine, DataType.float16), model)
        for target_graph, compiler in zip(opened.target_graphs, opened.compilers, strict=True):
            assert not any(target_graph.type_of(spec.y).is_float for spec in target_graph.operators)
            for plan in (default_plan(target_graph), random_plan(target_graph, np.random.default_rng(seed), 5, strips=True)):
                program = compiler.compile(plan) if plan is not None else None
                if isinstance(program, Program):
                    program.verify(machine)
                    assert not sanitize_program(program, machine)
                    check_times(program, machine)
                    check_memories(program, machine)
        out = tmp_path / "out.onnx"
        plans = default_plans(opened)
        package(opened, containers_of(opened, measure(opened, dict.fromkeys(machine.contention, plans))), out)
        session, theirs = InferenceSession(out), onnxruntime_of(model, feeds)
        expected = apply_fixed_point(run_reference(out, feeds, StoredTensors.of(session.compiled)), session.compiled, out, feeds)
        for output, mine in zip(theirs, session.run(None, feeds), strict=True):
            np.testing.assert_array_equal(mine, expected.values[output])
            turned += int((mine != theirs[output]).sum())
        whole += all(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in opened.part.host)
    assert whole >= 3
    assert (turned > 0) == (machine.rounding == "fixed_point")


def test_floats_are_refused_where_there_are_none() -> None:
    with pytest.raises(UnsupportedError, match=naming("machine ethos-u65-512", "float16", "int8")):
        make_case(small_model("dense_block"), load_machine("ethos-u65-512"), DataType.float16)


def test_a_product_of_two_tensors_needs_l0b() -> None:
    with pytest.raises(UnsupportedError, match=naming("L0B", "machine edge-without-l0a-l0b")):
        make_case(build_network("vit_b16-small"), LACKING[1], DataType.float16)


def test_a_narrow_port_is_paid_for() -> None:
    """A machine whose matrix unit reads L1 at a byte per cycle takes at least as many cycles as it reads bytes."""
    raw = LACKING[2].model_dump(mode="json")
    for path in raw["paths"]:
        if path["engine"] == "CUBE":
            path["bytes_per_cycle"] = 1
    cycles = []
    for machine in (LACKING[2], Machine.model_validate(raw)):
        case = make_case(random_model(1), machine, DataType.float16)
        program = Compiler(case.target_graph).compile(default_plan(case.target_graph))
        assert isinstance(program, Program)
        cycles.append(simulate(program, machine, machine.contention["none"]).cycles)
    assert cycles[1] > 2 * cycles[0]


def test_a_machine_that_lacks_a_path_is_refused() -> None:
    raw = LACKING[2].model_dump(mode="json")
    raw["paths"] = [path for path in raw["paths"] if (path["source"], path["destination"]) not in (("L1", "L1"), ("L1", "L0C"))]
    why = "path L1 -> L0C is missing, needed of CUBE; path L1 -> L1 is missing, needed of MTE1 or MTE3 or VECTOR"
    with pytest.raises(UnsupportedError, match=why):
        make_case(random_model(1), Machine.model_validate(raw), DataType.float16)


def test_level_granting_less_l1_has_a_smaller_region() -> None:
    """Of what a level leaves, a quarter plays the role of UB, and no program touches more than is granted."""
    machine = without(load_machine("edge-shared"), "UB", "L0A", "L0B")
    case = make_case(random_model(4), machine, DataType.float16)
    for level in machine.contention:
        target_graph = at_level(case.target_graph, level)
        program = Compiler(target_graph).compile(default_plan(target_graph))
        assert isinstance(program, Program)
        assert 0 < program.needs.l1_bytes <= machine.granted(level).l1_bytes
        check_program(Case(case.model, target_graph, case.constants, case.feeds, case.expected), program)
