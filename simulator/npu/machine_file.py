"""Machine files in YAML, presets, and overrides after a colon (`edge:cores=4`)."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from simulator.npu.errors import BadInputError
from simulator.npu.level import Level
from simulator.npu.machine import Machine
from simulator.npu.parts import DMAS
from simulator.npu.provenance import matches
from simulator.npu.validation import validation_line


class _StrictLoader(yaml.CSafeLoader):
    """Refuses a key that is given twice: YAML itself keeps the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict | set):
                raise BadInputError(f"line {key_node.start_mark.line + 1}: a key is a name or a number, found {key!r}")
            if key in seen:
                raise BadInputError(f"line {key_node.start_mark.line + 1}: key {key!r} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Parse a YAML file; duplicate keys and syntax errors are `BadInputError` with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read: {error}") from None
    return parse_yaml(text, path)


def parse_yaml(text: str, path: object) -> Any:
    """Parse the text of a YAML file; `path` names it in errors.  Raises as `read_yaml`."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, AttributeError, TypeError) as error:
        # YAML reads 2020-99-99 as a date (ValueError); a tag that does not fit its value (`!!timestamp x`, `!!bool x`) fails in PyYAML's
        # own conversion
        raise BadInputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except BadInputError as error:
        raise BadInputError(f"{path}: {error}") from None


def configs_folder() -> Path:
    """`configs/` of the source tree, or the copy that an installed wheel carries."""
    tree = Path(__file__).resolve().parents[2] / "configs"
    if tree.is_dir():
        return tree
    return Path(str(resources.files("simulator") / "configs"))


def preset_names() -> list[str]:
    """Machine names that `load_machine` accepts without a path."""
    return sorted(path.stem for path in (configs_folder() / "machines").glob("*.yaml"))


@lru_cache(maxsize=32)
def _load(path: Path, _stamp: int) -> Machine:
    return machine_of(read_yaml(path), path)


def machine_of(raw: Any, path: object) -> Machine:
    """The machine of a parsed file.  Raises `BadInputError` that names the file."""
    if not isinstance(raw, dict):
        raise BadInputError(f"{path}: expected a mapping of machine keys, found {type(raw).__name__}")
    try:
        return Machine.model_validate(raw)
    except ValidationError as error:
        raise BadInputError(f"{path}: {validation_line(error)}") from None


def load_machine(name_or_path: str) -> Machine:
    """A preset by name, or a YAML file by path, with overrides after a colon: `edge:cores=4,ddr.bytes_per_cycle=128`.

    An unknown level is added: `edge:contention.half=0.5`.  `shared=null` removes the shared memory and its paths.
    Raises `BadInputError` naming the file, the dotted key and the presets that exist.
    """
    name, colon, changes = name_or_path.partition(":")
    if not colon or Path(name_or_path).is_file():
        return _read(name_or_path)
    return _with_overrides(_read(name), changes, name_or_path)


def machine_file(name_or_path: str) -> Path:
    """The file that `load_machine` reads before it applies overrides.  Raises `BadInputError` naming the presets that exist."""
    name, colon, _ = name_or_path.partition(":")
    if not colon or Path(name_or_path).is_file():
        name = name_or_path
    preset = configs_folder() / "machines" / f"{name}.yaml"
    path = preset if name in preset_names() else Path(name)
    if not path.is_file():
        raise BadInputError(f"machine {name!r}: no such preset or file; presets: {', '.join(preset_names())}")
    return path


def _read(name_or_path: str) -> Machine:
    path = machine_file(name_or_path)
    return _load(path, path.stat().st_mtime_ns)


def _with_overrides(machine: Machine, changes: str, where: str) -> Machine:
    """The machine with KEY=VALUE[,KEY=VALUE], dotted keys of the file.  Unless `name` is one of them, the old name with the changes."""
    raw = machine.model_dump(mode="json")
    raw.setdefault("host", machine.host.model_dump(mode="json"))
    raw.setdefault("dma", machine.dma.model_dump(mode="json"))
    raw.setdefault("shared", None)
    raw.setdefault("l2", None)
    raw.setdefault("rounding", machine.rounding)
    raw["name"] = re.sub("[^a-z0-9_.]+", "-", f"{machine.name}-{changes}".lower()).strip("-")[:64]
    keys = {_given(raw, change, where) for change in changes.split(",")}
    if raw["shared"] is None:
        raw["paths"] = [path for path in raw["paths"] if "SHARED" not in (path["source"], path["destination"])]
    try:
        changed = Machine.model_validate(raw)
    except ValidationError as error:
        raise BadInputError(f"machine {where!r}: {validation_line(error)}") from None
    peak = changed.cores * max(changed.dma_bytes_per_cycle(engine) for engine in DMAS)
    # a wider port may serve wider DMAs, more of their ports, or more cores; the file has to say which
    if "ddr.bytes_per_cycle" in keys and not any(key.startswith("paths.") for key in keys) and peak < changed.ddr.bytes_per_cycle:
        raise BadInputError(
            f"machine {where!r}: ddr.bytes_per_cycle: {changed.ddr.bytes_per_cycle}; reads or writes of all cores ({changed.cores}) draw at"
            f" most {float(peak):g}; accepted: up to {float(peak):g}, or more cores or DMA ports, or paths.*DDR*.bytes_per_cycle as well"
        )
    given = {value: "on the command line" for value in changed.values if any(matches(value, key) for key in keys)}
    return changed.model_copy(update={"provenance": machine.provenance.replaced("given", given, changed.values)})


def _given(raw: dict[str, Any], change: str, where: str) -> str:
    """Apply one override to `raw`, and return its key."""
    key, equals, value = change.partition("=")
    for mapping, last in _places(raw, key) if equals else ():
        mapping[last] = value if key == "name" else _number(value)
    if not equals or not _places(raw, key):
        raise BadInputError(
            f"machine {where!r}: {change!r}; expected KEY=VALUE with a key of the machine file, as cores=4 or ddr.latency_cycles=200, or"
            f" contention.LEVEL=SHARE, or contention.LEVEL.KEY ({', '.join(Level.model_fields)}) of a level that exists, or"
            " paths.SOURCE->DESTINATION.KEY (with * for any) of paths that exist"
        )
    return key


def _places(raw: dict[str, Any], key: str) -> list[tuple[dict[str, Any], str]]:
    """Places of a key's value: (mapping, last key) pairs; [] without such a key."""
    first, _, tail = key.partition(".")
    middle, _, last = tail.rpartition(".")
    if (
        first == "contention" and tail
    ):  # a level's name may have dots, but is no misspelt key of a level, nor one of a level that is missing
        if middle not in raw[first]:
            return [] if middle and last in Level.model_fields else [(raw[first], tail)]
        if not isinstance(raw[first][middle], dict):  # the level was given as a share only
            raw[first][middle] = {"share": raw[first][middle]}
        return [(raw[first][middle], last)] if last in Level.model_fields else []
    if first == "paths":
        return [(path, last) for path in raw[first] if last in path and fnmatchcase(f"{path['source']}->{path['destination']}", middle)]
    *folders, last = key.split(".")
    mapping: Any = raw
    for folder in folders:
        mapping = mapping.get(folder) if isinstance(mapping, dict) else None
    return [(mapping, last)] if isinstance(mapping, dict) and last in mapping else []


def _number(text: str) -> int | float | str | None:
    """The value as YAML reads it; other texts stay, for the validation to refuse."""
    if text == "null":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
