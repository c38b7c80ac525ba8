"""DDR latency, transfers that share the port, levels and bounds: every cycle worked out on paper."""

from __future__ import annotations

import math

from simulator.ddr import ContentionTrace
from simulator.npu.cycles import bank_wait_cycles, port_units, turned_units
from simulator.npu.isa import Op
from simulator.npu.level import NO_CONTENTION, SHARE_UNIT, Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.machine_parts import Dma
from simulator.npu.parts import Engine
from simulator.timing import prepare, program_bound, simulate, simulate_levels, simulate_trace
from tests.ddr_rates import with_path, with_rates
from tests.programs import copy, flag_set, flag_wait, program, record
from tests.simulator.timing.on_paper import (
    CUBE,
    DDR,
    L1,
    MTE2,
    MTE3,
    TINY,
    UB,
    load,
    mmad,
    run,
    spans,
    store,
    tiny_with,
    up,
)


def test_latency_is_hidden_behind_the_transfer_before() -> None:
    # both issued at 0: data 4-14, 14-24
    assert spans(run([load(10), load(10)])) == [(4, 14), (14, 24)]


def test_latency_shows_where_transfers_are_short() -> None:
    # two outstanding, one block each: issued 0, 0, then at the ends 5 and 6: data 4-5, 5-6, 9-10, 10-11
    assert spans(run([load(1)] * 4)) == [(4, 5), (5, 6), (9, 10), (10, 11)]


def test_one_outstanding_pays_the_latency_every_time() -> None:
    assert spans(run([load(3)] * 3, machine=tiny_with({"outstanding": 1}))) == [(4, 7), (11, 14), (18, 21)]


def test_many_outstanding_pay_it_once() -> None:
    assert spans(run([load(1)] * 4, machine=tiny_with({"outstanding": 4}))) == [(4, 5), (5, 6), (6, 7), (7, 8)]


def two_ports(latency: int = 4, bytes_per_cycle: int = 32) -> Machine:
    """Three outstanding."""
    ddr = {"outstanding": 3, "latency_cycles": latency, "bytes_per_cycle": bytes_per_cycle}
    return tiny_with(ddr).model_copy(update={"dma": Dma(load_ports=2, store_ports=2)})


def test_transfers_on_two_ports_share_ddr_rate() -> None:
    # both from 4 on at half a block per cycle
    assert spans(run([load(10), load(10)], machine=two_ports())) == [(4, 24), (4, 24)]


def test_transfers_on_two_ports_have_own_path_rates() -> None:
    # the third takes the first's port, the fourth the second's, which is free at 9: issued then, as three are in flight before
    timing = run([load(10), load(5), load(2), load(1)], machine=two_ports(bytes_per_cycle=64))
    assert spans(timing) == [(4, 14), (4, 9), (14, 16), (13, 14)]
    assert timing.busy_cycles[0, MTE2] == timing.load_store_cycles == 12


def test_a_flag_waits_for_all_ports() -> None:
    # data of the second end at 6, those of the first at 14
    streams = [load(10), load(2), flag_set(MTE2, 0, Engine.MTE1), flag_wait(Engine.MTE1, 0, MTE2), up(1)]
    timing = run(streams, machine=two_ports(bytes_per_cycle=64))
    assert spans(timing) == [(4, 14), (4, 6), (0, 14), (0, 14), (14, 15)]


def test_a_move_on_chip_has_all_ports() -> None:
    # stores at half a block per cycle: 4-14 and 4-8; UB -> L1 14-17; both stores behind it are issued when it starts
    timing = run([store(5), store(2), copy(TINY, UB, L1, 3), store(1), store(1)], machine=two_ports(latency=1, bytes_per_cycle=64))
    assert spans(timing) == [(1, 11), (1, 5), (11, 14), (14, 16), (14, 16)]


def test_start_ups_overlap_data_on_another_port() -> None:
    slow = with_path(tiny_with({"outstanding": 3}), "DDR->L1", startup_cycles=8)
    assert spans(run([load(8)] * 3, machine=slow)) == [(12, 20), (28, 36), (44, 52)]
    # the second finds all of DDR when the first is through
    assert spans(run([load(8)] * 3, machine=slow.model_copy(update={"dma": Dma(load_ports=2)}))) == [(12, 28), (12, 28), (36, 44)]


