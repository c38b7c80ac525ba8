"""Verification of networks on every machine, in every data type, at every level: the nine light ones, and small ones of today.

    python scripts/verify_networks.py [--networks a,b] [--machines edge,ascend310] [--dtypes float16,float32]
                                      [--candidates N] [--plans RUNS] [--quantised qdq] [--json]

Each cell is compiled with a variant per level: plans of its run in RUNS, else of a search of N candidates, else layer by layer.  Weights
are random.  It is written as a compiled ONNX file, and read by a fresh process without a compiler.  Checks there: decode and verify,
execute the container, onnxruntime on the file's body, the sanitizer, the file's table of cycles, cycles >= bound, P(share) <= cycles <=
P(share / DMA queues) + transfers.  Checks in this process: a second compilation gives the same file, and the NPU has every MAC of the model
and executes at least those with an effect on the result.  Other built-in networks are accepted as well (`made:mobilenet_v2-small`).  With
--quantised, networks are quantised first.  The table then shows exactness too: differences from onnxruntime of single integer operators,
and of outputs, where none is allowed and after floating-point operators.  The host may have some of the products.  Exit code 1 if anything
fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tuner.zoo.names import MADE, PREFIX, shipped_networks  # noqa: E402  imports little; the rest is imported where it is needed
from tuner.zoo.quantiser import MARK  # noqa: E402

TODAY = tuple(f"{MADE}{name}-small" for name in ("llama", "segformer", "unet", "whisper", "yolo"))
NETWORKS = (*(name.removeprefix(PREFIX) for name in shipped_networks()), *TODAY)
CHILD = "--check-file"


class Cell(NamedTuple):
    network: str
    machine: str
    dtype: str


def main(
    networks: Annotated[str, typer.Option(metavar="A,B", help="The light ones and those of today unless given.")] = ",".join(NETWORKS),
    machines: Annotated[str, typer.Option(metavar="A,B")] = "edge,ascend310",
    dtypes: Annotated[str, typer.Option(metavar="A,B")] = "float16,float32",
    plans: Annotated[Path | None, typer.Option(metavar="RUNS", help="Folder of run folders; their plans are taken where they fit.")] = None,
    candidates: Annotated[int, typer.Option(metavar="N", help="Search so many programs for a cell without a run.")] = 0,
    seed: Annotated[int, typer.Option(help="Of weights and inputs.")] = 0,
    quantised: Annotated[
        str | None, typer.Option(metavar="HOW", help="qdq or qop, and options: qdq,activations=int8,per_channel=1.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
    check_file: Annotated[Path | None, typer.Option(CHILD, hidden=True)] = None,
) -> None:
    """Verify networks on every machine, in every data type, at every level.  Exit code 1 if anything fails."""
    if check_file is not None:
        print(json.dumps(check_in_this_process(check_file, seed)))
        return
    names = networks.split(",")
    if unknown := [name for name in names if name not in NETWORKS and not name.startswith(MADE)]:
        raise typer.BadParameter(f"--networks {unknown[0]}: expected made:NAME, or some of {', '.join(NETWORKS)}")
    names = [name if name.startswith(MADE) else PREFIX + name for name in names]
    if quantised:
        names = [f"{name}{MARK}{quantised}" for name in names]
    cells = [Cell(n, m, d) for n in names for m in machines.split(",") for d in dtypes.split(",")]
    rows: list[dict[str, Any]] = []
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tilefarm-verify-") as folder:
        for i, cell in enumerate(cells):
            sys.stderr.write(f"[{i + 1}/{len(cells)}] {' '.join(cell)} ... ")
            sys.stderr.flush()
            begin_s = time.perf_counter()
            results = verify(cell, Path(folder), plans, candidates, seed)
            rows += results
            faults = [fault for row in results for fault in row["faults"]]
            sys.stderr.write(f"{'ok' if not faults else f'FAILED: {faults[0]}'} ({time.perf_counter() - begin_s:.1f} s)\n")
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        show(rows, quantised is not None)
    failed = sum(bool(row["faults"]) for row in rows)
    sys.stderr.write(f"{len(rows)} rows, {failed} failed, {time.perf_counter() - start:.0f} s\n")
    raise typer.Exit(int(failed > 0))


EXACTNESS = (
    "operators", "values", "differ", "exact outputs", "differ ", "behind floats", "differ  ", "steps", "<on the host",
)  # fmt: skip


def show(rows: list[dict[str, Any]], quantised: bool) -> None:
    from tuner.cli.text import print_table

    columns = (
        "<network", "<machine", "<dtype", "<level", "<plan", "cycles", "of bound", "P low", "P high", "error", "of rounding", "MACs on NPU",
        *(EXACTNESS if quantised else ()), "<result",
    )  # fmt: skip
    cells: list[tuple[Any, ...]] = []
    for row in rows:
        cell = (row["network"].partition(MARK)[0].removeprefix(PREFIX), row["machine"], row["dtype"], row["level"])
        if "cycles" not in row:
            cells.append((*cell, *[""] * (len(columns) - 5), row["faults"][0]))
            continue
        low, high = row["path_cycles"]
        cells.append(
            (
                *cell, row["plans"], row["cycles"], f"{row['cycles'] / row['bound_cycles']:.3f}", low, high, f"{row['max_rel_error']:.1e}",
                "" if row["rounding_rel_error"] is None else f"{row['rounding_rel_error']:.1e}", f"{row['mac_share']:.1%}",
                *(_exactness(row) if quantised else ()), row["faults"][0] if row["faults"] else "ok",
            )
        )  # fmt: skip
    print_table(columns, cells)


def _exactness(row: dict[str, Any]) -> tuple[Any, ...]:
    counts = (row[key] for key in ("operators", "values", "differing", "exact_values", "exact_differing", "float_values"))
    share = f"{row['float_differing'] / row['float_values']:.2%}" if row["float_values"] else ""
    return (*counts, share, f"{row['float_steps']:.3g}" if row["float_values"] else "", " ".join(row["host"]))


def verify(cell: Cell, folder: Path, runs: Path | None, candidates: int, seed: int) -> list[dict[str, Any]]:
    """Rows of a cell, one per level; one row with the reason if it does not compile."""
    from simulator.npu.errors import TilefarmError

    cell_columns = {"network": cell.network, "machine": cell.machine, "dtype": cell.dtype}
    out = folder / "out.onnx"
    try:
        common, faults = compile_cell(cell, out, runs, candidates, seed)
    except TilefarmError as error:
        return [{**cell_columns, "level": "", "faults": [f"compile: {error}"]}]
    process = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), CHILD, str(out), "--seed", str(seed)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    out.unlink()
    if process.returncode:
        last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return [{**cell_columns, "level": "", "faults": [*faults, f"fresh process: {last}"]}]
    return [{**cell_columns, **common, **row, "faults": faults + row["faults"]} for row in json.loads(process.stdout)]


def compile_cell(cell: Cell, out: Path, runs: Path | None, candidates: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Write the compiled file; returns the facts known without a run, and the faults."""
    from compiler.build import containers_of, default_by_level, measure, measure_plans, package, plans_of_pieces
    from compiler.frontend.partition.macs import model_macs
    from compiler.model import ModelSpec
    from compiler.pipeline import Compiler
    from simulator.npu.machine_file import load_machine
    from simulator.npu.parts import DataType
    from tuner.measure.macs import npu_macs, program_macs
    from tuner.measure.reopen import read_plans
    from tuner.measure.roofline import Roofline
    from tuner.zoo.load import open_network

    lowered = open_network(ModelSpec(Path(cell.network), load_machine(cell.machine), DataType[cell.dtype], {}, seed))
    run = find_run(runs, lowered.source) if runs is not None else None
    if run is None and candidates:
        run = searched(cell, lowered.source.model, out.parent, candidates, seed)
    plans = read_plans(run / "plans", lowered.machine) if run is not None else default_by_level(lowered)
    measured = measure(lowered, plans)
    package(lowered, list(containers_of(lowered, measured)), out)
    split = {level: plans_of_pieces(lowered, plan, level) for level, plan in plans.items()}
    half_measurements = [
        measure_plans(Compiler(target_graph), {level: half_plans[k] for level, half_plans in split.items()})
        for k, target_graph in enumerate(lowered.target_graphs)
    ]
    faults = [
        f"level {level}: compiling again gives another program"
        for level, measurement in measured.items()
        if any(piece.program.digest != half_measurements[k][level].program.digest for k, piece in enumerate(measurement.pieces))
    ]
    macs, host_macs = model_macs(lowered.model), sum(node.macs or 0 for node in lowered.part.host)
    unit_macs = sum(npu_macs(target_graph, lowered.model) for target_graph in lowered.target_graphs)
    expected_macs = macs - host_macs
    # sums of groups, moves of lanes, and weights around other zero points are products, too
    has_more = MARK in cell.network or cell.network in TODAY
    if unit_macs < expected_macs or (unit_macs > expected_macs and not has_more):
        faults.append(f"the NPU is given {unit_macs:,} MACs of the model's {expected_macs:,}")
    needed = sum(
        sum(Roofline(target_graph).work(tuple(range(len(target_graph.operators))))[0].values()) for target_graph in lowered.target_graphs
    )
    program_macs_by_level = {
        level: sum(program_macs(piece.program) for piece in measurement.pieces) for level, measurement in measured.items()
    }
    faults += [
        f"level {level}: executes {count:,} MACs of the {needed:,} needed"
        for level, count in program_macs_by_level.items()
        if count < needed
    ]
    summary = {"plans": run.name if run is not None else "layer by layer", "macs": macs, "mac_share": expected_macs / macs if macs else 0.0}
    return {**summary, "host": sorted({node.op_type for node in lowered.part.host if node.refused})}, faults


