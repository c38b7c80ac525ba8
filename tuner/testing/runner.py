"""The contract of a runner (`tuner.measure.runner_api.Runner`), tried with a segment, a stage and a program of a small model."""

from __future__ import annotations

from functools import cached_property

from simulator.npu.machine_file import load_machine
from tuner.measure.runner_api import Bench, Encoded, Reading, Runner
from tuner.testing.samples import sample_programs


class RunnerContract:
    """Base class of a test.  machine: preset or YAML file of the runner's hardware.  tries: tries of a failed reading."""

    machine = "edge"
    tries = 3

    def runner(self) -> Runner:
        """Construct the runner under test."""
        raise NotImplementedError

    @cached_property
    def bench(self) -> Bench:
        return Bench(self.runner(), 1, self.tries)

    @cached_property
    def programs(self) -> list[Encoded]:
        return sample_programs(self.machine)

    def test_every_kind_of_program_is_read_at_every_level(self) -> None:
        for program in self.programs:
            cycles = self.bench.cycles(program, list(load_machine(self.machine).contention))
            assert not isinstance(cycles, Reading), f"a {program.kind} of {len(program.container)} bytes: {cycles}"

    def test_a_reading_is_one_of_its_own(self) -> None:
        """The runner itself returns a reading (not only `Bench`): a status with cycles, or without cycles and with a reason."""
        level = next(iter(load_machine(self.machine).contention))
        reading = self.bench.measure(self.programs[-1], level)
        assert isinstance(reading, Reading), f"answered {reading!r}, expected a Reading"
        assert (reading.cycles is not None) == (reading.status == "ok"), f"{reading}: cycles where status is ok, and only there"
        assert reading.status == "ok" or reading.error, f"{reading}: no reason"

    def test_what_is_no_program_has_no_cycles_and_does_no_harm(self) -> None:
        level = next(iter(load_machine(self.machine).contention))
        program = self.programs[-1]
        failed = self.bench.once(program._replace(container=program.container[: len(program.container) // 2]), level)
        assert failed.cycles is None, f"half of a container took {failed.cycles} cycles"
        reading = self.bench.once(program, level)
        assert reading.cycles is not None, f"after one that cannot be run, a good one failed: {reading}"
