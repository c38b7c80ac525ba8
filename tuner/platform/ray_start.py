"""Start of Ray beside the driver: its processes take seconds, and so does the check of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the import of Ray takes a second
    from tuner.platform.ray_cluster import Connection


@contextmanager
def join_ray(address: str | None, local_cpus: int | None) -> Iterator[Callable[[], Connection]]:
    """Join or start Ray in a thread, as `ray_cluster.connect` does.  Yields a function that waits for it: connection, or an error."""

    def join() -> Connection:
        from tuner.platform.ray_cluster import connect

        return connect(address, local_cpus)

    with ThreadPoolExecutor(1, "ray-start") as thread:
        joining = thread.submit(join)
        try:
            yield joining.result
        finally:
            if joining.exception() is None:
                joining.result().close()
