"""Parts of a bundle and the manifest that lists them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulator.npu.errors import BadInputError
from simulator.npu.validation import validation_line

MANIFEST, MEMORY, CONTROLLER, TABLE_H, README = "manifest.json", "memory.json", "controller.json", "table.h", "README.md"
C_SOURCES = ("controller.h", "controller.c")

Parts = Mapping[str, bytes]


class PartEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*(/[A-Za-z0-9][A-Za-z0-9_.+-]*)?$", max_length=200)]
    size_bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @classmethod
    def of(cls, path: str, content: bytes) -> PartEntry:
        return cls(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


class Manifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal["tilefarm bundle"] = "tilefarm bundle"
    version: Literal[1] = 1
    parts: tuple[PartEntry, ...]

    @classmethod
    def of(cls, parts: Parts) -> Manifest:
        return cls(parts=tuple(PartEntry.of(path, content) for path, content in parts.items()))


def pretty_json(value: Any) -> bytes:
    """Indented JSON, with lists of numbers on one line."""
    text = json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False)
    # a string of JSON has no line ends, so none is touched
    return (re.sub(r"\[\n[\d,\s-]+\]", _in_a_line, text) + "\n").encode()


def _in_a_line(match: re.Match[str]) -> str:
    return f"[{' '.join(match[0][1:-1].split())}]"


def package_file(name: str) -> bytes:
    """A file of this package."""
    return (resources.files("simulator.bundle") / name).read_bytes()


def read_parts(folder: Path) -> dict[str, bytes]:
    """Parts of a bundle by path, checked against the manifest.  Raises `BadInputError` naming the part that differs."""
    where = folder / MANIFEST
    if not where.is_file():
        raise BadInputError(f"{folder}: no {MANIFEST}; expected a bundle, which `tilefarm export --bundle` writes")
    try:
        manifest = Manifest.model_validate_json(where.read_bytes())
    except ValidationError as error:
        raise BadInputError(f"{where}: {validation_line(error)}") from None
    except OSError as error:
        raise BadInputError(f"{where}: cannot be read: {error.strerror or error}") from None
    parts: dict[str, bytes] = {}
    for entry in manifest.parts:
        if entry.path in parts:
            raise BadInputError(f"{where}: lists {entry.path} twice")
        parts[entry.path] = _checked(folder / entry.path, entry)
    return parts


def _checked(path: Path, entry: PartEntry) -> bytes:
    try:
        if path.stat().st_size != entry.size_bytes:
            raise BadInputError(f"{path}: {path.stat().st_size} bytes, {MANIFEST} has {entry.size_bytes}")
        content = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror or error}; {MANIFEST} lists it") from None
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise BadInputError(f"{path}: its SHA-256 is not that of {MANIFEST}: changed, or of another bundle")
    return content
