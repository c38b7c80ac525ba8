"""Arguments and options shared by several commands, each declared once.

A dataclass groups options of several commands; each command with such a parameter gets the fields as options (`tuner.cli.group`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simulator import onnx_names
from simulator.npu.errors import BadInputError
from simulator.npu.parts import DTypeName
from simulator.objective import Objective as ObjectiveName
from simulator.terminal import say
from tuner import tune_request
from tuner.cli.group import FILE, READ
from tuner.cli.parse import parse_workers

if TYPE_CHECKING:
    from simulator.thresholds import ManualThresholds

Model = Annotated[
    Path,
    typer.Argument(metavar="MODEL.onnx", help="The ONNX model, a .tflite model of int8, light:NAME of one that onnx ships, or made:NAME."),
]
CompiledOut = Annotated[
    Path | None,
    FILE,
    typer.Option(
        "--out",
        metavar="OUT.onnx",
        help="Where to write the compiled ONNX file, or command streams (FILE.tflite); not needed with --dump, --bundle.",
    ),
]
Compiled = Annotated[Path, typer.Argument(metavar="OUT.onnx", help="A compiled ONNX file, or a bundle (`export --bundle`).")]


def machine_names(incomplete: str) -> list[str]:
    """Names of machines for the shell's completion."""
    from simulator.npu.machine_file import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


