"""The farm gives the same outcomes in the same order for any number of workers, and survives the workers it has."""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import ray
from ray import cloudpickle

import tuner
from simulator.npu.errors import BadInputError
from tuner.farm import actors, cluster
from tuner.farm.actors import Outcome, RayBackend, SerialBackend, Slot, _Sent, map_ordered
from tuner.farm.backend import BatchSizer, pieces
from tuner.farm.cluster import OPEN_CLUSTER, FarmError, probe, require_token, worker_environment

cloudpickle.register_pickle_by_value(sys.modules[__name__])

BAD, DIES, HANGS = -1, -2, -3


@dataclass
class Squares:
    """Squares, except for the items that misbehave.  `died`: a file that remembers one death."""

    died: str = ""

    def run(self, batch: list[int]) -> list[int]:
        for item in batch:
            if item == BAD:
                raise RuntimeError("this item is bad")
            if item == DIES:
                os._exit(1)
            if item == HANGS:
                time.sleep(1000)
            if self.died and item == 5 and not os.path.exists(self.died):
                open(self.died, "w").close()
                os._exit(1)
        time.sleep(0.0005 * len(batch))
        return [item * item for item in batch]


def broken() -> Squares:
    raise BadInputError("the model is missing")


def dying() -> Squares:
    os._exit(3)


def told(outcomes: list[Outcome[Any]]) -> list[tuple[str, Any]]:
    return [(outcome.status, outcome.value) for outcome in outcomes]


def run_all(backend: Any, items: list[int]) -> list[Outcome[int]]:
    with backend:
        return list(map_ordered(backend, items, ahead=100))


def test_batches_grow_to_the_target_and_stay_fair() -> None:
    sizer = BatchSizer()
    assert sizer.size(1000, 4) == 1
    sizer.note(10, 0.01)
    assert sizer.size(1000, 4) == 35
    assert sizer.size(8, 4) == 2
    assert sizer.size(1, 4) == 1
    for _ in range(50):
        sizer.note(1, 10.0)
    assert sizer.size(1000, 4) == 1


def test_pieces_cover_a_batch_in_order() -> None:
    for count in (1, 2, 15, 16, 17, 300):
        parts = pieces(list(range(count)))
        assert [i for part in parts for i in part] == list(range(count))
        assert len(parts) <= 16
        assert count == 1 or len(parts) > 1


def test_serial_order_and_a_raising_item() -> None:
    items = [*range(50), BAD, *range(50, 90)]
    outcomes = run_all(SerialBackend(Squares), items)
    assert told(outcomes) == [("crash", None) if i == BAD else ("ok", i * i) for i in items]
    assert outcomes[50].error == "RuntimeError: this item is bad"


def test_collecting_more_than_was_submitted_is_an_error() -> None:
    with SerialBackend[int, int](Squares) as backend:
        backend.submit([1])
        with pytest.raises(ValueError, match="1 items outstanding"):
            backend.collect(2)


@pytest.mark.usefixtures("local_ray")
def test_one_and_two_workers_answer_as_serial_does() -> None:
    items = [*range(300), BAD, *range(300)]
    expected = told(run_all(SerialBackend(Squares), items))
    for workers in (1, 2):
        assert told(run_all(RayBackend(Squares, workers, run_id=f"same{workers}"), items)) == expected
    assert ray.is_initialized(), "a Ray that the farm did not start is left running"


