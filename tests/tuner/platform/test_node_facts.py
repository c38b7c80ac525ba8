"""Nodes that differ from the driver's computer: which of them are refused, and what is said of the others."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray import cloudpickle
from ray.exceptions import ObjectStoreFullError

from simulator.npu.errors import BadInputError
from tests.tuner.platform.actors_contract import Bench, Steps
from tuner.platform import node_facts, ray_actors
from tuner.platform.actors import Built, FarmError, Raised, Worker
from tuner.platform.node_facts import CLOCK_S, FEATURES, NodeFacts, cpu_features, differences, version_trouble
from tuner.platform.ray_actors import RayActors

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PACKAGES = ("Python", *node_facts.SAME)
versions = st.tuples(*(st.sampled_from(["1.0", "1.1", "(not installed)"]) for _ in PACKAGES)).map(
    lambda found: tuple(zip(PACKAGES, found, strict=True))
)
facts = st.builds(
    NodeFacts,
    st.sampled_from(["a", "b"]),
    st.just(7),
    st.just("0f"),
    versions,
    st.frozensets(st.sampled_from(sorted(FEATURES))),
    st.floats(0, 2e9),
    st.integers(0, 1 << 40),
)


@given(facts, facts)
def test_only_other_versions_are_refused(here: NodeFacts, there: NodeFacts) -> None:
    trouble = version_trouble(here, there)
    others = {name for name, version in there.versions if (name, version) not in here.versions}
    assert (trouble is None) == (not others)
    assert trouble is None or {name for name in PACKAGES if f"{name} " in trouble} == others
    assert trouble is None or (trouble.startswith(f"node {there.host} has ") and "\n" not in trouble)


@given(facts, facts, st.floats(-100, 100), st.floats(0, 100), st.integers(0, 1 << 40))
def test_differences_are_said_in_lines(here: NodeFacts, there: NodeFacts, late_s: float, waited_s: float, store_bytes: int) -> None:
    """A worker that the driver hears late has no other clock."""
    there = there._replace(epoch_s=here.epoch_s + late_s)
    start_s, now_s = here.epoch_s, here.epoch_s + waited_s
    lines = dict(differences(here, there, start_s, now_s, store_bytes))
    kinds = {kind.split()[0] for kind in lines}
    assert ("features" in kinds) == (here.features != there.features)
    assert ("clock" in kinds) == (there.epoch_s - now_s > CLOCK_S or start_s - there.epoch_s > CLOCK_S)
    assert ("shared" in kinds) == (there.shared_bytes < store_bytes)
    assert all(there.host in line and "\n" not in line for line in lines.values())


@given(st.frozensets(st.sampled_from(sorted(FEATURES | {"mmx", "fpu", "avx10"}))), st.sampled_from(["flags\t\t", "Features\t"]))
def test_features_are_read(tmp_path_factory: Any, features: frozenset[str], word: str) -> None:
    file: Path = tmp_path_factory.mktemp("cpu") / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: avx\n{word}: {' '.join(sorted(features))}\nbugs\t\t: sve\n")
    assert cpu_features(file) == features & FEATURES
    assert cpu_features(file.with_name("none")) == frozenset()


def full() -> Worker:
    raise OSError(errno.ENOSPC, "No space left on device", "/scratch/kernels")


@pytest.mark.usefixtures("local_ray")
def test_troubles_of_nodes_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real, lines = ray_actors.find_facts(), list[str]()

    def begin(worker: Any, **changes: Any) -> Built | Raised:
        monkeypatch.setattr(ray_actors, "find_facts", lambda: real._replace(**changes))
        with RayActors(worker, 1, say=lines.append) as actors:
            Bench(actors).start()
            (event,) = Bench(actors).hear(1)
            assert isinstance(event, Built | Raised)
            return event

    assert isinstance(begin(Steps, features=frozenset({"sve"})), Built)
    (line,) = lines
    assert "sve" in line
    raised = begin(Steps, versions=(("Python", "2.7"), *real.versions[1:]))
    assert isinstance(raised, Raised)
    assert isinstance(raised.error, BadInputError)
    assert "(2.7 here)" in str(raised.error)
    raised = begin(full)
    assert isinstance(raised, Raised)
    assert type(raised.error) is FarmError
    assert "/scratch/kernels" in str(raised.error)


@pytest.mark.usefixtures("local_ray")
def test_full_object_store_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(value: object) -> None:
        raise ObjectStoreFullError("no room for it")

    with RayActors(Steps, 1) as actors:
        monkeypatch.setattr(ray, "put", refuse)
        with pytest.raises(FarmError, match=r"^Ray's object store on this computer is full \(make room .*\): .*no room for it"):
            actors.share(b"x")
