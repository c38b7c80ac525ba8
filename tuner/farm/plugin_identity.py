"""Plug-ins of a configuration: looked for before any worker is started, and part of the run's identity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator.npu.errors import BadInputError
from tuner.config import BUILT_IN, TuneConfig
from tuner.measure.runners import runner_plugin
from tuner.platform.module_path import search_current_folder
from tuner.platform.ray_info import on_this_computer
from tuner.plugins import COST_MODELS, RUNNERS, STRATEGIES, TARGETS, Plugin, PluginKind, find
from tuner.runs.folder import IDENTITY, read_json


def external_plugins(config: TuneConfig, serial: bool, address: str | None) -> tuple[Plugin, ...]:
    """All plug-ins in use that are not built in.  The current folder is searched for modules, as `python -m` does.

    Raises `BadInputError` for plug-ins that are missing here.  Only a runner may be missing where no worker runs: the workers then report
    it, and its version and source are unknown here.
    """
    external = [(kind, name) for kind, name in _configured_plugins(config) if name not in kind.built_in]
    if external:
        search_current_folder()  # workers get the folder from `tuner.platform.ray_cluster.worker_environment`, on any computer
    local = serial or on_this_computer(address)
    return tuple(_plugin(kind, name, local) for kind, name in external)


def _configured_plugins(config: TuneConfig) -> Iterator[tuple[PluginKind, str]]:
    yield STRATEGIES, config.search.strategy
    if config.use.cost_model:
        yield COST_MODELS, config.model.name
    if config.runner.name != BUILT_IN:
        yield RUNNERS, config.runner.name
    yield TARGETS, config.target.name


def _plugin(kind: PluginKind, name: str, local: bool) -> Plugin:
    if kind is not RUNNERS:
        return find(kind, name).plugin
    try:
        return runner_plugin(name)
    except BadInputError:
        if local:
            raise
        return Plugin(kind.name, name, "", "")


def plugin_changes(out: Path, installed: Sequence[Plugin]) -> list[str]:
    """Differences between the plug-ins that a run began with and those of today, as text."""
    recorded = [Plugin(**plugin) for plugin in read_json(out / IDENTITY).get("plugins", ())]
    removed, added = (
        ", ".join(str(plugin) for plugin in plugins if plugin not in others_listed)
        for plugins, others_listed in ((recorded, installed), (installed, recorded))
    )
    return [f"begun with {removed or 'nothing plugged in'}, not {added or 'without it'}"]
