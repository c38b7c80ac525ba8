"""Gauges in Ray's metrics, which its dashboard, Prometheus and Grafana read (docs/cluster.md)."""

from __future__ import annotations

from collections.abc import Mapping

from ray.util.metrics import Gauge

_gauges: dict[str, Gauge] = {}  # Ray keeps one of a name per process


def set_gauges(values: Mapping[str, tuple[str, float]]) -> None:
    """Set gauges.  values: name -> description, value.  Ray exports them by itself every few seconds."""
    for name, (description, value) in values.items():
        if name not in _gauges:
            _gauges[name] = Gauge(name, description=description)
        _gauges[name].set(value)
