"""Why buffers do not fit: how much is missing, when, and what is live then, in words that a person who edits a plan knows."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.segment.blocks import Blocks
from compiler.segment.buffers import Wish
from compiler.unit.unit import Unit
from simulator.npu.machine import BLOCK_BYTES, Memory

_NAMED = 4  # tensors that a message names, the largest first

_WHAT = {"w": "weights of {}", "b": "constants of {}", "o": "tile of {}", "r": "residual tile of {}"}  # see `segment.memory`


def shortage(unit: Unit, blocks: Blocks, memory: Memory, wishes: Sequence[Wish], need: int, have: int) -> str:
    """`need` blocks of a memory are asked for by `wishes`, `have` are there."""
    step, live = peak(wishes)
    total = sum(wish.size for wish in live)
    text = (
        f"needs {need * BLOCK_BYTES:,} B of {memory.name}, the machine has {have * BLOCK_BYTES:,} ({(need - have) * BLOCK_BYTES:,} missing)"
    )
    if total <= have:
        text += f"; {total * BLOCK_BYTES:,} B are live at once, and lie apart"
    parts: dict[str, list[int]] = {}
    for wish in live:
        parts.setdefault(_called(unit, blocks, wish.name), []).append(wish.size * BLOCK_BYTES)
    largest = sorted(parts.items(), key=lambda part: -sum(part[1]))
    shown = [f"{name} {f'{len(sizes)} x ' if len(sizes) > 1 else ''}{max(sizes):,} B" for name, sizes in largest[:_NAMED]]
    rest = sum(sum(sizes) for _, sizes in largest[_NAMED:])
    shown += [f"{len(largest) - _NAMED} more {rest:,} B"] if rest else []
    return f"{text}; live at {unit.kernels[blocks.start + step].name}: {', '.join(shown)}"


def peak(wishes: Sequence[Wish]) -> tuple[int, list[Wish]]:
    """The first step at which most is live, and what is live there."""
    steps = sorted({wish.birth for wish in wishes})
    live = {step: [wish for wish in wishes if wish.birth <= step <= wish.death] for step in steps}
    step = max(steps, key=lambda at: (sum(wish.size for wish in live[at]), -at))
    return step, live[step]


def _called(unit: Unit, blocks: Blocks, name: str) -> str:
    """A buffer by its tensor."""
    kind, number = name[0], int(name[1:].partition(".")[0])
    if kind == "t":
        return f"tensor {unit.storages[number].name}"
    return _WHAT[kind].format(unit.kernels[blocks.start + number].name)
