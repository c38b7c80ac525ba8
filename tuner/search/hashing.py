"""Names of genomes and keys: numbers that are the same in every process, as Python salts the hashes of texts and not those of numbers."""

from __future__ import annotations

from typing import Any, get_args

from compiler.plan.plan import Split
from compiler.space.gene import KNOBS, Genome, Key, Weights

_MARKED = [knob for knob in KNOBS.values() if knob.mark]  # the last ones
_USUAL = tuple(knob.default for knob in _MARKED)
_MARKS = sorted((knob.mark.rank, place, knob.default, knob.mark.of) for place, knob in enumerate(_MARKED) if knob.mark)
_NUMBERS = {word: number for number, word in enumerate((*get_args(Split), *get_args(Weights)))}


def genome_name(genome: Genome) -> int:
    return hash(tuple([tuple(_plain(gene)) for gene in genome]))


def key_name(key: Key) -> int:
    structure, tail = key
    return hash((int(structure, 16), *_plain(tail)))


def _plain(values: tuple[Any, ...]) -> list[Any]:
    """Numbers of a gene, or of its end."""
    numbers, marked = [_NUMBERS[word] if isinstance(word, str) else word for word in values[: -len(_USUAL)]], values[-len(_USUAL) :]
    if marked != _USUAL:  # what is as usual has no mark: names are what they were before there was such a field
        for _, place, default, mark in _MARKS:
            if marked[place] != default:
                numbers += mark(marked[place])
    return numbers
