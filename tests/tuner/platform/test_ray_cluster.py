"""A guest's manners on a Ray cluster: whom it talks to, what it waits for, and what its workers see."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray

import tuner
from simulator.npu.errors import BadInputError
from tests.messages import naming
from tests.tuner.platform.actors_contract import Steps
from tests.tuning import ROOT
from tuner.platform import ray_cluster as cluster
from tuner.platform.actors import FarmError
from tuner.platform.ray_actors import RayActors
from tuner.platform.ray_cluster import OPEN_CLUSTER, ActorOutput, Connection, connect, probe_head, require_token, worker_environment


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


def test_only_processes_without_it_get_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = worker_environment()
    started = Connection(owned=True, environment=environment)
    assert started.runtime_environment() is None
    assert Connection(owned=True).runtime_environment() == {"env_vars": environment}
    monkeypatch.syspath_prepend(str(tmp_path))  # a plug-in's folder, after Ray has started
    assert started.runtime_environment() == {"env_vars": worker_environment()} != {"env_vars": environment}


@pytest.mark.parametrize(("limits", "raised"), [((40, 4096), [(90, 4096)]), ((100, 100), []), ((-1, -1), [])])
def test_files_that_ray_opens_are_permitted(
    limits: tuple[int, int], raised: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: told.append(pair))
    cluster._provide_open_files(90, "Ray")
    assert told == raised
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 80))
    with pytest.raises(BadInputError, match="90 open files, and this process may have 80"):
        cluster._provide_open_files(90, "Ray")


def test_ray_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise Exception("The current node timed out during startup. This could happen.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(FarmError, match=r"does not start on this computer \(The current node timed out during startup; logs in /.*serial"):
        connect("local", 1)


def test_output_of_actors_is_said_once() -> None:
    lines: list[str] = []
    output = ActorOutput(lines.append)
    for pid in (7, 8, 9):
        alike = ["weights are old", f"step {pid}"]
        output({"lines": alike, "pid": pid, "ip": "node", "is_err": pid % 2 == 0, "actor_name": "RayActor"}, ignore_prefix=False)
        native = f"[2026-01-01 10:00:00,123 E {pid} {pid}] logging.cc:447: *** SIGSEGV received at time=17"
        output({"lines": [native, "*** SIGSEGV ***", "    @     0x7f00  120  f()"], "pid": pid, "ip": "node", "actor_name": "RayActor"})
        output({"lines": ["A worker died"], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert lines == ["worker 7@node: weights are old", "worker 7@node: step 7", "worker 8@node: step 8", "worker 9@node: step 9"]


PRINTING = """
import sys
from tuner.platform.ray_actors import RayActors

class Worker:
    done = 0
    def work(self, packed, shared, announce):
        return b""

def make():
    print("on stdout")
    print("on stderr", file=sys.stderr)
    return Worker()

if __name__ == "__main__":
    import time
    with RayActors(make, 2) as actors:
        for slot in range(2):
            actors.start(slot, slot)
        built = 0
        while built < 2:
            built += len(actors.events(1.0))
        time.sleep(3.0)
"""


@pytest.mark.slow
def test_real_actors_are_heard_once(tmp_path: Path) -> None:
    script = tmp_path / "printing.py"
    script.write_text(PRINTING)
    ended = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True, timeout=300
    )
    assert ended.stdout == ""
    assert sorted(line.partition(": ")[2] for line in ended.stderr.splitlines() if "worker " in line) == ["on stderr", "on stdout"]
