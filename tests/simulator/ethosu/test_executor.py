"""Committed streams give LiteRT's outputs; changed ones are refused in one line, or run to their end."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.ethosu.block_operation import kernel_of, mode_of, result_of, source_of
from simulator.ethosu.byte_counts import name_of
from simulator.ethosu.command_words import Operation, decode_operations, encode, instructions
from simulator.ethosu.executor import execute
from simulator.ethosu.memory_regions import SHARED, TABLES, Region, RegionMemory, flat_span
from simulator.ethosu.operand_values import operands_of
from simulator.ethosu.result_values import _looked_up
from simulator.ethosu.stream_error import StreamError
from tests.simulator.ethosu.streams import Case, case, cases, refusal, words_of


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_outputs_are_those_of_litert(case):
    outputs, _ = case.run()
    for output, (_, expected) in zip(outputs, case.outputs, strict=True):
        assert len(np.unique(expected)) > 1 or expected.size < 10
        assert np.array_equal(output, expected)


def test_some_streams_are_of_two_cores():
    assert sum(1 in {operation.registers["PARALLEL_MODE"]["value"] for operation in decode_operations(case.words)} for case in cases()) >= 2


def test_committed_streams_have_most_operations():
    operations = [operation for case in cases() for operation in decode_operations(case.words)]
    names = {name_of(operation) for operation in operations if operation.name != "NPU_OP_STOP"}
    assert names >= {
        "CONV", "DEPTHWISE", "POOL MAX", "POOL AVERAGE", "POOL REDUCE_SUM", "DMA_START", "DMA_WAIT", "KERNEL_WAIT",
        *(f"ELEMENTWISE {mode}" for mode in ("ADD", "SUB", "MUL", "MIN", "MAX", "LRELU", "ABS", "CLZ", "SHR", "SHL")),
    }  # fmt: skip


@pytest.mark.parametrize(("name", "wait"), [("keyword_spotting", "NPU_OP_DMA_WAIT"), ("keyword_spotting", "NPU_OP_KERNEL_WAIT")])
def test_a_missing_wait_is_a_race(name, wait):
    network = case(name)
    read = list(instructions(network.words))
    waits = [number for number, instruction in enumerate(read) if instruction.command.name == wait]
    assert waits
    messages = []
    for number in waits:
        words = [word for place, (_, command, values) in enumerate(read) if place != number for word in encode(command, values)]
        messages.append(refusal(lambda: network.run(words)))  # noqa: B023
    races = [message for message in messages if message]
    assert len(races) >= 0.8 * len(waits)  # a wait may be for one that has ended for want of room
    assert all(f"expected {wait} in between" in message for message in races)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_changed_word_is_refused_or_runs(data):
    small = data.draw(st.sampled_from([each for each in cases() if len(each.words) < 400]))
    words = list(small.words)
    words[data.draw(st.integers(0, len(words) - 1))] ^= 1 << data.draw(st.integers(0, 31))
    message = refusal(lambda: small.run(words))
    if message is not None:
        assert "\n" not in message
        assert any(part in message for part in ("word", "region", "weight stream", "scales", "kernel", "stream of"))


def changed(words: list[int], name: str, **values: int) -> list[int]:
    """A stream with other values of a register, wherever it is set."""
    out = []
    for _, command, before in instructions(words):
        out += encode(command, {**before, **values} if command.name == f"NPU_{name}" else before)
    return out


def without(words: list[int], name: str) -> list[int]:
    return [word for _, command, values in instructions(words) if command.name != f"NPU_{name}" for word in encode(command, values)]


REFUSED = [
    ("CONV_2D,", "SET_OFM_BLK_DEPTH_M1", {"value": 6}, "NPU_SET_OFM_BLK_DEPTH_M1 = 6: expected a multiple of 8, less 1"),
    ("CONV_2D,", "SET_KERNEL_STRIDE", {"stride_x_low": 1, "stride_x_high": 1}, "NPU_SET_KERNEL_STRIDE: a stride of 4: expected 1 to 3"),
    ("CONV_2D,", "SET_KERNEL_HEIGHT_M1", {"value": 64}, "expected at most 64 rows and 4096 elements"),
    ("CONV_2D,", "SET_IFM_PAD_TOP", {"value": 90}, "padding 90,"),
    ("CONV_2D,", "SET_WEIGHT_LENGTH", {"value": 24}, "NPU_SET_WEIGHT_LENGTH = 24: expected a multiple of 16"),
    ("CONV_2D,", "SET_WEIGHT_REGION", {"value": 5}, "region 5: expected one of 0, 1, 2"),
    ("CONV_2D,", "SET_OFM_REGION", {"value": 0}, "are written, and the region is constant"),
    ("CONV_2D,", "SET_OFM_BASE0", {"low": 1 << 30}, "of region 1: expected 0 to"),
    ("CONV_2D,", "SET_OFM_PRECISION", {"global_scale": 1}, "a global scale: expected scales of channels"),
    ("CONV_2D,", "SET_IFM_PRECISION", {"bytes_log2": 2}, "CONV: an input of int32: expected uint8, int8, int16"),
    ("CONV_2D,", "SET_ACC_FORMAT", {"value": 2}, "NPU_SET_ACC_FORMAT = 2: floats: expected 0, 1"),
    ("CONV_2D,", "SET_ACTIVATION", {"function": 3}, "function 3 (TANH is 3, SIGMOID is 4): no public text defines its values"),
    ("CONV_2D,", "SET_ACTIVATION_MIN", {"value": 200}, "NPU_SET_ACTIVATION_MIN = 200: expected at most NPU_SET_ACTIVATION_MAX"),
    ("CONV_2D,", "SET_IFM_IB_END", {"value": 63}, "NPU_SET_IFM_IB_END = 63: expected at most NPU_SET_AB_START"),
    ("CONV_2D,", "SET_AB_START", {"value": 47}, "NPU_SET_AB_START = 47: expected at most 46, where tables begin"),
    ("CONV_2D,", "SET_AB_START", {"value": 45}, "banks from NPU_SET_AB_START = 45 on: expected an end at 46"),
    ("CONV_2D,", "SET_IFM_IB_END", {"value": 2}, "of results: expected an end at NPU_SET_IFM_IB_END = 2"),
    ("CONV_2D,", "SET_OFM_BLK_WIDTH_M1", {"value": 2}, "NPU_SET_OFM_BLK_WIDTH_M1 = 2: expected a multiple of 2, less 1"),
    ("ADD,", "SET_IFM2_IB_START", {"value": 63}, "NPU_SET_IFM2_IB_START = 63: expected at most NPU_SET_IFM_IB_END"),
    ("DEPTHWISE_CONV_2D,", "SET_IFM_DEPTH_M1", {"value": 0}, "1 channels of the input: expected"),
    ("MAX_POOL_2D,", "SET_IFM_ZERO_POINT", {"value": 99}, "an input of zero point 99: expected"),
    ("MAX_POOL_2D,", "SET_KERNEL_STRIDE", {"dilation_x_m1": 1}, "NPU_SET_KERNEL_"),
    ("ADD,", "SET_IFM_DEPTH_M1", {"value": 700}, "NPU_SET_IFM_DEPTH_M1 = 700: expected"),
    ("MAXIMUM,", "SET_OFM_PRECISION", {"bytes_log2": 1}, "an input of int8 and a result of int16: expected one type"),
    ("keyword_spotting,", "SET_DMA0_LEN", {"low": 0}, "NPU_SET_DMA0_LEN = 0: expected at least 1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "register", "values", "message"), REFUSED, ids=lambda part: part if isinstance(part, str) else "")
def test_registers_that_are_refused(name, register, values, message):
    chosen = next(each for each in cases() if each.name.startswith(name) and "int8" in each.name)
    assert message in (refusal(lambda: chosen.run(changed(chosen.words, register, **values))) or "")


@pytest.mark.parametrize(
    "register", ["SET_IFM_BASE2", "SET_OFM_STRIDE_Y", "SET_BLOCKDEP", "SET_SCALE_REGION", "SET_IFM_UPSCALE", "SET_PARALLEL_MODE"]
)
def test_a_register_that_no_word_sets(register):
    conv = case("CONV_2D,")
    message = refusal(lambda: conv.run(without(conv.words, register)))
    assert f"NPU_OP_CONV needs NPU_{register}, which no word in front of it sets" in (message or "")


def test_a_copy_between_regions_is_counted_and_bounded():
    def stream(first: int, second: int, count: int, source: int = 0, target: int = 1, internal: int = 0) -> list[int]:
        place = {"value": source, "internal": 0, "stride_mode": 0}
        return words_of(
            ("SET_DMA0_SRC_REGION", place),
            ("SET_DMA0_DST_REGION", place | {"value": target, "internal": internal}),
            ("SET_DMA0_SRC", {"low": first, "high": 0}),
            ("SET_DMA0_DST", {"low": second, "high": 0}),
            ("SET_DMA0_LEN", {"low": count, "high": 0}),
            ("OP_DMA_START", {}),
            ("OP_STOP", {"mask": 1}),
        )

    def memory() -> dict[int, Region]:
        return {0: Region(np.arange(64, dtype=np.uint8), "dram", 1, False), 1: Region(np.zeros(64, np.uint8), "sram", 0)}

    regions = memory()
    execution = execute(stream(3, 20, 7), regions)
    assert regions[1].data.tolist() == [0] * 20 + list(range(3, 10)) + [0] * 37
    assert {tuple(channel): tuple(count) for channel, count in execution.bytes.items()} == {
        ("dram", 1, "copies_read"): (7, 7),
        ("sram", 0, "copies_written"): (7, 7),
    }
    for words, message in (
        (stream(60, 0, 5), "bytes 60 to 65 of region 0: expected 0 to 64"),
        (stream(0, 60, 5), "bytes 60 to 65 of region 1: expected 0 to 64"),
        (stream(0, 0, 5, target=0), "bytes 0 to 5 of region 0: are written, and the region is constant"),
        (stream(0, 4, 5, source=1), "the source overlaps with the destination"),
        (stream(0, 8, 16, internal=1), "NPU_SET_DMA0_DST = 8: expected a multiple of 16 in the shared buffer"),
        (stream(0, 16, 8, internal=1), "NPU_SET_DMA0_LEN = 8: expected a multiple of 16 in the shared buffer"),
    ):
        with pytest.raises(StreamError, match=message.replace("(", r"\(")):
            execute(words, memory())


def blocks(size: int, block: int) -> list[range]:
    return [range(first, min(first + block, size)) for first in range(0, size, block)]


def counted_inputs(operation: Operation) -> int:
    """Bytes of feature maps that an operation reads, block by block, from the elements that each window reaches."""
    result = result_of(operation)
    total = 0
    parts = product(
        blocks(result.rows, result.block_rows), blocks(result.columns, result.block_columns), blocks(result.channels, result.block_channels)
    )
    if operation.name == "NPU_OP_ELEMENTWISE":
        operands = operands_of(operation, result)
        for rows, columns, channels in parts:
            for source in (operands.first, operands.second):
                if source is not None:
                    extents = zip((rows, columns, channels), (source.rows, source.columns, source.channels), strict=True)
                    sizes = [len(part) if size > 1 else 1 for part, size in extents]
                    total += int(np.prod(sizes)) * source.map.dtype.itemsize
        return total
    kernel = kernel_of(operation)
    source = source_of(operation, result, kernel)

    def reached(part: range, stride: int, taps: int, dilation: int, pad: int, size: int) -> int:
        places = range(part[0] * stride - pad, part[-1] * stride - pad + (taps - 1) * dilation + 1)
        return len({place // kernel.upscale for place in places if 0 <= place < size * kernel.upscale})

    for rows, columns, channels in parts:
        deep = (
            len(channels)
            if operation.name == "NPU_OP_DEPTHWISE" or "MAX" in name_of(operation) or "AVERAGE" in name_of(operation)
            else source.channels
        )
        high = reached(rows, kernel.stride_y, kernel.rows, kernel.dilation_y, kernel.pad_top, source.rows)
        wide = reached(columns, kernel.stride_x, kernel.columns, kernel.dilation_x, kernel.pad_left, source.columns)
        total += high * wide * deep * source.map.dtype.itemsize
    return total


@pytest.mark.parametrize("chosen", cases()[:30], ids=lambda case: case.name)
def test_bytes_are_those_of_single_blocks(chosen: Case):
    _, execution = chosen.run()
    operations = decode_operations(chosen.words)
    sums = dict.fromkeys(("inputs", "results", "weights", "scales", "commands"), 0)
    sums["commands"] = 4 * len(chosen.words)
    for operation in operations:
        if operation.name in ("NPU_OP_CONV", "NPU_OP_DEPTHWISE", "NPU_OP_POOL", "NPU_OP_ELEMENTWISE"):
            result = result_of(operation)
            sums["inputs"] += counted_inputs(operation)
            sums["results"] += result.rows * result.columns * result.channels * result.map.dtype.itemsize
            if operation.name in ("NPU_OP_CONV", "NPU_OP_DEPTHWISE"):
                passes = len(blocks(result.rows, result.block_rows)) * len(blocks(result.columns, result.block_columns))
                for core in ("", "1")[: operation.field("PARALLEL_MODE") + 1]:
                    sums["weights"] += passes * operation.field(f"WEIGHT{core}_LENGTH")
                    sums["scales"] += passes * operation.field(f"SCALE{core}_LENGTH")
    counts = dict.fromkeys(sums, 0)
    for channel, count in execution.bytes.items():
        if channel.channel in counts:
            counts[channel.channel] += count.bytes
    assert counts == sums


def test_a_leaky_relu_scales_what_is_negative():
    leaky = next(each for each in cases() if any(name_of(operation).endswith("LRELU") for operation in decode_operations(each.words)))
    (offset, values), (place, before) = leaky.inputs[0], leaky.outputs[0]
    values = (np.arange(values.size) - values.size // 2).astype(values.dtype).reshape(values.shape)
    (output,), _ = leaky._replace(inputs=[(offset, values)], outputs=[(place, before)]).run()
    (relu,) = [operation for operation in decode_operations(leaky.words) if name_of(operation).endswith("LRELU")]
    real = values * (relu.field("OFM_SCALE", "factor") / 2.0 ** relu.field("OFM_SCALE", "shift"))
    assert np.abs(output - np.where(values < 0, real, values)).max() <= 0.5
    assert (output[values < -4] > values[values < -4]).all()


@given(st.lists(st.integers(-32768, 32767), min_size=1, max_size=20), st.integers(0, 2**32 - 1))
def test_a_table_of_16_bits_interpolates(values, seed):
    rng = np.random.default_rng(seed)
    base, slope = rng.integers(-20000, 20000, 512), rng.integers(-100, 100, 512)
    memory = RegionMemory({})
    memory.shared.data[TABLES:] = np.frombuffer(np.stack([base, slope], 1).astype("<i2").tobytes(), np.uint8)
    operation = Operation(0, "NPU_OP_POOL", {}, {})
    halves = np.dtype("<i2")
    looked_up = _looked_up(operation, memory, flat_span(SHARED, TABLES, 2048), halves, halves, np.array(values))
    for value, result in zip(values, looked_up.tolist(), strict=True):
        entry, rest = divmod(value + 32768, 128)
        assert result == base[entry] + (slope[entry] * rest + 64 >> 7)


def test_modes_have_names():
    softmax = case("SOFTMAX")
    assert {mode_of(operation) for operation in decode_operations(softmax.words) if "mode" in operation.values} >= {
        "MAX",
        "SUB",
        "REDUCE_SUM",
    }
