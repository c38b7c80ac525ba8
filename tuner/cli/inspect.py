"""What there is: machines, plans, schemas, the installation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.npu.errors import BadInputError
from tuner.cli.group import new_app
from tuner.cli.options import Address, Json, RandomWeights, Shape, named

app = new_app()
plan_app = new_app(help="Look at plans.", no_args_is_help=True)
app.add_typer(plan_app, name="plan")


@app.command("machines")
def _machines(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A preset or a YAML file; all presets unless given.")] = None,
    as_json: Json = False,
) -> None:
    """The machines that there are, or every value of one, with units."""
    from tuner.commands.inspect import machines

    machines(name, as_json)


@plan_app.command("show")
def _plan_show(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan file.")],
    primitives: Annotated[
        bool, typer.Option("--primitives", help="Every operator's schedule: cache_read, cache_write, split, reorder, compute_at ...")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL.onnx", help="With --primitives: what the plan is for, unless it lies in its run folder.")
    ] = None,
    machine: Annotated[str | None, typer.Option(metavar="M", help="With --model.")] = None,
    shape: Shape = None,
    random_weights: RandomWeights = None,
    as_json: Json = False,
) -> None:
    """Segments, blocks and tilings of a plan, and its digest; or its operators as schedule primitives."""
    if primitives:
        from tuner.commands.primitives import show_primitives

        if model is not None:
            model, random_weights = named(model, random_weights)
        show_primitives(plan, model, machine, shape or (), random_weights, as_json)
        return
    for name, value in (("--model", model), ("--machine", machine), ("--shape", shape), ("--random-weights", random_weights)):
        if value is not None:
            raise BadInputError(f"{name} goes with --primitives")
    from tuner.commands.inspect import show_plan

    show_plan(plan, as_json)


@plan_app.command("diff")
def _plan_diff(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="A plan file.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="Another one.")],
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 where they differ, as git diff --exit-code does.")] = False,
    as_json: Json = False,
) -> int:
    """What differs between two plans, segment by segment; nothing where they are the same."""
    from tuner.commands.plans import diff_plans

    return diff_plans(a, b, exit_code, as_json)


@app.command("schema")
def _schema(name: Annotated[str, typer.Argument(metavar="NAME", help="config, machine, plan or summary.")]) -> None:
    """The JSON Schema of a file: plan.json, summary.json, a machine or a configuration (YAML, same keys)."""
    from tuner.commands.logs import print_schema

    print_schema(name)


@app.command("doctor")
def _doctor(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run folder: also how fast its log grows.")] = None,
    address: Address = None,
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Also compile, run and check a convolution: seconds, a minute where kernels are compiled first."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Is everything here that a run needs?  Versions, disks, what Ray sees; with --whole a compile that is checked.  Exit 1 where not."""
    from tuner.commands.doctor import doctor

    return doctor(run, address, whole, as_json)
