"""A hidden machine behind a noisy clock is found: values that show are right, and those that do not are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine, machine_file
from tests.tuning import save_small
from tuner.calibrate.fit import Problem, estimate_accuracy, solve
from tuner.calibrate.hidden import hidden_machine
from tuner.calibrate.identify import Calibration, ValueFinding, calibrate_board
from tuner.calibrate.keys import Key, read_value, with_values
from tuner.calibrate.prediction_check import check
from tuner.calibrate.probes import predict_cycles
from tuner.calibrate.probes_engines import vector_probes
from tuner.calibrate.readings import ProbedBoard, ProbeObservation
from tuner.calibrate.write import machine_text, name_calibrated
from tuner.measure.runner_api import Bench, Encoded, Reading
from tuner.measure.simulator_runner import SimulatedBoard

NOISE = 0.03


def right(finding: ValueFinding, hidden: Machine) -> bool:
    truth = read_value(hidden, finding.key.path)
    if finding.source == "given":
        return finding.low <= truth <= finding.high
    return abs(finding.value - truth) <= max(1 if finding.key.step >= 1 else 0, 0.02 * truth)


@pytest.fixture(scope="module")
def hidden() -> Machine:
    return hidden_machine(load_machine("tiny"), 1)


@pytest.fixture(scope="module")
def board(hidden: Machine) -> ProbedBoard:
    return ProbedBoard("hidden", Bench(SimulatedBoard(hidden, NOISE, 1)), load_machine("tiny"))


@pytest.fixture(scope="module")
def found(board: ProbedBoard) -> Calibration:
    return calibrate_board(board, 64)


def test_observable_keys_are_right_and_others_are_named(found: Calibration, hidden: Machine) -> None:
    wrong = [finding for finding in found.findings if not right(finding, hidden)]
    assert wrong == []
    assert len(found.findings) == 45 + 1
    shown = [finding for finding in found.findings if finding.source == "calibrated"]
    assert len(shown) >= 38
    assert all(finding.why for finding in found.findings if finding.source != "calibrated")
    # the port of this hidden machine is slower than what its loads could draw
    ports = {finding.key.path: finding for finding in found.findings if finding.source == "given"}
    assert "the port is no faster" in ports["paths.DDR->UB.bytes_per_cycle"].why


def test_noise_is_known_and_explains_the_remainder(found: Calibration) -> None:
    assert found.spread == pytest.approx(NOISE, rel=0.1)
    for each in found.classes:
        assert not each.unexplained, each
        assert each.residual < 0.03


def test_segments_that_were_not_probed_are_predicted(found: Calibration, board: ProbedBoard, tmp_path: Path) -> None:
    held_out = check(board, found.machine, 24, 0, [str(save_small("conv_chain", tmp_path))])
    assert held_out.median < 0.02
    assert held_out.p95 < 0.05
    assert held_out.pairs >= 0.98
    assert set(held_out.level) == {"none", "slight", "severe"}
    given = check(board, load_machine("tiny"), 24, 0, [str(save_small("conv_chain", tmp_path))])
    assert given.median > 0.1


def test_file_has_values_comments_and_measured_ones(found: Calibration) -> None:
    machine = name_calibrated(found.machine)
    text = machine_text(machine_file("tiny").read_text(), machine, found, "tilefarm calibrate --runner R --machine tiny")
    written = Machine.model_validate(yaml.safe_load(text))
    assert written == machine
    assert machine.name == name_calibrated(machine).name == "tiny-calibrated"
    assert text.startswith("# tilefarm calibrate --runner R --machine tiny\n")
    assert "# A machine for tests: every rate is one block" in text
    assert text.count("provenance:") == 1
    unseen = {finding.key.path for finding in found.findings if finding.source == "given" and finding.value == finding.given}
    for finding in found.findings:
        if finding.key.path not in unseen:
            assert written.origins[finding.key.path].kind == "measured"
            assert f"{finding.given:g}" in written.origins[finding.key.path].text
    given = load_machine("tiny").origins
    rest = written.values.keys() - {finding.key.path for finding in found.findings} | unseen
    assert {key: written.origins[key] for key in rest} == {key: given[key] for key in rest}


@pytest.mark.parametrize(
    "section",
    [
        "", "provenance: {}\n", "provenance: {assumed: {cores: x,\n  host: y}}  # z\n", "provenance:\n  sources: {}\n",
        "provenance:\n  assumed:\n    cores: |\n      x\n      y\n", "provenance:\n  assumed:\n    cores: x\n      y\n",
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["first", "last"])
def test_provenance_is_replaced_wherever_it_stands(found: Calibration, section: str, place: str) -> None:
    values = "# first\n" + machine_file("tiny").read_text().partition("provenance:")[0] + "# last\n"
    source = section + values if place == "first" else values + section
    provenance = Machine.model_validate(yaml.safe_load(source)).provenance
    given = found.given.model_copy(update={"provenance": provenance})
    text = machine_text(source, name_calibrated(found.machine), replace(found, given=given), "x")
    written = Machine.model_validate(yaml.safe_load(text)).provenance
    assert written.measured
    assert written.assumed == provenance.assumed
    assert text.count("provenance:") == 1
    assert [line for line in text.splitlines() if line in ("# first", "# last")] == ["# first", "# last"]


def test_file_beyond_edits_is_written_anew(found: Calibration) -> None:
    machine = name_calibrated(found.machine)
    source = "# a comment\n" + yaml.safe_dump(load_machine("tiny").model_dump(mode="json")).replace("flags:", "flags: &flags")
    assert Machine.model_validate(yaml.safe_load(machine_text(source, machine, found, "x"))) == machine
    merged = "base: &base {x: 1}\n" + source
    assert Machine.model_validate(yaml.safe_load(machine_text(merged, machine, found, "x").replace("base: &base {x: 1}\n", ""))) == machine


@pytest.mark.slow
def test_edge_is_found() -> None:
    """The goals: what shows within 2% or a cycle; segments within 2% and 5%, pairs 98%."""
    given = load_machine("edge")
    hidden = hidden_machine(given, 1)
    board = ProbedBoard("hidden", Bench(SimulatedBoard(hidden, NOISE, 1)), given)
    found = calibrate_board(board)
    assert [finding for finding in found.findings if not right(finding, hidden)] == []
    held_out = check(board, found.machine, 100, 0)
    assert (held_out.median < 0.02, held_out.p95 < 0.05, held_out.pairs >= 0.98) == (True, True, True)


# --- one class ------------------------------------------------------------------------------------------------------------------


def vector_problem(startup: int, simple: int, **others: int) -> Problem:
    """Of a board without noise, read to 0.1%."""
    hidden = with_values(load_machine("tiny"), {"vector.startup_cycles": startup, "vector.simple_cycles": simple, **others})
    probes = vector_probes("simple", load_machine("tiny"), 4096)
    keys = Key("vector.startup_cycles", "cycles", 0, 1000), Key("vector.simple_cycles", "cycles", 1, 1000)
    problem = Problem(with_values(load_machine("tiny"), others), keys, probes)
    times = [probe.body_value(predict_cycles(probe, hidden)) for probe in probes]
    problem.observe([ProbeObservation(time, 1e-3 * time) for time in times])
    return problem


@pytest.mark.parametrize(("startup", "simple"), [(0, 1), (7, 1), (3, 40), (200, 9)])
def test_a_linear_class_is_solved_exactly(startup: int, simple: int) -> None:
    problem = vector_problem(startup, simple)
    values = solve(problem)
    assert values == (startup, simple)
    assert all(each.half < 0.5 and not each.hidden for each in estimate_accuracy(problem, values))


def test_hidden_by_issue_is_a_range_without_value() -> None:
    """Instructions handed out every 4,000 cycles: nothing shorter shows."""
    problem = vector_problem(5, 1, issue_cycles=4000)
    told = estimate_accuracy(problem, solve(problem))
    assert all(each.hidden and each.low <= truth <= each.high for each, truth in zip(told, (5, 1), strict=True))


def test_board_reading_follows_from_its_seed() -> None:
    def read(seed: int) -> list[int | None]:
        runner, seen = SimulatedBoard(load_machine("tiny"), NOISE, seed), list[int | None]()

        def keep(program: Encoded, level: str) -> Reading:
            reading = runner(program, level)
            seen.append(reading.cycles)
            return reading

        ProbedBoard("b", Bench(keep), load_machine("tiny")).read("vector", vector_probes("simple", load_machine("tiny"), 4096), 3)
        return seen

    assert read(1) == read(1) != read(2)
    assert np.std(np.log([each or 0 for each in read(1)])) > 0
