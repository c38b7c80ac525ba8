"""Why buffers do not fit: how much is missing, when, and what is live then, in words that a person who edits a plan knows."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.segment.blocks import Blocks
from compiler.segment.buffers import Buffer, BufferRequest
from compiler.unit.machine import room_blocks
from compiler.unit.unit import Unit
from simulator.npu.parts import BLOCK_BYTES, Memory

_NAMED = 4  # tensors that a message names, the largest first

_WHAT = {"weights": "weights of {}", "constants": "constants of {}", "out": "tile of {}", "residual": "residual tile of {}"}
_WHAT |= {"overlaid": "overlaid weights of {}", "arriving": "weights to be expanded", "expanded": "expanded weights"}


def shortage(unit: Unit, blocks: Blocks, memory: Memory, requests: Sequence[BufferRequest], need: int, have: int) -> str:
    """`need` blocks of a memory are asked for by `requests`, `have` are there beside what is held over cuts."""
    step, live = peak(requests)
    total = sum(request.size for request in live)
    whole = room_blocks(unit.machine, memory) if memory == Memory.L1 else have
    beside = f", {(whole - have) * BLOCK_BYTES:,} of them for what is held" if have < whole else ""
    missing = f"{(need - have) * BLOCK_BYTES:,} missing"
    text = f"needs {need * BLOCK_BYTES:,} B of {memory.name}, the machine has {whole * BLOCK_BYTES:,}{beside} ({missing})"
    if total <= have:
        text += f"; {total * BLOCK_BYTES:,} B are live at once, and lie apart"
    parts: dict[str, list[int]] = {}
    for request in live:
        parts.setdefault(_called(unit, blocks, request.buffer), []).append(request.size * BLOCK_BYTES)
    largest = sorted(parts.items(), key=lambda part: -sum(part[1]))
    shown = [f"{name} {f'{len(sizes)} x ' if len(sizes) > 1 else ''}{max(sizes):,} B" for name, sizes in largest[:_NAMED]]
    rest = sum(sum(sizes) for _, sizes in largest[_NAMED:])
    shown += [f"{len(largest) - _NAMED} more {rest:,} B"] if rest else []
    return f"{text}; live at {unit.operators[blocks.start + step].name}: {', '.join(shown)}"


def peak(requests: Sequence[BufferRequest]) -> tuple[int, list[BufferRequest]]:
    """The first step at which most is live, and what is live there."""
    steps = sorted({request.birth for request in requests})
    live = {step: [request for request in requests if request.birth <= step <= request.death] for step in steps}
    step = max(steps, key=lambda at: (sum(request.size for request in live[at]), -at))
    return step, live[step]


def _called(unit: Unit, blocks: Blocks, buffer: Buffer) -> str:
    """A buffer by its tensor."""
    if buffer.kind == "tensor":
        return f"tensor {unit.storages[buffer.of].name}"
    return _WHAT[buffer.kind].format("" if buffer.of < 0 else unit.operators[blocks.start + buffer.of].name)
