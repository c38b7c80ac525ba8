"""A dataset whose writer is killed at any call, on a computer that goes down after the next one has begun."""

from __future__ import annotations

from random import Random

import pyarrow as pa

from tests.simulated.disk import SimDisk, SimPlace
from tests.simulated.faults import Faults
from tests.simulated.kernel import Crash, Kernel, Process
from tuner.log.dataset import DatasetWriter, examine
from tuner.log.part_counts import write_counts
from tuner.log.record import log_schema


def written(disk: SimDisk, faults: Faults, parts: int) -> bool:
    """Returns whether the process came to its end."""
    kernel = Kernel(0)
    process = Process(kernel, faults)
    run = SimPlace(disk, ("RUN",), kernel, process)

    def driver() -> None:
        writer = DatasetWriter(run / "log", log_schema(), run / ".tmp")
        write_counts(run, {"log": writer.count})
        for _ in range(parts):
            writer.publish_table(log_schema().empty_table())

    try:
        kernel.run(process, driver)
    except Crash:
        return False
    return True


def test_part_of_killed_writer_is_durable_before_counted() -> None:
    call, ended = 0, False
    while not ended:
        call += 1
        for seed in range(4):
            disk = SimDisk(Random(seed))
            SimPlace(disk, ("RUN",)).mkdir()
            SimPlace(disk, ()).fsync()
            ended = written(disk, Faults(crash_at=call), parts=2)
            assert written(disk, Faults(), parts=0)
            disk.power_cut()
            found = examine(SimPlace(disk, ("RUN", "log")), "log")
            assert isinstance(found.schema, pa.Schema)
            assert not found.faults, (call, seed)
    assert call > 20
