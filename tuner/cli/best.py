"""Command `tilefarm best`: print the champions of a finished run."""

from __future__ import annotations

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli.options import Json, RunPlace
from tuner.cli.text import print_json, print_levels, print_robust, print_unconfirmed

app = new_app()


@app.command()
def best(folder: RunPlace, as_json: Json = False) -> None:
    from tuner.platform.remote_files import place
    from tuner.runs.list_runs import open_run

    path = place(folder)
    run = open_run(path)
    if run.summary is None:
        raise BadInputError(f"{path}: no summary.json yet, the run is {run.state}; `tilefarm status {path}` says how far it is")
    levels = run.summary["levels"]
    if as_json:
        print_json(
            {
                "run": run.summary["run"],
                "state": run.state,
                "file": str(path / "best.onnx"),
                "frames": run.summary.get("frames", 1),
                "robust": run.summary["robust"],
                "levels": levels,
            }
        )
        return
    print_levels(run.summary)
    print_robust(run.summary)
    print_unconfirmed(run.summary)
    print_line(f"{path / 'best.onnx'}; plans in {path / 'plans'}")
