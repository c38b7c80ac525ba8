"""Ray's actors keep the contract of all actors; a worker is of the driver's tree, and has one thread and the CPU that it asked for."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cloudpickle
from ray.exceptions import ObjectLostError

import tuner
from tests.ray_heads import ray_head
from tests.tuner.platform import actors_contract
from tests.tuner.platform.actors_contract import COUNT, ActorsContract, Bench, Steps, die, notes, unbuilt
from tests.tuning import ROOT
from tuner.platform import ray_actors
from tuner.platform.actors import Actors, Announce, Built, Done, Lost, Raised, Worker
from tuner.platform.ray_actors import RayActors
from tuner.platform.ray_cluster import Connection

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(actors_contract)


@pytest.mark.usefixtures("local_ray")
class TestRayActors(ActorsContract):
    @pytest.fixture(autouse=True)
    def _often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray_actors, "PULSE_S", 0.2)

    def actors(self, make_worker: Callable[[], Worker]) -> AbstractContextManager[Actors]:
        return RayActors(make_worker, COUNT, wait_s=30.0)


class Environment:
    done = 0

    def work(self, packed: bytes, shared: Sequence[Any], announce: Announce | None) -> bytes:
        return pickle.dumps([*(os.environ.get(name) for name in pickle.loads(packed)), os.nice(0)])


@pytest.mark.parametrize("guest", [True, False], ids=["in a cluster", "in its own Ray"])
def test_workers_run_in_their_environment(local_ray: Connection, guest: bool) -> None:
    """Which they have from the driver, or from processes that it started."""
    with RayActors(Environment, 1, connection=None if guest else local_ray) as actors:
        bench = Bench(actors)
        actor = bench.built()
        bench.send(actor, 0, "OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "PYTHONPATH")  # type: ignore[arg-type]
        (done,) = bench.hear(1)
    assert isinstance(done, Done)
    omp, numba, path, niceness = pickle.loads(done.result)
    assert niceness == os.nice(0)
    assert omp == numba == "1"
    assert path is not None
    assert os.path.dirname(os.path.dirname(os.path.abspath(tuner.__file__))) in path.split(os.pathsep)
    assert "$" not in path


def unborn() -> Worker:
    die()
    raise AssertionError


@pytest.mark.usefixtures("local_ray")
def test_farms_share_a_cluster_and_name_failing_nodes() -> None:
    with RayActors(unborn, 1, run_id="twin") as first, RayActors(unbuilt, 1, run_id="twin") as second:
        Bench(first).start()
        Bench(second).start()
        (lost,), (raised,) = Bench(first).hear(1), Bench(second).hear(1)
    assert isinstance(lost, Lost)
    assert isinstance(raised, Raised)
    # who reads the error finds the line of the worker's own process
    assert 'raise RuntimeError("cannot be made")' in "".join(traceback.format_exception(raised.error))


@pytest.mark.usefixtures("local_ray")
def test_workers_that_fail_to_start_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of an environment without Ray: their processes end at once, and Ray starts others."""
    monkeypatch.setattr(ray_actors, "START_S", 6.0)
    lines: list[str] = []
    with RayActors(Environment, 1, say=lines.append) as actors:
        lines.clear()  # of a slow computer: "waiting for 1 CPUs"
        actors._options["runtime_env"] = {"py_executable": f"{sys.executable} -c 'import no_ray'"}
        actors.start(0, 0)
        end_s = time.monotonic() + 30
        while not lines and time.monotonic() < end_s:
            assert actors.events(0.5) == []
        actors.events(0.5)
    (line,) = lines
    assert line.startswith("1 of 1 workers have not started in 6 s: ModuleNotFoundError: No module named 'no_ray' (")
    with RayActors(Environment, 1, say=lines.append) as actors:
        Bench(actors).built()
        time.sleep(6.0)
        actors.events(0.1)
    assert lines == [line], "of one that has started nothing is said"


@pytest.mark.usefixtures("local_ray")
def test_extra_actor_waits_for_room() -> None:
    lines: list[str] = []
    with RayActors(Steps, 1, say=lines.append, max_count=3) as actors:
        assert (actors.min_count, actors.count) == (1, 3)
        bench = Bench(actors)
        bench.built(0)
        lines.clear()  # of a slow computer: "waiting for 1 CPUs"
        with RayActors(Steps, int(ray.cluster_resources()["CPU"]) - 1):
            extra = {bench.start(1), bench.start(2)}
            assert actors.events(1.0) == []
            actors._say_late_s = 0.0
            assert actors.events(0.1) == []
            assert lines == [], "nobody complains of those that wait"
        (event,) = bench.hear(1)
        assert isinstance(event, Built)
        bench.send(event.actor, 0, ("note", 1))
        assert bench.hear(1) == [Done(event.actor, 0, notes(1))]
        actors.kill(event.actor)
        (last,) = bench.hear(1)
        assert isinstance(last, Built), "in the room that was given back"
        assert {event.actor, last.actor} == extra


class Unfetched(Steps):
    """What is shared with it is lost, which Ray says where the job would begin."""

    def work(self, packed: bytes, shared: Sequence[Any], announce: Announce | None) -> bytes:
        raise ObjectLostError("00" * 28, "", "")


