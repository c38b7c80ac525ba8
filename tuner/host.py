"""What of a model stays with the host, why, and what share of its multiply-accumulates that is."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.frontend.macs import model_macs
from tuner.build import Opened
from tuner.macs import npu_macs
from tuner.summary import HostNodeSummary

MOST_LINES = 12


def mac_share(opened: Opened) -> float:
    """Of the model's multiply-accumulates, what the NPU does; 1 where there are none."""
    macs = model_macs(opened.model)
    return npu_macs(opened.unit, opened.model) / macs if macs else 1.0


def host_nodes(opened: Opened) -> tuple[HostNodeSummary, ...]:
    """In the model's order."""
    macs = model_macs(opened.model)
    return tuple(
        HostNodeSummary(
            node=node.name, op=node.op_type, refused=node.refused, why=node.why, macs=node.macs, mac_share=node.macs / macs if macs else 0.0
        )
        for node in opened.part.host
    )


def host_lines(host: Sequence[HostNodeSummary]) -> list[str]:
    """A line for each node that the NPU refuses (the first ones), and one for the others."""
    refused = [node for node in host if node.refused]
    lines = [f"host, {node.mac_share:.1%} of MACs: {node.why}" for node in refused[:MOST_LINES]]
    if len(refused) > MOST_LINES:
        kinds = ", ".join(dict.fromkeys(node.op for node in refused[MOST_LINES:]))
        lines.append(f"host, {_share(refused[MOST_LINES:])} of MACs: {len(refused) - MOST_LINES} more that are not supported ({kinds})")
    others = [node for node in host if not node.refused]
    if others:
        kinds = ", ".join(dict.fromkeys(node.op for node in others))
        lines.append(f"host, {_share(others)} of MACs: {len(others)} that are supported, apart from the one partition ({kinds})")
    return lines


def _share(nodes: Sequence[HostNodeSummary]) -> str:
    return f"{sum(node.mac_share for node in nodes):.1%}"