@pytest.mark.usefixtures("local_ray")
def test_a_dying_and_a_hanging_item_are_isolated(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(actors, "SUSPICION_S", 1.0)
    items = [*range(40), DIES, *range(40, 80), HANGS, *range(80, 120)]
    with RayBackend(Squares, 2, run_id="isolate", item_timeout_s=2.0) as backend:
        backend.submit(items)
        outcomes = backend.collect(len(items))
        assert backend.replaced >= 3
        backend.submit([7])
        assert backend.collect(1)[0].value == 49
    expected = {DIES: ("crash", None), HANGS: ("timeout", None)}
    assert told(outcomes) == [expected.get(i, ("ok", i * i)) for i in items]
    assert capsys.readouterr().out == "", "stdout is for results"
    assert outcomes[items.index(DIES)].attempt == 1
    assert outcomes[items.index(HANGS)].error == "no answer within 2 s"


@pytest.mark.parametrize(("behind", "blamed"), [([[1]], set()), ([], {0})])
def test_only_an_item_that_was_alone_is_blamed_for_silence(
    behind: list[list[int]], blamed: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that an item stops may hold back the answer to the item before it, which then looks as if it hung."""
    backend = object.__new__(RayBackend)
    backend._items, backend._deaths, backend._answers, backend._suspects = {0: 2, 1: 3}, {}, {}, deque()
    monkeypatch.setattr(backend, "_replace", lambda _: None)
    slot = Slot(0, sent=deque(_Sent(None, ids, False) for ids in ([0], *behind)))
    backend._lost(slot, "timeout", "no answer")
    assert set(backend._answers) == blamed
    assert list(backend._suspects) == ([[0], *behind] if behind else [])


@pytest.mark.usefixtures("local_ray")
def test_a_worker_killed_from_outside_costs_no_item(tmp_path: Any) -> None:
    make = partial(Squares, str(tmp_path / "died"))
    outcomes = run_all(RayBackend(make, 1, run_id="outside"), list(range(20)))
    assert told(outcomes) == [("ok", i * i) for i in range(20)]
    assert (tmp_path / "died").exists()


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(("make", "error", "text"), [(broken, BadInputError, "model is missing"), (dying, FarmError, "died 3 times")])
def test_workers_that_cannot_start_end_the_run(make: Callable[[], Squares], error: type[Exception], text: str) -> None:
    with RayBackend[int, int](make, 1, run_id="start") as backend:
        backend.submit([1])
        with pytest.raises(error, match=text) as raised:
            backend.collect(1)
    if make is broken:  # who reads the error finds the line of the worker's own process
        assert 'raise BadInputError("the model is missing")' in "".join(traceback.format_exception(raised.value))


@pytest.mark.usefixtures("local_ray")
def test_two_farms_of_one_run_share_a_cluster() -> None:
    with RayBackend(Squares, 1, run_id="twin") as first, RayBackend(Squares, 1, run_id="twin") as second:
        first.submit([1, 2, 3])
        second.submit([4, 5, 6])
        assert [outcome.value for outcome in second.collect(3) + first.collect(3)] == [16, 25, 36, 1, 4, 9]
        first.submit([7])  # never collected: leaving does not wait for it
        assert first.outstanding == 1


@dataclass
class Environment:
    def run(self, batch: list[str]) -> list[str | None]:
        return [os.environ.get(name) for name in batch]


@pytest.mark.usefixtures("local_ray")
def test_workers_run_in_their_environment() -> None:
    with RayBackend(Environment, 1) as backend:
        backend.submit(["OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "PYTHONPATH"])
        omp, numba, path = (outcome.value for outcome in backend.collect(3))
    assert omp == numba == "1"
    assert path is not None
    assert os.path.dirname(os.path.dirname(os.path.abspath(tuner.__file__))) in path.split(os.pathsep)
    assert "$" not in path


@pytest.mark.usefixtures("local_ray")
def test_no_room_is_said_and_refused() -> None:
    lines: list[str] = []
    free = int(ray.cluster_resources()["CPU"])
    with pytest.raises(BadInputError, match=r"no room within 1 s \(free \d+ of \d+ CPUs\)"):
        RayBackend(Squares, free + 1, wait_s=1, say=lines.append)
    assert lines[0].startswith(f"waiting for {free + 1} CPUs (free ")
    assert told(run_all(RayBackend(Squares, free), [3])) == [("ok", 9)], "the room asked for in vain was given back"


def test_an_address_where_nothing_answers_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster.CONNECT_S + cluster.HEALTH_S < 10
    monkeypatch.setattr(cluster, "HEALTH_S", 1.0)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        closed_port = deaf.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(BadInputError, match="no Ray head answers"):
            probe(f"127.0.0.1:{closed_port}")
        deaf.listen()  # accepts, says nothing
        with pytest.raises(BadInputError, match="no Ray head answers"):
            probe(f"127.0.0.1:{closed_port}")
        assert time.monotonic() - start < cluster.CONNECT_S + 2
    with pytest.raises(BadInputError, match="expected host:port"):
        probe("nowhere")


def test_an_open_cluster_on_a_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(BadInputError, match=r"192\.0\.2\.77:6379: not on this computer, and without a token"):
        require_token("192.0.2.77:6379")  # an address that nobody has (RFC 5737)
    for address in ("127.0.0.1:6379", "localhost:6379", "[::1]:6379", "no.such.host.invalid:1"):
        require_token(address)
    monkeypatch.setenv(OPEN_CLUSTER, "1")
    require_token("192.0.2.77:6379")
    monkeypatch.delenv(OPEN_CLUSTER)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    require_token("192.0.2.77:6379")


def test_workers_see_the_drivers_modules_one_thread_and_one_heap(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = worker_environment()
    assert str(tmp_path) in environment["PYTHONPATH"].split(os.pathsep)
    assert environment["OMP_NUM_THREADS"] == environment["NUMBA_NUM_THREADS"] == environment["MALLOC_ARENA_MAX"] == "1"
    root = os.path.dirname(os.path.dirname(os.path.abspath(tuner.__file__)))
    assert root in environment["PYTHONPATH"].split(os.pathsep)
