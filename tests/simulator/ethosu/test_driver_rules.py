"""The driver's rules: Vela's streams keep to them but for named ones, each byte of a moved address counts, each rule refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.ethosu.command_words import decode_operations, encode, instructions
from simulator.ethosu.driver_rules import SRAM_REGION, DriverJob, check_alignment, check_job, driver_region_sizes
from simulator.ethosu.stream_error import StreamError
from tests.simulator.ethosu.streams import Case, cases

DEVICE_SRAM = 384 << 10
REFUSED = {"NPU_OP_POOL": "NPU_SET_SCALE_REGION", "NPU_OP_ELEMENTWISE": "NPU_SET_IFM2_REGION"}
"""What Vela's streams leave unset and the driver wants: scales of a pooling without any, the map of a scalar."""


def upscales(case: Case) -> bool:
    return any(operation.registers.get("IFM_UPSCALE", {"value": 0})["value"] for operation in decode_operations(case.words))


def case_of(name: str) -> Case:
    return next(case for case in cases() if case.name.startswith(name))


def job_of(case: Case) -> DriverJob:
    return DriverJob({0: len(case.constants), 1: case.arena}, case.fast, max(case.fast, DEVICE_SRAM))


# a driver of one core counts half of the weights of two
ONE_CORE = [case for case in cases() if not upscales(case) and "two cores" not in case.name]


def without_unused(case: Case, job: DriverJob) -> DriverJob:
    """The job without objects that the stream does not use."""
    sizes = driver_region_sizes(case.words)
    return job._replace(objects={region: size for region, size in job.objects.items() if region in sizes})


@pytest.mark.parametrize("case", ONE_CORE, ids=lambda case: case.name)
def test_streams_of_vela_keep_to_the_rules(case):
    check_alignment(case.words)
    try:
        sizes = check_job(case.words, without_unused(case, job_of(case)))
    except StreamError as error:
        assert any(f"{name}: the driver of Linux refuses it: {register} is not set" in str(error) for name, register in REFUSED.items())  # noqa: PT017
        return
    assert set(sizes) <= {0, 1, 2}
    assert sizes.get(SRAM_REGION, 0) <= case.fast


@given(st.integers(1, 1 << 20), st.sampled_from(["OFM", "IFM"]))
def test_a_moved_map_counts(steps, name):
    case, moved, words = case_of("CONV_2D"), 16 * steps, list[int]()
    for _, command, values in instructions(case.words):
        if command.name in (f"NPU_SET_{name}_BASE0", f"NPU_SET_{name}_BASE1"):
            values = {**values, "low": values["low"] + moved}
        words += encode(command, values)
    before, after = driver_region_sizes(case.words), driver_region_sizes(words)
    region = decode_operations(words)[-2].registers[f"{name}_REGION"]["value"]
    assert after[region] >= moved
    assert {key: size for key, size in after.items() if key != region} == {key: size for key, size in before.items() if key != region}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda job: job._replace(objects={**job.objects, SRAM_REGION: 64}, sram=64), "an object for region 2 beside 64 bytes of SRAM"),
        (lambda job: job._replace(sram=job.device_sram + 1), "bytes of SRAM: expected at most"),
        (lambda job: job._replace(objects={1: job.objects[1]}), "no object for region 0: expected one of"),
        (lambda job: job._replace(objects={**job.objects, 5: 16}), "an object for region 5, which the stream does not use"),
        (lambda job: job._replace(objects={**job.objects, 1: 15}), "15 bytes of region 1: expected at least"),
    ],
)
def test_a_job_of_another_shape_is_refused(change: Callable[[DriverJob], DriverJob], message):
    case = case_of("CONV_2D")
    check_job(case.words, job_of(case))
    with pytest.raises(StreamError, match=message):
        check_job(case.words, change(job_of(case)))


def test_sram_of_the_device_bounds_its_region():
    case = next(case for case in cases() if SRAM_REGION in driver_region_sizes_or_none(case))
    used = driver_region_sizes(case.words)[SRAM_REGION]
    job = without_unused(case, DriverJob({0: len(case.constants), 1: case.arena}, 0, used))
    check_job(case.words, job)
    with pytest.raises(StreamError, match=f"{used - 1} bytes of region 2: expected at least {used}"):
        check_job(case.words, job._replace(device_sram=used - 1))


def driver_region_sizes_or_none(case: Case) -> dict[int, int]:
    try:
        return driver_region_sizes(case.words)
    except StreamError:
        return {}


@pytest.mark.parametrize(
    "register", ["KERNEL_STRIDE", "IFM_REGION", "IFM_BASE0", "OFM_REGION", "OFM_BASE0", "WEIGHT_REGION", "WEIGHT_LENGTH", "SCALE_BASE"]
)
def test_a_missing_register_is_refused(register):
    case, words = case_of("CONV_2D"), list[int]()
    for _, command, values in instructions(case.words):
        words += [] if command.name == f"NPU_SET_{register}" else encode(command, values)
    with pytest.raises(StreamError, match=f"the driver of Linux refuses it: NPU_SET_{register} is not set"):
        driver_region_sizes(words)


@pytest.mark.parametrize(("register", "name"), [("WEIGHT_BASE", "CONV_2D"), ("SCALE_LENGTH", "CONV_2D"), ("OFM_BASE0", "keyword_spotting")])
def test_an_odd_address_is_refused(register, name):
    """Also one of a map in bricks."""
    words = list[int]()
    for _, command, values in instructions(case_of(name).words):
        if command.name == f"NPU_SET_{register}":
            key = "low" if "low" in values else "value"
            values = {**values, key: values[key] + 1}
        words += encode(command, values)
    with pytest.raises(StreamError, match=rf"NPU_SET_{register} = \d+: expected a multiple of 16"):
        check_alignment(words)


def test_no_words_are_refused():
    with pytest.raises(StreamError, match="a stream of 0 words"):
        driver_region_sizes([])


def test_half_a_command_is_refused():
    with pytest.raises(StreamError, match="expected a payload word behind it"):
        driver_region_sizes([0x4000])
