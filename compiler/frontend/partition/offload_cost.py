"""Is it worth it to take a set of nodes to the NPU?  Its launch and the copies of what goes in and out, against the host's own time.

The host runs the nodes one after the other on one thread (`simulator.host_nodes`), each of them at best as fast as its
multiply-accumulates and the values that it reads and writes allow.  A piece on the NPU costs the call, a copy of every tensor at its
border, in which the host also brings it into the NPU's order, and at least the time that its products and its bytes take at the
machine's peak rates.

Both sides are lower bounds of one kind: what the one leaves out (the host's cache misses), the other does too (the NPU's waits).  The
rates of the host are data of the machine (`host` in its YAML file).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.npu.machine import Machine
from simulator.npu.parts import DataType

_HOST_BYTES = 4  # a value of float32


class NodeWork(NamedTuple):
    """Of one node on the host: multiply-accumulates, and values that it reads (weights included) and writes.

    integers: whether it multiplies integers of 8 bits.
    """

    macs: int
    values: int
    integers: bool = False


@dataclass(frozen=True)
class PieceWork:
    """Of a set of nodes.  weights: values of the constants that it reads.  border: values of the tensors that go in or out.

    Those two are of floats.  integer_weights, integer_border: bytes of those of integers.
    """

    nodes: tuple[NodeWork, ...]
    weights: int
    border: int
    integer_weights: int = 0
    integer_border: int = 0


@dataclass(frozen=True)
class Offload:
    """The machine and its host, for a data type on the NPU."""

    machine: Machine
    dtype: DataType

    @property
    def launch_s(self) -> float:
        """Seconds from the host's call to the first instruction."""
        return self.machine.host.launch_us * 1e-6

    def host_s(self, nodes: Sequence[NodeWork]) -> float:
        """Seconds that the host takes for the nodes."""
        host = self.machine.host
        return sum(max(n.macs / host.macs_per_s, n.values * _HOST_BYTES / host.bytes_per_s) for n in nodes)

    def npu_s(self, work: PieceWork) -> float:
        """Seconds that they take as a piece of their own."""
        machine = self.machine
        macs = sum(node.macs for node in work.nodes if not node.integers) / float(machine.peak(self.dtype) * machine.cores)
        if integers := sum(node.macs for node in work.nodes if node.integers):
            macs += integers / float(machine.peak(DataType.int8) * machine.cores)
        floats = (work.weights + work.border) * self.dtype.size_bytes
        moved = (floats + work.integer_weights + work.integer_border) / float(machine.ddr.deliverable)
        copied = work.border * _HOST_BYTES + work.integer_border
        return self.launch_s + copied / machine.host.bytes_per_s + max(macs, moved) / machine.clock_hz

    def declined(self, work: PieceWork) -> str | None:
        """Why the host keeps them; None where the NPU is faster."""
        host, npu = self.host_s(work.nodes), self.npu_s(work)
        if npu < host:
            return None
        return f"supported, but not worth a piece of its own: {host * 1e6:,.1f} us on the host, {npu * 1e6:,.1f} us with launch and copies"


class Always(Offload):
    """Everything that can run on the NPU does, whatever it costs: to see whether it is right."""

    launch_s = 0.0

    def declined(self, work: PieceWork) -> str | None:
        return None