def test_bounds_count_ports() -> None:
    p = program(two_ports(), [load(10), load(10), load(10), store(1)])
    prepared = prepare(p, two_ports())
    assert prepared.dma_ports == 3  # one store has one port
    # 30 blocks over two ports of a block per cycle, the port of DDR has 32 bytes
    assert program_bound(prepared, two_ports()) == 31
    assert program_bound(program(two_ports(bytes_per_cycle=1024), [load(10)] * 3), two_ports(bytes_per_cycle=1024)) == 15


def test_move_on_chip_waits_for_data_before_it() -> None:
    # store 5 blocks: 4-14; UB -> L1 14-17; the next store is issued when that starts (14), its data at max(18, 17): 18-20
    timing = run([store(5), copy(TINY, UB, L1, 3), store(1)])
    assert spans(timing) == [(4, 14), (14, 17), (18, 20)]
    assert timing.busy_cycles[0, MTE3] == 10 + 3 + 2
    assert timing.load_store_cycles == 12  # DDR data only


def test_moves_on_chip_in_one_queue_are_sequential() -> None:
    # UB -> L1 0-3 and 3-5; the store is issued at 3 with the second, latency until 7
    assert spans(run([copy(TINY, UB, L1, 3), copy(TINY, UB, L1, 2), store(1)])) == [(0, 3), (3, 5), (7, 9)]


def test_a_reader_and_a_writer_share_the_port() -> None:
    # from 4 on 16 bytes each (the write cap is 16 too): 16 blocks take 32 cycles, 4-36; the other's 8 blocks 4-20, then the
    # reader has the port: 8 blocks left at 20, one per cycle: 28
    timing = run([load(16), store(8)])
    assert spans(timing) == [(4, 28), (4, 20)]
    assert timing.load_store_cycles == 24  # one core: cycles with either count once


def test_write_cap_leftover_goes_to_the_reader() -> None:
    # write cap 8: reader 24, writer 8 bytes per cycle.  Reader: 24 blocks = 768 B in 32 cycles, 4-36.  The writer has 8 blocks through by
    # then and stays at its cap: 12 blocks in 48 cycles, 4-52
    machine = with_rates(TINY, write=8)
    assert spans(run([load(24), store(12)], machine=machine)) == [(4, 36), (4, 52)]


def test_path_starts_up_before_data_of_each_transfer() -> None:
    # start-up 2: the first data at 4 + 2, the next behind them at 16 + 2, whatever was issued before
    machine = with_path(TINY, "DDR->L1", startup_cycles=2)
    assert spans(run([load(10), load(3)], machine=machine)) == [(6, 16), (18, 21)]
    assert program_bound(program(machine, [load(10), load(3)]), machine) == 2 + 10 + 2 + 3


def test_a_slow_path_holds_its_transfer_without_drawing() -> None:
    # to UB at 8 bytes: 2 blocks take 8 cycles, but have drawn theirs by 6; the reader on core 1 shares the port until 8 and has it then:
    # 2 blocks in 4 cycles, then 8 blocks in 8
    machine = with_path(TINY, "DDR->UB", bytes_per_cycle=8)
    slow = copy(TINY, DDR, UB, 2)
    assert spans(run([slow], machine=machine)) == [(4, 12)]
    timing = run([slow, load(1)], [load(10)], machine=machine)
    assert (spans(timing, 0), spans(timing, 1)) == ([(4, 12), (12, 14)], [(4, 17)])
    assert timing.load_store_cycles == 10 + 13
    assert program_bound(program(machine, [slow, load(1)]), machine) == 8 + 1


def test_a_rate_may_be_a_fraction() -> None:
    # 12.8 bytes: 838,860 of 838,860.8 units a cycle; 2 blocks take 5 cycles and 4 units more, so 6
    assert spans(run([load(2)], machine=with_rates(TINY, read=12.8))) == [(4, 10)]
    assert spans(run([load(2)], machine=with_rates(TINY, bytes_per_cycle=12.8))) == [(4, 10)]


def test_level_adds_to_latency_of_every_transfer() -> None:
    # two outstanding, one block each: as without it, where 4 has become 7
    p = program(TINY, [load(1)] * 4)
    timing = simulate(p, TINY, Level(share=1, latency_cycles=3), record=True)
    assert spans(timing) == [(7, 8), (8, 9), (15, 16), (16, 17)]


