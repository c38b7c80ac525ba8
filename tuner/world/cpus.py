"""CPUs that this process may use: those that it may run on, and what of them its control groups leave it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

GROUPS, OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cpus() -> int:
    """At least one; a quota of one and a half is one, as a worker that is stopped for half of its time holds up the others."""
    return max(1, min([len(os.sched_getaffinity(0)), *map(int, _quotas())]))


def _quotas() -> Iterator[float]:
    """In CPUs, of the process's group and those above it (kernel: admin-guide/cgroup-v1, cgroup-v2.rst, `cpu.max`)."""
    try:
        lines = OF_PROCESS.read_text().splitlines()
    except OSError:
        return
    for _, controllers, group in (line.split(":", 2) for line in lines):
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = GROUPS / "cpu" if controllers else GROUPS
        # in a container its own group is the root of what is mounted there, whatever it is called outside
        own = root / group.lstrip("/")
        for folder in (root, own, *own.parents):
            if folder.is_relative_to(root):
                yield from _quota(folder, v1=bool(controllers))


def _quota(folder: Path, v1: bool) -> Iterator[float]:
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if v1 else ("cpu.max",)
    try:
        quota, period = " ".join((folder / name).read_text() for name in names).split()
    except (OSError, ValueError):  # the root of version 2 has none
        return
    if quota not in ("max", "-1"):
        yield int(quota) / int(period)
