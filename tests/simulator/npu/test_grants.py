"""What levels grant of memory and cores: read, bounded, without effect on machines whose levels grant all; and what a program needs."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.npu.errors import BadInputError
from simulator.npu.grant import Grant, combined_needs
from simulator.npu.level import Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Memory
from tests.programs import copy, program

EDGE = load_machine("edge")
L1 = EDGE.buffers_bytes.L1


def test_level_grants_all_that_it_does_not_name() -> None:
    assert all(EDGE.granted(level) == EDGE.full_grant == Grant(L1, 0, EDGE.cores) for level in EDGE.contention)
    four = load_machine("edge:cores=4,contention.severe.l1_bytes=524288")
    assert four.granted("severe") == Grant(524288, 0, 4)
    assert four.granted("none") == four.full_grant


def test_levels_that_grant_all_are_written_as_ever() -> None:
    assert Level(share=0.5).model_dump() == {"share": 0.5, "latency_cycles": 0}
    assert EDGE.digest == Machine.model_validate(EDGE.model_dump(mode="json")).digest
    assert load_machine("edge:contention.severe.l1_bytes=524288").digest != EDGE.digest


def test_a_changed_copy_has_its_own() -> None:
    assert EDGE.full_grant.cores == 1
    assert EDGE.model_copy(update={"cores": 4}).full_grant == EDGE.model_copy(update={"cores": 4}).granted("severe") == Grant(L1, 0, 4)


def test_a_level_says_what_it_grants() -> None:
    assert str(Level(share=0.25, latency_cycles=90, l1_bytes=64, cores=2)) == "0.25 +90 L1=64 cores=2"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (f"contention.severe.l1_bytes={2 * L1}", rf"contention.severe.l1_bytes: {2 * L1}; accepted: multiples of 32 up to {L1}"),
        ("contention.severe.l1_bytes=1000", r"contention.severe.l1_bytes: 1000; accepted: multiples of 32"),
        ("contention.severe.l1_bytes=0", r"contention.severe.l1_bytes: .*greater than or equal to 1"),
        ("contention.severe.cores=0", r"contention.severe.cores: .*greater than or equal to 1"),
        ("contention.severe.cores=2", r"contention.severe.cores: 2; accepted: up to 1, what the machine has"),
        ("contention.severe.shared_bytes=64", r"contention.severe.shared_bytes: 64; accepted: none: there is no such memory"),
        ("contention.severe.memory=64", r"contention.severe.memory"),
        ("contention.severe.l2_bytes=65536", r"contention.severe.l2_bytes: 65536; accepted: none: there is no such memory"),
    ],
)
def test_a_grant_that_there_cannot_be_is_refused(changes: str, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        load_machine(f"edge:{changes}")


@pytest.mark.parametrize("size", [1, 256, 512, 32256, 32769, 201326592 + 512])
def test_refused_part_of_an_l2_names_accepted_ones(size: int) -> None:
    said = rf"contention.severe.l2_bytes: {size}; accepted: multiples of 512 from 32768 up to 201326592, what the machine has"
    with pytest.raises(BadInputError, match=said):
        load_machine(f"ascend910b:contention.severe.l2_bytes={size}")
    assert load_machine("ascend910b:contention.severe.l2_bytes=32768").l2_bytes_at(1) == 32768


def test_program_needs_its_last_block_and_its_cores() -> None:
    tiny = load_machine("tiny")
    moves = [copy(tiny, Memory.DDR, Memory.L1, 4, at=64, to=100), copy(tiny, Memory.L1, Memory.UB, 2, at=10, to=0)]
    assert program(tiny, moves, []).needs == Grant(104 * 32, 0, 1)
    assert program(tiny, [], moves[1:]).needs == Grant(12 * 32, 0, 2)
    assert program(tiny, [], []).needs == Grant(0, 0, 1)


def test_what_fits_lacks_nothing() -> None:
    needs, granted = Grant(100, 10, 2), Grant(64, 10, 1)
    assert needs.fits(needs)
    assert needs.shortage(needs) == ""
    assert not needs.fits(granted)
    assert needs.shortage(granted) == "needs 100 B of L1, granted are 64, needs 2 cores, granted are 1"
    assert combined_needs((Grant(1, 2, 3), Grant(3, 0, 1))) == Grant(3, 2, 3)
    rng = np.random.default_rng(0)
    for _ in range(100):
        a, b = (Grant(*map(int, rng.integers(1, 4, 3))) for _ in range(2))
        assert a.fits(b) == (a.shortage(b) == "")
        assert a.fits(combined_needs((a, b)))
