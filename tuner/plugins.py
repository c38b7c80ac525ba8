"""Plug-ins: classes and functions of third parties, by entry point of an installed package or by `module:name`.

A kind of plug-in has an option that names it and an interface.  A plug-in has a version and a digest of its source, which are part of a
run's identity.  Built-in classes have names too, and are no plug-ins.

A model file never names a module to import.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from simulator.npu.errors import BadInputError
from tuner.platform.module_path import module_folders


@dataclass(frozen=True)
class PluginKind:
    """Kind of plug-ins.  name: text for messages.  group: entry-point group.  option: command option.  built_in: name -> `module:name`.

    expected: name of the Protocol, for messages.  needs: required attributes.  a_class: whether it must be a class.  also: further names.
    """

    name: str
    group: str
    option: str
    built_in: Mapping[str, str]
    expected: str
    needs: tuple[str, ...] = ()
    a_class: bool = False
    also: str = ""


# as data, so that listing them imports nothing
STRATEGIES = PluginKind(
    "strategy",
    "tilefarm.strategies",
    "--strategy",
    {"segmentation": "tuner.search.segmentation:Segmentation"},
    "a SearchStrategy (tuner.search.strategy)",
    ("version", "tell", "ask"),
    a_class=True,
)
COST_MODELS = PluginKind(
    "cost model",
    "tilefarm.cost_models",
    "model.name",
    {"boosted_trees": "tuner.cost_model.boosted_trees:BoostedTrees"},
    "a CostModel (tuner.cost_model.interface)",
    ("version", "train", "predict", "save", "load"),
    a_class=True,
)
RUNNERS = PluginKind(
    "runner",
    "tilefarm.runners",
    "--runner",
    {"simulator": "tuner.measure.simulator_runner:measure"},
    "a function, or a class of such (tuner.measure.runner_api.Runner)",
    also=", or 'command:WORDS'",
)
TARGETS = PluginKind(
    "target",
    "tilefarm.targets",
    "--target",
    {"npu": "tuner.measure.npu_target:Npu"},
    "a class of targets (tuner.measure.target.Target)",
    ("alone", "stage", "program"),
    a_class=True,
)
KINDS = (STRATEGIES, COST_MODELS, TARGETS, RUNNERS)


@dataclass(frozen=True)
class Plugin:
    """Identity of a plug-in.  version: its own, else its package's; '' without either.

    digest: 32 hex digits of SHA-256 over the source file that defines it; '' if there is none.
    """

    kind: str
    name: str
    version: str
    digest: str

    def __str__(self) -> str:
        version = f" {self.version}" if self.version else ""
        return f"{self.kind} {self.name}{version} (source {self.digest[:8] or 'unknown'})"


@dataclass(frozen=True)
class Found:
    """Plug-in.  object: class or function.  where: its file, and the package that offers it."""

    plugin: Plugin
    object: Any
    where: str


def find(kind: PluginKind, name: str) -> Found:
    """Built-in object, object of an entry point, or `module:name`.  Raises `BadInputError`."""
    points = _entry_points(kind)
    if name not in kind.built_in and name not in points and ":" not in name:
        names = ", ".join((*kind.built_in, *sorted(points)))
        raise BadInputError(f"{kind.option} {name}: unknown; known: {names}; or module:name{kind.also}")
    point = None if name in kind.built_in else points.get(name)
    target = kind.built_in.get(name) or (point.value if point is not None else name)
    module, _, path = target.partition(":")
    try:
        home: Any = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  somebody else's code; whatever it is, it is in what was named
        raise BadInputError(f"{kind.option} {name}: {_import_failure(module, error)}") from None
    plugin, file = home, getattr(home, "__file__", None) or "built in"
    for part in path.split("."):
        plugin = getattr(plugin, part, None)
    if plugin is None or not callable(plugin):
        raise BadInputError(f"{kind.option} {name}: {module} has nothing to call by the name {path} ({file})")
    missing = [attribute for attribute in kind.needs if not hasattr(plugin, attribute)]
    if missing or (kind.a_class and not inspect.isclass(plugin)):
        problem = f"has no {', '.join(missing)}" if missing else "is no class"
        raise BadInputError(f"{kind.option} {name}: {path} of {module} {problem} ({file}); expected {kind.expected}")
    file = getattr(sys.modules.get(getattr(plugin, "__module__", module)), "__file__", None) or file
    version = str(getattr(plugin, "version", "") or (point.dist.version if point is not None and point.dist is not None else ""))
    origin = f"{point.dist.name} {point.dist.version}, {file}" if point is not None and point.dist is not None else file
    return Found(Plugin(kind.name, name, version, files_digest(file)), plugin, origin)


def offered_names(kind: PluginKind) -> Iterator[str]:
    """Names offered by installed packages, sorted."""
    yield from sorted(_entry_points(kind))


def files_digest(*files: str) -> str:
    """32 hex digits over the contents of those words that are files; '' without files."""
    paths = [path for path in map(Path, files) if path.is_file()]
    parts = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)
    if len(paths) == 1:  # the same as `sha256sum`
        return parts.hex()[:32]
    return hashlib.sha256(parts).hexdigest()[:32] if paths else ""


def _entry_points(kind: PluginKind) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=kind.group)}


def _import_failure(module: str, error: Exception) -> str:
    """Reason why a module was not imported; it, or a module that it imports, may be missing."""
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return f"no module {error.name}; looked for in {', '.join(module_folders())} and in what is installed in {sys.prefix}"
    return f"{module}: {type(error).__name__}: {' '.join(str(error).split())}"