@pytest.mark.usefixtures("local_ray")
def test_lost_object_is_the_fault_of_no_job() -> None:
    with RayActors(Unfetched, 1) as actors:
        bench = Bench(actors)
        actor = bench.built()
        bench.send(actor, 0)
        (lost,) = bench.hear(1)
        assert isinstance(lost, Lost)
        assert (lost.actor, lost.outside) == (actor, True)


@pytest.mark.usefixtures("local_ray")
def test_uv_makes_no_environment_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray._private.runtime_env.uv_runtime_env_hook._get_uv_run_cmdline", lambda: ["uv", "run", "tilefarm"])
    assert ray._private.worker._maybe_modify_runtime_env({}, False) == {}


NODE = """
import os, signal, sys
from tests.tuner.platform.actors_contract import Bench, Steps
from tuner.platform.ray_actors import RayActors
from tuner.platform.ray_cluster import Connection
with RayActors(Steps, 2, sys.argv[1]) as actors:
    bench = Bench(actors)
    bench.start(0), bench.start(1)
    pids = {event.actor: int(event.name.rpartition(":")[2]) for event in bench.hear(2)}
    for actor in pids:
        bench.send(actor, 0, ("wait", 1000.0))
    print("built", flush=True)
    (gone,) = bench.hear(1)
    os.kill(pids[1 - gone.actor], signal.SIGKILL)
    (killed,) = bench.hear(1)
    print(gone.outside, killed.outside)
"""


DRAINED = """
import sys
from tests.tuner.platform.actors_contract import Bench, Steps, notes
from tuner.platform.actors import Done, Draining, JobProgress
from tuner.platform.ray_actors import RayActors
from tuner.platform.ray_cluster import Connection
import ray
with RayActors(Steps, 1, sys.argv[1], say=print, max_count=2) as actors:
    bench = Bench(actors)
    bench.start(0), bench.start(1)
    print("begun", flush=True)
    nodes = {event.actor: event.node for event in bench.hear(2)}
    for actor in nodes:
        bench.send(actor, 0, ("wait", 20.0), ("note", actor))
    print("built", flush=True)
    heard = []
    while len(heard) < 3:
        heard += [event for event in actors.events(30.0) if not isinstance(event, JobProgress)]
    leaving, *done = heard
    assert isinstance(leaving, Draining) and 40.0 < leaving.seconds <= 60.0, leaving
    assert sorted(done) == [Done(actor, 0, notes(actor)) for actor in sorted(nodes)], done
    actors.kill(leaving.actor)
    for _ in range(100):
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        if nodes[leaving.actor] not in alive:
            break
        assert actors.events(0.2) == []
    print(nodes[leaving.actor] in alive, nodes[1 - leaving.actor] in alive)
"""


@pytest.mark.slow  # in simulation by default
def test_drained_node_ends_its_work_and_goes() -> None:
    """One with a reserved worker stays until its deadline: Ray keeps the room."""
    with ray_head() as head:
        driver = subprocess.Popen([sys.executable, "-c", DRAINED, head.address], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert driver.stdout is not None
        assert driver.stdout.readline() == "begun\n"
        head.add_node()
        assert driver.stdout.readline() == "built\n"
        head.drain_last_node()
        said, went = driver.communicate(timeout=90)[0].splitlines()
        assert re.fullmatch(r"node [0-9a-f]{8} leaves in [45]\d s; its 1 workers take no more work", said)
        assert went == "False True", "long before its deadline, as it is empty"


@pytest.mark.parametrize("drained", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_dead_node_is_told_from_dead_process(drained: bool) -> None:
    """In a process of its own: this one may have a Ray already."""
    with ray_head(nodes=2) as head:
        driver = subprocess.Popen([sys.executable, "-c", NODE, head.address], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert driver.stdout is not None
        assert driver.stdout.readline() == "built\n"
        if drained:
            head.drain_last_node()
        head.kill_last_node()
        assert driver.communicate(timeout=60)[0].split() == ["True", "False"]


COMPILING = """
import sys
from tests.tuner.platform.actors_contract import Bench, Steps
from tuner.platform.ray_actors import RayActors

def make():
    from simulator.kernel_cache import compiling, shared_folder
    with compiling() as missing:
        if missing:
            shared_folder().mkdir(exist_ok=True)
            (shared_folder() / "kernel.nbi").write_text("a kernel")
    print("compiled" if missing else (shared_folder() / "kernel.nbi").read_text(), flush=True)
    return Steps()

with RayActors(make, 1, sys.argv[1], max_count=2) as actors:
    bench = Bench(actors)
    bench.built(0)
    while actors._kernels is None:
        assert not actors.events(0.1)
    print("built", flush=True)
    sys.stdin.readline()
    bench.built(1)
    import time; time.sleep(2.0)
"""


@pytest.mark.slow  # `tests/simulator/test_kernel_archive.py` packs and unpacks by default
def test_node_that_joins_gets_kernels(tmp_path: Path) -> None:
    with ray_head(cache=str(tmp_path / "first")) as head:
        driver = subprocess.Popen(
            [sys.executable, "-c", COMPILING, head.address], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "driver")},
        )  # fmt: skip
        assert driver.stdout is not None
        assert driver.stdout.readline() == "built\n"
        head.add_node(str(tmp_path / "second"))
        errors = driver.communicate("\n", timeout=60)[1]
        assert [line.partition(": ")[2] for line in errors.splitlines() if line.startswith("worker ")] == ["compiled", "a kernel"]
        assert driver.returncode == 0
