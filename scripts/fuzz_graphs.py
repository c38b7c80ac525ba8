"""Random graphs over all that the frontend supports, compiled with several plans each, against onnxruntime.

    python scripts/fuzz_graphs.py --seeds 0:1000 [--machine edge] [--dtype float16] [--genomes N] [--workers N] [--seconds S]
                                  [--shrink N] [--json]

A graph has four to twelve operators: views in front of and behind everything, several outputs in any order, sizes around 16 and 32.
It is planned layer by layer, by prediction, and by N drawn genomes; every program is sanitized and executed.
Outputs are compared by position: names, shapes, and values with the tolerance of `tilefarm run --check`.

* right: all of them
* rounding: beyond that tolerance, and no further than rounding alone moves the reference, which is ill conditioned there
* undefined: the reference is not finite
* refused, infeasible: an error with a reason, or no plan fits the machine
* wrong, crash: a fault

The first faults are cut down to small graphs, which are printed as tests.
--dtype int8: quantised graphs, QuantizeLinear and DequantizeLinear around operators, whose floats are float16 on the NPU.
The same seed is the same graph, and results do not depend on --workers.

Exit code 1 where anything is wrong or crashes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONPATH=str(ROOT))


def main(
    seeds: Annotated[str, typer.Option(metavar="A:B", help="From A up to B, without B.")] = "0:500",
    machine: Annotated[str, typer.Option(metavar="NAME")] = "edge",
    dtype: Annotated[str, typer.Option(metavar="float16|float32|int8")] = "float16",
    genomes: Annotated[int, typer.Option(metavar="N", help="Drawn plans of each graph.")] = 8,
    workers: Annotated[int, typer.Option(metavar="N", help="Processes.")] = 1,
    seconds: Annotated[float, typer.Option(metavar="S", help="Begin no seed after that time.")] = float("inf"),
    shrink: Annotated[int, typer.Option(metavar="N", help="Cut down so many faults, of different kinds first.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with all pairs of neighbours.")] = False,
) -> None:
    """Compile random graphs with several plans each, and compare the outputs with onnxruntime.  Exit code 1 if one differs."""
    from tests.fuzz.campaign import Job, Tally, outcomes
    from tests.fuzz.outcome import outcome_line
    from tests.fuzz.shrink import shrunk_tests

    first, _, last = seeds.partition(":")
    job, tally, begin = Job(machine, dtype, genomes), Tally(), time.monotonic()
    for seed, outcome in outcomes(job, range(int(first), int(last)), workers, seconds):
        tally.add(seed, outcome)
        if outcome.fault:
            sys.stderr.write(f"seed {seed}: {outcome_line(outcome)[:300]}\n")
    tests = shrunk_tests(job, tally.faults, shrink)
    if as_json:
        print(json.dumps({"seeds": seeds, "machine": machine, "dtype": dtype, **tally.values(), "tests": tests}, indent=1))
    else:
        print("\n".join([*tally.lines(), *(f"\n\n# seed {seed}\n{text}" for seed, text in tests.items())]))
    sys.stderr.write(f"{time.monotonic() - begin:.0f} s\n")
    raise typer.Exit(int(bool(tally.faults)))


if __name__ == "__main__":
    typer.run(main)
