"""Errors of a model's tensors, as JSON and as a table in graph order with a marker on the operator that adds most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.cli.text import finite_or_none, print_table
from tuner.verify.layer_errors import LayerError, worst_layer


def layer_rows(errors: Sequence[LayerError]) -> list[dict[str, Any]]:
    """JSON of every tensor; null where a value is not finite, as the SQNR of an exact tensor."""
    worst = worst_layer(errors) if errors else None
    return [
        {
            "operator": error.operator,
            "tensor": error.tensor,
            "adds_most": error is worst,
            **{
                key: {"max_rel_error": finite_or_none(figures.largest), "sqnr_db": finite_or_none(figures.sqnr_db)}
                for key, figures in (("accumulated", error.through), ("alone", error.isolated))
            },
        }
        for error in errors
    ]


def print_layers(errors: Sequence[LayerError]) -> None:
    worst = worst_layer(errors)
    columns = ("<operator", "<tensor", "accumulated error", "SQNR dB", "error alone", "SQNR dB alone", "<")
    print_table(
        columns,
        [
            (
                *(error.operator, error.tensor),
                *(text for e in (error.through, error.isolated) for text in (f"{e.largest:.3g}", f"{e.sqnr_db:.1f}")),
                "adds most" if error is worst else "",
            )
            for error in errors
        ],
    )
