"""One local Ray for all tests here that want one: it takes seconds to start, and to end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray

from tuner.farm.cluster import connect


@pytest.fixture(scope="package")
def local_ray() -> Iterator[None]:
    """Of this process, with two CPUs; farms are its guests."""
    connection = connect(None, 2)
    assert connection.owned
    yield
    connection.close()
    assert not ray.is_initialized()
