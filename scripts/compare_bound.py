"""DDR traffic of fused chains, beside the optimum of AccelForge's mapper with as much memory on the chip.

    python scripts/compare_bound.py --venv FOLDER [--python PYTHON] [--chains NAME,...] [--capacities KI,...] [--candidates N] [--json]

The reference is the Fast and Fusiest Mapper (arXiv 2602.15166) on its architecture `snowcat`: one memory of a given size between DRAM and
a multiplier, the least accesses of DRAM over all tilings, loop orders and fusions that it knows, nothing loaded ahead (the bound of
Orojenesis, ISCA 2024, for fused operators).  It is installed from the package registry into FOLDER, whose Python must be 3.12 or newer;
what it found stays there, in `bounds/`.  It takes minutes where windows overlap, and it does not know every schedule: ours may be below.

Ours is a search on a machine whose DDR is so slow that a program takes as long as its traffic does, so that the search looks for the least
bytes.  Capacity counts every byte on the chip: L1, L0A, L0B, L0C and UB together, in elements of float16.  All that is moved counts,
padding too.  `doubled` is the same search with two slots for all that is loaded, as programs for speed have them; `bound` and `ours` need
no second one.

What of our traffic is what, over the bound: `needed` weights, inputs and outputs once; `padding`; weights, and tensors, moved `again`;
`spills` of tensors in between.  Exit code 1 where a chain is above the goal.  Not part of CI: it needs the registry.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tuner  # noqa: E402
from compiler.frontend import load_model, lower  # noqa: E402
from compiler.kinds.build import make_unit  # noqa: E402
from compiler.pipeline import Compiler  # noqa: E402
from compiler.plan.plan import Infeasible  # noqa: E402
from compiler.space.gene import Gene  # noqa: E402
from compiler.unit.unit import Unit  # noqa: E402
from scripts.chains import CHAINS, Chain  # noqa: E402
from scripts.traffic import Traffic, traffic  # noqa: E402
from simulator.npu.errors import InfeasibleError  # noqa: E402
from simulator.npu.files import atomic_write  # noqa: E402
from simulator.npu.machine import Machine  # noqa: E402
from simulator.npu.machine_file import load_machine  # noqa: E402
from simulator.npu.parts import DataType  # noqa: E402
from tuner.search.rules import Rules  # noqa: E402

PACKAGE = "accelforge==1.0.467"
GOAL = 1.05
CAPACITIES = (32, 64, 128, 256, 512)  # Ki elements
SMALL_BYTES = {"L0A": 2048, "L0B": 2048, "L0C": 4096, "UB": 4096}  # the least in which every chain has a tiling
DDR_BYTES_PER_CYCLE = 1 / 64
ITEM_BYTES = DataType.float16.size_bytes

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


class Doubled(Rules):
    """Two slots for everything that is loaded."""

    def permitted(self, gene: Gene) -> Gene:
        gene = super().permitted(gene)
        return gene._replace(prefetch=2) if gene.prefetch == 1 else gene


def install(folder: Path, python: str) -> Path:
    """The environment's python; installs nothing where the package is there already."""
    found = folder / "bin" / "python"
    if not found.exists():
        if shutil.which(python) is None:
            raise SystemExit(f"{python}: no such interpreter; accepted: --python with one of Python 3.12 or newer")
        subprocess.run([python, "-m", "venv", folder], check=True)
    if subprocess.run([found, "-c", "import accelforge"], capture_output=True, check=False).returncode:
        subprocess.run([found, "-m", "pip", "install", "--quiet", PACKAGE], check=True)
    return found


def bounds(python: Path, folder: Path, chain: Chain) -> list[tuple[int, int]]:
    """(elements held, elements moved) of the mapper's mappings, by what they hold."""
    kept = folder / "bounds" / f"{hashlib.sha256((PACKAGE + _MAPPER + chain.workload).encode()).hexdigest()[:16]}.json"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        workload = kept.with_suffix(".yaml")
        workload.write_text(chain.workload, encoding="utf-8")
        done = subprocess.run([python, "-c", _MAPPER, workload], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"accelforge failed on {workload}:\n{done.stderr[-2000:]}")
        atomic_write(kept, [done.stdout.splitlines()[-1].encode()])
    return [(held, moved) for held, moved in json.loads(kept.read_text(encoding="utf-8"))]


def least(mappings: list[tuple[int, int]], elements: int) -> int | None:
    """Elements that the best mapping moves which holds no more than `elements`."""
    return min((moved for held, moved in mappings if held <= elements), default=None)


def traffic_machine(capacity_bytes: int) -> Machine:
    """`edge` with so much memory on the chip in all, whose time is that of its DDR traffic."""
    values = load_machine("edge").model_dump()
    values |= {
        "name": "traffic",
        "buffers_bytes": {"L1": capacity_bytes - sum(SMALL_BYTES.values()), **SMALL_BYTES},
        "ddr": {"rate": "effective", "bytes_per_cycle": DDR_BYTES_PER_CYCLE, "latency_cycles": 0, "outstanding": 8},
        "contention": {"none": 1.0},
    }
    return Machine.model_validate(values)


