"""Files with streams in LiteRT's interpreter: a delegate of C hands each custom operator's payload to the executor."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.ethosu.driver_file import write_level_tflite, write_tflite
from compiler.ethosu.level_streams import select_streams
from compiler.ethosu.network_parts import compile_network
from compiler.ethosu.segments import StreamPlan, StreamSegment, single_operators
from compiler.frontend.tflite.network import read_network
from simulator.ethosu.driver_payload import read_payload
from simulator.ethosu.executor import execute
from simulator.ethosu.memory_regions import Region
from simulator.npu.level import Level
from simulator.npu.machine_file import load_machine
from tests.c_rules import compiler
from tests.compiler.ethosu.models import Model, model, models

SOURCE = Path(__file__).with_name("delegate.c")
EXECUTE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


def view(address: int, size: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class Executor:
    """A function for the delegate.  streams: how many it ran."""

    def __init__(self) -> None:
        self.streams = 0
        self.function = EXECUTE(self.run)
        address = ctypes.cast(self.function, ctypes.c_void_p).value
        assert address is not None
        self.address = address

    def run(self, payload: int, size: int, constants: int, constants_size: int, arena: int, arena_size: int, sram: int) -> int:
        regions = {
            0: Region(view(constants, constants_size).copy(), "dram", 1, False),
            1: Region(view(arena, arena_size), "dram", 1),
            2: Region(np.full(sram, 0xAA, np.uint8), "sram", 0),
        }
        execute(read_payload(ctypes.string_at(payload, size)).words, regions)
        self.streams += 1
        return 0


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes, list[Any]], tuple[list[Any], int]]:
    """Outputs of a file in LiteRT for inputs, and how many streams ran."""
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    library = tmp_path_factory.mktemp("delegate") / "delegate.so"
    subprocess.run([compiler(), "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", SOURCE, "-o", library], check=True)

    def run(data: bytes, values: list[Any], signature: str = "") -> tuple[list[Any], int]:
        executor = Executor()
        delegate = litert.load_delegate(str(library), {"execute": executor.address})
        kernels = litert.OpResolverType.BUILTIN_REF
        interpreter = litert.Interpreter(model_content=data, experimental_delegates=[delegate], experimental_op_resolver_type=kernels)
        interpreter.allocate_tensors()
        if signature:
            runner = interpreter.get_signature_runner(signature)
            names = sorted(runner.get_input_details(), key=lambda name: runner.get_input_details()[name]["index"])
            results = runner(**dict(zip(names, values, strict=True)))
            return [results[name] for name in sorted(results)], executor.streams
        for detail, value in zip(interpreter.get_input_details(), values, strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()], executor.streams

    return run


@pytest.mark.parametrize("source", [model for model in models() if model.name != "SOFTMAX"], ids=lambda model: model.name)
def test_a_file_runs_in_litert(source: Model, run_file):
    """Softmax of the keyword spotting stays with LiteRT's own kernel."""
    network = read_network(source.data)
    compiled = compile_network(network, single_operators(len(network.operators)), 384 << 10)
    outputs, streams = run_file(write_tflite(compiled), source.inputs)
    assert streams == len(compiled.parts)
    for output, expected in zip(outputs, source.outputs, strict=True):
        np.testing.assert_array_equal(output, expected)


def test_each_level_is_a_signature(run_file):
    """Of a model with one input and one output."""
    source, machine = model("table_activations"), load_machine("ethos-u65-256")
    network = read_network(source.data)
    count = len(network.operators)
    levels = {"none": Level(share=1), "severe": Level(share=0.25), "small": Level(share=0.5, l1_bytes=24 << 10)}
    plans = [(network, plan) for plan in (single_operators(count), StreamPlan((StreamSegment(0, count, 2),)))]
    streams = select_streams(plans, machine.model_copy(update={"contention": levels}))
    assert len(streams.variants) > 1
    for level in levels:
        outputs, ran = run_file(write_level_tflite(streams), source.inputs, level)
        assert ran == len(streams.of(level).parts)
        np.testing.assert_array_equal(outputs[0], source.outputs[0])
