"""`plan diff`: two plans as a person compares them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compiler.plan.diff import Change, PlanDiff, diff
from compiler.plan.plan import Plan
from simulator.terminal import print_line
from tuner.commands.text import print_json


def diff_plans(a: Path, b: Path, exit_code: bool, as_json: bool) -> int:
    """`tilefarm plan diff`; 1 where `exit_code` is asked for and they differ."""
    left, right = Plan.load(a), Plan.load(b)
    found = diff(left, right)
    if as_json:
        print_json(_json(found, left, right))
    else:
        for line in _lines(found, left, right):
            print_line(line)
    return 1 if exit_code and not found.equal else 0


def _json(found: PlanDiff, a: Plan, b: Plan) -> dict[str, Any]:
    return {
        "equal": found.equal,
        "a": a.digest,
        "b": b.digest,
        "keys": {key: list(values) for key, values in found.keys.items()},
        "only_a": list(found.only_a),
        "only_b": list(found.only_b),
        "order": found.order,
        "changes": [
            {
                "operators": list(change.operators),
                "a": list(change.a),
                "b": list(change.b),
                "changed": {key: list(values) for key, values in change.changed.items()},
            }
            for change in found.changes
        ],
    }


def _lines(found: PlanDiff, a: Plan, b: Plan) -> list[str]:
    """`-` is a, `+` is b; nothing where they are equal."""
    out = [f"{key}: {old} -> {new}" for key, (old, new) in found.keys.items()]
    out += [f"- operator {name}" for name in found.only_a] + [f"+ operator {name}" for name in found.only_b]
    if found.order:
        out.append("operators come in another order")
    for change in found.changes:
        out += _change(change, a, b)
    return out


def _change(change: Change, a: Plan, b: Plan) -> list[str]:
    numbers = f"segment {change.a[0]}" if change.a == change.b and change.a[0] == change.a[1] else "segments"
    if change.changed:
        where = numbers if numbers != "segments" else f"segment {change.a[0]} (now {change.b[0]})"
        return [f"{where}, {_run(change.operators)}:", *(f"  {key}: {old} -> {new}" for key, (old, new) in change.changed.items())]
    out = [f"{_run(change.operators)}: cut in other places"]
    for sign, (first, last), plan in (("-", change.a, a), ("+", change.b, b)):
        for index in range(first, last + 1):
            segment = plan.segments[index]
            blocks = "1 block" if segment.blocks == 1 else f"{segment.blocks} blocks"
            blocks += f" of {segment.columns} strips" if segment.columns > 1 else ""
            out.append(
                f"  {sign} segment {index}, {_run(segment.operators)}: {blocks}, prefetch {segment.prefetch}, window {segment.window}"
            )
    return out


def _run(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
