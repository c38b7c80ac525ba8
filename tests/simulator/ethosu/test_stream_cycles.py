"""Times of streams: by hand for small ones, and within what products and bytes allow for all."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.ethosu.block_cycles import MemoryTimes, burst_bytes, elementwise_times, window_times
from simulator.ethosu.block_operation import Kernel, Result, Source
from simulator.ethosu.command_words import Operation, decode_operations, encode, instructions
from simulator.ethosu.driver_rules import check_alignment, driver_region_sizes
from simulator.ethosu.executor import execute
from simulator.ethosu.feature_map import FeatureMap
from simulator.ethosu.stream_cycles import StreamTimes, memory_times, stream_times
from simulator.ethosu.stream_error import StreamError
from tests.simulator.ethosu.streams import Case, cases, refusal, words_of

SRAM = Fraction(16)
FULL = Fraction(12)
_PRODUCTS = 256


def times(words: list[int], dram: Fraction = FULL, latency: int = 0) -> StreamTimes:
    return stream_times(words, memory_times(SRAM, dram, 500, latency))


def copy(source: int, target: int, size: int, first: int = 0, last: int = 0) -> list[tuple[str, dict[str, int]]]:
    place = {"internal": 0, "stride_mode": 0}
    return [
        ("SET_DMA0_SRC_REGION", place | {"value": source}), ("SET_DMA0_DST_REGION", place | {"value": target}),
        ("SET_DMA0_SRC", {"low": first, "high": 0}), ("SET_DMA0_DST", {"low": last, "high": 0}),
        ("SET_DMA0_LEN", {"low": size, "high": 0}), ("OP_DMA_START", {}),
    ]  # fmt: skip


@given(st.integers(1, 1 << 16), st.sampled_from([Fraction(12), Fraction(6), Fraction(3), Fraction(7, 2)]), st.integers(0, 500))
def test_a_copy_takes_latency_and_bytes(size, dram, latency):
    """Words in front of it: 4 of one word and 3 of two, less the first of all, are 32 bytes of DRAM, too."""
    words = words_of(*copy(0, 2, size), ("OP_STOP", {"mask": 0}))
    (done,) = times(words, dram, latency).operations
    fetched = 4 * decode_operations(words)[0].word
    moved = max(-(-(size + fetched) // dram), -(-size // SRAM))
    assert done.end - done.begin == 500 + latency + moved
    assert done.dram_bytes == size + fetched


def test_copies_follow_each_other_and_a_wait_stops():
    """Two of 1,200 bytes: a latency of 500 and some 100 cycles each."""
    one, two = copy(0, 2, 1200), copy(0, 2, 1200, first=1200, last=1200)
    done = times(words_of(*one, *two, ("OP_STOP", {"mask": 0})))
    first, second = done.operations
    assert second.begin == first.end
    assert 1200 <= done.cycles <= 1220


def test_halves_of_a_port():
    """A copy beside an operation that reads DRAM all the time: both get half, so together they take what they take behind each other."""
    case = next(case for case in cases() if case.name.startswith("CONV_2D large"))
    done = times(case.words, Fraction(1, 4))
    port = sum(operation.dram for operation in done.operations)
    assert port <= done.cycles <= port + 4000


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_times_are_within_products_and_bytes(case: Case):
    done, execution = times(case.words), execute(case.words, case.regions(), 0)
    cores = 2 if "two cores" in case.name else 1
    assert done.cycles * _PRODUCTS * cores >= execution.macs
    assert done.cycles >= sum(operation.dram for operation in done.operations) - len(done.operations)
    moved = sum(count.bytes for channel, count in execution.bytes.items() if channel.memory == "dram")
    behind = 4 * (len(case.words) - decode_operations(case.words)[-2].word)
    assert sum(operation.dram_bytes for operation in done.operations) >= moved - behind  # whole bursts; words of the end are not read
    assert done.cycles <= sum(operation.end - operation.begin for operation in done.operations) + len(case.words)
    assert times(case.words) == done


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_slower_dram_is_no_faster(case: Case):
    rates = [FULL, FULL / 2, FULL / 4, FULL / 16]
    cycles = [times(case.words, rate).cycles for rate in rates]
    assert all(slow >= fast for fast, slow in pairwise(cycles))
    assert times(case.words, FULL, 200).cycles >= cycles[0]


@pytest.mark.parametrize("case", [case for case in cases() if "keyword" in case.name or "table" in case.name], ids=lambda case: case.name)
def test_overlapping_blocks_save_time(case: Case):
    words = list[int]()
    for _, command, values in instructions(case.words):
        words += encode(command, {"value": 0} if command.name == "NPU_SET_BLOCKDEP" else values)
    assert times(words).cycles > times(case.words).cycles


@given(st.integers(0, 10_000), st.integers(1, 64), st.sampled_from([32, 128]))
def test_bursts_are_whole(size, run, burst):
    moved = burst_bytes(size, run, burst)
    assert size <= moved <= -(-size * burst // run) if run < burst else moved == size


INT8 = np.dtype("i1")
MAP = FeatureMap(2, (0, 0, 0, 0), 64, 64, 64, 16, 16, 0, False, INT8, 0)
POINT = Kernel(1, 1, 1, 1, 1, 1, False, 0, 0, 0, 0, 1, False)


def operation_of(name: str, mode: int = 0) -> Operation:
    registers = {"SCALE_REGION": {"value": 2}, "ACC_FORMAT": {"value": 0}, "ACTIVATION": {"function": 0}}
    return Operation(0, name, {"mode": mode}, registers | {"ACTIVATION_MIN": {"value": -128}, "ACTIVATION_MAX": {"value": 127}})


@pytest.mark.parametrize(
    ("name", "kernel", "inputs", "block", "cycles", "drain"),
    [
        # 8x8 results of 16 channels are 16 units of 2x2 twice: 16 * 4 cycles * 2 for each 32 inputs; results 1024 / 4
        ("NPU_OP_CONV", POINT, 32, (8, 8, 16), 256, 128),
        ("NPU_OP_CONV", POINT, 96, (8, 8, 16), 384, 256),
        # the same in two blocks of 8 channels: 64 * 3 and 128 each
        ("NPU_OP_CONV", POINT, 96, (8, 8, 8), 384, 128),
        # nine taps in parts of four: 3 steps of 8 inputs, 4 cycles for 16 units, twice
        ("NPU_OP_CONV", POINT._replace(rows=3, columns=3, part_first=True), 8, (8, 8, 16), 384, 256),
        # without parts, 9 steps of 64, twice; a fourth of both stages and of 2 cycles of ways is more than the results
        ("NPU_OP_CONV", POINT._replace(rows=3, columns=3), 8, (8, 8, 16), 1152, 353),
        # a depthwise kernel: 3 steps for 9 taps, 64 cycles each, twice
        ("NPU_OP_DEPTHWISE", POINT._replace(rows=3, columns=3), 16, (8, 8, 16), 384, 256),
        # a pooling by the mean: 9 taps of 16 units twice
        ("NPU_OP_POOL", POINT._replace(rows=3, columns=3), 16, (8, 8, 16), 288, 256),
    ],
)
def test_blocks_by_hand(name, kernel, inputs, block, cycles, drain):
    """Memories without latency and of any rate, so that products and results alone count."""
    result = Result(MAP, 8, 8, 16, *block, False, 0)
    source = Source(MAP, 8 + kernel.rows - 1, 8 + kernel.columns - 1, inputs)
    fast = {2: MemoryTimes("sram", Fraction(1 << 20), 0, 0, 1)}
    assert window_times(operation_of(name, 1), result, kernel, source, fast) == (cycles, drain)


@pytest.mark.parametrize(("mode", "cycles"), [(0, 384), (1, 768), (3, 256)])
def test_elementwise_by_hand(mode, cycles):
    """1,024 results: a product takes 3 eighths of a cycle, a sum 6, a minimum 2."""
    result, operand = Result(MAP, 8, 8, 16, 8, 8, 16, True, 0), Source(MAP, 8, 8, 16)
    fast = {2: MemoryTimes("sram", Fraction(1 << 20), 0, 0, 1)}
    operation = operation_of("NPU_OP_ELEMENTWISE", mode)
    assert elementwise_times(operation, result, operand, operand, fast).cycles == cycles


def test_an_unknown_region_is_refused():
    words = words_of(*copy(5, 2, 16), ("OP_STOP", {"mask": 0}))
    with pytest.raises(StreamError, match="NPU_OP_DMA_START: region 5: expected one of 0, 1, 2"):
        times(words)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_changed_word_is_refused_or_timed(data):
    """One line of a refusal, by the clock and by the rules of the driver."""
    case = data.draw(st.sampled_from(cases()))
    words, place = list(case.words), data.draw(st.integers(0, len(case.words) - 1))
    words[place] ^= 1 << data.draw(st.integers(0, 31))
    for read in (lambda: times(words), lambda: driver_region_sizes(words), lambda: check_alignment(words)):
        assert "\n" not in (refusal(read) or "")
