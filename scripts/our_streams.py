"""Command streams of ours for a .tflite file, run on the executor, with bytes of DRAM held against the plan's.

`tilefarm` has the streams of the level with the least of the DRAM, by predicted plans, `single` every operator by itself.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.autoplan import quick_plans
from compiler.ethosu.level_streams import compile_levels
from compiler.ethosu.network_parts import CompiledNetwork, compile_network
from compiler.ethosu.plan_mapping import names_of_nodes
from compiler.ethosu.segments import single_operators
from compiler.ethosu.store_places import ARENA, CONSTANTS, FAST
from compiler.frontend.partition.partition import AllOnHostError
from compiler.frontend.tflite.network import read_network
from compiler.frontend.tflite.to_onnx import to_onnx
from compiler.model import ModelSpec, lower_model
from simulator.ethosu.byte_counts import ByteCount, Channel
from simulator.ethosu.executor import Execution, execute
from simulator.ethosu.memory_regions import Region
from simulator.ethosu.stream_error import StreamError
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine

MACHINE = "ethos-u65-256"
PLANS = ("tilefarm", "single")


class OurStream(NamedTuple):
    """A compiled network; operators that are left to the processor have no outputs."""

    compiled: CompiledNetwork

    @property
    def planned(self) -> dict[str, int]:
        """Bytes of DRAM by channel, as the plan has them."""
        return dict(sum((Counter(part.stream.planned._asdict()) for part in self.compiled.parts), Counter()))

    def run(self, values: list[NDArray[np.generic]]) -> tuple[list[NDArray[np.generic] | None], Execution]:
        """Outputs for inputs, None of what the processor makes.  Raises `StreamError` where bytes are not the plan's."""
        compiled, network = self.compiled, self.compiled.network
        arena = np.full(compiled.arena, 0x55, np.uint8)
        for number, value in zip(network.inputs, values, strict=True):
            octets = np.frombuffer(np.ascontiguousarray(value, np.int8).tobytes(), np.uint8)
            arena[compiled.borders[number] : compiled.borders[number] + len(octets)] = octets
        executions = []
        for part in compiled.parts:
            fast = np.full(part.stream.fast, 0xAA, np.uint8)
            regions = {
                CONSTANTS: Region(part.stream.constants, "dram", 1, False), ARENA: Region(arena, "dram", 1), FAST: Region(fast, "sram", 0),
            }  # fmt: skip
            executions.append(execute(part.stream.words, regions, CONSTANTS))
        execution = _joined(executions)
        moved = {channel.channel: count.bytes for channel, count in execution.bytes.items() if channel.memory == "dram"}
        if moved != self.planned:
            raise StreamError(f"bytes of DRAM {moved}: the plan has {self.planned}")
        produced = {number for part in compiled.parts for number in part.network.outputs}
        return [_output(compiled, arena, number) if number in produced else None for number in network.outputs], execution


def compile_ours(model: bytes, plans: str) -> OurStream:
    """The streams of a file by one of `PLANS`."""
    network, machine = read_network(model), load_machine(MACHINE)
    if plans == "single":
        return OurStream(compile_network(network, single_operators(len(network.operators)), machine.buffers_bytes.L1))
    return compile_level_streams(model, machine)[min(machine.contention, key=lambda level: machine.contention[level].share)]


def compile_level_streams(model: bytes, machine: Machine) -> dict[str, OurStream]:
    """The streams of each level by predicted plans; every operator by itself where there is none to plan."""
    network = read_network(model)
    try:
        opened = lower_model(ModelSpec.named(Path("model"), machine, "float16", {}, None), to_onnx(network), "model")
    except (AllOnHostError, UnsupportedError):
        single = OurStream(compile_network(network, single_operators(len(network.operators)), machine.buffers_bytes.L1))
        return dict.fromkeys(machine.contention, single)
    results = {spec.name: spec.operator.y for graph in opened.target_graphs for spec in graph.operators}
    streams = compile_levels(network, names_of_nodes(results), quick_plans(opened), machine)
    return {level: OurStream(streams.variants[variant]) for level, variant in streams.levels.items()}


def _output(compiled: CompiledNetwork, arena: NDArray[np.uint8], number: int) -> NDArray[np.generic]:
    tensor, first = compiled.network.tensors[number], compiled.borders[number]
    return arena[first : first + tensor.nbytes].view(np.int8).reshape(tensor.shape)


def _joined(executions: list[Execution]) -> Execution:
    counts, operations = dict[Channel, ByteCount](), Counter[str]()
    for execution in executions:
        operations.update(execution.operations)
        for channel, count in execution.bytes.items():
            before = counts.get(channel, ByteCount(0, 0))
            counts[channel] = ByteCount(before.bytes + count.bytes, before.once + count.once)
    return Execution(dict(sorted(counts.items())), dict(sorted(operations.items())), sum(execution.macs for execution in executions))
