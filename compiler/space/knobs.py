"""Columns of the table of knobs.  The rows are the fields of `space.gene.Gene`.

Readers of the table: checkpoints and packed genomes (types), names of genomes (marks), checks of requests and genomes (legality), switches
of the configuration, decoder and encoder of plans (keys of equal names).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from sys import modules
from typing import Annotated, Any, get_origin, get_type_hints

from compiler.target.target_graph import TargetGraph

Legal = Callable[[TargetGraph, Any, Any], str | None]  # accepted values in words if the value of a gene is illegal, else None
LAST = 1 << 30  # rank of a mark that comes last


@dataclass(frozen=True)
class Mark:
    """Encoding of a non-default value in the hash of a genome, as nested tuples of numbers.  The hash decides which worker searches a
    genome.

    rank: order of the marks; all marks come behind the values of fields without a mark.
    """

    rank: int
    of: Callable[[Any], tuple[Any, ...]]


def coded(code: int) -> Mark:
    """Mark of a newer knob: its code, and the value unless the value is a bool."""

    def values(setting: Any) -> tuple[Any, ...]:
        return setting if isinstance(setting, tuple) else () if isinstance(setting, bool) else (setting,)

    return Mark(4 + code, lambda setting: ((-1, -code, *values(setting)),))


@dataclass(frozen=True, kw_only=True)
class Knob:
    """Row of the table of knobs.  name, kind, default: name, type and default of the field of `Gene`.

    legal: check of a value; None if all values of the type are legal.  switch: key of `use` in the configuration.  off: only legal value
    if the switch is off (None: the default).  bits: whether the value has a bit per operator, and so no upper limit.
    translated: whether a plan has this key in another form.  outside: whether the value matters only next to other segments.
    mark: encoding in the hash of a genome.
    """

    legal: Legal | None = None
    switch: str = ""
    off: Any = None
    bits: bool = False
    translated: bool = False
    outside: bool = False
    mark: Mark | None = None
    name: str = ""
    kind: Any = None
    default: Any = None


def read_table(gene: Any) -> dict[str, Knob]:
    """Rows of the table by name, in the order of fields.  gene: class of genes."""
    rows = {}
    for name, hint in get_type_hints(gene, vars(modules[gene.__module__]), include_extras=True).items():
        kind, knob = (hint.__origin__, hint.__metadata__[0]) if get_origin(hint) is Annotated else (hint, Knob())
        default = gene._field_defaults.get(name)
        rows[name] = replace(knob, name=name, kind=kind, default=default, off=default if knob.off is None else knob.off)
    return rows


def from_one(most: int = LAST) -> Legal:
    """Check that a count is between 1 and `most`."""
    expected = "1 at least" if most == LAST else f"1 to {most}"
    return lambda target_graph, gene, count: None if 1 <= count <= most else expected


def image_divisors(target_graph: TargetGraph, gene: Any, count: int) -> str | None:
    """Check that a block can have `count` images."""
    return None if count >= 1 and target_graph.images % count == 0 else f"a divisor of {target_graph.images}"


def machine_cores(target_graph: TargetGraph, gene: Any, cores: tuple[int, ...]) -> str | None:
    """Check that there is at least one core, and no core twice."""
    count = target_graph.machine.cores
    legal = cores and len(set(cores)) == len(cores) and min(cores) >= 0 and max(cores) < count
    return None if legal else f"some of 0..{count - 1}, each once"


def part_counts(width: int) -> list[int]:
    """Numbers of parts of the channels of a grid of `width` cores; a part for each core is no grid."""
    return [parts for parts in range(2, width) if width % parts == 0]


def core_parts(target_graph: TargetGraph, gene: Any, parts: int) -> str | None:
    """Check that parts of channels divide the gene's cores."""
    counts = part_counts(len(gene.cores)) if gene.split == "channels" else []
    return None if parts in counts else " or ".join(map(str, [0, *counts]))


def operator_bits(target_graph: TargetGraph, gene: Any, bits: int) -> str | None:
    """Check that only bits of the gene's operators are set."""
    count = gene.stop - gene.start
    return None if 0 <= bits < 1 << count else f"bits of {count} operators"


def per_operator(target_graph: TargetGraph, gene: Any, numbers: tuple[int, ...]) -> str | None:
    """Check that there is one number per operator of the gene, none below 0; the default, (), means that all numbers are 0."""
    count = gene.stop - gene.start
    return None if len(numbers) == count and min(numbers) >= 0 else f"0 or more for each of {count} operators"
