"""Command of the studies: `python scripts/study.py gain --out gain`, or all of them on one page.

    python scripts/study.py all --out studies
    python scripts/study.py all --out studies --quick

An interrupted study continues from the cached results in its folder.  `--quick` uses two or three small networks and one seed: it tests
that every table can be made, and gives a rough result.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.studies import Out, Study, command
from simulator.npu.files import atomic_write


class Entry(NamedTuple):
    """module: module and name of a `Study`, or of a function that is a command of its own.  quick: options of a glance."""

    module: str
    summary: str
    quick: str


SMALL = "--networks light:squeezenet,made:mobilenet_v2-small"
FEW = f"{SMALL} --candidates 12"
STUDIES = {
    "gain": Entry("champions.GAIN", "Tuned programs over the bound that no schedule is below.", f"{FEW} --seeds 1"),
    "fusion": Entry("champions.FUSION", "Speed-up over single operators as more ways of keeping data on chip are allowed.",
        f"{FEW} --seeds 1"),
    "levels": Entry("levels.STUDY", "Programs tuned for one level only, one for all levels, and one for each.",
        f"{FEW} --seeds 1 --machine edge"),
    "shared_memory": Entry("champions.SHARED_MEMORY", "A memory that cores share, and the same machine without it.", FEW),
    "frames": Entry("champions.FRAMES", "Frames of a run: throughput beside latency.", f"{SMALL} --frames 1,2"),
    "types": Entry("champions.TYPES", "Quantised networks and the float ones that they were made of.", f"{FEW} --machine ascend310"),
    "window": Entry("window.STUDY", "Sequence, formula, greedy and searched windows of the same segments.", f"{FEW} --seeds 1"),
    "placement": Entry("placement.STUDY", "One core, all cores for every segment, and placement.",
        "--networks light:squeezenet --candidates 8 --seeds 1 --machine ascend310:cores=2,ddr.bytes_per_cycle=134"),
    "tiling": Entry("tiling.STUDY", "Searched and predicted tilings against the exhaustive optimum of the legal space.",
        "--networks light:squeezenet --cap 400 --candidates 64 --trained 12 --each 24 --held-out 8"),
    "search": Entry("search.STUDY", "Best so far against measured candidates, for ours and four other searches.",
        "--model '' --networks light:squeezenet --seeds 1 --plan-budget 48"),
    "budget": Entry("budget.main", "What a larger budget buys: long searches against restarts at equal CPU, and plans by prediction.",
        "--cases drawn0 --budgets 4,12 --seeds 2 --restarts 4 --pool 2 --processes 1"),
    "saturation": Entry("saturation.STUDY", "Gains that a search expects of twice its programs, and what its end by that saves and loses.",
        f"{FEW} --seeds 1"),
    "settings": Entry("settings.STUDY", "The default settings against others, network by network and seed by seed.",
        f"{FEW} --seeds 1 --only 'no cost model,no prefetch'"),
    "begin": Entry("begin.STUDY", "Best programs after a part of a search's measurements, against the search of another tree.",
        f"{FEW} --seeds 1"),
    "prior": Entry("prior.STUDY", "What an earlier run of a related network saves: a quarter of the readings with and without it.",
        "--networks made:mobilenet_v2-small,width=0.35 --earlier made:mobilenet_v2-small --measurements 2400 --seeds 1"),
    "quick": Entry("quick.STUDY", "Share of the tuned gain that compile has without a plan, and the CPU seconds that it takes.",
        f"{FEW} --machine edge"),
    "rewrites": Entry("rewrites.STUDY", "Switch every rewrite off in turn.", "--networks light:squeezenet,shufflenet"),
    "bound": Entry("bound.main", "The best of all plans over the bound, on small graphs.", "--graphs 3"),
    "worth": Entry("worth.STUDY", "Most that absent mechanisms could save: champions timed again without what each would take away.", FEW),
    "board": Entry("board.STUDY", "Cost models on a noisy board, at equal measurements.",
        "--networks light:squeezenet --seeds 1 --measurements 600"),
    "calibration": Entry("calibration.main", "Find hidden machines through noise, and predict held-out segments.",
        "--machines edge --segments 60 --networks light:squeezenet"),
    "controller": Entry("controller.main", "Rules that choose a variant at run time against the best static one and an oracle.",
        "--networks light:squeezenet --candidates 12 --seeds 1 --other-seeds 1 --inferences 60"),
}  # fmt: skip
"""In the order in which they are made."""


def load_study(name: str) -> Study | Callable[..., Any]:
    module, _, attribute = STUDIES[name].module.partition(".")
    return getattr(import_module(f"scripts.study_{module}"), attribute)


def run_all(
    out: Out,
    quick: Annotated[bool, typer.Option("--quick", help="A glance, of small networks.")] = False,
    only: Annotated[str, typer.Option(help="Comma-separated studies.")] = ",".join(STUDIES),
) -> None:
    """Run all studies, and write their results to one page."""
    if unknown := sorted(set(only.split(",")) - set(STUDIES)):
        raise typer.BadParameter(f"no study {', '.join(unknown)}; there are {', '.join(STUDIES)}", param_hint="--only")
    pages = ["# Studies\n"]
    for name in only.split(","):
        options = shlex.split(STUDIES[name].quick) if quick else []
        begun_s = time.perf_counter()
        process = subprocess.run([sys.executable, __file__, name, "--out", out / name, *options], stdout=subprocess.DEVNULL)
        if process.returncode:
            raise typer.Exit(process.returncode)
        print(f"{name}: {time.perf_counter() - begun_s:.0f} s", file=sys.stderr, flush=True)
        line = shlex.join(["python", "scripts/study.py", name, *options])
        pages.append(f"## {name}\n\n`{line}`\n\n{(out / name / f'{name}.md').read_text()}")
        atomic_write(out / "studies.md", ["\n".join(pages).encode()])
    print(f"{out / 'studies.md'}: {len(pages) - 1} studies")


def main() -> None:
    """Import and run the named command; for the others only the list is needed, because their modules take seconds to import."""
    app = typer.Typer(help="Studies of what tuning gains, and why.", add_completion=False)
    app.command("all")(run_all)
    for name, entry in STUDIES.items():
        study = load_study(name) if name in sys.argv[1:2] else run_all
        app.command(name, help=entry.summary)(command(study, entry.summary) if isinstance(study, Study) else study)
    app()


if __name__ == "__main__":
    main()
