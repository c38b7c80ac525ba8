"""Nodes of a model that stay with the host, why, and their share of its multiply-accumulates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.frontend.partition.macs import model_macs
from compiler.frontend.partition.node_counts import count_nodes
from compiler.frontend.partition.offload_cost import least_host_s
from compiler.frontend.partition.partition import Partition
from compiler.model import LoweredModel
from simulator.npu.errors import InfeasibleError
from simulator.npu.machine import Machine
from tuner.measure.host_lines import host_lines
from tuner.summary import HostNodeSummary

HALF = 0.5  # share of the NPU below which there is a warning


@dataclass(frozen=True)
class MacShare:
    """Multiply-accumulates of a model: in its subgraphs, and in its host nodes.  None if a node cannot be counted.

    uncounted: operators that cannot be counted.  npu_only: no host nodes.
    """

    npu: int | None
    host: int | None
    uncounted: tuple[str, ...]
    npu_only: bool

    @property
    def total(self) -> int | None:
        return None if self.npu is None or self.host is None else self.npu + self.host

    @property
    def share(self) -> float | None:
        """Share of the NPU; 1 without multiply-accumulates if there are no host nodes.  None if unknown."""
        if self.npu is None or not self.total:
            return 1.0 if self.npu_only and self.npu is not None else None
        return self.npu / self.total

    def __str__(self) -> str:
        if self.total is None:
            return f"share of MACs on the NPU n/a: they cannot be counted of {', '.join(self.uncounted) or 'what the NPU runs'}"
        if self.total == 0:
            return "no MACs" if self.npu_only else "no MACs, so their share on the NPU is n/a"
        return f"{self.total:,} MACs, {self.share:.1%} of them on the NPU"


def mac_share(part: Partition) -> MacShare:
    """Shares of a model; nodes that depend on constants only are in neither part."""
    host, pieces = part.host, [model_macs(piece.npu) for piece in part.pieces]
    uncounted = dict.fromkeys(node.op_type for node in host if node.macs is None)
    return MacShare(
        None if None in pieces else sum(macs or 0 for macs in pieces),
        None if uncounted else sum(node.macs or 0 for node in host),
        tuple(uncounted),
        not host,
    )


def host_nodes(part: Partition, machine: Machine) -> tuple[HostNodeSummary, ...]:
    """Host nodes in the model's order, with their least time on the machine's host."""
    total = mac_share(part).total
    return tuple(
        HostNodeSummary(
            node=node.name,
            op=node.op_type,
            refused=node.refused,
            why=node.why,
            macs=node.macs,
            mac_share=node.macs / total if total and node.macs is not None else None,
            least_us=1e6 * least_host_s([node.work], machine.host),
            accepted=node.accepted,
        )
        for node in part.host
    )


def work_lines(lowered: LoweredModel) -> list[str]:
    """Lines: changes of the model, a warning if the host has the larger part, cost of grouped convolutions, host nodes, counts of nodes."""
    share = mac_share(lowered.part).share
    warning = [f"warning: the NPU does {share:.1%} of the MACs, less than half"] if share is not None and share < HALF else []
    return [
        *lowered.notes,
        *warning,
        *([] if lowered.grouped is None else [lowered.grouped.line()]),
        *host_lines(host_nodes(lowered.part, lowered.machine)),
        *([str(count_nodes(lowered.part))] if lowered.part.host else []),
    ]


def check_share(lowered: LoweredModel, minimum: float | None) -> None:
    """Raise `InfeasibleError` if the NPU's share of the multiply-accumulates is below `minimum` or unknown."""
    share = mac_share(lowered.part)
    if minimum is None or (share.share is not None and share.share >= minimum):
        return
    largest_groups: Sequence[str] = host_lines(host_nodes(lowered.part, lowered.machine))[:1]
    reasons = [f"--min-npu-share {minimum:g}: {lowered.name} on {lowered.machine.name}: {share}", *largest_groups]
    raise InfeasibleError("; ".join([*reasons, str(count_nodes(lowered.part))]))
