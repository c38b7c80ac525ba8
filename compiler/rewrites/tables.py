"""Rewrites of tables: every function of one quantised tensor is one table of 256 values.

No rounding is dropped: the entries are the results of the parts, one after the other, for every integer.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.operators import LookUp, Operator, QuantisedAffine, QuantisedPair
from compiler.ir.quantised.tables import all_stored_integers, fit_line, look_up
from compiler.rewrites.engine import GraphView, Match


def merge_tables(op: Operator, view: GraphView) -> Match | None:
    """Table of a table without other readers: one table."""
    producer = view.producers.get(op.x) if isinstance(op, LookUp) else None
    if not isinstance(op, LookUp) or not isinstance(producer, LookUp) or not view.only_use(op.x):
        return None
    merged = replace(op, x=producer.x, entries=look_up(producer.entries, op.entries), x_q=producer.x_q)
    return Match((producer, op), (merged,)) if _needs_no_more(merged, producer, op) else None


def merge_affine(op: Operator, view: GraphView) -> Match | None:
    """Nested multiply-adds without other readers become one chain, whose intermediate integers stay on VECTOR."""
    producer = view.producers.get(op.x) if isinstance(op, QuantisedAffine) else None
    if not isinstance(op, QuantisedAffine) or not isinstance(producer, QuantisedAffine) or not view.only_use(op.x):
        return None
    return Match((producer, op), (replace(op, x=producer.x, steps=producer.steps + op.steps, x_q=producer.x_q),))


def table_of_pair(op: Operator, view: GraphView) -> Match | None:
    """Sum or product of two functions of one tensor, as x * sigmoid(x): one table."""
    if not isinstance(op, QuantisedPair) or view.shapes[op.a] != view.shapes[op.b]:
        return None
    parts = [view.producers.get(name) for name in op.inputs]
    tables = [part if isinstance(part, LookUp) else None for part in parts]
    roots = [(name, table.x) if table is not None else (name,) for name, table in zip(op.inputs, tables, strict=True)]
    root = next((name for name in roots[0] if name in roots[1]), None)
    if root is None:
        return None
    operand_tables = [table if name != root else None for name, table in zip(op.inputs, tables, strict=True)]
    x_q = next((table.x_q for table in operand_tables if table is not None), op.a_q)
    integers = all_stored_integers(x_q)
    operands = [(integers if table is None else table.entries).reshape(1, -1, 1, 1) for table in operand_tables]
    merged = LookUp(op.name, root, op.y, op.apply(operands).reshape(-1), x_q, op.y_q)
    return Match((op,), (merged,)) if _needs_no_more(merged, *(table for table in operand_tables if table is not None)) else None


def _needs_no_more(merged: LookUp, *parts: LookUp) -> bool:
    """Whether every machine that can run the parts can run the merged table: a machine without look-up can only run straight lines."""
    return any(fit_line(op.entries, op.x_q, op.y_q) is None for op in parts) or fit_line(merged.entries, merged.x_q, merged.y_q) is not None
