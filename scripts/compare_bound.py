"""DDR traffic of fused chains, compared with the optimum of AccelForge's mapper for equal on-chip memory.

    python scripts/compare_bound.py --venv FOLDER [--python PYTHON] [--chains NAME,...] [--capacities KI,...] [--candidates N]
        [--dtype TYPE] [--minutes N] [--json]

The reference is the Fast and Fusiest Mapper (arXiv 2602.15166) on its architecture `snowcat`: one memory of a given size between DRAM and a
multiplier.  It minimises DRAM accesses over all tilings, loop orders and fusions that it models, without prefetch (the bound of Orojenesis,
ISCA 2024, for fused operators).  It is installed from the package registry into FOLDER, whose Python must be 3.12 or newer; its results are
cached in `bounds/` there.  Overlapping windows take it minutes, and it does not model every schedule, so ours may be below.
If it exceeds --minutes, the compiler's own bound replaces it (`compiler.bound`, docs/bounds.md).  No schedule moves less than this bound,
but none may reach it, so such rows are printed and not judged.

`ours` is a search on a machine with DDR so slow that a program's time is its traffic, so the search minimises bytes.  Capacity is the sum
of L1, L0A, L0B, L0C and UB, in elements: float32 unless --dtype is given, since the mapper counts a sum as one element, and a float32 sum
takes two elements of float16.  The mapper has one memory, so ours is divided among buffers in several ways, and the best predicted one is
searched.  All transfers count, padding too.  `doubled` is the same search with two slots per load, as in programs tuned for speed; `bound`
and `ours` need no second slot.  Parts of our traffic, relative to the bound: `needed` weights, inputs and outputs once; `padding`; weights
and tensors moved `again`; `spills` of intermediate tensors.

Exit code 1 if a chain is above the goal.  Not part of CI: it needs the registry.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tuner  # noqa: E402
from compiler.bound.bound import Bound  # noqa: E402
from compiler.frontend import load_model, lower  # noqa: E402
from compiler.ops.lower_graph import make_unit  # noqa: E402
from compiler.pipeline import Compiler  # noqa: E402
from compiler.plan.plan import Infeasible, Plan  # noqa: E402
from compiler.planner.persistent_choice import choose_by_prediction  # noqa: E402
from compiler.planner.segmentation import SegmentationSearch, estimate_predictor  # noqa: E402
from compiler.space.decode import decode_all  # noqa: E402
from compiler.space.gene import Gene  # noqa: E402
from compiler.target.target_graph import TargetGraph  # noqa: E402
from scripts.chains import CHAINS, Chain  # noqa: E402
from scripts.traffic import Traffic, traffic  # noqa: E402
from simulator.npu.errors import InfeasibleError  # noqa: E402
from simulator.npu.files import atomic_write  # noqa: E402
from simulator.npu.machine import Machine  # noqa: E402
from simulator.npu.machine_file import load_machine  # noqa: E402
from simulator.npu.parts import DataType  # noqa: E402
from tuner.search.limits import SearchLimits  # noqa: E402

PACKAGE = "accelforge==1.0.467"
GOAL = 1.05
CAPACITIES = (32, 64, 128, 256, 512)  # Ki elements
DDR_BYTES_PER_CYCLE = 1 / 64

# capacity and accesses, in values, of every mapping on the front; `eval_in_detail` would draw each of them with graphviz
_MAPPER = """\
import json, sys
import accelforge as af
from accelforge.mapper.FFM.main import map_workload_to_arch
af.set_n_parallel_jobs(1)
spec = af.Spec.from_yaml(af.examples.arches.snowcat, sys.argv[1])
spec.mapper.metrics = af.Metrics.ENERGY | af.Metrics.RESOURCE_USAGE
found = map_workload_to_arch(spec, eval_in_detail=False, print_progress=False).data
held = [name for name in found.columns if name.startswith("reservation<SEP>GlobalBuffer")]
size = spec.arch.find("GlobalBuffer").size
rows = zip(found[held].max(axis=1) * size / 8, found["Total<SEP>energy"] / 8)
print(json.dumps(sorted((round(held), round(moved)) for held, moved in rows)))
"""


class Doubled(SearchLimits):
    """Rules with two slots for all loads."""

    def permitted(self, gene: Gene) -> Gene:
        gene = super().permitted(gene)
        return gene._replace(prefetch=2) if gene.prefetch == 1 else gene


def install(folder: Path, python: str) -> Path:
    """The environment's python; installs nothing where the package is there already."""
    interpreter = folder / "bin" / "python"
    if not interpreter.exists():
        if shutil.which(python) is None:
            raise SystemExit(f"{python}: no such interpreter; accepted: --python with one of Python 3.12 or newer")
        subprocess.run([python, "-m", "venv", folder], check=True)
    if subprocess.run([interpreter, "-c", "import accelforge"], capture_output=True, check=False).returncode:
        subprocess.run([interpreter, "-m", "pip", "install", "--quiet", PACKAGE], check=True)
    return interpreter


