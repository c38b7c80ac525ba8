"""A real network from plan to file and back: a fresh process has nothing but the file."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiler.frontend.partition.partition import whole_model
from compiler.package import write_onnx
from compiler.pipeline import Compiler
from compiler.space.initial import layer_by_layer
from simulator.npu import isa
from simulator.npu.container import Container, ContainerError, Variant
from simulator.npu.container_file import decode, encode
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.npu.program import Program
from simulator.session import InferenceSession
from simulator.timing import prepare, simulate
from tests.compiled import TOLERANCE, Case, make_case
from tests.models import light_model

FRESH = """
import json, sys
import numpy as np
from simulator.npu.container import program
from simulator.session import InferenceSession
from simulator.timing import prepare, simulate

session = InferenceSession(sys.argv[1])
box = session.container
cycles = {}
for level in session.levels:
    prepared = prepare(program(box, level), box.machine)
    cycles[level] = {v.level: simulate(prepared, box.machine, box.machine.contention[v.level]).cycles for v in box.variants}
outputs = session.run(None, dict(np.load(sys.argv[2])), level="severe")
np.savez(sys.argv[3], *outputs)
assert "compiler" not in sys.modules and "onnx" not in sys.modules and "onnxruntime" not in sys.modules
print(json.dumps(cycles))
"""


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case(light_model("squeezenet"), load_machine("edge"), DataType.float16)


@pytest.fixture(scope="module")
def container(case) -> Container:
    program = Compiler(case.target_graph).compile(layer_by_layer(case.target_graph))
    assert isinstance(program, Program)
    machine = case.target_graph.machine
    prepared = prepare(program, machine)
    cycles = {level: simulate(prepared, machine, machine.contention[level]).cycles for level in machine.contention}
    variants = tuple(Variant(level, program.streams, "", cycles) for level in machine.contention)
    return Container(case.target_graph.graph.digest, machine, case.target_graph.memory, variants, case.constants)


def test_fresh_process_reproduces_cycles_and_values_from_file(case, container, tmp_path):
    path = tmp_path / "out.onnx"
    write_onnx(whole_model(case.model), [encode(container)], path)
    np.savez(tmp_path / "x.npz", **case.feeds)
    here = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(path), str(tmp_path / "x.npz"), str(tmp_path / "y.npz")],
        cwd=here, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = {variant.level: dict(variant.cycles) for variant in container.variants}
    assert json.loads(done.stdout) == expected
    (reference,) = case.expected.values()
    with np.load(tmp_path / "y.npz") as outputs:
        error = np.abs(outputs["arr_0"] - reference).max() / np.abs(reference).max()
    assert error <= TOLERANCE[DataType.float16]


def test_changed_instruction_changes_a_value_or_is_refused(case, container):
    streams = container.variants[0].streams
    (before,) = InferenceSession(encode(container)).run(None, case.feeds)
    rng = np.random.default_rng(0)
    for op, word, change in [(Op.MMAD, isa.M_ACC, 1), (Op.MMAD, isa.S1, 16), (Op.FIXPIPE, isa.F_ACT, 1), (Op.SET, isa.FLAG_ID, 1)]:
        seen = []
        for at in rng.choice(np.flatnonzero(streams[0][:, isa.OP] == op), 4, replace=False):
            code = streams[0].copy()
            code[at, word] = code[at, word] ^ 1 if change == 1 else code[at, word] + change
            changed = tuple(replace(v, streams=(code, *streams[1:])) for v in container.variants)
            try:
                data = encode(replace(container, variants=changed))
            except ContainerError:
                seen.append(True)
            else:
                (after,) = InferenceSession(data).run(None, case.feeds)
                seen.append(not np.array_equal(before, after, equal_nan=True))
            if seen[-1]:
                break
        assert any(seen), f"{op.name}: a ReLU more or less of a few pixels may show nowhere, but not four times"


def test_a_plan_gives_the_same_bytes_every_time(case, container):
    again = Compiler(case.target_graph).compile(layer_by_layer(case.target_graph))
    assert isinstance(again, Program)
    variants = tuple(replace(v, streams=again.streams) for v in container.variants)
    assert encode(replace(container, variants=variants)) == encode(container)
    assert encode(decode(encode(container))) == encode(container)
