"""A memory that cores share, in a machine file: what is refused in one line, what a move takes, and the machine without it."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.npu.cycles import cost_tables, price
from simulator.npu.errors import BadInputError, ProgramError
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Engine, Memory
from simulator.npu.program import Program
from simulator.sanitizer import sanitize_program
from simulator.timing import prepare, simulate
from tests.messages import naming
from tests.programs import copy, flag_set, flag_wait, program
from tests.shared_machine import with_shared

TINY = load_machine("tiny")
DDR, L1, UB, SHARED = Memory.DDR, Memory.L1, Memory.UB, Memory.SHARED
L2 = "ascend310-l2"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{L2}:shared.bytes=4096", r"shared\.bytes: Input should be greater than or equal to 32768 \(got 4096\)"),
        (f"{L2}:shared.bytes=32769", r"shared\.bytes: Input should be a multiple of 32"),
        (f"{L2}:shared.bytes_per_cycle=0", r"shared\.bytes_per_cycle: Input should be greater than or equal to 1"),
        (f"{L2}:shared.bytes_per_cycle=1", r"shared\.bytes_per_cycle: 1 for 2 cores; accepted: a byte per cycle for each, or more"),
        (f"{L2}:shared.latency_cycles=-1", r"shared\.latency_cycles: Input should be greater than or equal to 0"),
        (f"{L2}:paths.SHARED->L1.bytes_per_cycle=0", r"paths.*bytes_per_cycle"),
        ("edge:shared.bytes=65536", r"'shared\.bytes=65536'; expected KEY=VALUE with a key of the machine file"),
        ("edge:shared=5", r"shared: .*\(got 5\)"),
    ],
)
def test_bad_values_are_one_line(name: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message) as caught:
        load_machine(name)
    assert "\n" not in str(caught.value)


def test_path_to_an_absent_memory() -> None:
    raw: dict[str, Any] = TINY.model_dump(mode="json")
    raw["paths"].append({"engine": "MTE2", "source": "SHARED", "destination": "L1", "bytes_per_cycle": 32})
    with pytest.raises(ValueError, match=naming("SHARED -> L1")):
        Machine.model_validate(raw)


def test_machine_without_shared_memory_is_unchanged() -> None:
    plain, l2 = load_machine("ascend310"), load_machine(L2)
    bare = load_machine(f"{L2}:shared=null")
    assert bare.paths == plain.paths
    assert bare.model_dump(exclude={"name", "description"}) == plain.model_dump(exclude={"name", "description"})
    assert l2.buffer_blocks(SHARED) == 1 << 18
    assert bare.buffer_blocks(SHARED) == 0
    assert "shared" not in bare.model_dump()
    assert Machine.model_validate_json(l2.model_dump_json()).digest == l2.digest


def test_move_takes_start_up_latency_and_port_share() -> None:
    """128 bytes per cycle of the path; of a port of 64 two cores have 32 each."""
    wide, narrow = with_shared(TINY, cores=2), with_shared(TINY, bytes_per_cycle=64, cores=2)
    for machine, rate in ((wide, 128), (narrow, 32)):
        assert cost_tables(machine).rate[SHARED, L1] == rate
        moves = [copy(machine, SHARED, L1, 16), copy(machine, UB, SHARED, 16)]
        for core in range(2):
            streams = [[], []]
            streams[core] = moves
            found = price(program(machine, *streams).streams[core], machine)
            assert found.busy.tolist() == [5 + 16 * 32 // rate] * 2
            assert found.bus.tolist() == found.useful.tolist() == [0, 0]


def test_load_from_ddr_takes_the_ddr_port() -> None:
    machine = with_shared(TINY)
    p = prepare(program(machine, [copy(machine, DDR, SHARED, 16, at=600), copy(machine, SHARED, DDR, 16, at=0, to=700)]), machine)
    assert (p.ddr_read_bytes, p.ddr_write_bytes) == (512, 512)
    assert int(p.transfers.sum()) == 2


def crossing(machine: Machine, *, flags: bool) -> Program:
    """Core 0 brings 16 blocks, core 1 reads them."""
    bring, read = copy(machine, DDR, SHARED, 16, at=600), copy(machine, SHARED, L1, 16)
    mte2 = Engine.MTE2
    if not flags:
        return program(machine, [bring], [read])
    return program(machine, [bring, flag_set(mte2, 1, mte2)], [flag_wait(mte2, 0, mte2), read])


def test_cores_meet_there_and_the_sanitizer_sees_it() -> None:
    machine = with_shared(TINY, cores=2)
    assert not [f for f in sanitize_program(crossing(machine, flags=True), machine) if f.memory == SHARED]
    (race,) = [f for f in sanitize_program(crossing(machine, flags=False), machine) if f.memory == SHARED]
    assert race.kind in ("race", "unwritten_read")
    level = machine.contention["none"]
    apart, together = (simulate(crossing(machine, flags=flags), machine, level).cycles for flags in (False, True))
    assert together > apart


def test_moves_beyond_its_end_or_existence_are_refused() -> None:
    machine = with_shared(TINY)
    far = program(machine, [copy(machine, SHARED, L1, 16, at=machine.buffer_blocks(SHARED) - 8)])
    with pytest.raises(ProgramError, match=naming("1024 blocks of SHARED")):
        far.verify(machine)
    foreign = Program(TINY.digest, program(machine, [copy(machine, SHARED, L1, 1)]).streams, far.memory)
    with pytest.raises(ProgramError, match=naming("COPY", "tiny")):
        foreign.verify(TINY)
