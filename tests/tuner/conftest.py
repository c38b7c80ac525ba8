"""One local Ray for all tests here that want one: it takes seconds to start, and to end."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
import ray

from tuner.platform.ray_cluster import Connection, connect

_HERE = Path(__file__).parent
_started: list[Connection] = []


@pytest.fixture
def local_ray() -> Connection:
    """Of this process, with two CPUs; farms are its guests.  It stays for the next test here."""
    if not _started:
        assert not ray.is_initialized()
        _started.append(connect(None, 2))
        assert _started[0].owned
    return _started[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Tests elsewhere find no Ray in their process: one that is there is taken, whatever address they give."""
    yield
    if _started and (nextitem is None or not nextitem.path.is_relative_to(_HERE)):
        _started.pop().close()
        assert not ray.is_initialized()
