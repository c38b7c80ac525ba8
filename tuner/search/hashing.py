"""Names of genomes and keys: numbers that are the same in every process, as Python salts the hashes of texts and not those of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from compiler.plan.plan import LOOKAHEAD, Split
from compiler.space.gene import Genome, Key, Weights

_NUMBERS = {word: number for number, word in enumerate((*get_args(Split), *get_args(Weights)))}


def genome_name(genome: Genome) -> int:
    return hash(tuple(tuple(_plain(gene)) for gene in genome))


def key_name(key: Key) -> int:
    structure, tail = key
    return hash((int(structure, 16), *_plain(tail)))


def _plain(values: Iterable[Any]) -> Iterator[Any]:
    *fields, grant, pinned, passes, lookahead, overtake, held, input_passes, urgent, on_vector, images, same_end = values
    yield from (_NUMBERS[value] if isinstance(value, str) else value for value in fields)
    if grant:  # where levels grant all, names are what they always were, and so is who looks for what
        yield -grant
    if passes > 1:
        yield (passes,)
    if input_passes > 1:
        yield (input_passes, -1)
    if held:
        yield (held, held)
    if lookahead != LOOKAHEAD:
        yield (-lookahead,)
    if overtake:
        yield (-1, -1)
    if not urgent:
        yield (-1, -2)
    if any(on_vector):
        yield (-1, -3, *on_vector)
    if images > 1:
        yield (-1, -4, images)
    if same_end:
        yield (-1, -5)
    yield from pinned
