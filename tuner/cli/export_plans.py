"""Plans of a run for `export`: compiled to the same bytes as the run's own `best.onnx` (`tuner.cli.write_file`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from compiler.build import measure
from compiler.model import LoweredModel
from compiler.plan.plan import Plan
from simulator.build_controller_table import with_rule
from simulator.bundle.write import write_bundle
from simulator.compiled import Compiled, CompiledPiece
from simulator.npu.container_file import decode, encode
from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from simulator.thresholds import ManualThresholds
from tuner.config import BUILT_IN, NPU
from tuner.log.read import read_rows, read_tasks
from tuner.measure.reopen import read_plans
from tuner.runs.folder import OWN
from tuner.runs.list_runs import open_run
from tuner.selection.variant_choice import Candidates, choose_variants, unjudged_reason

DIGEST_DIGITS = 32
ROBUST = "robust"  # --plans robust: this plan, not a folder


def plan_by_digest(run: Path, digest: str) -> Plan:
    """Plan of the run with a digest that starts with `digest`: from `plans/`, else from the programs in `tasks/`.

    Raises `BadInputError` where no plan or several plans match.
    """
    if not digest or len(digest) > DIGEST_DIGITS or set(digest) - set("0123456789abcdef"):
        raise BadInputError(f"--plan {digest}: expected up to {DIGEST_DIGITS} hex digits of a plan's digest")
    for plans in (_stored_plans, _measured):
        matches = {plan.digest: plan for plan in plans(run) if plan.digest.startswith(digest)}
        if len(matches) > 1:
            raise BadInputError(f"--plan {digest}: {len(matches)} plans begin so: {', '.join(sorted(matches)[:4])}")
        if matches:
            return next(iter(matches.values()))
    lost_rows = read_rows(run, "tasks", ()).lost if (run / "tasks").is_dir() else 0
    raise BadInputError(f"--plan {digest}: {run} has no such plan" + (f"; {lost_rows} of its tasks were lost" if lost_rows else ""))


def _stored_plans(run: Path) -> Iterator[Plan]:
    yield from (Plan.load(path) for path in sorted((run / "plans").glob("**/*.json")))


def _measured(run: Path) -> Iterator[Plan]:
    """Plans of the measured programs of the run."""
    if not (run / "tasks").is_dir() and not (run / "log").is_dir():
        return
    tasks = read_tasks(run, ("kind", "payload"))
    for payload in tasks.loc[tasks["kind"] == "program", "payload"]:
        if (plan := _decode_plan(payload)) is not None:
            yield plan


def _decode_plan(payload: str) -> Plan | None:
    content = json.loads(payload)
    raw = content.get("plan", content) if isinstance(content, dict) else None
    try:
        return Plan.model_validate(raw)
    except ValidationError:
        return None  # a program measured without a plan


def run_plans(run: Path, machine: Machine, digest: str | None = None, folder: Path | None = None) -> Mapping[str, Plan]:
    """Plans to export: of `folder`, or for every level the plan with `digest` or the robust plan, or the plans that the run ships."""
    if digest is not None and folder is not None:
        raise BadInputError("--plan and --plans: give one of them")
    if digest is not None:
        return dict.fromkeys(machine.contention, plan_by_digest(run, digest))
    if str(folder) == ROBUST:
        return dict.fromkeys(machine.contention, robust_plan(run))
    return read_plans(folder if folder is not None else run / "plans", machine)


def robust_plan(run: Path) -> Plan:
    """Robust plan of a run.  Raises `BadInputError` where a run has none."""
    path = run / "plans" / f"{ROBUST}.json"
    if not path.is_file():
        raise BadInputError(f"{path}: not there; no program of the run fits every level, or it has not ended")
    return Plan.load(path)


def few_plans(run: Path, lowered: LoweredModel, count: int | None, insure: float | None = None) -> Mapping[str, Plan]:
    """At most `count` of a run's champions and its robust plan, as `tilefarm tune --variants --insure` ships them.

    Raises `BadInputError` for a run measured by a board: its cycles are needed for the choice and are not available here.
    """
    summary = open_run(run).summary
    if summary is None:
        raise BadInputError(f"{run}: no summary.json yet")
    if (runner := summary["runner"]) is not None:
        words = f"--insure {insure:g}" if count is None else f"--variants {count}"
        raise BadInputError(f"{words}: runner {runner['name']} measured {run}; ask `tilefarm tune --resume {words}`")
    champions = measure(lowered, read_plans(run / "plans" / OWN, lowered.machine))
    robust = None
    if summary["robust"] is not None:
        robust = next(iter(measure(lowered, dict.fromkeys(champions, robust_plan(run))).values()))
    target = NPU if summary["target"] is None else summary["target"]["name"]
    shipped = choose_variants(lowered, Candidates(champions, robust), count, None, unjudged_reason(BUILT_IN, target), insure)
    return {level: m.plan for level, m in shipped.variants.items()}


def bundle_facts(compiled: Compiled, folder: Path, source: str, by_hand: ManualThresholds | None) -> dict[str, Any]:
    """Write the bundle of a compiled model, with the threshold rule set by hand if given; returns its description as JSON.

    source: names the model in errors.
    """
    # encode and decode as a file does: no trailing data behind the constants, integers of Python
    read = Compiled(tuple(CompiledPiece(piece.name, decode(encode(piece.container))) for piece in compiled.pieces))
    oscillations = list[str]()
    if by_hand is not None and read.controller is not None:
        read, thresholds = with_rule(read, read.controller, by_hand)
        oscillations = [str(oscillation) for oscillation in thresholds.oscillations]
    manifest = write_bundle(read, folder, source)
    size_bytes = sum(part.size_bytes for part in manifest.parts)
    return {"folder": str(folder), "parts": len(manifest.parts), "bytes": size_bytes, "oscillations": oscillations}
