"""Tables that come right behind another operation are looked up by it: the part does so with every result before it writes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from compiler.ethosu.step import BlockStep, StoreView

_LEAST, _GREATEST = -128, 127


def fuse_tables(steps: Sequence[BlockStep], visible: Iterable[int]) -> list[BlockStep]:
    """Steps without those that only look up what one step before them has made for nobody else.  visible: stores that others read."""
    fused, outside = list[BlockStep | None](steps), set(visible)
    for number, step in enumerate(steps):
        if step.table is None or not _only_looks_up(step):
            continue
        store = step.reads[0].store
        writers = [place for place, earlier in enumerate(fused) if earlier is not None and earlier.result.store == store]
        readers = sum(view.store == store for reader in fused if reader is not None for view in reader.reads)
        if len(writers) == 1 and readers == 1 and store not in outside:
            maker = fused[writers[0]]
            assert maker is not None
            if maker.table is None and _same_part(maker.result, step.reads[0]):
                result = step.result._replace(zero=maker.result.zero)
                fused[writers[0]] = replace(maker, result=result, table=step.table)
                fused[number] = None
    return [step for step in fused if step is not None]


def _only_looks_up(step: BlockStep) -> bool:
    """Whether the results are those of the table for the input as it is."""
    unbounded = (step.low, step.high) == (_LEAST, _GREATEST) and step.result.signed and step.reads[0].signed
    return unbounded and step.unit == "POOL" and step.window.rows * step.window.columns == 1 and not step.window.upscale


def _same_part(made: StoreView, read: StoreView) -> bool:
    return made._replace(zero=0) == read._replace(zero=0) and made.step == 1
