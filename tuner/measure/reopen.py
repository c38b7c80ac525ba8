"""Reopening of a tuned run: its model on its machine, and its plans."""

from __future__ import annotations

from pathlib import Path

from compiler.model import LoweredModel
from compiler.plan.plan import Plan
from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from tuner.platform.local_files import LocalPath
from tuner.runs.folder import IDENTITY, read_json
from tuner.runs.model_source import SavedSource, read_source
from tuner.zoo.load import open_network
from tuner.zoo.names import is_made


def open_tuned(run: Path) -> tuple[LoweredModel, SavedSource]:
    """Model of a run on its machine, lowered to the target graph.  Raises `BadInputError` if the model file has changed since."""
    saved = read_source(LocalPath(run))
    if not is_made(saved.source.model) and not saved.source.model.is_file():
        raise BadInputError(f"{run}: its model {saved.source.model} is not there any more")
    lowered = open_network(saved.source)
    digest = lowered.digest
    if digest != saved.model_digest:
        raise BadInputError(f"{saved.source.model}: changed since the run (digest {digest}, the run tuned {saved.model_digest})")
    identity = run / IDENTITY
    if identity.is_file():
        recorded = read_json(identity)
        machine = recorded.get("machine_digest") if isinstance(recorded, dict) else None
        if machine != lowered.machine.digest:
            raise BadInputError(f"{identity}: made for machine {machine}, {run / 'source.json'} has {lowered.machine.digest}")
    return lowered, saved


def read_plans(folder: Path, machine: Machine) -> dict[str, Plan]:
    """`<level>.json` for every level of the machine.  Raises `BadInputError` for one that is missing or malformed."""
    if not folder.is_dir():
        raise BadInputError(f"{folder}: no such folder of plans")
    missing = [level for level in machine.contention if not (folder / f"{level}.json").is_file()]
    if missing:
        raise BadInputError(f"{folder}: has no plan {missing[0]}.json; expected one for each of {', '.join(machine.contention)}")
    return {level: Plan.load(folder / f"{level}.json") for level in machine.contention}
