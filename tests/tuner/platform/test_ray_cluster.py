"""A guest's manners on a Ray cluster: whom it talks to, what it waits for, and what its workers see."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

import pytest
import ray

import tuner
from simulator.npu.errors import BadInputError
from tests.messages import naming
from tests.tuner.platform.actors_contract import Steps
from tuner.platform import ray_cluster as cluster
from tuner.platform.ray_actors import RayActors
from tuner.platform.ray_cluster import OPEN_CLUSTER, probe_head, require_token, worker_environment


@pytest.mark.usefixtures("local_ray")
def test_no_room_is_said_and_refused() -> None:
    lines: list[str] = []
    free = int(ray.cluster_resources()["CPU"])
    with pytest.raises(BadInputError, match=r"no room within 1 s \(free \d+ of \d+ CPUs\)"):
        RayActors(Steps, free + 1, wait_s=1, say=lines.append)
    assert lines[0].startswith(f"waiting for {free + 1} CPUs (free ")
    with RayActors(Steps, free, wait_s=1, say=lines.append) as actors:
        assert actors.count == free, "the room asked for in vain was given back"
    assert ray.is_initialized(), "a Ray that the farm did not start is left running"


def test_silent_address_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster.CONNECT_S + cluster.HEALTH_S < 10
    monkeypatch.setattr(cluster, "HEALTH_S", 1.0)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        closed_port = deaf.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(BadInputError, match="no Ray head answers"):
            probe_head(f"127.0.0.1:{closed_port}")
        deaf.listen()  # accepts, says nothing
        with pytest.raises(BadInputError, match="no Ray head answers"):
            probe_head(f"127.0.0.1:{closed_port}")
        assert time.monotonic() - start < cluster.CONNECT_S + 2
    with pytest.raises(BadInputError, match="expected host:port"):
        probe_head("nowhere")


def test_an_open_cluster_on_a_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(BadInputError, match=naming("192.0.2.77:6379", "token")):
        require_token("192.0.2.77:6379")  # an address that nobody has (RFC 5737)
    for address in ("127.0.0.1:6379", "localhost:6379", "[::1]:6379", "no.such.host.invalid:1"):
        require_token(address)
    monkeypatch.setenv(OPEN_CLUSTER, "1")
    require_token("192.0.2.77:6379")
    monkeypatch.delenv(OPEN_CLUSTER)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    require_token("192.0.2.77:6379")


def test_workers_share_modules_with_one_thread_and_heap(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = worker_environment()
    assert str(tmp_path) in environment["PYTHONPATH"].split(os.pathsep)
    assert environment["OMP_NUM_THREADS"] == environment["NUMBA_NUM_THREADS"] == environment["MALLOC_ARENA_MAX"] == "1"
    root = os.path.dirname(os.path.dirname(os.path.abspath(tuner.__file__)))
    assert root in environment["PYTHONPATH"].split(os.pathsep)
    # where the prefix is /usr, somebody's work may lie below it
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "src" / "app"))
    monkeypatch.syspath_prepend(str(tmp_path / "lib" / "python3"))
    (tmp_path / "src" / "app").mkdir(parents=True)
    (tmp_path / "lib" / "python3").mkdir(parents=True)
    paths = worker_environment()["PYTHONPATH"].split(os.pathsep)
    assert str(tmp_path / "src" / "app") in paths
    assert str(tmp_path / "lib" / "python3") not in paths
