"""Hashes of genomes and keys, equal in every process.  Python's hash of a text differs between processes, that of numbers does not."""

from __future__ import annotations

from typing import Any, get_args

from compiler.plan.plan import Split
from compiler.space.gene import KNOBS, Genome, Key, Weights

_MARKED = [knob for knob in KNOBS.values() if knob.mark]  # knobs that enter a hash only if not at their default
_USUAL = tuple(knob.default for knob in _MARKED)
_MARKS = sorted((knob.mark.rank, place, knob.default, knob.mark.of) for place, knob in enumerate(_MARKED) if knob.mark)
_NUMBERS = {word: number for number, word in enumerate((*get_args(Split), *get_args(Weights)))}


def genome_name(genome: Genome) -> int:
    return hash(tuple([tuple(_flatten(gene)) for gene in genome]))


def key_name(key: Key) -> int:
    structure, tail = key
    return hash((int(structure, 16), *_flatten(tail)))


def _flatten(values: tuple[Any, ...]) -> list[Any]:
    """Numbers of a gene, or of its end."""
    numbers, marked = [_NUMBERS[word] if isinstance(word, str) else word for word in values[: -len(_USUAL)]], values[-len(_USUAL) :]
    if marked != _USUAL:  # defaults have no mark: hashes are those of versions without the field
        for _, place, default, mark in _MARKS:
            if marked[place] != default:
                numbers += mark(marked[place])
    return numbers
