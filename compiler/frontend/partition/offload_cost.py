"""Cost model of offloading a set of nodes to the NPU: launch and copies of inputs and outputs, against the host's own time.

The host runs the nodes one after the other on one thread (`simulator.host_nodes`), each of them at best as fast as its
multiply-accumulates and the values that it reads and writes allow.  A subgraph on the NPU costs the call, a copy of every tensor at its
border (with the change to the NPU's layout), and at least the time of its products and bytes at the machine's peak rates.

Both sides are lower bounds of the same kind: neither the host's cache misses nor the NPU's stalls count.  The rates of the host are data
of the machine (`host` in its YAML file).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.npu.machine import Machine
from simulator.npu.machine_parts import Host
from simulator.npu.parts import DataType

_HOST_BYTES = 4  # a value of float32


def least_host_s(nodes: Iterable[NodeWork], host: Host) -> float:
    """Least seconds of nodes on the host, one after the other."""
    return sum(max(node.macs / host.macs_per_s, node.values * _HOST_BYTES / host.bytes_per_s) for node in nodes)


class NodeWork(NamedTuple):
    """Work of one node.  macs: multiply-accumulates.  values: number of values that it reads (with weights) and writes.

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
        return least_host_s(nodes, self.machine.host)

    def npu_s(self, work: SubgraphWork) -> float:
        """Seconds of the nodes as a subgraph on the NPU."""
        machine = self.machine
        # products and DDR traffic on the NPU at peak rates, at the same time
        float_macs = sum(node.macs for node in work.nodes if not node.integers)
        integer_macs = sum(node.macs for node in work.nodes if node.integers)
        product_cycles = float_macs / float(machine.peak(self.dtype) * machine.cores)
        if integer_macs:  # a machine of floats has no peak for them
            product_cycles += integer_macs / float(machine.peak(DataType.int8) * machine.cores)
        float_bytes = (work.weights + work.border) * self.dtype.size_bytes
        ddr_cycles = (float_bytes + work.integer_weights + work.integer_border) / float(machine.ddr.deliverable)
        # copies at the border by the host
        copied_bytes = work.border * _HOST_BYTES + work.integer_border
        return self.launch_s + copied_bytes / machine.host.bytes_per_s + max(product_cycles, ddr_cycles) / machine.clock_hz

    def reason_to_decline(self, work: SubgraphWork) -> str | None:
        """Reason to keep the nodes on the host; None where the NPU is faster."""
        host_s, npu_s = self.host_s(work.nodes), self.npu_s(work)
        if npu_s < host_s:
            return None
        times = f"{host_s * 1e6:,.1f} us on the host, {npu_s * 1e6:,.1f} us with launch and copies"
        return f"supported, but not worth a piece of its own: {times}"


class AlwaysOffload(Offload):
    """Offloading of all supported nodes at any cost, for correctness tests."""

    launch_s = 0.0

    def reason_to_decline(self, work: SubgraphWork) -> str | None:
        return None
