"""Streams of levels: each fits the SRAM that is granted and gives the same integers, and all share constants."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from compiler.ethosu.driver_file import write_level_tflite, write_raw
from compiler.ethosu.level_streams import GROWTH, LevelStreams, compiled_cycles, granted_sram, select_streams
from compiler.ethosu.segments import StreamPlan, StreamSegment, single_operators
from compiler.frontend.tflite.network import read_network
from simulator.ethosu.executor import execute
from simulator.ethosu.memory_regions import Region
from simulator.ethosu.raw_streams import read_raw_file
from simulator.npu.errors import InfeasibleError, UnsupportedError
from simulator.npu.level import Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from tests.compiler.ethosu.models import Model, model

LEVELS = {
    "none": Level(share=1), "slight": Level(share=0.5, latency_cycles=30), "severe": Level(share=0.25, latency_cycles=90),
    "small": Level(share=0.5, l1_bytes=16 << 10),
}  # fmt: skip
MODELS = ("keyword_spotting", "table_activations")


def machine_of(levels: dict[str, Level]) -> Machine:
    return load_machine("ethos-u65-256").model_copy(update={"contention": levels})


def streams_of(name: str, machine: Machine) -> LevelStreams:
    network = read_network(model(name).data)
    count = len(network.operators)
    plans = [single_operators(count), *(StreamPlan((StreamSegment(0, count, stripes),)) for stripes in (1, 2, 4))]
    return select_streams([(network, plan) for plan in plans], machine)


@cache
def streams_of_all(name: str) -> LevelStreams:
    """Those of `LEVELS`."""
    return streams_of(name, machine_of(LEVELS))


@pytest.fixture(params=MODELS)
def made(request: pytest.FixtureRequest) -> tuple[Model, Machine, LevelStreams]:
    return model(request.param), machine_of(LEVELS), streams_of_all(request.param)


def test_every_level_gives_the_same_integers(made):
    source, machine, streams = made
    file = read_raw_file(write_raw(streams))
    assert {row.name: (row.variant, row.cycles) for row in file.levels} == {
        level: (variant, streams.cycles[level]) for level, variant in streams.levels.items()
    }
    for level in LEVELS:
        dram = np.full(file.streams(level)[0].arena, 0x55, np.uint8)
        for port, value in zip(file.streams(level)[0].inputs, source.inputs, strict=True):
            dram[port.offset : port.offset + port.size] = np.frombuffer(value.tobytes(), np.uint8)
        for stream, constants in zip(file.streams(level), file.constants, strict=True):
            assert stream.fast <= granted_sram(machine, LEVELS[level])
            fast = Region(np.full(stream.fast, 0xAA, np.uint8), "sram", 0)
            execute(stream.words, {0: Region(constants, "dram", 1, False), 1: Region(dram, "dram", 1), 2: fast})
        ports = {tensor: port for stream in file.streams(level) for tensor, port in enumerate(stream.outputs)}
        expected = source.outputs[-1]
        port = ports[len(file.streams(level)[0].outputs) - 1]
        np.testing.assert_array_equal(dram[port.offset : port.offset + port.size].view(np.int8), expected.ravel())


def test_a_file_of_levels_is_no_model(made):
    with pytest.raises(UnsupportedError, match="a custom operator 'ethos-u': expected a file that no compiler has written"):
        read_network(write_level_tflite(made[2]))


def test_variants_share_constants(made):
    _, _, streams = made
    assert len(streams.variants) > 1
    assert streams.levels["small"] != streams.levels["none"]
    for compiled in streams.variants:
        for part, shared in zip(compiled.parts, streams.variants[0].parts, strict=True):
            assert part.stream.constants.tobytes() == shared.stream.constants.tobytes()


def test_constants_of_all_are_those_of_one(made):
    """Those that are chosen by themselves, against all."""
    _, machine, streams = made
    base = "small"
    one = select_one(made, base)
    together, alone = (sum(len(part.stream.constants) for part in item.variants[0].parts) for item in (streams, one))
    assert together <= GROWTH * alone
    if len(streams.variants) == 1:
        assert len(write_raw(streams)) <= GROWTH * len(write_raw(one))
    cycles = compiled_cycles(one.variants[0], machine, LEVELS[base])
    assert streams.cycles[base] == pytest.approx(cycles, rel=0.01)  # copies are early by the times of one level


def select_one(made: tuple[Model, Machine, LevelStreams], level: str) -> LevelStreams:
    return streams_of(made[0].name, machine_of({level: LEVELS[level]}))


def test_no_room_is_told():
    network = read_network(model("keyword_spotting").data)
    plan = StreamPlan((StreamSegment(0, len(network.operators), 4),))
    with pytest.raises(InfeasibleError, match=r"8 bytes of SRAM are granted|bytes of SRAM, 8 are there"):
        select_streams([(network, plan)], machine_of({"none": Level(share=1, l1_bytes=8)}))
