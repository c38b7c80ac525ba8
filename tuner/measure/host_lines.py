"""Nodes that stay with the host, in groups of one reason, for people to read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.summary import HostNodeSummary

MOST_LINES = 12
_NAME, _NUMBER = re.compile(r"'[^']*'|\"[^\"]*\""), re.compile(r"\d[\d,.]*")


@dataclass(frozen=True)
class HostGroup:
    """Host nodes with the same reason except for names and numbers, in the model's order.  macs: total; None if one cannot be counted."""

    nodes: tuple[HostNodeSummary, ...]

    @property
    def macs(self) -> int | None:
        counts = [node.macs for node in self.nodes]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def share(self) -> float | None:
        """Share of the model's multiply-accumulates."""
        shares = [node.mac_share for node in self.nodes]
        return None if None in shares else sum(share or 0 for share in shares)

    @property
    def least_us(self) -> str:
        """Least microseconds on the host; '' in summaries of earlier versions."""
        times = [node.least_us for node in self.nodes if node.least_us is not None]
        return f"{sum(times):,.1f}" if times else ""

    @property
    def time(self) -> str:
        """Least time, in a line."""
        return f" (at least {self.least_us} us)" if self.least_us else ""

    @property
    def kinds(self) -> str:
        return ", ".join(dict.fromkeys(node.op for node in self.nodes))

    def __str__(self) -> str:
        """One node, or how many and the first of them that computes."""
        computing = (node for node in self.nodes if node.op not in ("DequantizeLinear", "QuantizeLinear"))
        node = next(computing, self.nodes[0])
        first = f"{node.op} {node.node!r}: {node.why}"
        accepted = "" if node.accepted in node.why else f"; accepted: {node.accepted}"  # most reasons name it
        return (first if len(self.nodes) == 1 else f"{len(self.nodes)} nodes ({self.kinds}), first {first}") + self.time + accepted


def host_groups(host: Sequence[HostNodeSummary]) -> list[HostGroup]:
    """Groups of host nodes: unknown work first, then by multiply-accumulates, then in the model's order."""
    groups: dict[str, list[HostNodeSummary]] = {}
    for node in host:
        groups.setdefault(_NUMBER.sub("0", _NAME.sub("''", node.why)), []).append(node)
    merged_groups = [HostGroup(tuple(nodes)) for nodes in groups.values()]
    return sorted(merged_groups, key=lambda group: (group.macs is not None, -(group.macs or 0)))


def host_lines(host: Sequence[HostNodeSummary]) -> list[str]:
    """A line for each of the first groups, and one for all others."""
    groups = host_groups(host)
    lines = [f"host, {_work(group)}: {group}" for group in groups[:MOST_LINES]]
    if len(groups) > MOST_LINES:
        last_group = HostGroup(tuple(node for group in groups[MOST_LINES:] for node in group.nodes))
        remainder = f"{len(last_group.nodes)} more for {len(groups) - MOST_LINES} other reasons ({last_group.kinds})"
        lines.append(f"host, {_work(last_group)}: {remainder}{last_group.time}")
    return lines


def _work(group: HostGroup) -> str:
    if group.share is not None:
        return f"{group.share:.1%} of MACs"
    return "MACs n/a" if group.macs is None else f"{group.macs:,} MACs"
