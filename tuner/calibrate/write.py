"""Calibrated machine file: the text of the given file with new values and their provenance; its comments stay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES
from simulator.npu.provenance import Provenance
from tuner.calibrate.identify import Calibration, ValueFinding

_DEFAULTS: Mapping[str, Any] = {"startup_cycles": 0, "granule_bytes": BLOCK_BYTES, "launch_cycles": 0, "dram": None}  # may be omitted
_NAME = 64  # characters that a machine's name may have
_SUFFIX = "-calibrated"


def name_calibrated(machine: Machine) -> Machine:
    """Machine under the name of its calibrated twin."""
    name = machine.name.removesuffix(_SUFFIX)[: _NAME - len(_SUFFIX)] + _SUFFIX
    return machine.model_copy(update={"name": name})


def machine_text(source: str, machine: Machine, calibration: Calibration, command: str) -> str:
    """Text of the new file.  source: text of the given file.  command: the command line of the calibration.

    Where the layout of the text (anchors, merges) allows no edit of single values, the values are written again, without its comments.
    """
    notes = {finding.key.path: text for finding in calibration.findings if (text := note(finding))}
    described = calibration.given.provenance.replaced("measured", notes, calibration.given.values)
    raw = machine.model_dump(mode="json")
    if described != Provenance():
        raw["provenance"] = described.model_dump(exclude_defaults=True)
    head = [
        f"# {command}",
        f"# {calibration.readings:,} readings, which scatter by {calibration.spread:.1%}.  +-: twice the standard error.",
    ]
    for text in (_edited(source, raw), _yaml(raw)):
        content = "\n".join(head) + "\n" + text
        with contextlib.suppress(yaml.YAMLError, ValidationError):
            written_machine = Machine.model_validate(yaml.safe_load(content))
            if written_machine == machine and written_machine.provenance == described:
                return content
    raise AssertionError("a machine that is written is read as it was")


def note(finding: ValueFinding) -> str:
    """Provenance of a value by measurement; "" for one that no probe shows and that stays as it was."""
    if finding.source == "given":
        return "" if finding.value == finding.given else f"nearest to {finding.given:g} that measurements allow; {finding.why}"
    doubt = f", {finding.why}" if finding.why else ""
    return f"{finding.source}, +-{finding.half:.2g}, given {finding.given:g}{doubt}"


@dataclass(frozen=True)
class _Edit:
    """Replacement of characters start..stop of the text."""

    start: int
    stop: int
    text: str


def _edited(source: str, raw: Mapping[str, Any]) -> str:
    values = {key: value for key, value in raw.items() if key != "provenance"}
    root = yaml.compose(source, yaml.SafeLoader)
    assert root is not None, "a machine was read from it"
    leaves = dict(_leaves(root, ()))
    edits: list[_Edit] = []
    absent: dict[str, Any] = {}
    for path, value in _values(values, ()):
        node = leaves.get(path)
        if node is None:
            level = leaves.get(path[:2]) if path[0] == "contention" else None
            if level is not None:  # the level is a share only
                if path[2] == "share":
                    edits.append(_Edit(level.start_mark.index, level.end_mark.index, _level(raw["contention"][path[1]])))
                continue
            folder = _folder(root, path[:-1])
            if folder is None:
                absent[path[0]] = raw[path[0]]
            elif value != _DEFAULTS.get(path[-1], ""):
                edits.append(_inserted(source, folder, path[-1], value))
        elif yaml.safe_load(node.value) != value if node.style is None else node.value != value:
            edits.append(_Edit(node.start_mark.index, node.end_mark.index, _scalar(value)))
    edits.extend(_split_source(source, root, "provenance"))
    # edits run from the end, so that earlier positions stay valid
    text = source
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.stop :]
    sections = "".join(f"{key}: {_scalar(value)}\n" for key, value in absent.items())
    entries = {"provenance": raw["provenance"]} if "provenance" in raw else {}
    return text + ("" if text.endswith("\n") else "\n") + sections + (_yaml(entries) if entries else "")


def _split_source(source: str, root: yaml.Node, name: str) -> Iterator[_Edit]:
    """Removal of a section, up to the end of its last line."""
    for key, section in root.value:
        if key.value == name:
            while isinstance(section, yaml.MappingNode) and not section.flow_style:  # its end mark is on the next token's line
                section = section.value[-1][1]
            end = section.end_mark
            stop = end.index if end.column == 0 else source.find("\n", end.index) + 1 or len(source)
            yield _Edit(key.start_mark.index, stop, "")


def _leaves(node: yaml.Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], yaml.ScalarNode]]:
    if isinstance(node, yaml.ScalarNode):
        yield path, node
    for name, child in _children(node):
        yield from _leaves(child, (*path, name))


def _children(node: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    """Children of a mapping by key; of the list of paths by source and destination."""
    if isinstance(node, yaml.MappingNode):
        yield from ((str(key.value), value) for key, value in node.value)
    elif isinstance(node, yaml.SequenceNode):
        for element in node.value:
            last_children = dict(_children(element))
            if {"source", "destination"} <= last_children.keys():
                yield f"{last_children['source'].value}->{last_children['destination'].value}", element


def _folder(node: yaml.Node, path: tuple[str, ...]) -> yaml.MappingNode | None:
    for part in path:
        child = dict(_children(node)).get(part)
        if child is None:
            return None
        node = child
    return node if isinstance(node, yaml.MappingNode) and node.value else None


def _values(raw: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(raw, dict):
        for key, value in raw.items():
            yield from _values(value, (*path, str(key)))
    elif isinstance(raw, list):
        for element in raw:
            yield from _values(element, (*path, f"{element['source']}->{element['destination']}"))
    else:
        yield path, raw


def _inserted(source: str, folder: yaml.MappingNode, name: str, value: Any) -> _Edit:
    """Insertion after the last value of a mapping."""
    last = folder.value[-1][1]
    if folder.flow_style:
        return _Edit(last.end_mark.index, last.end_mark.index, f", {name}: {_scalar(value)}")
    # after the last line of the mapping, including its comment
    position = source.find("\n", last.end_mark.index)
    position = len(source) if position < 0 else position
    if isinstance(last, yaml.CollectionNode) and not last.flow_style:  # the end mark of a block collection is on the next token's line
        position = last.end_mark.index
        return _Edit(position, position, f"{' ' * folder.value[0][0].start_mark.column}{name}: {_scalar(value)}\n")
    return _Edit(position, position, f"\n{' ' * folder.value[0][0].start_mark.column}{name}: {_scalar(value)}")


def _level(value: Mapping[str, Any]) -> str:
    if not value["latency_cycles"]:
        return _scalar(value["share"])
    return "{" + ", ".join(f"{key}: {_scalar(number)}" for key, number in value.items()) + "}"


def _scalar(value: Any) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True, width=1 << 20)).removesuffix("...\n").strip()


def _yaml(raw: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(raw), sort_keys=False, width=140))
