"""Does a file keep the rules of onnxruntime's EP-context models?  Each rule by itself, with what is wrong and where.

The rules are those of the operator's schema (com.microsoft::EPContext, version 1) and of "EP Context Design" (onnxruntime.ai/docs/
execution-providers/EP-Context-Design.html), as far as a file can show them; the last two are our own.  onnxruntime itself checks only that
some provider claims a node.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, ModelProto, NodeProto

from compiler.package.onnx_out import context_file
from simulator.npu.container_file import decode
from simulator.npu.errors import BadInputError
from simulator.onnx_container import find_containers, is_inside, read_file
from simulator.onnx_names import DOMAIN, EP_DOMAIN, EP_OP

_INT, _STRING = AttributeProto.INT, AttributeProto.STRING
ATTRIBUTES = {
    "main_context": _INT, "ep_cache_context": _STRING, "embed_mode": _INT, "ep_sdk_version": _STRING, "onnx_model_filename": _STRING,
    "hardware_architecture": _STRING, "partition_name": _STRING, "source": _STRING, "notes": _STRING, "max_size": _INT,
}  # fmt: skip
_DEFAULTS = {"main_context": 1, "embed_mode": 1, "max_size": 0}


@dataclass(frozen=True, eq=False)
class _File:
    path: Path
    model: ModelProto
    nodes: tuple[NodeProto, ...]  # the EPContext nodes
    values: tuple[dict[str, Any], ...]  # their attributes, with defaults


def check_epcontext(path: str | Path) -> tuple[str, ...]:
    """What is wrong with a file of style epcontext, a line each; () where it keeps every rule.  Raises `BadInputError`: no ONNX file."""
    path = Path(path)
    try:
        model = onnx.load_model_from_string(bytes(read_file(path)))
    except (DecodeError, ValueError) as error:
        raise BadInputError(f"{path}: not an ONNX file, or damaged ({' '.join(str(error).split())[:200]})") from None
    nodes = tuple(node for node in model.graph.node if node.op_type == EP_OP)
    if not nodes:
        return (f"{path}: no node {EP_DOMAIN}::{EP_OP}",)
    file = _File(path, model, nodes, tuple(_values(node) for node in nodes))
    return tuple(f"{name}: {found}" for name, rule in RULES.items() for found in rule(file))


def _values(node: NodeProto) -> dict[str, Any]:
    found: dict[str, Any] = dict(_DEFAULTS)
    for item in node.attribute:
        found[item.name] = item.i if item.type == _INT else item.s if item.type == _STRING else None
    return found


def _opset(file: _File) -> Iterator[str]:
    versions = [opset.version for opset in file.model.opset_import if opset.domain == EP_DOMAIN]
    if versions != [1]:
        yield f"opset_import of {EP_DOMAIN} has versions {versions}, expected [1]"
    for node in file.nodes:
        if node.domain != EP_DOMAIN:
            yield f"node {node.name!r} is of domain {node.domain!r}, expected {EP_DOMAIN}"


def _names(file: _File) -> Iterator[str]:
    """Nodes of several models may be put into one, so every name is there once, and the partition's is the node's."""
    for name, count in Counter(node.name for node in file.nodes).items():
        if not name or count > 1:
            yield f"{count} nodes are called {name!r}"
    for node, values in zip(file.nodes, file.values, strict=True):
        partition = _text(values, "partition_name")
        if partition != node.name:
            yield f"node {node.name!r} has partition_name {partition!r}, expected its own name"


def _attributes(file: _File) -> Iterator[str]:
    for node in file.nodes:
        for item in node.attribute:
            kind = ATTRIBUTES.get(item.name)
            if kind is None:
                yield f"node {node.name!r}: attribute {item.name!r} is not of the schema"
            elif item.type != kind:
                names = AttributeProto.AttributeType
                yield f"node {node.name!r}: attribute {item.name!r} is {names.Name(item.type)}, expected {names.Name(kind)}"
        if not node.output:
            yield f"node {node.name!r} has no outputs, expected at least one"


def _numbers(file: _File) -> Iterator[str]:
    for node, values in zip(file.nodes, file.values, strict=True):
        for name in ("main_context", "embed_mode"):
            if values[name] not in (0, 1):
                yield f"node {node.name!r}: {name} is {values[name]}, expected 0 or 1"
        if (values["max_size"] or 0) < 0:
            yield f"node {node.name!r}: max_size is {values['max_size']}, expected 0 or more"


def _source(file: _File) -> Iterator[str]:
    """The key by which a provider knows its nodes."""
    for node, values in zip(file.nodes, file.values, strict=True):
        if _text(values, "source") != DOMAIN:
            yield f"node {node.name!r}: source is {_text(values, 'source')!r}, expected {DOMAIN!r}"


def _main_context(file: _File) -> Iterator[str]:
    """One context, whatever the number of partitions; the node that has it comes first, and only that one."""
    main = [values["main_context"] == 1 for values in file.values]
    if main != [True] + [False] * (len(main) - 1):
        yield f"main_context of the nodes is {[int(is_main) for is_main in main]}, expected 1 for the first alone"
    for node, values in zip(file.nodes, file.values, strict=True):
        if values["main_context"] == 1 and not values.get("ep_cache_context"):
            yield f"node {node.name!r} has main_context 1 and no ep_cache_context"
        if values["main_context"] == 0 and values.get("ep_cache_context"):
            yield f"node {node.name!r} has main_context 0 and an ep_cache_context, which belongs to the main one"
    if len({values["embed_mode"] for values in file.values}) > 1:
        yield f"embed_mode of the nodes is {[values['embed_mode'] for values in file.values]}, expected the same for all"


def _outside(file: _File) -> Iterator[str]:
    """A context in a file lies in the model's folder, by a relative path, and is called `[model]_[ep].bin`."""
    for node, values in zip(file.nodes, file.values, strict=True):
        if values["main_context"] == 1 and values["embed_mode"] == 0:
            name = _text(values, "ep_cache_context")
            if not is_inside(name):
                yield f"node {node.name!r}: context {name!r}, expected a path relative to the model, inside its folder"
            elif name != context_file(file.path):
                yield f"node {node.name!r}: context {name!r}, expected {context_file(file.path)!r}"
            elif not (file.path.parent / name).is_file():
                yield f"node {node.name!r}: context {name!r} is not there"


