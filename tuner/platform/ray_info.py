"""Information about a running Ray, from a separate process: `python -m tuner.platform.ray_info [ADDRESS]` prints JSON, starts nothing.

Ray ends the calling process on a wrong token or version, which must not be the user's command.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from simulator.npu.errors import BadInputError

TIMEOUT_S = 30.0
_OWN = ("CPU", "GPU", "memory", "object_store_memory")


class RayNode(NamedTuple):
    """Node of a cluster.  resources: custom ones, for `tune --resource`."""

    name: str
    cpus: int
    resources: dict[str, float]


class RayFacts(NamedTuple):
    """Facts about a cluster.  address: address of the head."""

    address: str
    version: str
    cpus: int
    free_cpus: int
    nodes: tuple[RayNode, ...]


def ray_facts(address: str | None) -> RayFacts | None:
    """Facts about the Ray at `address`, else RAY_ADDRESS, else the local one; None without any.

    Raises `BadInputError` if a named one does not answer.
    """
    if address is None and "RAY_ADDRESS" not in os.environ:
        if not _runs_here():
            return None
        address = "auto"
    command = [sys.executable, "-m", "tuner.platform.ray_info", *([address] if address else [])]
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False)
    except subprocess.TimeoutExpired:
        raise BadInputError(f"Ray says nothing within {TIMEOUT_S:.0f} s") from None
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        raise BadInputError(lines[-1] if lines else f"asking Ray ended with {process.returncode}")
    facts = json.loads(process.stdout.splitlines()[-1])
    return RayFacts(**{**facts, "nodes": tuple(RayNode(**node) for node in facts["nodes"])})


def on_this_computer(address: str | None) -> bool:
    """Whether workers of `address`, else RAY_ADDRESS, start on this computer."""
    return (address or os.environ.get("RAY_ADDRESS") or "local") == "local"


def _runs_here() -> bool:
    """Whether a local process has the address of a head: Ray searches the same way, but takes half a second to import."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"--gcs-address=" in path.read_bytes():
                return True
        except OSError:  # the process has ended
            continue
    return False


def _ask(address: str | None) -> dict[str, Any]:
    from tuner.platform.ray_cluster import cluster_cpus, connect

    logging.disable(logging.CRITICAL)
    connection = connect(address)
    import ray

    try:
        free, total = cluster_cpus()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        return {
            "address": ray.get_runtime_context().gcs_address,
            "version": ray.__version__,
            "cpus": total,
            "free_cpus": free,
            "nodes": [
                {"name": node["NodeManagerHostname"], "cpus": int(node["Resources"].get("CPU", 0)), "resources": _custom(node["Resources"])}
                for node in nodes
            ],
        }
    finally:
        connection.close()


def _custom(resources: dict[str, float]) -> dict[str, float]:
    return {
        name: amount
        for name, amount in sorted(resources.items())
        if name not in _OWN and not name.startswith(("node:", "accelerator_type:"))
    }


if __name__ == "__main__":
    try:
        print(json.dumps(_ask(sys.argv[1] if len(sys.argv) > 1 else None)))
    except BadInputError as problem:
        sys.exit(str(problem))
