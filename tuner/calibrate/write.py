"""Calibrated machine file: the text of the given file with new values and a note beside each; its comments stay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES
from tuner.calibrate.identify import Calibration, ValueFinding
from tuner.calibrate.keys import split_path

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
    notes = {finding.key.path: note(finding) for finding in calibration.findings}
    head = [
        f"# {command}",
        f"# {calibration.readings:,} readings, which scatter by {calibration.spread:.1%}.  +-: twice the standard error.",
    ]
    for text in (_edited(source, machine, notes), _anew(machine, notes)):
        content = "\n".join(head) + "\n" + text
        with contextlib.suppress(yaml.YAMLError, ValidationError):
            if Machine.model_validate(yaml.safe_load(content)) == machine:
                return content
    raise AssertionError("a machine that is written is read as it was")


def note(finding: ValueFinding) -> str:
    """Note beside a value."""
    if finding.source == "given":
        given_text = "as given" if finding.value == finding.given else f"given {finding.given:g}"
        return f"{given_text}: {finding.why}"
    doubt = f", {finding.why}" if finding.why else ""
    return f"{finding.source}, {finding.value:g} +-{finding.half:.2g}, given {finding.given:g}{doubt}"


@dataclass(frozen=True)
class _Edit:
    """Replacement of characters start..stop of the text."""

    start: int
    stop: int
    text: str


def _edited(source: str, machine: Machine, notes: Mapping[str, str]) -> str:
    raw = machine.model_dump(mode="json")
    root = yaml.compose(source, yaml.SafeLoader)
    assert root is not None, "a machine was read from it"
    leaves = dict(_leaves(root, ()))
    edits: list[_Edit] = []
    beside: dict[int, list[str]] = {}
    absent: dict[str, list[str]] = {}  # key of the file -> notes
    for path, value in _values(raw, ()):
        node = leaves.get(path)
        key = ".".join(path)
        if node is None:
            level = leaves.get(path[:2]) if path[0] == "contention" else None
            if level is not None:  # the level is a share only
                if path[2] == "share":
                    edits.append(_Edit(level.start_mark.index, level.end_mark.index, _level(raw["contention"][path[1]])))
                _beside(beside, notes, key, level)
                continue
            folder = _folder(root, path[:-1])
            if folder is None:
                absent.setdefault(path[0], []).extend(f"{key} {notes[key]}" for _ in [0] if key in notes)
                continue
            if value == _DEFAULTS.get(path[-1], ""):
                continue
            edits.append(_inserted(source, folder, path[-1], value))
            _beside(beside, notes, key, folder.value[-1][1])
            continue
        if yaml.safe_load(node.value) != value if node.style is None else node.value != value:
            edits.append(_Edit(node.start_mark.index, node.end_mark.index, _scalar(value)))
        _beside(beside, notes, key, node)
    # edits run from the end, so that earlier positions stay valid
    text = source
    for edit in sorted([*edits, *_comments(source, beside)], key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.stop :]
    text = text if text.endswith("\n") else text + "\n"
    return text + "".join(f"{key}: {_scalar(raw[key])}   # {'; '.join(remarks)}\n" for key, remarks in absent.items())


def _beside(beside: dict[int, list[str]], notes: Mapping[str, str], key: str, node: yaml.Node) -> None:
    if key in notes:
        beside.setdefault(node.end_mark.line, []).append(f"{split_path(key)[-1]} {notes[key]}")


def _comments(source: str, beside: Mapping[int, list[str]]) -> Iterator[_Edit]:
    """Notes appended to their lines; an earlier comment follows them."""
    offset = 0
    tokens = _comment_starts(source)
    for number, line in enumerate(source.splitlines(keepends=True)):
        if number in beside:
            bare = line.rstrip("\r\n")
            start = tokens.get(number, len(bare))
            old = bare[start:].lstrip("# ").strip()
            code_length = len(bare[:start].rstrip())
            notes = beside[number]
            remark = (
                notes[0].partition(" ")[2]
                if len(notes) == 1 and not bare.lstrip().startswith(("-", "{")) and "{" not in bare
                else "; ".join(notes)
            )
            text = "   # " + remark + (f"; before: {old}" if old else "")
            yield _Edit(offset + code_length, offset + len(bare), text)
        offset += len(line)


def _comment_starts(source: str) -> dict[int, int]:
    """Column of the comment on each line: after the last token of the line."""
    last: dict[int, int] = {}
    for token in yaml.scan(source, yaml.SafeLoader):
        if token.end_mark.index > token.start_mark.index:
            last[token.end_mark.line] = max(last.get(token.end_mark.line, 0), token.end_mark.column)
    columns = {}
    for number, line in enumerate(source.splitlines()):
        column = line.find("#", last.get(number, 0))
        if column >= 0:
            columns[number] = column
    return columns


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
            ends = dict(_children(element))
            if {"source", "destination"} <= ends.keys():
                yield f"{ends['source'].value}->{ends['destination'].value}", element


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


def _anew(machine: Machine, notes: Mapping[str, str]) -> str:
    comments = "".join(f"# {key}: {text}\n" for key, text in notes.items())
    return comments + str(yaml.safe_dump(machine.model_dump(mode="json"), sort_keys=False, width=140))
