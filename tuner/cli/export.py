"""Command `tilefarm export`: compile the plans of a run again; write bundles for a run time without Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator import onnx_names
from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli.compile import show_report
from tuner.cli.group import FOLDER
from tuner.cli.options import CompiledOut, Insure, Json, RuleOptions, Variants
from tuner.cli.text import print_json

app = new_app()


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN|FILE.onnx", help="A run folder; with --bundle also a compiled ONNX file.")],
    out: CompiledOut = None,
    bundle: Annotated[
        Path | None,
        FOLDER,
        typer.Option(metavar="DIR", help="Write flat binaries, memory map and the controller in C there: for a run time without Python."),
    ] = None,
    plan: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="One plan of the run for all levels, by the first digits of its digest.")
    ] = None,
    plans: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder with <level>.json instead of RUN/plans; robust: RUN/plans/robust.json alone."),
    ] = None,
    variants: Variants = None,
    insure: Insure = None,
    style: Annotated[onnx_names.Style | None, typer.Option(help="As in compile. (default: the run's)")] = None,
    *,
    rule: RuleOptions,
    as_json: Json = False,
) -> None:
    from simulator.bundle.write import check_bundle_folder
    from simulator.compiled import read_compiled
    from tuner.cli.export_plans import bundle_facts, few_plans, run_plans
    from tuner.cli.write_file import write_compiled, write_stack_file
    from tuner.finalize.packagers import is_stack_file
    from tuner.measure.reopen import open_tuned

    if out is None and bundle is None:
        raise BadInputError("--out: missing; expected where to write the compiled ONNX file, or --bundle DIR")
    by_hand = rule.by_hand()
    if bundle is not None:
        check_bundle_folder(bundle)
    elif by_hand is not None:
        raise BadInputError("--t-min, --t-max and --slice go with --bundle")
    # a compiled file has its plans already: options that choose plans need a run
    if bundle is not None and os.path.isfile(run):
        run_options = {"--out": out, "--plan": plan, "--plans": plans, "--variants": variants, "--insure": insure, "--style": style}
        for name, value in run_options.items():
            if value is not None:
                raise BadInputError(f"{name}: {run} is compiled already; it goes with a run folder")
        _show(bundle_facts(read_compiled(run), bundle, str(run), by_hand), as_json)
        return
    choosing = variants is not None or insure is not None
    if choosing and (plan is not None or plans is not None):
        words = f"--insure {insure:g}" if variants is None else f"--variants {variants}"
        raise BadInputError(f"{words}: chooses the plans, so it goes with neither --plan nor --plans")
    lowered, saved = open_tuned(run)
    plans_to_compile = run_plans(run, lowered.machine, plan, plans) if not choosing else few_plans(run, lowered, variants, insure)
    if out is not None and is_stack_file(out):
        report = write_stack_file(lowered, plans_to_compile, out)
    else:
        report = write_compiled(lowered, plans_to_compile, out, style or saved.style)
    facts = None if bundle is None else bundle_facts(report.compiled, bundle, str(run), by_hand)
    show_report(report if facts is None else report._replace(values={**report.values, "bundle": facts}), as_json)
    if facts is not None and not as_json:
        _show(facts, as_json=False)


def _show(facts: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"bundle": facts})
        return
    print_line(f"{facts['folder']}: a bundle of {facts['parts']} parts, {facts['bytes']:,} bytes; its README.md says how to link it")
    for oscillation in facts["oscillations"]:
        print_line(f"warning: {oscillation}")
