"""Cost model of offloading a set of nodes to the NPU: launch and copies of inputs and outputs, against the host's own time.

The host runs the nodes one after the other on one thread (`simulator.host_nodes`), each of them at best as fast as its
multiply-accumulates and the values that it reads and writes allow.  A subgraph on the NPU costs the call, a copy of every tensor at its
border (with the change to the NPU's layout), and at least the time of its products and bytes at the machine's peak rates.

Both sides are lower bounds of the same kind: neither the host's cache misses nor the NPU's stalls count.  The rates of the host are data
of the machine (`host` in its YAML file).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.npu.machine import Machine
from simulator.npu.parts import DataType

_HOST_BYTES = 4  # a value of float32


class NodeWork(NamedTuple):
    """Work of one node on the host: MACs, and values that it reads (with weights) and writes.

    integers: whether it multiplies integers of 8 bits.
    """

    macs: int
    values: int
    integers: bool = False


@dataclass(frozen=True)
class SubgraphWork:
    """Work of a set of nodes.  weights: number of float constants.  border: number of float values of inputs and outputs.

    integer_weights, integer_border: bytes of integer constants, and of integer inputs and outputs.
    """

    nodes: tuple[NodeWork, ...]
    weights: int
    border: int
    integer_weights: int = 0
    integer_border: int = 0


@dataclass(frozen=True)
class Offload:
    """Decision about offloading to a machine, with its host and a data type on the NPU."""

    machine: Machine
    dtype: DataType

    @property
    def launch_s(self) -> float:
        """Seconds from the host's call to the first instruction."""
        return self.machine.host.launch_us * 1e-6

    def host_s(self, nodes: Sequence[NodeWork]) -> float:
        """Seconds of the nodes on the host."""
        host = self.machine.host
        return sum(max(n.macs / host.macs_per_s, n.values * _HOST_BYTES / host.bytes_per_s) for n in nodes)

    def npu_s(self, work: SubgraphWork) -> float:
        """Seconds of the nodes as a subgraph on the NPU."""
        machine = self.machine
        macs = sum(node.macs for node in work.nodes if not node.integers) / float(machine.peak(self.dtype) * machine.cores)
        if integers := sum(node.macs for node in work.nodes if node.integers):
            macs += integers / float(machine.peak(DataType.int8) * machine.cores)
        floats = (work.weights + work.border) * self.dtype.size_bytes
        moved = (floats + work.integer_weights + work.integer_border) / float(machine.ddr.deliverable)
        copied = work.border * _HOST_BYTES + work.integer_border
        return self.launch_s + copied / machine.host.bytes_per_s + max(macs, moved) / machine.clock_hz

    def declined(self, work: SubgraphWork) -> str | None:
        """Reason to keep the nodes on the host; None where the NPU is faster."""
        host, npu = self.host_s(work.nodes), self.npu_s(work)
        if npu < host:
            return None
        return f"supported, but not worth a piece of its own: {host * 1e6:,.1f} us on the host, {npu * 1e6:,.1f} us with launch and copies"


class AlwaysOffload(Offload):
    """Offloading of all supported nodes at any cost, for correctness tests."""

    launch_s = 0.0

    def declined(self, work: SubgraphWork) -> str | None:
        return None
