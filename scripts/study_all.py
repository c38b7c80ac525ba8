"""Every study, one after the other, each into a folder of its own, and one page with their tables and the CPU hours of each.

    python scripts/study_all.py --out studies
    python scripts/study_all.py --out studies --quick

A study that was stopped goes on where it was: what its pairs found lies in its folder.  Quick is a glance, of two or three small networks
and one seed: it shows that every table can be made, and roughly what it says.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.studies import Out
from simulator.npu.files import atomic_write

SMALL = "light:squeezenet,made:mobilenet_v2-small"
QUICK = {
    "gain": f"--networks {SMALL} --candidates 12 --seeds 1",
    "fusion": f"--networks {SMALL} --candidates 12 --seeds 1",
    "levels": f"--networks {SMALL} --candidates 12 --seeds 1 --machine edge",
    "shared_memory": f"--networks {SMALL} --candidates 12",
    "frames": f"--networks {SMALL} --frames 1,2",
    "types": f"--networks {SMALL} --candidates 12 --machine ascend310",
    "window": f"--networks {SMALL} --candidates 12 --seeds 1",
    "placement": "--networks light:squeezenet --candidates 8 --seeds 1 --machine ascend310:cores=2,ddr.bytes_per_cycle=134",
    "tiling": "--networks light:squeezenet --cap 400 --candidates 64 --trained 12 --each 24 --held-out 8",
    "search": "--model '' --networks light:squeezenet --seeds 1 --plan-budget 48",
    "settings": f"--networks {SMALL} --candidates 12 --seeds 1 --only 'no cost model,no prefetch'",
    "begin": f"--networks {SMALL} --candidates 12 --seeds 1",
    "prior": "--networks made:mobilenet_v2-small,width=0.35 --earlier made:mobilenet_v2-small --measurements 2400 --seeds 1",
    "quick": f"--networks {SMALL} --candidates 12 --machine edge",
    "rewrites": "--networks light:squeezenet,shufflenet",
    "bound": "--graphs 3",
    "worth": f"--networks {SMALL} --candidates 12",
    "board": "--networks light:squeezenet --seeds 1 --measurements 600",
    "calibration": "--machines edge --segments 60 --networks light:squeezenet",
    "controller": "--networks light:squeezenet --candidates 12 --seeds 1 --other-seeds 1 --inferences 60",
}
"""Options of each, in the order in which they are made."""


def main(
    out: Out,
    quick: Annotated[bool, typer.Option("--quick", help="A glance, of small networks.")] = False,
    only: Annotated[str, typer.Option(help="Comma-separated studies.")] = ",".join(QUICK),
) -> None:
    """All studies into one page, each with its command."""
    if unknown := sorted(set(only.split(",")) - set(QUICK)):
        raise typer.BadParameter(f"no study {', '.join(unknown)}; there are {', '.join(QUICK)}", param_hint="--only")
    pages = ["# Studies\n"]
    for name in only.split(","):
        options = shlex.split(QUICK[name]) if quick else []
        begun_s = time.perf_counter()
        script = Path(__file__).with_name(f"study_{name}.py")
        done = subprocess.run([sys.executable, script, "--out", out / name, *options], stdout=subprocess.DEVNULL)
        if done.returncode:
            raise typer.Exit(done.returncode)
        print(f"{name}: {time.perf_counter() - begun_s:.0f} s", file=sys.stderr, flush=True)
        command = shlex.join(["python", f"scripts/study_{name}.py", *options])
        pages.append(f"## {name}\n\n`{command}`\n\n{(out / name / f'{name}.md').read_text()}")
        atomic_write(out / "studies.md", ["\n".join(pages).encode()])
    print(f"{out / 'studies.md'}: {len(pages) - 1} studies")


if __name__ == "__main__":
    typer.run(main)
