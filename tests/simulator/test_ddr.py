"""Sharing of the DDR port: every expected rate is worked out on paper."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.ddr import ContentionTrace, lone_rates, shared_rates
from simulator.npu.cycles import cap_units, port_units, turned_units
from simulator.npu.errors import BadInputError
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Engine
from tests.ddr_rates import with_rates
from tests.simulator.reference_timing import water_fill

TINY = load_machine("tiny")  # port 32, read cap 32, write cap 16 bytes per cycle


def in_bytes(rates: object) -> list[float]:
    return [float(x) / SHARE_UNIT for x in rates]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("reads", "writes", "share", "expected"),
    [
        (1, 0, 65536, 32),  # alone, the cap
        (2, 0, 65536, 16),  # halves
        (1, 0, 32768, 16),  # half the port
        (1, 1, 65536, 16),  # cap 16 of the write does not bind: it has 16 anyway
        (2, 2, 65536, 8),
        (2, 1, 16384, 8 / 3),
    ],
)
def test_reader_rate(reads: int, writes: int, share: int, expected: float) -> None:
    assert shared_rates(TINY, share, 2)[reads, writes, 0] == int(expected * SHARE_UNIT)


def with_caps(read: int, write: int, port: int) -> Machine:
    return with_rates(TINY, read, write, bytes_per_cycle=port)


def test_leftover_of_a_capped_writer_goes_to_readers() -> None:
    # port 32, write cap 8: fair thirds would be 10.67; the writer takes 8, two readers 12 each
    assert in_bytes(shared_rates(with_caps(32, 8, 32), SHARE_UNIT, 2)[2, 1]) == [12, 8]


def test_leftover_of_a_capped_reader_goes_to_writer() -> None:
    # port 32, read cap 4: the reader takes 4, two writers 14 each
    assert in_bytes(shared_rates(with_caps(4, 32, 32), SHARE_UNIT, 2)[1, 2]) == [4, 14]


def test_everybody_at_the_cap_leaves_bandwidth_unused() -> None:
    assert in_bytes(shared_rates(with_caps(4, 3, 32), SHARE_UNIT, 2)[2, 2]) == [4, 3]


@pytest.mark.parametrize("share", [1, 7, 9001, 40_000, SHARE_UNIT])
@pytest.mark.parametrize("caps", [(32, 16), (5, 32), (3, 2), (32, 32)])
def test_the_table_is_water_filling_transfer_by_transfer(caps: tuple[int, int], share: int) -> None:
    machine = with_caps(*caps, 32)
    rates = shared_rates(machine, share, 5)
    for reads in range(6):
        for writes in range(6):
            filled = water_fill([caps[0] * SHARE_UNIT] * reads + [caps[1] * SHARE_UNIT] * writes, 32 * share)
            assert filled == [rates[reads, writes, 0]] * reads + [rates[reads, writes, 1]] * writes


def test_bus_turns_between_active_reads_and_writes() -> None:
    edge = load_machine("edge")
    one, both = port_units(edge, SHARE_UNIT // 2), turned_units(edge, SHARE_UNIT // 2)
    assert 0 <= both - one * 160 / 202 < 1
    rates = shared_rates(edge, SHARE_UNIT // 2, 3)
    assert rates[2, 0].tolist() == rates[0, 2].tolist() == [one // 2, one // 2]
    assert rates[1, 1].tolist() == [both // 2, both // 2]
    assert rates[3, 1].tolist() == [both // 4, both // 4]
    assert lone_rates(edge, SHARE_UNIT // 2, 3)[1, 1].tolist() == [one, one]
    assert lone_rates(edge, SHARE_UNIT // 2, 3, divisor=4)[1, 0].tolist() == [both // 4, both // 4]


@pytest.mark.parametrize("text", ["tiny", "edge", "edge:ddr.dram=hbm2,paths.DDR->*.bytes_per_cycle=13.7", "ascend310p"])
@pytest.mark.parametrize("share", [1, 700, 30_000, SHARE_UNIT])
def test_rates_never_fall_with_fewer_or_larger_shares(text: str, share: int) -> None:
    machine, n = load_machine(text), 4
    rates, more = shared_rates(machine, share, n), shared_rates(machine, min(SHARE_UNIT, share * 2), n)
    assert (more[1:, :, 0] >= rates[1:, :, 0]).all()
    assert (more[:, 1:, 1] >= rates[:, 1:, 1]).all()
    # of those that are active: [reads, writes, 0] with a read, [reads, writes, 1] with a write
    for k, mine in enumerate((rates[1:, :, 0], rates[:, 1:, 1])):
        assert (np.diff(mine, axis=0) <= 0).all(), k
        assert (np.diff(mine, axis=1) <= 0).all(), k
    counts = np.indices(rates.shape[:2])
    queues = np.maximum(1, counts.sum(0))
    least = np.maximum(1, turned_units(machine, share) // queues)
    for k, engine in enumerate((Engine.MTE2, Engine.MTE3)):
        active = counts[k] > 0
        assert (rates[..., k] >= np.minimum(least, cap_units(machine, engine)))[active].all()
        assert (rates[..., k] <= max(1, min(port_units(machine, share), cap_units(machine, engine))))[active].all()


def test_a_rate_is_never_zero() -> None:
    # one unit of a 32-byte port is 32 units per cycle, for up to 128 transfers
    assert shared_rates(TINY, 1, 64)[64, 64].tolist() == [1, 1]


def test_lone_rates_ignore_who_else_is_active() -> None:
    assert in_bytes(lone_rates(TINY, SHARE_UNIT, 2)[2, 2]) == [32, 16]
    assert in_bytes(lone_rates(TINY, SHARE_UNIT, 2, divisor=4)[0, 0]) == [8, 8]


@pytest.mark.parametrize("share", [0, -1, SHARE_UNIT + 1])
def test_a_share_outside_the_port_is_refused(share: int) -> None:
    with pytest.raises(BadInputError, match=str(share)):
        shared_rates(TINY, share, 1)


@pytest.mark.parametrize(
    ("cycles", "shares"),
    [((), ()), ((5,), (100,)), ((0, 5, 5), (1, 2, 3)), ((0, 9, 5), (1, 2, 3)), ((0,), (0,)), ((0, 1), (3,))],
)
def test_trace_that_is_no_step_function_is_refused(cycles: tuple[int, ...], shares: tuple[int, ...]) -> None:
    with pytest.raises(BadInputError, match="contention trace"):
        ContentionTrace(cycles, shares)


def test_a_trace_seen_from_a_later_start() -> None:
    trace = ContentionTrace.of([(0, 10), (100, 20), (200, 30)])
    assert trace.after(0) == trace
    assert trace.after(150) == ContentionTrace.of([(0, 20), (50, 30)])
    assert trace.after(200) == ContentionTrace.constant(30)
    assert trace.after(999) == ContentionTrace.constant(30)
