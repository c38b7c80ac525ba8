"""Genomes as columns of numbers (`tuner.log.columns`).

A genome is the sequence of its genes.  A gene is its numbers in order, the indices of its words, the lengths of its tuples, and
their elements.  A bit mask over operators counts as a tuple of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pyarrow as pa

from compiler.space.gene import KNOBS, Gene, Genome
from tuner.log.columns import Columns
from tuner.search.population import Individual

_WORDS: dict[str, tuple[Any, ...]] = {name: get_args(knob.kind) for name, knob in KNOBS.items() if get_origin(knob.kind) is Literal}
_MASKS, _BITS = [name for name, knob in KNOBS.items() if knob.bits], 30  # an operator mask needs more bits than a column's int32
_TUPLES = [name for name, knob in KNOBS.items() if isinstance(knob.default, tuple) or knob.bits]
_NUMBERS = [name for name in KNOBS if name not in (*_TUPLES, *_WORDS)]
_SWITCHES = [place for place, name in enumerate(_NUMBERS) if KNOBS[name].kind is bool]
_PLACES = {word: place for words in _WORDS.values() for place, word in enumerate(words)}
assert all(words[_PLACES[word]] == word for words in _WORDS.values() for word in words), "a word has one index in all knobs"
_FIXED = len(_NUMBERS) + len(_WORDS)
_numbers = itemgetter(*map(Gene._fields.index, _NUMBERS))
_words = itemgetter(*map(Gene._fields.index, _WORDS))
_tuples = itemgetter(*map(Gene._fields.index, _TUPLES))
_in_order = itemgetter(*((*_NUMBERS, *_WORDS, *_TUPLES).index(name) for name in Gene._fields))


def pack_genomes(genomes: Sequence[Genome]) -> pa.ListArray:
    """Pack genomes into a column, with a list of int32 for each genome."""
    rows = [list(chain.from_iterable(map(_gene_fields, genome))) for genome in genomes]
    offsets = np.fromiter(accumulate(map(len, rows), initial=0), np.int32, len(rows) + 1)
    return pa.ListArray.from_arrays(offsets, np.fromiter(chain.from_iterable(rows), np.int32))


def unpack_genomes(column: pa.ListArray) -> list[Genome]:
    """Genomes of a column made by `pack_genomes`."""
    values = column.values.to_numpy().tolist()
    return [tuple(_genes(values, begin, end)) for begin, end in pairwise(column.offsets.to_numpy().tolist())]


def unpack_genome(column: pa.ListArray, row: int) -> Genome:
    """Unpack a single genome."""
    values = column[row].values.to_numpy().tolist()
    return tuple(_genes(values, 0, len(values)))


def pack_individuals(individuals: Sequence[Individual], prefix: str = "") -> dict[str, Any]:
    """Columns `genome`, `cycles` and `task` of measured genomes."""
    cycles = [m.cycles for m in individuals]
    return {
        f"{prefix}genome": pack_genomes([m.genome for m in individuals]),
        f"{prefix}cycles": np.concatenate(cycles).astype(np.int64) if cycles else (),
        f"{prefix}task": [m.task for m in individuals],
    }


def unpack_individuals(columns: Columns, prefix: str = "") -> list[Individual]:
    """Individuals of columns made by `pack_individuals`."""
    genomes = unpack_genomes(columns.arrow(f"{prefix}genome"))
    if not genomes:
        return []
    cycles = columns[f"{prefix}cycles"].reshape(len(genomes), -1).copy()
    return [Individual(*fields) for fields in zip(genomes, cycles, columns.texts(f"{prefix}task"), strict=True)]


def _gene_fields(gene: Gene) -> Iterable[int]:
    """Numbers of a gene: numbers, indices of words, lengths of tuples, elements of tuples."""
    tuples = [_split_mask(value) if name in _MASKS else value for name, value in zip(_TUPLES, _tuples(gene), strict=True)]
    return (*_numbers(gene), *(_PLACES[word] for word in _words(gene)), *map(len, tuples), *chain.from_iterable(tuples))


def _split_mask(mask: int) -> tuple[int, ...]:
    """Parts of `_BITS` bits of a mask, the lowest first; -1 is one part."""
    return (mask,) if mask < 0 else tuple([mask >> shift & (1 << _BITS) - 1 for shift in range(0, mask.bit_length(), _BITS)])


def _genes(values: list[int], offset: int, end: int) -> Iterable[Gene]:
    """Genes of the numbers at `offset` .. `end`."""
    while offset < end:
        # numbers and words: a fixed count
        fields: list[Any] = values[offset : offset + _FIXED]
        for switch in _SWITCHES:
            fields[switch] = bool(fields[switch])
        for column, choices in enumerate(_WORDS.values(), len(_NUMBERS)):
            fields[column] = choices[fields[column]]
        # tuples: their lengths, then their elements
        offset += _FIXED + len(_TUPLES)
        for name, length in zip(_TUPLES, values[offset - len(_TUPLES) : offset], strict=True):
            numbers = values[offset : offset + length]
            fields.append(sum(part << _BITS * k for k, part in enumerate(numbers)) if name in _MASKS else tuple(numbers))
            offset += length
        yield Gene._make(_in_order(fields))
