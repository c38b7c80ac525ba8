"""Conversion of setting ranges to Optuna's distributions."""

from __future__ import annotations

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from tuner.config import Choice, Range


def distribution(span: Range | Choice) -> BaseDistribution:
    """Distribution of a setting: integers if both ends are."""
    if isinstance(span, Choice):
        return CategoricalDistribution(span.choices)
    if isinstance(span.low, int) and isinstance(span.high, int):
        return IntDistribution(span.low, span.high, log=span.log)
    return FloatDistribution(span.low, span.high, log=span.log)
