"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from simulator.terminal import say


class DTypeName(StrEnum):
    float16 = "float16"
    float32 = "float32"


class StyleName(StrEnum):
    function = "function"
    epcontext = "epcontext"
    epcontext_external = "epcontext-external"


class ControllerName(StrEnum):
    threshold = "threshold"
    estimator = "estimator"
    static = "static"
    oracle = "oracle"


class BackendName(StrEnum):
    ray = "ray"
    serial = "serial"


Model = Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX model, light:NAME of one that onnx ships, or made:NAME.")]
Compiled = Annotated[Path, typer.Argument(metavar="OUT.onnx", help="A compiled ONNX file.")]


def machine_names(incomplete: str) -> list[str]:
    """For the shell's completion."""
    from simulator.npu.machine import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


MachineName = Annotated[
    str,
    typer.Option("--machine", metavar="M", help="A preset (see `tilefarm machines`) or a YAML file.", autocompletion=machine_names),
]
DType = Annotated[DTypeName, typer.Option(help="Data type on the NPU; products are accumulated in float32.")]
Style = Annotated[
    StyleName,
    typer.Option(
        help="function: stock onnxruntime runs the file by its body; epcontext: no body, no weights; "
        "epcontext-external: the containers in a file beside it."
    ),
]
Shape = Annotated[
    list[str] | None, typer.Option("--shape", metavar="NAME=DIMS", help="Shape of a dynamic input, e.g. x=1,3,224,224; repeatable.")
]
RandomWeights = Annotated[
    int | None, typer.Option(metavar="SEED", min=0, help="Replace all weights by random ones from this seed. (default for light:, made: 0)")
]
MinNpuShare = Annotated[
    float | None,
    typer.Option("--min-npu-share", metavar="X", min=0, max=1, help="Of the MACs, e.g. 0.9; exit 3 where the NPU does less, or n/a."),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
RunPlace = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or the URL of one.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
OneLevel = Annotated[str | None, typer.Option(metavar="L", help="Contention level; the file's first one unless given.")]
Load = Annotated[
    str | None,
    typer.Option("--trace", metavar="T", help="Load over time: a file, or step:SEED, periodic:SEED, bursty:SEED, adversarial:SEED."),
]
Controller = Annotated[ControllerName | None, typer.Option(help="Who picks the variant of each inference. (default: estimator)")]
TMin = Annotated[float | None, typer.Option("--t-min", metavar="RHO", help="Threshold rule: one variant heavier below.")]
TMax = Annotated[float | None, typer.Option("--t-max", metavar="RHO", help="Threshold rule: one variant lighter from there on.")]
Slice = Annotated[
    int | None, typer.Option("--slice", metavar="CYCLES", min=0, help="Threshold rule: how long it must hold. (default: one inference)")
]
Inferences = Annotated[int | None, typer.Option(metavar="N", min=1, help="Inferences under the trace. (default: 1000)")]
SwitchCycles = Annotated[int | None, typer.Option(metavar="CYCLES", min=0, help="Cost of a switch. (default: the machine's issue_cycles)")]
Seed = Annotated[int, typer.Option(metavar="S", min=0, help="Seed of everything random; the same seed gives the same result.")]
Config = Annotated[str | None, typer.Option(metavar="F", help="Settings laid over the default: a preset or a YAML file.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="One setting laid over the others; repeatable.")]
Backend = Annotated[BackendName | None, typer.Option(help="ray: a farm of actors; serial: this process. (default: farm.backend)")]
Address = Annotated[str | None, typer.Option(metavar="A", help="Ray cluster; else RAY_ADDRESS, else a local one is started.")]
Workers = Annotated[int | None, typer.Option(metavar="N", min=1, help="Workers, one CPU each. (default: farm.workers, all free CPUs)")]
Wait = Annotated[float | None, typer.Option(metavar="S", min=0, help="Seconds to wait for CPUs. (default: farm.wait_s)")]
RunnerName = Annotated[
    str | None,
    typer.Option("--runner", metavar="R", help="What measures: module:function, 'command:WORDS', an entry point. (default: runner.name)"),
]
Resource = Annotated[
    str | None,
    typer.Option("--resource", metavar="NAME", help="Resource of Ray that each worker takes one of. (default: farm.resource)"),
]
MirrorUrl = Annotated[
    str | None, typer.Option("--mirror", metavar="URL", help="Copy --out there while it grows: s3://bucket/folder, file:///folder, ...")
]
WarmStart = Annotated[
    list[Path] | None, typer.Option("--warm-start", metavar="RUN", help="An earlier run whose measurements count here; repeatable.")
]
NoShare = Annotated[
    bool, typer.Option("--no-share", help="Measure a task again where another run in --out has measured it; the results are the same.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in --out; the budget may be larger.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]


def named(model: Path, random_weights: int | None) -> tuple[Path, int | None]:
    """The file of a model that may be `light:NAME` or `made:NAME`, and the seed of its weights; says so where it picks the seed."""
    from compiler.frontend.made import understood
    from compiler.frontend.zoo import MADE, is_made, resolve

    path, seed = resolve(model, random_weights)
    if is_made(path):
        understood(str(path).removeprefix(MADE))  # before anything is said of it
    if seed != random_weights:
        say(f"{model}: has constants as weights; drawn from seed {seed} instead (--random-weights)")
    return path, seed
