"""Model and machine of a run: `RUN/source.json` and `RUN/machine.yaml`.

The machine is stored completely, as a file for any command, so that later edits of the original have no effect; the model is stored as a
path and a digest, so that an export refuses an edited model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compiler.model import ModelSpec
from simulator.npu.errors import BadInputError
from simulator.npu.files import write_atomically
from simulator.npu.machine import Machine
from simulator.npu.machine_file import machine_of, parse_yaml
from simulator.npu.parts import DataType
from simulator.npu.validation import validation_line
from simulator.onnx_names import Style
from tuner.platform.files import AnyPath
from tuner.runs.folder import read_json, write_json
from tuner.zoo.names import is_made

SOURCE, MACHINE = "source.json", "machine.yaml"


class _Saved(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[2] = 2
    model: str
    model_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    machine_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    dtype: Literal["float16", "float32"]
    shapes: dict[str, tuple[int, ...]]
    random_weights: int | None
    style: Style
    frames: Annotated[int, Field(ge=1)] = 1


@dataclass(frozen=True)
class SavedSource:
    """Source as stored in a run folder.  model_digest: `LoweredModel.digest`."""

    source: ModelSpec
    model_digest: str
    style: Style


def write_source(run: AnyPath, source: ModelSpec, model_digest: str, style: Style = "function") -> None:
    """Store the source of a run's plans in `run`."""
    saved = _Saved(
        model=str(source.model if is_made(source.model) else source.model.resolve()),
        model_digest=model_digest,
        machine_digest=source.machine.digest,
        dtype=source.dtype.name,
        shapes={name: tuple(shape) for name, shape in source.shapes.items()},
        random_weights=source.random_weights,
        style=style,
        frames=source.frames,
    )
    write_atomically(run / MACHINE, [_write_machine(source.machine)])
    write_json(run / SOURCE, saved.model_dump(mode="json"))


def read_source(run: AnyPath) -> SavedSource:
    """Read the source of a run's plans.  Raises `BadInputError` for other folders and damaged files."""
    if not run.is_dir():
        raise BadInputError(f"{run}: no such run folder")
    path = run / SOURCE
    if not path.is_file():
        raise BadInputError(f"{run}: not a run folder (it has no {SOURCE})")
    try:
        saved = _Saved.model_validate(read_json(path))
    except ValidationError as error:
        raise BadInputError(f"{path}: {validation_line(error)}") from None
    machine = _machine(run / MACHINE, saved.machine_digest)
    source = ModelSpec(Path(saved.model), machine, DataType[saved.dtype], saved.shapes, saved.random_weights, saved.frames)
    return SavedSource(source, saved.model_digest, saved.style)


@lru_cache(maxsize=4)
def _write_machine(machine: Machine) -> bytes:
    """YAML file of the complete machine."""
    return yaml.safe_dump(machine.model_dump(mode="json"), sort_keys=False, allow_unicode=True).encode()


def _machine(path: AnyPath, digest: str) -> Machine:
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read: {error}") from None
    machine = machine_of(parse_yaml(text, path), path)
    if machine.digest != digest:
        raise BadInputError(f"{path}: not the machine of the run ({digest}); expected the file as it was written")
    return machine