def bounds(python: Path, folder: Path, chain: Chain, minutes: float) -> list[tuple[int, int]] | None:
    """(buffer elements, moved elements) of the mapper's mappings, ascending; None after the time limit."""
    cache_file = folder / "bounds" / f"{hashlib.sha256((PACKAGE + _MAPPER + chain.workload).encode()).hexdigest()[:16]}.json"
    if not cache_file.is_file():
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        workload = cache_file.with_suffix(".yaml")
        workload.write_text(chain.workload, encoding="utf-8")
        try:
            process = subprocess.run([python, "-c", _MAPPER, workload], capture_output=True, text=True, check=False, timeout=60 * minutes)
        except subprocess.TimeoutExpired:
            return None
        if process.returncode:
            raise SystemExit(f"accelforge failed on {workload}:\n{process.stderr[-2000:]}")
        atomic_write(cache_file, [process.stdout.splitlines()[-1].encode()])
    return [(buffer_elements, moved_elements) for buffer_elements, moved_elements in json.loads(cache_file.read_text(encoding="utf-8"))]


def least_traffic(mappings: list[tuple[int, int]], elements: int) -> int | None:
    """Fewest moved elements among mappings that hold at most `elements`."""
    return min((moved_elements for buffer_elements, moved_elements in mappings if buffer_elements <= elements), default=None)


