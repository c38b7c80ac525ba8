"""Parsers of option texts; every error is one line that names the option."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from simulator.npu.errors import BadInputError


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Parse `name=1,3,224,224` texts.  Raises `BadInputError`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, dims = text.rpartition("=")  # a tensor's name may hold "="
        try:
            shape = tuple(int(part) for part in dims.replace("x", ",").split(",")) if name and equals else ()
        except ValueError:
            shape = ()
        if not shape:
            raise BadInputError(f"--shape {text}: expected name=1,3,224,224")
        if name in shapes:
            raise BadInputError(f"--shape {text}: {name} is given twice")
        shapes[name] = shape
    return shapes


def parse_weights(text: str | None) -> dict[str, float]:
    """Parse `none=1,severe=3`.  Raises `BadInputError`."""
    weights: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.strip().partition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = math.nan
        if not name or not equals or not (math.isfinite(weight) and weight > 0):
            raise BadInputError(f"--level-weights {text}: {part!r}: expected level=weight with a weight above 0")
        if name in weights:
            raise BadInputError(f"--level-weights {text}: {name} is given twice")
        weights[name] = weight
    return weights


def parse_workers(text: str) -> dict[str, int]:
    """Parse `N` or `MIN:MAX`.  Raises `BadInputError`."""
    low, colon, high = text.partition(":")
    high = high if colon else low
    if not (low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high)):
        raise BadInputError(f"--workers {text}: expected N, or MIN:MAX, with 1 or more and MAX not below MIN")
    return {"min": int(low), "max": int(high)}


def parse_tags(texts: Iterable[str]) -> str:
    """Parse `k=v` texts; returns them joined by commas in key order.  Raises `BadInputError`."""
    tags: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or "," in text:
            raise BadInputError(f"--tag {text}: expected key=value without a comma")
        if key in tags:
            raise BadInputError(f"--tag {text}: {key} is given twice")
        tags[key] = value
    return ",".join(f"{key}={tags[key]}" for key in sorted(tags))


def parse_plans(texts: Sequence[str], levels: Sequence[str], machine: str) -> dict[str, Path]:
    """Parse `PLAN.json` for all levels, or `level=PLAN.json`: level -> file.  {} without a plan.  Raises `BadInputError`."""
    common_plan: Path | None = None
    plans: dict[str, Path] = {}
    for text in texts:
        level, equals, file_text = text.partition("=")
        if equals and level in levels:
            if level in plans:
                raise BadInputError(f"--plan {text}: level {level} is given twice")
            plans[level] = Path(file_text)
        elif equals and not Path(text).exists():
            raise BadInputError(f"--plan {text}: level {level!r}: unknown; levels of {machine}: {', '.join(levels)}")
        elif common_plan is not None:
            raise BadInputError(f"--plan {text}: a plan for all levels is given twice; give level=PLAN.json")
        else:
            common_plan = Path(text)
    if common_plan is not None:
        return {level: plans.get(level, common_plan) for level in levels}
    missing = [level for level in levels if level not in plans]
    if plans and missing:
        raise BadInputError(f"--plan: no plan for level {', '.join(missing)}; give one with level=PLAN.json, or one PLAN.json for all")
    return {level: plans[level] for level in levels if level in plans}


def parse_input(text: str) -> int | Path:
    """Parse `random` or `random:SEED` to the seed, other texts to a file.  Raises `BadInputError`."""
    if text == "random":
        return 0
    if text.startswith("random:"):
        seed = text.removeprefix("random:")
        if not seed.isdecimal():
            raise BadInputError(f"--input {text}: expected random:SEED with a seed of 0 or more")
        return int(seed)
    return Path(text)
