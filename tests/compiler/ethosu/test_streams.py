"""Streams of drawn networks and plans give the integers of plain arithmetic, and move the bytes that the plan says."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compiler.ethosu.level_streams import with_early_copies
from compiler.ethosu.machine_clock import memories_of
from compiler.ethosu.network_parts import compile_network, emit_network, lay_out_parts, lower_parts
from compiler.ethosu.segments import StreamPlan, StreamSegment, single_operators
from compiler.ethosu.store_places import ARENA, CONSTANTS, FAST
from compiler.frontend.tflite.network import TfliteNetwork
from scripts.our_streams import OurStream
from simulator.ethosu.driver_rules import DriverJob, check_alignment, check_job, driver_region_sizes
from simulator.ethosu.executor import execute
from simulator.ethosu.memory_regions import Region
from simulator.ethosu.stream_cycles import decode_stream, stream_times
from simulator.ethosu.stream_error import StreamError
from simulator.npu.errors import InfeasibleError
from simulator.npu.machine_file import load_machine
from tests.compiler.ethosu.drawn_networks import KINDS, Builder, networks, plans

SRAM = 384 << 10


def assert_right(builder: Builder, network: TfliteNetwork, plan: StreamPlan, sram: int = SRAM) -> OurStream:
    """Every output of a network; bytes of DRAM are compared in `run`."""
    return assert_gives(builder, OurStream(compile_network(network, plan, sram)), sram)


def assert_gives(builder: Builder, stream: OurStream, sram: int) -> OurStream:
    """What `assert_right` says of a stream."""
    network = stream.compiled.network
    for part in stream.compiled.parts:
        check_alignment(part.stream.words)
        sizes = driver_region_sizes(part.stream.words)
        upscaled = any(operator.kind == "RESIZE_NEAREST_NEIGHBOR" for operator in network.operators)
        if not upscaled or sizes.get(FAST, 0) <= sram:  # the driver takes such an input for four times as large
            objects = {CONSTANTS: len(part.stream.constants), ARENA: stream.compiled.arena}
            used = {region: size for region, size in objects.items() if region in sizes}
            check_job(part.stream.words, DriverJob(used, part.stream.fast, sram))
    outputs, _ = stream.run([builder.values[number][None] for number in network.inputs])
    for number, output in zip(network.outputs, outputs, strict=True):
        np.testing.assert_array_equal(output[0], builder.values[number])
    return stream


@settings(max_examples=70, deadline=None)
@given(st.data())
def test_any_plan_gives_the_same_integers(data):
    builder = data.draw(networks())
    network = builder.network()
    assert_right(builder, network, data.draw(plans(network)))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_little_memory_gives_the_same_integers(data):
    """Rings, weights in runs of channels, weights and inputs that are read in DRAM."""
    builder = data.draw(networks())
    network = builder.network()
    plan = data.draw(plans(network))
    sram = data.draw(st.integers(1 << 10, 1 << 14))
    try:
        stream = assert_right(builder, network, plan, sram)
    except InfeasibleError:
        assume(False)
    assert stream.compiled.fast <= sram


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_early_copies_give_the_same_integers(data):
    """And move the same bytes but for words.  Weights are in short runs of channels."""
    builder = data.draw(networks())
    network, sram = builder.network(), data.draw(st.sampled_from([SRAM, 1 << 15, 1 << 13]))
    try:
        with patch("compiler.ethosu.segment_layout.RUN_BYTES", data.draw(st.sampled_from([64, 1024]))):
            laid_out = lay_out_parts(lower_parts(network), data.draw(plans(network)), sram, {}, {})
    except InfeasibleError:
        assume(False)
    plain = OurStream(emit_network(laid_out))
    early = with_early_copies(laid_out, [decode_stream(part.stream.words) for part in plain.compiled.parts], load_machine("ethos-u65-256"))
    stream = assert_gives(builder, OurStream(emit_network(early)), sram)
    assert moved(stream) == moved(plain)
    assert stream.compiled.fast <= sram


def test_weights_are_copied_while_blocks_are_computed():
    """Three operations of many products, then one of many weights, whose copy is hidden."""
    builder, machine = Builder(0), load_machine("ethos-u65-256")
    x = builder.input(16, 16, 64)
    for stride in (1, 1, 2, 2):
        x = builder.conv(x, 64 * stride, (3, 3), stride, 1, True, False, True)
    laid_out = lay_out_parts(lower_parts(builder.network()), StreamPlan((StreamSegment(0, 4),)), SRAM, {}, {})
    plain = [decode_stream(part.stream.words) for part in emit_network(laid_out).parts]
    memories = memories_of(machine, machine.contention["severe"])
    early = emit_network(with_early_copies(laid_out, plain, machine)).parts[0].stream
    before, after = stream_times(plain[0], memories), stream_times(early.words, memories)
    last = [times.operations[-1] for times in (before, after)]
    assert last[0].dram > 5 * last[1].dram
    assert before.cycles - after.cycles > last[0].dram / 2


def chain() -> Builder:
    """Three convolutions on 24x16."""
    builder = Builder(0)
    x = builder.input(24, 16, 8)
    for _ in range(3):
        x = builder.conv(x, 16, (3, 3), 1, 1, True, False, True)
    return builder


def moved(stream: OurStream) -> int:
    """Bytes of DRAM without the words."""
    return sum(stream.planned.values()) - stream.planned["commands"]


def test_a_cascade_moves_only_its_ends_and_weights():
    builder = chain()
    network = builder.network()
    together = {stripes: assert_right(builder, network, StreamPlan((StreamSegment(0, 3, stripes),))) for stripes in (1, 4, 24)}
    ends = 24 * 16 * (8 + 16)
    for stream in together.values():
        assert moved(stream) == ends + len(stream.compiled.parts[0].stream.constants)
    fast = [together[stripes].compiled.fast for stripes in (1, 4, 24)]
    assert fast[0] > fast[1] > fast[2]


def test_room_of_sram_is_used():
    """Two tensors are written and read in DRAM, or one, or none, where they are in SRAM or their segments are one."""
    builder = chain()
    network, tensor = builder.network(), 24 * 16 * 16
    ends = 24 * 16 * (8 + 16)
    for sram, in_dram in ((64 << 10, 0), (10 << 10, 1), (6_000, 2)):
        stream = assert_right(builder, network, single_operators(3), sram)
        assert moved(stream) == ends + len(stream.compiled.parts[0].stream.constants) + 2 * in_dram * tensor


def test_a_ring_has_the_rows_that_are_needed():
    """In front of a 3x3 convolution, in stripes of a pair of rows: two for each of its four, but for one; of the input too."""
    builder = chain()
    stream = assert_right(builder, builder.network(), StreamPlan((StreamSegment(0, 3, 24),)))
    (layout,) = stream.compiled.parts[0].stream.layouts
    assert sorted(layout.ring_rows.values()) == [5, 5, 5]


def test_a_held_tensor_stays_in_sram():
    """Though the plan could do with less of SRAM; one that does not fit is refused."""
    builder = chain()
    network = builder.network()
    middle = frozenset({network.operators[0].outputs[0]})
    stream = assert_right(builder, network, StreamPlan(single_operators(3).segments, middle), 18 << 10)
    assert stream.compiled.fast >= 24 * 16 * 16
    with pytest.raises(InfeasibleError, match="held tensors: 6,144 bytes of SRAM, 6,000 are there: expected fewer"):
        compile_network(network, StreamPlan(single_operators(3).segments, middle), 6_000)


def test_drawn_networks_have_every_kind():
    kinds = set[str]()

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(networks())
    def collect(builder):
        kinds.update(operator.kind for operator in builder.network().operators)

    collect()
    assert kinds == set(KINDS)


def test_bytes_beside_the_plan_are_refused():
    """A stream whose plan forgot a copy."""
    builder = chain()
    compiled = compile_network(builder.network(), single_operators(3), SRAM)
    (part,) = compiled.parts
    planned = part.stream.planned._replace(copies_read=part.stream.planned.copies_read - 16)
    wrong = replace(compiled, parts=(replace(part, stream=part.stream._replace(planned=planned)),))
    with pytest.raises(StreamError, match=r"bytes of DRAM .* the plan has"):
        OurStream(wrong).run([builder.values[number][None] for number in compiled.network.inputs])


def test_rows_that_nobody_reads_have_room():
    """A pooling that leaves out rows, behind one that makes several at once."""
    builder = Builder(0)
    x = builder.pool(builder.input(14, 5, 1), (2, 3), 3, False, False)
    builder.pool(x, (1, 1), 3, False, False)
    assert_right(builder, builder.network(), StreamPlan((StreamSegment(0, 2, 2),)))


def test_streams_meet_at_an_operator_of_the_processor():
    """Two streams with an operator between that only the processor has, which here copies its input."""
    builder = Builder(1)
    x = builder.conv(builder.input(6, 5, 8), 16, (3, 3), 1, 1, True, False, True)
    y = builder.result((6, 5, 16), "COPY", [x], lambda _: builder.values[x], x)
    z = builder.conv(y, 8, (1, 1), 1, 1, True, False, False)
    network = builder.network()
    compiled = compile_network(network, StreamPlan((StreamSegment(0, 3, 2),)), SRAM)
    assert [(part.first, part.last) for part in compiled.parts] == [(0, 1), (2, 3)]
    assert list(compiled.on_processor) == [1]
    arena = np.zeros(compiled.arena, np.uint8)

    def place(number: int) -> np.ndarray:
        first = compiled.borders[number]
        return arena[first : first + network.tensors[number].nbytes].view(np.int8)

    for number in network.inputs:
        place(number)[:] = builder.values[number].ravel()
    for part in compiled.parts:
        regions = {CONSTANTS: Region(part.stream.constants, "dram", 1, False), ARENA: Region(arena, "dram", 1)}
        execute(part.stream.words, regions | {FAST: Region(np.zeros(part.stream.fast, np.uint8), "sram", 0)})
        if part is compiled.parts[0]:
            place(y)[:] = place(x)
    np.testing.assert_array_equal(place(z), builder.values[z].ravel())