MachineName = Annotated[
    str,
    READ,
    typer.Option("--machine", metavar="M", help="A preset (see `tilefarm machines`) or a YAML file.", autocompletion=machine_names),
]
DType = Annotated[DTypeName, typer.Option(help="Data type on the NPU; products are accumulated in float32.")]
Style = Annotated[
    onnx_names.Style,
    typer.Option(
        help="function: stock onnxruntime runs the file by its body; epcontext: no body, no weights; "
        "epcontext-external: the containers in a file beside it."
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=DIMS", help="Shape of a dynamic input, x=1,3,224,224, or of a dimension, batch=1."),
]
RandomWeights = Annotated[
    int | None, typer.Option(metavar="SEED", min=0, help="Replace all weights by random ones from this seed. (default for light:, made: 0)")
]
Objective = Annotated[
    ObjectiveName, typer.Option(help="latency: a run takes one frame of the model; throughput: several, and cycles per frame count.")
]
Frames = Annotated[int | None, typer.Option(metavar="N", help="With --objective throughput: frames of a run, 1 to 256. (default: 2)")]
MinNpuShare = Annotated[
    float | None,
    typer.Option(
        "--min-npu-share",
        metavar="X",
        min=0,
        max=1,
        help="Least share of the MACs on the NPU, e.g. 0.9; exit 3 for less, or n/a.  Moves of data have no MACs: nodes are counted apart.",
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
RunPlace = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or the URL of one.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
OneLevel = Annotated[str | None, typer.Option(metavar="L", help="Contention level; the file's first one unless given.")]
Seed = Annotated[int, typer.Option(metavar="S", min=0, help="Seed of everything random; the same seed gives the same result.")]
RunCandidates = Annotated[int | None, typer.Option(metavar="N", min=1, help="Measured programs per run. (default: budget.candidates)")]
RunMeasurements = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Readings per run, task x level x repeat, finals among them.")
]
Config = Annotated[str | None, READ, typer.Option(metavar="F", help="Settings laid over the default: a preset or a YAML file.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="One setting laid over the others; repeatable.")]
Address = Annotated[str | None, typer.Option(metavar="A", help="Ray cluster; else RAY_ADDRESS, else a local one is started.")]
MirrorUrl = Annotated[
    str | None,
    typer.Option("--mirror", metavar="URL", help="Copy --out to this URL while it grows: s3://bucket/folder, file:///folder, ..."),
]
WarmStart = Annotated[
    list[Path] | None, typer.Option("--warm-start", metavar="RUN", help="An earlier run whose measurements count here; repeatable.")
]
Strategy = Annotated[
    str | None,
    typer.Option("--strategy", metavar="S", help="Search strategy: module:Class, an entry point. (default: search.strategy)"),
]
Variants = Annotated[
    int | None,
    typer.Option("--variants", metavar="N", min=1, help="Ship at most N programs, with the least loss; else the best of every level."),
]
Insure = Annotated[
    float | None,
    typer.Option(
        "--insure", metavar="X", min=0, help="Fraction by which a shipped program may be slower than a level's champion, if it loses "
        "less than the champion on machines that differ a little. (default: 0.03)"
    ),
]  # fmt: skip
Start = Annotated[
    list[Path] | None,
    typer.Option("--start", metavar="PLAN", help="A plan to measure first and to continue the search from; repeatable."),
]
RunnerName = Annotated[str, typer.Option("--runner", metavar="R", help="Measuring runner: module:name, 'command:WORDS', an entry point.")]
StoreUrl = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Measurements that runs share: a folder, s3://bucket/folder, ...; results stay the same."),
]
CellsStore = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="Measurements that the runs share, or `none`: each run measures all. (default: --out/store)"
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out; the budget may be larger.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
BackendName = Annotated[
    tune_request.Backend | None, typer.Option(help="ray: a farm of actors; serial: this process. (default: farm.backend)")
]
Workers = Annotated[
    Mapping[str, int] | None,
    typer.Option(
        metavar="N|MIN:MAX",
        parser=parse_workers,
        help="Workers, one CPU each; MIN from the beginning, up to MAX while the cluster has room. (default: farm.workers, all free CPUs)",
    ),
]


@dataclass(frozen=True)
class FarmOptions:
    """Measuring backend, cluster and workers.  Fields are those of a search request."""

    backend: BackendName = None
    address: Address = None
    workers: Workers = None
    wait_s: Annotated[float | None, typer.Option("--wait", metavar="S", min=0, help="Seconds to wait for CPUs. (default: farm.wait_s)")] = (
        None
    )
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="T", help="Timing target of plans: npu, module:Class, an entry point. (default: target.name)"),
    ] = None
    runner: Annotated[
        str | None,
        typer.Option(
            "--runner", metavar="R", help="Measuring runner: module:name, 'command:WORDS', an entry point. (default: runner.name)"
        ),
    ] = None
    resource: Annotated[
        str | None,
        typer.Option("--resource", metavar="NAME", help="Ray resource; each worker takes one unit of it. (default: farm.resource)"),
    ] = None


@dataclass(frozen=True)
class RuleOptions:
    """Threshold rule set by the user."""

    t_min: Annotated[float | None, typer.Option("--t-min", metavar="RHO", help="Threshold rule: below RHO, one variant heavier.")] = None
    t_max: Annotated[float | None, typer.Option("--t-max", metavar="RHO", help="Threshold rule: from RHO on, one variant lighter.")] = None
    slice_cycles: Annotated[
        int | None,
        typer.Option(
            "--slice",
            metavar="CYCLES",
            min=0,
            max=2**63 - 1,
            help="Threshold rule: cycles the load must stay beyond it. (default: one inference)",
        ),
    ] = None

    def by_hand(self) -> ManualThresholds | None:
        """Rule set by hand, or None.  Raises `BadInputError` for one threshold without the other, and for an invalid pair."""
        from simulator.thresholds import ManualThresholds, pair_in_units

        if (self.t_min is None) != (self.t_max is None):
            raise BadInputError("--t-min and --t-max: give both, or neither for thresholds chosen from the variants")
        if self.t_min is not None and self.t_max is not None:
            pair_in_units(self.t_min, self.t_max)
        elif self.slice_cycles is None:
            return None
        return ManualThresholds(self.t_min, self.t_max, self.slice_cycles or 0)


@dataclass(frozen=True)
class LoadOptions(RuleOptions):
    """Inferences under a changing load, and the controller that selects variants.  All options need a trace."""

    trace: Annotated[
        str | None,
        READ,
        typer.Option("--trace", metavar="T", help="Load over time: a file, or step:SEED, periodic:SEED, bursty:SEED, adversarial:SEED."),
    ] = None
    controller: Annotated[
        Literal["threshold", "c", "estimator", "static", "oracle"] | None,
        typer.Option(help="Controller that picks each inference's variant; c: the threshold rule in C. (default: estimator)"),
    ] = None
    inferences: Annotated[int | None, typer.Option(metavar="N", min=1, help="Inferences under the trace. (default: 1000)")] = None
    switch_cycles: Annotated[
        int | None, typer.Option(metavar="CYCLES", min=0, help="Cost of a switch. (default: the machine's issue_cycles)")
    ] = None

    grants: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Grants over time: CSV of cycle,l1_bytes,shared_bytes,cores. (default: what levels grant)"),
    ] = None

    def given(self) -> bool:
        """Whether a trace is given.  Raises `BadInputError` for other load options without one."""
        dependent: dict[str, object] = {
            "--controller": self.controller,
            "--t-min": self.t_min,
            "--t-max": self.t_max,
            "--slice": self.slice_cycles,
        }
        dependent |= {"--inferences": self.inferences, "--switch-cycles": self.switch_cycles, "--grants": self.grants}
        for name, value in dependent.items():
            if self.trace is None and value is not None:
                raise BadInputError(f"{name} goes with --trace")
        return self.trace is not None


def model_and_seed(model: Path, random_weights: int | None) -> tuple[Path, int | None]:
    """Resolve a model that may be `light:NAME` or `made:NAME` to its file and the seed of its weights; prints a seed chosen here."""
    from tuner.zoo.names import resolve_model

    path, seed = resolve_model(model, random_weights)
    if seed != random_weights:
        say(f"{model}: has constants as weights; drawn from seed {seed} instead (--random-weights)")
    return path, seed
