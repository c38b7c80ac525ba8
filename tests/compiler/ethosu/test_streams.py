"""Streams of drawn networks and plans give the integers of plain arithmetic, and move the bytes that the plan says."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compiler.ethosu.network_parts import compile_network
from compiler.ethosu.segments import StreamPlan, StreamSegment, single_operators
from compiler.frontend.tflite.network import Network
from scripts.our_streams import OurStream
from simulator.npu.errors import InfeasibleError
from tests.compiler.ethosu.drawn_networks import KINDS, Builder, networks, plans

SRAM = 384 << 10


def assert_right(builder: Builder, network: Network, plan: StreamPlan, sram: int = SRAM) -> OurStream:
    """Every output of a network; bytes of DRAM are compared in `run`."""
    stream = OurStream(compile_network(network, plan, sram))
    outputs, _ = stream.run([builder.values[number][None] for number in network.inputs])
    for number, output in zip(network.outputs, outputs, strict=True):
        np.testing.assert_array_equal(output[0], builder.values[number])
    return stream


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_plan_gives_the_same_integers(data):
    builder = data.draw(networks())
    network = builder.network()
    assert_right(builder, network, data.draw(plans(network)))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_little_memory_gives_the_same_integers(data):
    """Rings, weights in runs of channels, weights and inputs that are read in DRAM."""
    builder = data.draw(networks())
    network = builder.network()
    plan = data.draw(plans(network))
    sram = data.draw(st.integers(1 << 10, 1 << 14))
    try:
        stream = assert_right(builder, network, plan, sram)
    except InfeasibleError as error:
        assert "expected" in str(error)
        assume(False)
    assert stream.compiled.fast <= sram


def chain() -> Builder:
    """Three convolutions on 24x16."""
    builder = Builder(0)
    x = builder.input(24, 16, 8)
    for _ in range(3):
        x = builder.conv(x, 16, (3, 3), 1, 1, True, False, True)
    return builder


def test_a_cascade_moves_only_its_ends_and_weights():
    builder = chain()
    network = builder.network()
    apart = assert_right(builder, network, single_operators(3))
    together = {stripes: assert_right(builder, network, StreamPlan((StreamSegment(0, 3, stripes),))) for stripes in (1, 4, 24)}
    ends = 24 * 16 * (8 + 16)
    for stream in together.values():
        weights = len(stream.compiled.parts[0].stream.constants)
        assert (
            stream.planned["results"] + stream.planned["copies_read"] + stream.planned.get("weights", 0) + stream.planned.get("scales", 0)
            == ends + weights
        )
    assert sum(apart.planned.values()) > sum(together[1].planned.values()) + 2 * 2 * 24 * 16 * 16 - 4 * 400
    fast = [together[stripes].compiled.fast for stripes in (1, 4, 24)]
    assert fast[0] > fast[1] > fast[2]


def test_a_ring_has_the_rows_that_are_needed():
    """In front of a 3x3 convolution, in stripes of a row: three rows, of the input too."""
    builder = chain()
    stream = assert_right(builder, builder.network(), StreamPlan((StreamSegment(0, 3, 24),)))
    (layout,) = stream.compiled.parts[0].stream.layouts
    assert sorted(layout.schedule.ring_rows.values()) == [3, 3, 3]


def test_a_held_tensor_stays_in_sram():
    builder = chain()
    network = builder.network()
    middle = network.operators[0].outputs[0]
    held = assert_right(builder, network, StreamPlan(single_operators(3).segments, frozenset({middle})))
    plain = assert_right(builder, network, single_operators(3))
    assert held.planned["results"] == plain.planned["results"] - 24 * 16 * 16
    assert held.planned["copies_read"] == plain.planned["copies_read"] - 24 * 16 * 16


def test_drawn_networks_have_every_kind():
    kinds = set[str]()

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(networks())
    def collect(builder):
        kinds.update(operator.kind for operator in builder.network().operators)

    collect()
    assert kinds == set(KINDS)


def test_rows_that_nobody_reads_have_room():
    """A pooling that leaves out rows, behind one that makes several at once."""
    builder = Builder(0)
    x = builder.pool(builder.input(14, 5, 1), (2, 3), 3, False, False)
    builder.pool(x, (1, 1), 3, False, False)
    assert_right(builder, builder.network(), StreamPlan((StreamSegment(0, 2, 2),)))