def _payload(file: _File) -> Iterator[str]:
    """A container for every node, of the node's inputs and outputs, in the node's order."""
    try:
        found = find_containers(read_file(file.path), file.path.name, file.path.parent)
        containers = [decode(data) for _, data in found]
    except BadInputError as error:
        yield str(error)
        return
    for node, container in zip(file.nodes, containers, strict=False):
        memory = container.memory
        for kind, names, buffers in (("input", node.input, memory.of_kind("input")), ("output", node.output, memory.of_kind("output"))):
            theirs = [buffer.name for buffer in buffers]
            if theirs != list(names):
                yield f"node {node.name!r}: its {kind}s are {list(names)}, its container's {theirs}"


def _notes(file: _File) -> Iterator[str]:
    """The table of variants: for every level of the container its share and what every variant takes there."""
    try:
        found = find_containers(read_file(file.path), file.path.name, file.path.parent)
        containers = [decode(data) for _, data in found]
    except BadInputError:
        return  # `_payload` says so
    for node, values, container in zip(file.nodes, file.values, containers, strict=False):
        try:
            levels = json.loads(_text(values, "notes"))["levels"]
            said = {name: (row["ddr"], row["variant_cycles"]) for name, row in levels.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            yield f"node {node.name!r}: notes are no table of variants"
            continue
        conditions = container.machine.contention
        expected = {v.level: (conditions[v.level].model_dump(), dict(v.cycles)) for v in container.variants}
        if said != expected:
            yield f"node {node.name!r}: notes are not those of its container"
        machine, name = _text(values, "hardware_architecture"), container.machine.name
        if machine != name:
            yield f"node {node.name!r}: hardware_architecture is {machine!r}, its container's {name!r}"


def _text(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


RULES: dict[str, Callable[[_File], Iterator[str]]] = {
    "opset": _opset,
    "names": _names,
    "attributes": _attributes,
    "numbers": _numbers,
    "source": _source,
    "main context": _main_context,
    "context file": _outside,
    "payload": _payload,
    "notes": _notes,
}
