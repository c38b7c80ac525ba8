"""Regions as the driver of Linux counts them: no more than what Vela gives its streams, and each byte of a moved address."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.ethosu.command_words import decode_operations, encode, instructions
from simulator.ethosu.driver_regions import SRAM_REGION, driver_region_sizes
from simulator.ethosu.stream_error import StreamError
from tests.simulator.ethosu.streams import cases


def upscales(words: list[int]) -> bool:
    return any(operation.registers.get("IFM_UPSCALE", {"value": 0})["value"] for operation in decode_operations(words))


# a driver of one core counts half of the weights of two
ONE_CORE = [case for case in cases() if not upscales(case.words) and "two cores" not in case.name]


@pytest.mark.parametrize("case", ONE_CORE, ids=lambda case: case.name)
def test_regions_are_those_that_vela_gives(case):
    try:
        sizes = driver_region_sizes(case.words)
    except StreamError as error:  # poolings by the greatest value have no scales
        assert "NPU_OP_POOL needs NPU_SET_SCALE_" in str(error)  # noqa: PT017
        return
    assert set(sizes) <= {0, 1, 2}
    assert sizes.get(0, 0) <= len(case.constants)
    assert sizes[1] <= case.arena
    assert sizes.get(SRAM_REGION, 0) <= case.fast


def test_a_moved_result_counts():
    case = next(case for case in cases() if case.name.startswith("CONV_2D"))
    words, rng = list[int](), np.random.default_rng(0)
    moved = int(rng.integers(1, 1 << 20)) * 16
    for _, command, values in instructions(case.words):
        if command.name in ("NPU_SET_OFM_BASE0", "NPU_SET_OFM_BASE1"):
            values = {**values, "low": values["low"] + moved}
        words += encode(command, values)
    before, after = driver_region_sizes(case.words), driver_region_sizes(words)
    last = decode_operations(words)[-2].registers["OFM_REGION"]["value"]
    assert after[last] >= moved
    assert {region: size for region, size in after.items() if region != last} == {
        region: size for region, size in before.items() if region != last
    }
