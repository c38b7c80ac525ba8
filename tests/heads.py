"""Ray clusters as processes of this computer, started by a test that is going to kill them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

HEAD = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False, "no_monitor": True, "include_log_monitor": False}


@contextmanager
def lean_cluster() -> Iterator[Any]:
    """A head of one CPU without dashboard, autoscaler and log monitor, which take longer to start than the rest, and nobody asks them."""
    from ray._private.node import Node
    from ray.cluster_utils import Cluster

    with mock.patch.object(Node, "start_api_server"):  # even without a dashboard there is a process for it
        cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    try:
        yield cluster
    finally:
        cluster.shutdown()
