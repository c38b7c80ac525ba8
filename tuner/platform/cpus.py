"""Number of CPUs available to this process: its affinity, limited by its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUPS_OF_PROCESS = Path("/proc/self/cgroup")  # lines NUMBER:CONTROLLERS:GROUP; version 2 has no controllers


def usable_cpus() -> int:
    """Number of usable CPUs, at least one; a quota of 1.5 counts as one, since a worker stopped for half of its time delays the others."""
    return max(1, min([len(os.sched_getaffinity(0)), *map(int, _quotas())]))


def _quotas() -> Iterator[float]:
    """Quotas in CPUs, of the process's group and its parents (kernel: admin-guide/cgroup-v1, cgroup-v2.rst, `cpu.max`)."""
    lines = CGROUPS_OF_PROCESS.read_text().splitlines() if CGROUPS_OF_PROCESS.is_file() else []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # version 1 has quota and period in two files, version 2 in one
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        root = CGROUP_ROOT / "cpu" if controllers else CGROUP_ROOT
        group_folder = root / group.lstrip("/")
        # a container sees its own group as the root, whatever the group's name outside
        for folder in (root, group_folder, *group_folder.parents):
            with suppress(OSError, ValueError):  # the root of version 2 has none; "max" is no number
                numbers = " ".join((folder / name).read_text() for name in names)
                quota, period = map(int, numbers.split())
                if quota > 0:
                    yield quota / period
