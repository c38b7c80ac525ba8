"""Command `tilefarm schema`: print the JSON Schema of a user-facing file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from tuner.cli.text import print_json

app = new_app()


@app.command()
def schema(name: Annotated[str, typer.Argument(metavar="NAME", help="config, machine, plan or summary.")]) -> None:
    from compiler.plan.plan import Plan
    from simulator.npu.machine import Machine
    from tuner.config import TuneConfig
    from tuner.summary import Summary

    models: dict[str, Any] = {"config": TuneConfig, "machine": Machine, "plan": Plan, "summary": Summary}
    if name not in models:
        raise BadInputError(f"schema {name!r}: expected one of {', '.join(models)}")
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **models[name].model_json_schema()})