def searched(cell: Cell, model: Path, folder: Path, candidates: int, seed: int) -> Path:
    """Folder of a run of `candidates` programs for a cell."""
    from tuner.driver import tune
    from tuner.tune_request import TuneRequest

    run = folder / f"{candidates} candidates"
    shutil.rmtree(run, ignore_errors=True)
    dtype: Any = cell.dtype
    tune(TuneRequest(model, cell.machine, run, candidates, backend="serial", dtype=dtype, random_weights=seed, quiet=True))
    return run


def find_run(runs: Path, source: Any) -> Path | None:
    """First run folder, by name, of this model, machine and data type."""
    from tuner.runs.model_source import SOURCE, read_source

    for path in sorted(runs.glob(f"*/{SOURCE}")):
        recorded = read_source(path.parent).source
        wanted_source = (source.model.name, source.machine.digest, source.dtype, source.random_weights)
        if (recorded.model.name, recorded.machine.digest, recorded.dtype, recorded.random_weights) == wanted_source:
            return path.parent
    return None


def check_in_this_process(path: Path, seed: int) -> list[dict[str, Any]]:
    """Rows of the file's levels, checked in the fresh process."""
    from simulator.compiled import read_compiled
    from simulator.timing import simulate
    from tuner.verify.check import check_levels, prepare_check
    from tuner.verify.per_operator import check_quantised

    compiled = read_compiled(path)  # verifies every program
    session, feeds, expected = prepare_check(path, seed)
    rows = []
    alone_faults: list[str] = []
    operators: dict[str, Any] = {}
    for checked in check_levels(session, feeds, expected):
        machine, level = compiled.machine, compiled.level(checked.level)
        pieces = compiled.prepared(checked.level)
        separate_cycles = sum(simulate(piece, machine, level, shared=False).cycles for piece in pieces)
        divided = sum(simulate(piece, machine, level, shared=False, rate_divisor=max(1, piece.dma_ports)).cycles for piece in pieces)
        cycles = checked.cycles[checked.level]
        high = divided + sum(int(piece.transfers.sum()) for piece in pieces)
        if expected.quantised and not operators:
            comparison = check_quantised(expected.integers(), checked.values.outputs, machine, compiled.dtype)
            operators, alone_faults = (
                dict(zip(("operators", "values", "differing"), comparison.operators.total, strict=True)),
                list(comparison.faults),
            )
            operators |= {"left_out": list(comparison.operators.left_out), "unfused_steps": dict(comparison.unfused)}
        faults = [*checked.faults, *alone_faults]
        if not separate_cycles <= cycles <= high:
            faults.append(
                f"level {checked.level}: {cycles:,} cycles outside P(share) = {separate_cycles:,} .. P(share/queues) + transfers = {high:,}"
            )
        rows.append(
            {
                "level": checked.level,
                "cycles": cycles,
                "bound_cycles": checked.bound_cycles,
                "path_cycles": [separate_cycles, high],
                "max_rel_error": checked.values.worst.error,
                "rounding_rel_error": checked.values.worst.rounding,
                "instructions": sum(piece.instructions for piece in pieces),
                "same_as": compiled.same_as(checked.level),
                "variant_cycles": dict(checked.table_cycles),
                **operators,
                **(outputs(list(checked.values.compared.values())) if expected.quantised else {}),
                "faults": faults,
            }
        )
    return rows


def outputs(compared: list[Any]) -> dict[str, Any]:
    """Figures of a quantised network: values that must be exact, and values after floating-point operators."""
    exact, inexact = ([tensor for tensor in compared if tensor.exact is is_exact] for is_exact in (True, False))
    return {
        "exact_values": sum(tensor.count for tensor in exact),
        "exact_differing": sum(tensor.differing for tensor in exact),
        "float_values": sum(tensor.count for tensor in inexact),
        "float_differing": sum(tensor.differing for tensor in inexact),
        "float_steps": max((tensor.error / tensor.step for tensor in inexact if tensor.step), default=0.0),
    }


if __name__ == "__main__":
    typer.run(main)
