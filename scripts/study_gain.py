"""What tuning gains over layer-by-layer execution, per network and contention level, and what of it block fusion brings.

For every network: `tilefarm tune` with a time budget; its `plans/baseline.json` (every fused operator its own segment, double-buffered,
concatenation as addresses, tilings from the same search) compiled and simulated again by the public commands; a second search of the same
budget in which segments keep whole tensors on chip or none (`use.block_fusion=false`).  Prints a table and writes a CSV.

    python scripts/study_gain.py --out gain --seconds 90
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compiler.derive.plan import Infeasible, Plan
from compiler.frontend.zoo import PREFIX, shipped
from compiler.tile.spec import ConvSpec
from scripts.studies import write_rows
from simulator.timing import program_bound, simulate_levels
from tuner.commands.text import print_table
from tuner.export import open_run

ROOT = Path(__file__).resolve().parents[1]


def tilefarm(*words: str) -> str:
    """Run the command line; its standard output."""
    done = subprocess.run([sys.executable, "-m", "tuner", *words], cwd=ROOT, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"tilefarm {' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def tuned(name: str, out: Path, machine: str, words: Sequence[str]) -> dict[str, Any]:
    """The summary of a run; one that is there already is read."""
    if not (out / "summary.json").is_file():
        tilefarm("tune", PREFIX + name, "--machine", machine, "--out", str(out), "--quiet", *words)
    return json.loads((out / "summary.json").read_text())


def baseline_again(name: str, run: Path, machine: str) -> dict[str, int]:
    """Cycles of plans/baseline.json by `tilefarm compile` and `tilefarm simulate`."""
    out = run / "baseline.onnx"
    tilefarm("compile", PREFIX + name, "--machine", machine, "--plan", str(run / "plans/baseline.json"), "--out", str(out), "--json")
    rows = json.loads(tilefarm("simulate", str(out), "--json"))["levels"]
    out.unlink()
    return {level: row["cycles"] for level, row in rows.items()}


def honesty(run: Path) -> dict[str, float]:
    """Per level, the median over convolutions of the baseline's layer alone / its own program_bound."""
    opened, _ = open_run(run)
    unit, machine = opened.unit, opened.unit.machine
    ratios: dict[str, list[float]] = {level: [] for level in machine.contention}
    for k, segment in enumerate(Plan.load(run / "plans/baseline.json").segments):
        if not isinstance(unit.kernels[k], ConvSpec):
            continue
        parts = opened.compiler.alone(segment, k)
        assert not isinstance(parts, Infeasible)
        program = opened.compiler.link(parts)
        for level, timing in simulate_levels(program, machine).items():
            ratios[level].append(timing.cycles / program_bound(program, machine, machine.share_units(level)))
    return {level: median(values) for level, values in ratios.items()}


def study(name: str, out: Path, machine: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """A row per level; words: what else `tilefarm tune` is given."""
    run = out / name
    full = tuned(name, run, machine, words)
    whole = tuned(name, out / f"{name}.whole-tensors", machine, [*words, "--set", "use.block_fusion=false"])
    again = baseline_again(name, run, machine)
    layer = honesty(run)
    rows = []
    for level, best in full["levels"].items():
        base = best["baseline_layerwise_cycles"]
        if again[level] != base:
            raise SystemExit(f"{name} {level}: baseline {base} cycles in the summary, {again[level]} by the public commands")
        # both searches are judged against the better of their baselines, so that neither gains by a poor one
        base = min(base, whole["levels"][level]["baseline_layerwise_cycles"])
        rows.append(
            {
                "network": name,
                "level": level,
                "baseline_cycles": base,
                "cycles": best["cycles"],
                "gain": base / best["cycles"],
                "ceiling": base / best["roofline_cycles"],
                "whole_tensor_cycles": whole["levels"][level]["cycles"],
                "block_fusion_gain": whole["levels"][level]["cycles"] / best["cycles"],
                "layer_over_bound": layer[level],
                "max_rel_error": best["max_rel_error"],
                "candidates": full["candidates"],
                "wall_s": full["wall_s"],
            }
        )
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    print_table(
        ["<network", "<level", "baseline", "tuned", "gain", "ceiling", "whole tensors", "by blocks", "layer/bound"],
        [
            (
                row["network"],
                row["level"],
                row["baseline_cycles"],
                row["cycles"],
                f"{row['gain']:.3f}",
                f"{row['ceiling']:.2f}",
                row["whole_tensor_cycles"],
                f"{row['block_fusion_gain']:.3f}",
                f"{row['layer_over_bound']:.3f}",
            )
            for row in rows
        ],
    )
    print("\ngeometric means over", len({row["network"] for row in rows}), "networks")
    for level in dict.fromkeys(row["level"] for row in rows):
        mine = [row for row in rows if row["level"] == level]
        means = {key: geometric_mean(row[key] for row in mine) for key in ("gain", "ceiling", "block_fusion_gain")}
        worst = max(row["max_rel_error"] for row in mine)
        layer = median(row["layer_over_bound"] for row in mine)
        print(
            f"  {level:8} gain {means['gain']:.3f} (ceiling {means['ceiling']:.2f}), "
            f"over whole tensors on chip {means['block_fusion_gain']:.3f}, "
            f"baseline layers at {layer:.3f} of their bound, largest error {worst:.4f}"
        )


def main(
    out: Annotated[Path, typer.Option(help="folder for the runs; finished runs in it are used again")],
    networks: Annotated[str, typer.Option(help="comma-separated names of shipped networks")] = ",".join(
        name.removeprefix(PREFIX) for name in shipped()
    ),
    machine: Annotated[str, typer.Option()] = "edge",
    seconds: Annotated[float, typer.Option(help="wall time of each search")] = 90.0,
    seed: Annotated[int, typer.Option()] = 0,
    workers: Annotated[int | None, typer.Option(help="Ray actors; without it every free CPU")] = None,
) -> None:
    """Gain over layer by layer from whole runs, by the public commands, and how close the baseline's layers come to their bounds."""
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    words = ["--seconds", str(seconds), "--seed", str(seed), *(["--workers", str(workers)] if workers else [])]
    rows: list[dict[str, Any]] = []
    for name in networks.split(","):
        rows += study(name, out, machine, words)
        print(f"{name} done", file=sys.stderr, flush=True)
    write_rows(out / "gain.csv", rows)
    show(rows)


if __name__ == "__main__":
    typer.run(main)