def tuned(unit: Unit, candidates: int, rules: type[Rules] = Rules) -> Traffic | None:
    """Of the program with the least; None where nothing fits."""
    try:
        found = tuner.Search(unit, candidates=candidates, rules=rules).run()
    except InfeasibleError:
        return None
    program = Compiler(found.unit).compile(found.plan("none"))
    assert not isinstance(program, Infeasible), program
    return traffic(found.unit, program)


def compare(mappings: list[tuple[int, int]], name: str, capacities: list[int], candidates: int) -> list[dict[str, Any]]:
    """A row per capacity of one chain: elements by the mapper and by ours, and what ours are."""
    rows, graph = [], lower(load_model(CHAINS[name].model(), random_weights=0))
    for ki in capacities:
        unit = make_unit(graph, traffic_machine(ki * 1024 * ITEM_BYTES), DataType.float16)
        ours, doubled = tuned(unit, candidates), tuned(unit, candidates, Doubled)
        rows.append(row_of(name, ki, least(mappings, ki * 1024), ours, doubled))
    return rows


def apart(mappings: list[tuple[int, int]], name: str, capacities: list[int], candidates: int) -> list[dict[str, Any]]:
    """In a process of its own, which takes along what it remembers of the chain."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(compare, mappings, name, capacities, candidates).result()


def row_of(name: str, ki: int, bound: int | None, ours: Traffic | None, doubled: Traffic | None) -> dict[str, Any]:
    row: dict[str, Any] = {"chain": name, "capacity_ki": ki, "bound": bound}
    if ours is not None:
        row |= {
            "ours": ours.total // ITEM_BYTES, "doubled": None if doubled is None else doubled.total // ITEM_BYTES,
            "needed": ours.once // ITEM_BYTES, "padding": (ours.zeros + ours.lanes) // ITEM_BYTES,
            "weights_again": ours.weights_again // ITEM_BYTES, "tensors_again": ours.tensors_again // ITEM_BYTES,
            "spills": ours.spills // ITEM_BYTES,
        }  # fmt: skip
    return row


PARTS = ("needed", "padding", "weights_again", "tensors_again", "spills")


def line_of(row: dict[str, Any]) -> str:
    bound, ours = row["bound"], row.get("ours")
    cells = [row["chain"], f"{row['capacity_ki']} Ki", "none fits" if bound is None else f"{bound:,}", f"{ours:,}" if ours else "none fits"]
    over = [row.get(name) if bound else None for name in ("ours", "doubled", *PARTS)]
    return f"| {' | '.join([*cells, *('' if value is None else f'{value / bound:.2f}' for value in over)])} |"


def main(
    folder: Annotated[Path, typer.Option("--venv", metavar="FOLDER", help="Where accelforge is, or is to be installed.")],
    python: Annotated[str, typer.Option(help="An interpreter of Python 3.12 or newer, to make FOLDER with.")] = "python3.12",
    chains: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(CHAINS)}.")] = ",".join(CHAINS),
    capacities: Annotated[str, typer.Option(help="Comma-separated, in Ki elements.")] = ",".join(map(str, CAPACITIES)),
    candidates: Annotated[int, typer.Option(min=1, help="Measured programs of each search.")] = 96,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
) -> None:
    """DDR traffic of fused chains, beside the optimum of AccelForge's mapper; exit code 1 where a chain is above the goal."""
    names = chains.split(",")
    if unknown := [name for name in names if name not in CHAINS]:
        raise typer.BadParameter(f"{unknown[0]}: accepted: {', '.join(CHAINS)}")
    found, kis, rows = install(folder, python), [int(ki) for ki in capacities.split(",")], list[dict[str, Any]]()
    if not as_json:
        print(f"{PACKAGE}, architecture snowcat; ours with {candidates} programs; elements of float16\n")
        print("| chain | on the chip | bound | ours | over | doubled | needed | padding | weights again | tensors again | spills |")
        print(f"|---|---|{'---:|' * 9}")
    for name in names:
        mine = apart(bounds(found, folder, CHAINS[name]), name, kis, candidates)
        rows += mine
        if not as_json:
            print("\n".join(map(line_of, mine)), flush=True)
    if as_json:
        print(json.dumps(rows))
    judged = [row for row in rows if row["bound"] is not None]
    above = [row for row in judged if row.get("ours") is None or row["ours"] > GOAL * row["bound"]]
    sys.stderr.write(f"{len(judged) - len(above)} of {len(judged)} chains and capacities are within {GOAL} of the bound\n")
    raise typer.Exit(1 if above else 0)


if __name__ == "__main__":
    typer.run(main)