def test_what_is_in_flight_holds_up_first_data() -> None:
    # pins: a bank is held for half of 46.25 ns with one chance in 16, at 5 GHz 8 cycles.  Refresh leaves 32 * 7450 / 7800 bytes.
    machine = with_rates(TINY, 64, 64, rate="pins", dram="ddr4", outstanding=4).model_copy(update={"clock_hz": 5 * 10**9})
    assert bank_wait_cycles(machine) == 8
    # 260 bytes' time each, 10 cycles (8.5 rounded up with refresh): issued at 0, and the third is held up by two: 4 + 16
    one = math.ceil(260 * 65536 / port_units(machine, SHARE_UNIT))
    timing = run([load(1), load(1), load(1)], machine=machine)
    ends = [4 + one, max(4 + 8, 4 + one) + one]
    assert spans(timing) == [(4, ends[0]), (ends[0], ends[1]), (max(4 + 16, ends[1]), max(4 + 16, ends[1]) + one)]
    # nobody is held up beyond the end of who is in flight: issued after it, nothing is
    later = run([load(1), load(1)], machine=machine.model_copy(update={"issue_cycles": 20}))
    assert spans(later) == [(24, 24 + one), (44, 44 + one)]


def test_simultaneous_reads_and_writes_turn_the_bus() -> None:
    machine = with_rates(TINY, 64, 64, rate="pins", dram="ddr4")
    alone, both = port_units(machine, SHARE_UNIT), turned_units(machine, SHARE_UNIT)
    assert both < alone
    blocks = 64
    target_graphs = blocks * 32 * SHARE_UNIT
    assert spans(run([load(blocks)], machine=machine)) == [(4, 4 + math.ceil(target_graphs / alone))]
    assert spans(run([load(blocks), store(blocks)], machine=machine)) == [(4, 4 + math.ceil(target_graphs / (both // 2)))] * 2


def test_two_cores_share_the_port() -> None:
    # both read: 16 bytes each from 4 on: core 1's 5 blocks end at 14; core 0 then has 5 of 10 blocks left: 19
    timing = run([load(10)], [load(5)])
    assert (spans(timing, 0), spans(timing, 1)) == ([(4, 19)], [(4, 14)])
    assert timing.load_store_cycles == 15 + 10
    assert timing.busy_cycles[:, MTE2].tolist() == [15, 10]


def test_store_on_one_core_and_load_on_another() -> None:
    # core 0 stores 4 blocks at 16 bytes: 4-12; the flag arrives at 15; core 1 loads: 19-23
    timing = run([store(4), flag_set(MTE3, 1, MTE2)], [flag_wait(MTE2, 0, MTE3), load(4)])
    assert (spans(timing, 0)[0], spans(timing, 1)[1]) == ((4, 12), (19, 23))


def test_four_queues_of_two_cores_share_the_port() -> None:
    # 8 bytes each from 4 on, 4 cycles a block: those of 4 blocks end at 20; then 16 each: the 4 blocks that are left take 8 cycles
    timing = run([load(8), store(4)], [load(4), store(8)])
    assert (spans(timing, 0), spans(timing, 1)) == ([(4, 28), (4, 20)], [(4, 20), (4, 28)])
    assert timing.load_store_cycles == 24 + 24
    assert timing.cycles == program_bound(program(TINY, [load(8), store(4)], [load(4), store(8)]), TINY) + 4


def test_a_share_of_a_third_rounds_up_once() -> None:
    # two readers and a writer take 32/3 bytes = 699,050 units per cycle.  3 blocks =
    # 6,291,456 units: 9 cycles would move 6,291,450, so all end after 10, at 14
    timing = run([load(3), store(3)], [load(3)])
    assert (spans(timing, 0), spans(timing, 1)) == ([(4, 14), (4, 14)], [(4, 14)])


def test_levels_stretch_only_the_data_phase() -> None:
    # 10 blocks at 32, 16 and 8 bytes per cycle behind a latency of 4
    p = program(TINY, [load(10), flag_set(MTE2, 0, CUBE), flag_wait(CUBE, 0, MTE2), mmad(7)])
    timings = simulate_levels(p, TINY)
    assert {level: timing.cycles for level, timing in timings.items()} == {"none": 21, "slight": 31, "severe": 51}
    assert [timing.busy_cycles[0, CUBE] for timing in timings.values()] == [7, 7, 7]
    assert simulate_levels(p, TINY, ("severe",))["severe"].cycles == 51


def test_short_runs_cost_time_of_the_port() -> None:
    # ascend310: lone blocks use half of a granule of 64 bytes: 10 blocks = 640 bytes at 67 per cycle, latency 100, issue 1
    ascend = load_machine("ascend310")
    lone = record(Op.COPY, MTE2, 1, 10, 2, 1, 1, 0, 0, src=DDR, dst=L1, d=0, s=(0,))
    joined = record(Op.COPY, MTE2, 1, 10, 1, 1, 1, 0, 0, src=DDR, dst=L1, d=0, s=(0,))
    assert run([lone], machine=ascend).cycles == 1 + 100 + 10
    assert run([joined], machine=ascend).cycles == 1 + 100 + 5


def test_a_load_that_changes_while_a_transfer_runs() -> None:
    # data from 4 on: 6 blocks by 10 at full rate; then a quarter: 4 blocks take 16 cycles: 26; or full again from 14, with one
    # block more by then and 3 to go: 17
    p = program(TINY, [load(10)])
    assert simulate_trace(p, TINY, ContentionTrace.of([(0, 65536), (10, 16384)])).cycles == 26
    assert simulate_trace(p, TINY, ContentionTrace.of([(0, 65536), (10, 16384), (14, 65536)])).cycles == 17


def test_launch_is_in_bounds_and_in_load_trace() -> None:
    machine = tiny_with(launch_cycles=7)
    p = program(machine, [load(10)])
    assert program_bound(p, machine) == 7 + 10
    assert simulate(p, machine, NO_CONTENTION, shared=False).cycles == 7 + 14
    assert {level: t.cycles for level, t in simulate_levels(p, machine).items()} == {"none": 21, "slight": 31, "severe": 51}
    # data from 11 on: 5 blocks by 16, the other 5 at a quarter: 20 cycles
    assert simulate_trace(p, machine, ContentionTrace.of([(0, 65536), (16, 16384)])).cycles == 36
    assert program_bound(program(machine, []), machine) == 7


def test_the_longest_path_shares_nothing() -> None:
    # reader 4-20 at 32, writer 4-20 at its cap 16, as if alone; at half the port both run at 16: 4-36 and 4-20
    p = program(TINY, [load(16), store(8)])
    assert simulate(p, TINY, NO_CONTENTION, shared=False).cycles == 20
    assert simulate(p, TINY, NO_CONTENTION, shared=False, rate_divisor=2).cycles == 36
    assert prepare(p, TINY).dma_ports == 2


def test_program_bound_is_busiest_engine_or_bus() -> None:
    assert program_bound(program(TINY, [mmad(9), load(5)]), TINY) == 9
    assert program_bound(program(TINY, [mmad(2), store(5)]), TINY) == 10  # write cap
    assert program_bound(program(TINY, [load(5), store(5)]), TINY) == 10  # either: 10 blocks of the bus
    assert program_bound(program(TINY, [load(8), store(3)]), TINY) == 11  # the bus
    assert program_bound(program(TINY, [load(8), store(3)]), TINY, Level.of_units(SHARE_UNIT // 4)) == 44
    assert program_bound(program(TINY, [mmad(1)] * 4), tiny_with(issue_cycles=3)) == 12  # the scalar unit
    # rounding up is per transfer: 3 loads of a block at 32/3 bytes (699,050 units) take 4 cycles each
    assert program_bound(program(TINY, [load(1)] * 3), TINY, Level.of_units(SHARE_UNIT // 3)) == 12


def test_program_bound_holds_at_the_least_rates() -> None:
    # a port of one unit per cycle, two queues that still get one each: a block is 32 * 65,536 units
    machine = tiny_with({"bytes_per_cycle": 1})
    p = program(machine, [load(1)], [load(1)])
    assert simulate(p, machine, Level.of_units(1)).cycles == 4 + 32 * SHARE_UNIT
    assert program_bound(p, machine, Level.of_units(1)) == 32 * SHARE_UNIT
