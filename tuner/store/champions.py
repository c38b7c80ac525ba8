"""Champions of searches, in a store beside the packs (`tuner.store.pack_store`): the fastest programs of one computation.

    STORE/<machine>-<conditions>/<computation>-<digest>.champions    JSON, named by a digest of its bytes, never touched again

A computation is a target graph without the values of its weights (`tuner.farm.store_client.Scopes`): a retrained model has the same
computation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from compiler.plan.plan import Plan
from simulator.npu.errors import BadInputError
from simulator.npu.files import put_atomically
from tuner.log.digests import canonical_json, text_digest
from tuner.platform.files import AnyPath

SUFFIX = ".champions"
MOST_BYTES = 1 << 26


class Champion(BaseModel):
    """Champion of a level.  cycles: level -> cycles, for levels that it fits."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    plan: Plan
    cycles: dict[str, int]


class StoredChampions(BaseModel):
    """Champions of one search.  model_digest: digest of the searched file.  programs, readings: measured by the search.  of: level ->
    champion.
    robust: the program with the smallest largest loss over the levels."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    version: Literal[1] = 1
    run: str
    model: str
    model_digest: str
    programs: int
    readings: int
    of: dict[str, Champion]
    robust: Plan | None = None


def put_champions(folder: AnyPath, computation: int, champions: StoredChampions) -> None:
    """Raises OSError."""
    text = canonical_json(champions.model_dump(mode="json"))
    put_atomically(folder / f"{computation:016x}-{text_digest(text)}{SUFFIX}", [text.encode()])


def read_champions(folder: AnyPath, computation: int) -> Iterator[tuple[str, StoredChampions]]:
    """Champions by name; damaged files are left out.  Raises `BadInputError` if the folder is not readable."""
    try:
        paths = sorted(folder.glob(f"{computation:016x}-*{SUFFIX}"), key=str)
    except OSError as error:
        raise BadInputError(f"{folder}: cannot be read: {error.strerror or error}") from None
    for path in paths:
        if (champions := read_champions_file(path)) is not None:
            yield path.name.removesuffix(SUFFIX), champions


def read_champions_file(path: AnyPath) -> StoredChampions | None:
    """Contents of a file; None where it is damaged."""
    try:
        if path.version()[1] > MOST_BYTES:
            return None
        text = path.read_bytes().decode()
        intact = text_digest(text) == path.name.removesuffix(SUFFIX).partition("-")[2]
        return StoredChampions.model_validate(json.loads(text)) if intact else None
    except (OSError, ValueError, ValidationError):
        return None
