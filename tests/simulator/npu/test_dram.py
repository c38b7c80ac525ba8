"""What timings leave of the pins: derived on paper for one part, and within what parts of its kind deliver for all of them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from scripts.compare_dram import compare
from simulator.npu.cycles import bank_wait_cycles
from simulator.npu.dram import DRAMS
from simulator.npu.machine_file import load_machine

ROWS = compare()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['dram']}-{row['stream']}")
def test_a_stream_gets_what_such_a_part_delivers(row: dict[str, float]) -> None:
    assert row["least"] <= row["percent"] <= row["most"]


def test_every_part_and_stream_has_a_row() -> None:
    assert len(ROWS) == 3 * len(DRAMS)
    assert {row["dram"] for row in ROWS} == set(DRAMS)


def test_fuller_queues_open_more_rows() -> None:
    for row in ROWS:
        if row["full_queues"] is not None:
            assert row["percent"] < row["full_queues"] <= 100


def test_a_part_worked_out_on_paper() -> None:
    lpddr5 = DRAMS["lpddr5"]
    assert lpddr5.delivered == Fraction(3906 - 210, 3906)
    # 6 requests on 16 banks of 60 ns: 60 * 21 / 96; rows no sooner than 5 ns, and four in 20 ns
    assert lpddr5.activate_ns() == Fraction(1260, 96)
    assert lpddr5.activate_ns(10**6) == 5
    # 1,024 bytes each way are 160 ns, both turn-arounds 42
    assert lpddr5.turned == Fraction(160, 202)
    # half of 60 ns with one chance in 16; a cycle is a ns
    assert lpddr5.bank_wait_ns == Fraction(60, 32)
    assert bank_wait_cycles(load_machine("edge")) == 2
    assert bank_wait_cycles(load_machine("ascend310")) == 0


def test_other_clocks_change_cycles_and_not_delivered_bytes() -> None:
    fast = load_machine("edge:clock_hz=2000000000")
    assert bank_wait_cycles(fast) == 4
    assert fast.ddr.deliverable == load_machine("edge").ddr.deliverable == 64 * DRAMS["lpddr5"].delivered
