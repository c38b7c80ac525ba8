"""Programs on machines a little unlike their own, and under a load that comes and goes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.build import compile_plan, default_plan
from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.timing import simulate_levels
from tests.models import small_model
from tuner.selection.out_of_sample import CONDITIONS, PERIODS, on_off, out_of_sample, perturb_machine

EDGE = load_machine("edge")


def test_four_machines_differ_in_their_memory_alone() -> None:
    machines = perturb_machine(EDGE)
    assert len(machines) == len(CONDITIONS) - 3
    assert [machine.ddr.latency_cycles for machine in machines] == [84, 156, 120, 120]
    assert [machine.ddr.bytes_per_cycle for machine in machines] == [64, 64, 44.8, 83.2]
    assert [machine.contention["severe"].latency_cycles for machine in machines] == [63, 117, 90, 90]
    for machine in machines:
        assert machine.model_copy(update={"ddr": EDGE.ddr, "contention": EDGE.contention}) == EDGE
        assert machine.digest != EDGE.digest


@given(st.integers(1, SHARE_UNIT), st.integers(24, 10**7))  # below, rounding of the period is more than an eighth of the inference
def test_load_has_the_mean_share_in_every_period(share: int, cycles: int) -> None:
    load, period = on_off(share, cycles), max(2, cycles // PERIODS)
    if len(load.cycles) == 1:
        assert load.share_units == (share,)
        return
    assert set(load.share_units[:-1:2]) == {max(1, share // 2)}
    assert set(load.share_units[1:-1:2]) == {SHARE_UNIT}
    *begins, end = load.cycles[::2]
    assert (np.diff([*begins, end]) == period).all()
    assert end >= 7 * cycles
    on = load.cycles[1]
    mean = (on * load.share_units[0] + (period - on) * SHARE_UNIT) / period
    assert mean == pytest.approx(share, abs=SHARE_UNIT / period + 1), "to one cycle of it"


def test_times_are_those_of_the_simulator() -> None:
    """The machine as described says what it always says, a faster one is faster, and where there is no load none comes and goes."""
    target_graph = make_unit(lower(small_model("conv_chain")), EDGE, DataType.float16)
    program = compile_plan(Compiler(target_graph), default_plan(target_graph))
    timings = simulate_levels(program, EDGE)
    cycles = {level: timings[level].cycles for level in EDGE.contention}
    times = out_of_sample([[program], [program, program]], EDGE, cycles)
    assert times.shape == (len(CONDITIONS), 2, 3)
    described, near, far, slow, fast, mean, late = times[:, 0]
    assert described.tolist() == list(cycles.values())
    assert (near < described).all()
    assert (described < far).all()
    assert (fast < described).all()
    assert (described < slow).all()
    assert (mean[0], late[0]) == (described[0], described[0])
    assert (late[1:] >= mean[1:]).all()
    assert (mean[1:] != described[1:]).any(), "that load is not a constant one"
    np.testing.assert_array_equal(times[:-2, 1], 2 * times[:-2, 0])
