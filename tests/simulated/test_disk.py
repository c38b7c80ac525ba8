"""What a simulated disk keeps, and what it loses."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from simulator.npu.files import put_atomically
from tests.simulated.disk import SECTOR_BYTES, SimDisk, SimPlace
from tests.simulated.faults import Faults
from tests.simulated.kernel import Crash, Kernel, Process
from tuner.platform.files import LockedError

SEEDS = 200


def disks() -> list[SimDisk]:
    return [SimDisk(Random(seed)) for seed in range(SEEDS)]


def seen(disk: SimDisk, name: str) -> bytes | None:
    place = SimPlace(disk, (name,))
    return place.read_bytes() if place.is_file() else None


def test_what_was_fsynced_outlives_a_power_cut() -> None:
    for disk in disks():
        file = SimPlace(disk, ("a",))
        file.put([b"one", b"two"])
        file.fsync()
        file.parent.fsync()
        disk.power_cut()
        assert seen(disk, "a") == b"onetwo"


@pytest.mark.parametrize(("fsynced", "lost"), [("file", {None}), ("folder", {b"", bytes(6), b"one"}), ("none", {None, b"", bytes(6)})])
def test_what_was_not_fsynced_may_be_lost(fsynced: str, lost: set[bytes | None]) -> None:
    found = set()
    for disk in disks():
        file = SimPlace(disk, ("a",))
        file.put([b"one", b"two"])
        if fsynced == "file":
            file.fsync()
        if fsynced == "folder":
            file.parent.fsync()
        disk.power_cut()
        found.add(seen(disk, "a"))
    assert found >= {b"onetwo", *lost}
    assert fsynced == "none" or (None in found) == (fsynced == "file")


def test_overwritten_file_may_be_torn_at_sectors() -> None:
    found = set()
    for disk in disks():
        file = SimPlace(disk, ("a",))
        file.put([b"o" * 1200])
        file.fsync()
        file.parent.fsync()
        file.put([b"n" * 1200])
        disk.power_cut()
        found.add(seen(disk, "a"))
    assert b"o" * 512 + b"n" * 512 + b"o" * 176 in found
    assert all(text is not None for text in found)


def test_appending_takes_nothing_from_a_file() -> None:
    found = set()
    for disk in disks():
        file = SimPlace(disk, ("a",))
        file.put([b"old"])
        file.fsync()
        file.parent.fsync()
        file.put([b"new"], 3)
        disk.power_cut()
        found.add(seen(disk, "a"))
    assert found == {b"old", b"oldn", b"oldne", b"oldnew", b"old\0\0\0"}


def test_rename_is_one_instant_and_durable_with_folder() -> None:
    found = set()
    for disk in disks():
        old, new = SimPlace(disk, ("a",)), SimPlace(disk, ("b",))
        for file, text in ((old, b"old"), (new, b"new")):
            file.put([text])
            file.fsync()
        old.parent.fsync()
        new.replace(old)
        disk.power_cut()
        found.add((seen(disk, "a"), seen(disk, "b")))
    assert found == {(b"old", b"new"), (b"new", None)}


def test_a_rename_between_folders_is_durable_with_either() -> None:
    for disk in disks():
        root = SimPlace(disk, ())
        for name in ("from", "to"):
            (root / name).mkdir()
        root.fsync()
        file = root / "from" / "a"
        file.put([b"x"])
        file.fsync()
        file.replace(root / "to" / "a")
        (root / "to").fsync()
        disk.power_cut()
        assert (root / "to" / "a").read_bytes() == b"x"
        assert not (root / "from" / "a").exists()


def test_put_whole_leaves_the_old_or_the_new() -> None:
    """At whichever call the process or the computer ends."""
    for call in range(1, 12):
        for power in (False, True):
            kernel, disk = Kernel(call), SimDisk(Random(call))
            old = SimPlace(disk, ("a",))
            put_atomically(old, [b"old"])
            process = Process(kernel, Faults(crash_at=call, power=power))
            with pytest.raises(Crash):
                ended(kernel, process, lambda process=process, kernel=kernel, disk=disk: rewritten(disk, kernel, process))
            if power:
                disk.power_cut()
            assert seen(disk, "a") in (b"old", b"newer")


def rewritten(disk: SimDisk, kernel: Kernel, process: Process) -> None:
    place = SimPlace(disk, ("a",), kernel, process)
    put_atomically(place, [b"new", b"er"])
    while True:
        place.exists()


def ended(kernel: Kernel, process: Process, body: Callable[[], None]) -> None:
    kernel.run(process, body)


def test_a_dead_process_changes_nothing() -> None:
    kernel, disk = Kernel(0), SimDisk(Random(0))
    process = Process(kernel, Faults(crash_at=1))
    place = SimPlace(disk, ("a",), kernel, process)

    def driver() -> None:
        try:
            place.put([b"x"])
        finally:
            place.put([b"y"])

    with pytest.raises(Crash):
        kernel.run(process, driver)
    assert seen(disk, "a") is None


def test_full_disk_leaves_a_beginning_and_an_error() -> None:
    kernel, disk = Kernel(0), SimDisk(Random(0))
    process = Process(kernel, Faults(full=(2, 100)))

    def driver() -> None:
        with pytest.raises(OSError) as raised:
            SimPlace(disk, ("a",), kernel, process).put([b"x" * 100])
        assert raised.value.errno == errno.ENOSPC

    kernel.run(process, driver)
    assert process.disk_errors == 1
    assert set(seen(disk, "a") or b"x") == {ord("x")}


def test_failed_fsync_is_not_repaired_by_the_next() -> None:
    found = set()
    for seed in range(SEEDS):
        kernel, disk = Kernel(seed), SimDisk(Random(seed))
        failing, sound = Process(kernel, Faults(full=(1, 2))), Process(kernel, Faults())
        SimPlace(disk, ("a",)).put([b"x"])
        SimPlace(disk, ()).fsync()
        with pytest.raises(OSError):
            kernel.run(failing, lambda failing=failing, kernel=kernel, disk=disk: SimPlace(disk, ("a",), kernel, failing).fsync())
        kernel.run(sound, lambda sound=sound, kernel=kernel, disk=disk: SimPlace(disk, ("a",), kernel, sound).fsync())
        disk.power_cut()
        found.add(seen(disk, "a"))
    assert found == {b"", b"x", b"\0"}


def test_rewritten_data_alone_is_safe_after_failed_fsync() -> None:
    first, second = b"1" * SECTOR_BYTES, b"2" * SECTOR_BYTES
    found = set()
    for seed in range(SEEDS):
        kernel, disk = Kernel(seed), SimDisk(Random(seed))
        failing, sound = Process(kernel, Faults(full=(1, 2))), Process(kernel, Faults())
        SimPlace(disk, ("a",)).put([first, second])
        SimPlace(disk, ()).fsync()
        with pytest.raises(OSError):
            kernel.run(failing, lambda failing=failing, kernel=kernel, disk=disk: SimPlace(disk, ("a",), kernel, failing).fsync())
        SimPlace(disk, ("a",)).put([second], SECTOR_BYTES)
        kernel.run(sound, lambda sound=sound, kernel=kernel, disk=disk: SimPlace(disk, ("a",), kernel, sound).fsync())
        disk.power_cut()
        found.add(seen(disk, "a"))
    assert found == {first + second, bytes(SECTOR_BYTES) + second}


def test_a_lock_ends_with_its_process() -> None:
    kernel, disk = Kernel(0), SimDisk(Random(0))
    first, second = (SimPlace(disk, ("l",), kernel, Process(kernel, Faults())) for _ in range(2))
    assert first._process is not None
    assert second._process is not None
    kernel.current = first._process.main
    first.lock()
    kernel.current = second._process.main
    with pytest.raises(LockedError):
        second.lock()
    first._process.end()
    kernel.current = second._process.main
    second.lock().close()
    assert not second.is_locked()
