"""Ray clusters of several nodes on this computer, in a process of their own.

Whoever makes a `Cluster` keeps clients of its head, and Ray ends a process, without a word, whose client finds no head for a while: not the
process that runs the tests.  The child answers each line that it is sent, and ends with its nodes when there is no more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.tuning import ROOT


@dataclass(frozen=True)
class Head:
    """A head and other nodes, of so many CPUs each; `tell` waits until it is done."""

    address: str
    tell: Callable[[str], str]

    def kill_gcs(self) -> None:
        self.tell("kill gcs")

    def kill_raylet(self) -> None:
        self.tell("kill raylet")

    def add_node(self, cache: str = "") -> None:
        """cache: folder of its compiled kernels; "": that of this computer."""
        self.tell(f"add node {cache}")

    def drain_last_node(self) -> None:
        """As at a spot notice."""
        self.tell("drain last node")

    def kill_last_node(self) -> None:
        self.tell("kill last node")


@contextmanager
def ray_head(cpus: int = 1, nodes: int = 1, resources: dict[str, float] | None = None, cache: str = "") -> Iterator[Head]:
    """Run a cluster.  cache: see `Head.add_node`."""
    arguments = {"num_cpus": cpus, "resources": resources or {}, "object_store_memory": 80 << 20}
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.ray_heads", json.dumps(arguments), str(nodes)],
        cwd=ROOT,
        env={**os.environ, "NUMBA_CACHE_DIR": cache} if cache else None,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    told, answers = child.stdin, child.stdout

    def tell(line: str) -> str:
        told.write(line + "\n")
        told.flush()
        answer = answers.readline().strip()
        assert answer, f"a Ray head ended with {child.wait()}"
        return answer

    try:
        yield Head(tell("address"), tell)
    finally:
        told.close()
        child.wait(timeout=60)


def _serve(arguments: dict[str, object], nodes: int) -> Generator[str, str, None]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**arguments, "include_dashboard": False})
    others = [cluster.add_node(**arguments) for _ in range(nodes - 1)]
    asked = yield cluster.address
    try:
        while True:
            match asked:
                case "kill gcs":
                    cluster.head_node.kill_gcs_server()
                case "kill raylet":
                    cluster.head_node.kill_raylet()
                case text if text.startswith("add node"):
                    if cache := text.removeprefix("add node").strip():
                        os.environ["NUMBA_CACHE_DIR"] = cache
                    others.append(cluster.add_node(**arguments))
                case "drain last node":
                    words = ["drain-node", "--address", cluster.address, "--node-id", others[-1].node_id]
                    words += [
                        "--reason",
                        "DRAIN_NODE_REASON_PREEMPTION",
                        "--reason-message",
                        "notice",
                        "--deadline-remaining-seconds",
                        "60",
                    ]
                    subprocess.run([sys.executable, "-m", "ray.scripts.scripts", *words], check=True, stdout=2)
                case "kill last node":
                    cluster.remove_node(others.pop(), allow_graceful=False)
            asked = yield "done"
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")  # what Ray prints goes to stderr
    os.dup2(2, 1)
    head = _serve(json.loads(sys.argv[1]), int(sys.argv[2]))
    for number, line in enumerate(sys.stdin):
        print(head.send(line.strip()) if number else next(head), file=answers, flush=True)
    head.close()
