"""`python -m compiler MODEL.onnx --machine M --out OUT.onnx`: one file, without a search."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simulator.command import new_app, run_command
from simulator.terminal import print_line

app = new_app()


@app.command()
def main(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX model.")],
    machine: Annotated[str, typer.Option(metavar="M", help="A preset or a YAML file.")],
    out: Annotated[Path, typer.Option(metavar="OUT.onnx", help="Where to write the compiled ONNX file.")],
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN.json", help="A plan for all levels; for each of them the best by prediction unless given.")
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="T", help="float16 or float32.")] = "float16",
) -> None:
    """Compile a model for a machine, with a plan or by prediction: the same bytes every time."""
    from compiler.api import compile
    from compiler.plan.plan import Plan
    from simulator.outputs import check_out

    check_out(out, [model, Path(machine), *([] if plan is None else [plan])])
    compiled = compile(model, machine, None if plan is None else Plan.load(plan), dtype=dtype)
    compiled.save(out)
    for level in compiled.levels:
        print_line(f"{level}: {compiled.cycles(level):,} cycles")


if __name__ == "__main__":
    sys.exit(run_command(app, "python -m compiler", sys.argv[1:]))