def traffic_machines(elements: int, dtype: DataType) -> list[Machine]:
    """Variants of `edge` with a given total of on-chip memory, divided in several ways, and DDR so slow that time is traffic.

    Buffers except L1 are small.  With less L0A and L0B some segments have too many instructions.  L0C has sums of 16 channels of a block.
    UB has tiles of results, at its smallest beside half of L0B; or room to expand depthwise weights, which DDR stores without zeros
    (`compiler.target.weight_expansion`).
    """
    values, size = load_machine("edge").model_dump(), elements * dtype.size_bytes
    small_bytes, item, machines = max(2048, size // 128), dtype.size_bytes, []
    for sums, (vectors, right) in product(
        (size // 16, size // 32),
        ((1408 * item, small_bytes // 2), (1536 * item, small_bytes), (2048 * item, small_bytes), (32768, small_bytes)),
    ):
        small = {"L0A": small_bytes, "L0B": right, "L0C": max(4096, sums), "UB": vectors}
        changes = {
            "name": "traffic",
            "buffers_bytes": {"L1": size - sum(small.values()), **small},
            "ddr": {"rate": "effective", "bytes_per_cycle": DDR_BYTES_PER_CYCLE, "latency_cycles": 0, "outstanding": 8},
            "contention": {"none": 1.0},
        }
        if 2 * sum(small.values()) < size:
            machines.append(Machine.model_validate(values | changes))
    return list(dict.fromkeys(machines))


def plan_by_estimate(target_graph: TargetGraph) -> Plan | None:
    """Plan with the best prediction, with persistent tensors where these help; None if nothing fits."""
    predict = estimate_predictor(target_graph)
    try:
        cheapest = SegmentationSearch(target_graph, ["none"], predict).cheapest(0)
    except InfeasibleError:
        return None
    if cheapest is None:
        return None
    genome = choose_by_prediction(target_graph, cheapest[0], lambda raws: predict(np.stack(raws), ["none"])[:, 0].tolist())
    plan = decode_all(target_graph, genome)
    return None if isinstance(plan, Infeasible) else plan


def predicted(target_graph: TargetGraph) -> Traffic | None:
    """Traffic of the program of `plan_by_estimate`; None without one."""
    plan = plan_by_estimate(target_graph)
    program = None if plan is None else Compiler(target_graph).compile(plan)
    return None if program is None or isinstance(program, Infeasible) else traffic(target_graph, program)


def tune_traffic(target_graph: TargetGraph, candidates: int, rules: type[SearchLimits] = SearchLimits) -> Traffic | None:
    """Traffic of the program with the least traffic; None if nothing fits."""
    try:
        result = tuner.Search(target_graph, candidates=candidates, rules=rules).run()
    except InfeasibleError:
        return None
    program = Compiler(result.target_graph).compile(result.plan("none"))
    assert not isinstance(program, Infeasible), program
    return traffic(result.target_graph, program)


def no_less(target_graph: TargetGraph, dtype: DataType) -> int:
    """Elements that every program moves."""
    return Bound(target_graph).of("none").traffic_bytes // dtype.size_bytes


def compare(
    mappings: list[tuple[int, int]] | None, name: str, capacities: list[int], candidates: int, dtype: DataType
) -> list[dict[str, Any]]:
    """A row per capacity of one chain: elements moved by the mapper, if it has mappings, and by ours, with the parts of ours.

    The division of the memory with the best prediction is searched; with no candidates, the prediction is the result.
    """
    rows, graph = [], lower(load_model(CHAINS[name].model(), random_weights=0))
    for ki in capacities:
        target_graphs = [make_unit(graph, machine, dtype) for machine in traffic_machines(ki * 1024, dtype)]
        first = [predicted(target_graph) for target_graph in target_graphs]
        target_graph, traffic = min(
            zip(target_graphs, first, strict=True), key=lambda candidate: math.inf if candidate[1] is None else candidate[1].total
        )
        doubled = None
        if candidates:
            searched = [candidate for candidate in (traffic, tune_traffic(target_graph, candidates)) if candidate is not None]
            traffic, doubled = (
                min(searched, key=lambda candidate: candidate.total, default=None),
                tune_traffic(target_graph, candidates, Doubled),
            )
        bound = min(no_less(candidate, dtype) for candidate in target_graphs) if mappings is None else least_traffic(mappings, ki * 1024)
        rows.append(report_row(name, ki, bound, traffic, doubled, dtype.size_bytes) | {"judged": mappings is not None})
    return rows


def compare_in_process(
    mappings: list[tuple[int, int]] | None, name: str, capacities: list[int], candidates: int, dtype: DataType
) -> list[dict[str, Any]]:
    """Run `compare` in a separate process, whose caches end with it."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(compare, mappings, name, capacities, candidates, dtype).result()


def report_row(name: str, ki: int, bound: int | None, traffic: Traffic | None, doubled: Traffic | None, item: int) -> dict[str, Any]:
    row: dict[str, Any] = {"chain": name, "capacity_ki": ki, "bound": bound}
    if traffic is not None:
        row |= {
            "ours": traffic.total // item, "doubled": None if doubled is None else doubled.total // item,
            "needed": traffic.once // item, "padding": (traffic.zeros + traffic.lanes) // item,
            "weights_again": traffic.weights_again // item, "tensors_again": traffic.tensors_again // item,
            "spills": traffic.spills // item,
        }  # fmt: skip
    return row


PARTS = ("needed", "padding", "weights_again", "tensors_again", "spills")


def describe_row(row: dict[str, Any]) -> str:
    bound, traffic = row["bound"], row.get("ours")
    cells = [
        row["chain"],
        f"{row['capacity_ki']} Ki",
        "none fits" if bound is None else f"{bound:,}",
        f"{traffic:,}" if traffic else "none fits",
    ]
    ratios = [row.get(name) if bound else None for name in ("ours", "doubled", *PARTS)]
    return f"| {' | '.join([*cells, *('' if value is None else f'{value / bound:.2f}' for value in ratios)])} |"


def main(
    folder: Annotated[Path, typer.Option("--venv", metavar="FOLDER", help="Where accelforge is, or is to be installed.")],
    python: Annotated[str, typer.Option(help="An interpreter of Python 3.12 or newer, to make FOLDER with.")] = "python3.12",
    chains: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(CHAINS)}.")] = ",".join(CHAINS),
    capacities: Annotated[str, typer.Option(help="Comma-separated, in Ki elements.")] = ",".join(map(str, CAPACITIES)),
    candidates: Annotated[int, typer.Option(min=0, help="Measured programs of each search; 0: what is best by prediction.")] = 96,
    minutes: Annotated[
        float, typer.Option(min=0, help="How long the mapper may take for a chain; what takes longer is held against the compiler's bound.")
    ] = 60,
    dtype: Annotated[str, typer.Option(help="Of values: float32 or float16.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
) -> None:
    """DDR traffic of fused chains, beside the optimum of AccelForge's mapper; exit code 1 where a chain is above the goal."""
    names = chains.split(",")
    if unknown := [name for name in names if name not in CHAINS]:
        raise typer.BadParameter(f"{unknown[0]}: accepted: {', '.join(CHAINS)}")
    interpreter, kis, rows = install(folder, python), [int(ki) for ki in capacities.split(",")], list[dict[str, Any]]()
    if not as_json:
        print(f"{PACKAGE}, architecture snowcat; ours with {candidates} programs; elements of {dtype}\n")
        print("| chain | on the chip | bound | ours | over | doubled | needed | padding | weights again | tensors again | spills |")
        print(f"|---|---|{'---:|' * 9}")
    for name in names:
        mappings = bounds(interpreter, folder, CHAINS[name], minutes)
        if mappings is None:
            sys.stderr.write(f"{name}: the mapper does not end within {minutes:g} minutes; over what no schedule is below\n")
        chain_rows = compare_in_process(mappings, name, kis, candidates, DataType[dtype])
        rows += chain_rows
        if not as_json:
            print("\n".join(map(describe_row, chain_rows)), flush=True)
    if as_json:
        print(json.dumps(rows))
    judged = [row for row in rows if row["judged"] and row["bound"] is not None]
    missed = [row for row in judged if row.get("ours") is None or row["ours"] > GOAL * row["bound"]]
    sys.stderr.write(f"{len(judged) - len(missed)} of {len(judged)} chains and capacities are within {GOAL} of the bound\n")
    raise typer.Exit(1 if missed else 0)


if __name__ == "__main__":
    typer.run(main)
