"""Facts about a worker's node that must be those of the driver's computer, or better be."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import ray

from tuner.platform.crash import version_of

SAME = ("tilefarm", "numpy", "numba", "xgboost")  # packages that measure and learn
# instructions by which libraries choose other code, whose floats differ in their last digits
FEATURES = frozenset(("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "asimd", "sve", "sve2"))
CLOCK_S = 10.0  # largest difference of clocks that is not said
SHARED = Path("/dev/shm")


class NodeFacts(NamedTuple):
    """Facts, as a worker finds them.  node: Ray's id.  shared_bytes: size of /dev/shm."""

    host: str
    pid: int
    node: str
    versions: tuple[tuple[str, str], ...]
    features: frozenset[str]
    epoch_s: float
    shared_bytes: int

    @property
    def name(self) -> str:
        """Name of the worker, for the log."""
        return f"{self.host}:{self.pid}"


def find_facts() -> NodeFacts:
    """Facts about this process."""
    versions = (("Python", platform.python_version()), *((name, version_of(name)) for name in SAME))
    node = ray.get_runtime_context().get_node_id()
    return NodeFacts(socket.gethostname(), os.getpid(), node, versions, cpu_features(), time.time(), shared_bytes())


def cpu_features(file: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Those of `FEATURES` that the processor has; none where nothing says so."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return frozenset()
    line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return FEATURES.intersection(line.split())


def shared_bytes() -> int:
    return shutil.disk_usage(SHARED).total if SHARED.is_dir() else 0


def version_trouble(driver_facts: NodeFacts, node_facts: NodeFacts) -> str | None:
    """Reason why workers of a node cannot measure for this computer."""
    pairs = zip(node_facts.versions, driver_facts.versions, strict=True)
    text = ", ".join(
        f"{name} {version} ({driver_version} here)" for (name, version), (_, driver_version) in pairs if version != driver_version
    )
    return f"node {node_facts.host} has {text}; install the same versions on every node" if text else None


def differences(
    driver_facts: NodeFacts, node_facts: NodeFacts, start_s: float, now_s: float, store_bytes: int
) -> Iterator[tuple[str, str]]:
    """Differences with which a run goes on: (kind, line).  start_s, now_s: times of this computer at the start of the worker and now; its
    facts are from between."""
    if node_facts.features != driver_facts.features:
        features = " ".join(sorted(node_facts.features ^ driver_facts.features))
        yield (
            f"features {features}",
            f"node {node_facts.host} has another processor ({features}): a model trained there may differ in last digits",
        )
    late_s = max(0.0, node_facts.epoch_s - now_s) or min(0.0, node_facts.epoch_s - start_s)
    if abs(late_s) > CLOCK_S:
        clock_note = f"{abs(late_s):.0f} s {'ahead of' if late_s > 0 else 'behind'}"
        yield f"clock {node_facts.host}", f"the clock of node {node_facts.host} is {clock_note} this computer's: so are times in the log"
    if node_facts.shared_bytes < store_bytes:
        size = f"{node_facts.shared_bytes >> 20} MiB, {store_bytes >> 20} are needed"
        yield (
            f"shared {node_facts.host}",
            f"node {node_facts.host}: /dev/shm has {size}: Ray uses its disk, which is slow; `docker run --shm-size` is larger",
        )
