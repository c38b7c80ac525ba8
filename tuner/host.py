"""What of a model stays with the host, why, and what share of its multiply-accumulates that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from compiler.frontend.macs import model_macs
from tuner.build import Opened
from tuner.summary import HostNodeSummary

MOST_LINES = 12
_MISFIT = "does not fit"


def mac_share(opened: Opened) -> float:
    """Of the model's multiply-accumulates, what the NPU does; 1 where there are none."""
    macs = model_macs(opened.model)
    return sum(model_macs(piece.npu) for piece in opened.part.pieces) / macs if macs else 1.0


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
    misfits = Counter(node.why for node in host if _MISFIT in node.why)
    lines += [f"host, {_share([node for node in host if node.why == why])} of MACs: {count} {why}" for why, count in misfits.items()]
    others = [node for node in host if not node.refused and _MISFIT not in node.why]
    if others:
        kinds = ", ".join(dict.fromkeys(node.op for node in others))
        lines.append(f"host, {_share(others)} of MACs: {len(others)} that are supported, but not worth a piece of their own ({kinds})")
    return lines


def _share(nodes: Sequence[HostNodeSummary]) -> str:
    return f"{sum(node.mac_share for node in nodes):.1%}"
