"""Operators cut by their output channels: what each of several cores makes of a segment, with the weights of its own channels only.

Part i of m of an operator is an operator: the same rows, a run of its planes, the weights and constants that belong to them.  So a part of
a segment is a segment of a unit whose kernels are parts, and nothing below needs to know.  A dense convolution or product with constants
reads all of its input in every part; what works channel by channel (depthwise convolutions, poolings, chains, attention head by head)
reads its own channels only and may follow in the same segment, because what it reads is made on the same core.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from compiler.kinds.chain import VectorSpec
from compiler.kinds.conv import ConvSpec
from compiler.kinds.matmul import MatMulSpec
from compiler.kinds.norm import LayerNormSpec
from compiler.kinds.softmax import SoftmaxSpec
from compiler.plan.plan import Infeasible
from compiler.unit.operators import KernelSpec
from compiler.unit.storages import Piece
from compiler.unit.unit import Unit


@lru_cache(maxsize=1024)
def channel_parts(unit: Unit, start: int, stop: int, count: int) -> tuple[Unit, ...] | Infeasible:
    """`count` units, in each of which the kernels [start, stop) are a part of what they were; why not where that cannot be.

    A part may not read what another part of the same segment makes: that would be on another core.
    """
    if count == 1:
        return (unit,)
    cuts = []
    for k in range(start, stop):
        found = _cut(unit, k, count)
        if isinstance(found, str):
            return Infeasible(unit.kernels[k].name, found)
        cuts.append(found)
    for at in range(count):
        for k in range(start, stop):
            for source in unit.producers[k]:
                if source >= start and not _own(cuts[k - start][at], unit.kernels[source].y, cuts[source - start][at].y):
                    what = f"part {at} of {count} of its channels would read channels of {unit.kernels[source].name} from another core"
                    return Infeasible(unit.kernels[k].name, what)
    return tuple(
        replace(unit, kernels=(*unit.kernels[:start], *(parts[at] for parts in cuts), *unit.kernels[stop:])) for at in range(count)
    )


def can_split(unit: Unit, start: int, stop: int, count: int) -> bool:
    """Whether `channel_parts` finds some."""
    return not isinstance(channel_parts(unit, start, stop, count), Infeasible)


@lru_cache(maxsize=1024)
def largest(parts: tuple[Unit, ...], start: int, stop: int) -> Unit:
    """The part with the most planes of results, the first of equals: what fits for it fits for all."""
    return max(parts, key=lambda unit: sum(spec.y.planes for spec in unit.kernels[start:stop]))


def _own(part: KernelSpec, whole: Piece, made: Piece) -> bool:
    """Whether all that a part reads of what an operator makes is in that operator's own part."""
    for read in part.reads:
        if read.overlaps(whole):
            first, last = max(read.plane, whole.plane), min(read.plane + read.planes, whole.plane + whole.planes)
            if first < made.plane or last > made.plane + made.planes:
                return False
    return True


@lru_cache(maxsize=4096)
def _cut(unit: Unit, kernel: int, count: int) -> list[KernelSpec] | str:
    """The parts of an operator, the same ones in every segment that has it, or what is in the way."""
    spec = unit.kernels[kernel]
    if isinstance(spec, LayerNormSpec):
        return "a normalisation over the channels needs all of them"
    step = _step(unit, spec, count)
    steps = spec.y.planes // step
    if steps < count:
        return f"{steps} runs of channels that can be made apart, for {count} cores"
    found = [_part(unit, spec, first * step, last * step) for first, last in pairwise(steps * i // count for i in range(count + 1))]
    whole = [part for part in found if part is not None]
    return whole if len(whole) == count else f"{count} nearly equal runs of channels would cut a group of its channels"


def _step(unit: Unit, spec: KernelSpec, count: int) -> int:
    """Planes of the smallest run of channels that may be made apart: 16 channels where that is a number of planes, or a group."""
    if isinstance(spec, SoftmaxSpec):
        return spec.group_planes
    if isinstance(spec, MatMulSpec) or (isinstance(spec, ConvSpec) and spec.groups >= count):
        return spec.y.planes // spec.groups
    sixteen = 16 // unit.dtype.lanes
    return sixteen if spec.y.planes % sixteen == 0 else 1


def _run(piece: Piece, first: int, last: int) -> Piece:
    return Piece(piece.storage, piece.plane + first, last - first)


def _part(unit: Unit, spec: KernelSpec, first: int, last: int) -> KernelSpec | None:
    """Planes [first, last) of an operator's output; None where they are neither whole groups nor within one."""
    y = _run(spec.y, first, last)
    if isinstance(spec, ConvSpec):
        return _product(unit, spec, y, first, last)
    if any(read.planes != spec.y.planes for read in spec.reads):
        return None
    changed = replace(spec, y=y, reads=tuple(_run(read, first, last) for read in spec.reads))
    if isinstance(changed, SoftmaxSpec):
        gaps = tuple(plane - first for plane in changed.gaps if first <= plane < last)
        groups = (last - first) * changed.groups // spec.y.planes
        return replace(changed, groups=groups, masks_at=changed.masks_at + first, gaps=gaps)
    if isinstance(changed, VectorSpec):
        steps = changed.steps.copy()
        steps[:, 3:5] += first * (steps[:, 3:5] >= 0)
        return replace(changed, steps=steps)
    return changed


def _product(unit: Unit, spec: ConvSpec, y: Piece, first: int, last: int) -> ConvSpec | None:
    deep = spec.y.planes // spec.groups
    group, behind = first // deep, -(-last // deep)
    groups = behind - group
    if groups > 1 and (first % deep or last % deep):
        return None
    reads = [spec.reads[0] if spec.groups == 1 else _run(spec.reads[0], group * spec.c1, behind * spec.c1)]
    if isinstance(spec, MatMulSpec):
        right = spec.reads[1].planes // spec.groups
        reads.append(_run(spec.reads[1], group * right, behind * right))
        return replace(spec, y=y, reads=tuple(reads), groups=groups, per_pixel=spec.per_pixel * groups // spec.groups)
    if spec.residual is not None:
        reads.append(_run(spec.residual, first, last))
    n, n_before = (size * unit.dtype.lanes // 16 for size in (last - first, first))
    return replace(
        spec,
        y=y,
        reads=tuple(reads),
        groups=groups,
        n1=n // groups,
        weights_at=spec.weights_at + n_before * spec.k1 * 16,
        bias_at=spec.bias_at + n_before * 2,
    )
