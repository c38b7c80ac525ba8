"""CPUs that this process may use: those that it may run on, and what of them its control groups leave it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS, OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cpus() -> int:
    """At least one; a quota of one and a half is one, as a worker that is stopped for half of its time holds up the others."""
    return max(1, min([len(os.sched_getaffinity(0)), *map(int, _quotas())]))


def _quotas() -> Iterator[float]:
    """In CPUs, of the process's group and those above it (kernel: admin-guide/cgroup-v1, cgroup-v2.rst, `cpu.max`)."""
    lines = OF_PROCESS.read_text().splitlines() if OF_PROCESS.is_file() else []
    for _, controllers, group in (line.split(":", 2) for line in lines):
        if controllers and "cpu" not in controllers.split(","):
            continue
        root, names = (GROUPS / "cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")) if controllers else (GROUPS, ("cpu.max",))
        own = root / group.lstrip("/")
        # in a container its own group is the root of what is mounted there, whatever it is called outside
        for folder in (root, own, *own.parents):
            with suppress(OSError, ValueError):  # the root of version 2 has none; "max" is no number
                quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
                if quota > 0:
                    yield quota / period
